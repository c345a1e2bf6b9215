"""A group that came over gRPC: checked as strictly as one that came as JSON."""

from __future__ import annotations

import json
import math
from typing import NoReturn

import numpy as np

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.lineage import Version
from tinker_atropos.trajectories.posts import INT32_MAX, InvalidPostError, Limits, Post
from tinker_atropos.trajectories.wire import join_fields


def read_message(group: pb.Group, limits: Limits) -> Post:
    """The group as it is stored."""
    count = len(group.sequences)
    if count == 0:
        raise InvalidPostError(("sequences",), "the group is empty")
    if 0 < limits.batch_size < count:
        raise InvalidPostError(
            ("sequences",), f"a group of {count} sequences does not fit in a batch of {limits.batch_size}"
        )
    flat = _Flat(group)
    if not _plainly_right(group, flat, limits):
        for index, sequence in enumerate(group.sequences):
            _Checker(index, limits).check(sequence)
        _check_same(group, "logprobs")
        _check_same(group, "ref_logprobs")
    _check_object(("group_overrides",), group.group_overrides)
    _check_object(("atropos",), group.atropos)
    oldest = Version(group.oldest.epoch, group.oldest.step) if group.HasField("oldest") else None
    own = flat.loss_mask.count(1)
    return Post(flat.stored(group), None, count, len(flat.loss_mask), own, oldest, 0)


class _Flat:
    """The arrays of all sequences, one behind the other."""

    def __init__(self, group: pb.Group) -> None:
        self.loss_mask = b"".join([sequence.loss_mask for sequence in group.sequences])
        self.tokens = b"".join([sequence.tokens for sequence in group.sequences])
        self.logprobs = b"".join([sequence.logprobs for sequence in group.sequences])

    def stored(self, group: pb.Group) -> bytes:
        sequences = group.sequences
        stored = pb.StoredGroup(
            lengths=np.array([len(sequence.loss_mask) for sequence in sequences], "<u4").tobytes(),
            scores=np.array([sequence.score for sequence in sequences], "<f8").tobytes(),
            ref_logprobs=b"".join([sequence.ref_logprobs for sequence in sequences]),
            advantages=b"".join([sequence.advantages for sequence in sequences]),
            group_overrides=group.group_overrides,
            atropos=group.atropos,
        )
        if stored.advantages:
            lengths = [len(sequence.advantages) // 4 for sequence in sequences]
            stored.advantage_lengths = np.array(lengths, "<u4").tobytes()
        if any(sequence.overrides for sequence in sequences):
            stored.overrides.extend([sequence.overrides for sequence in sequences])
        if any(sequence.distill_k for sequence in sequences):
            stored.distill_k = np.array([sequence.distill_k for sequence in sequences], "<i4").tobytes()
            stored.distill_token_ids = b"".join([sequence.distill_token_ids for sequence in sequences])
            stored.distill_logprobs = b"".join([sequence.distill_logprobs for sequence in sequences])
        large = {
            stored.TOKENS_FIELD_NUMBER: self.tokens,
            stored.LOSS_MASK_FIELD_NUMBER: self.loss_mask,
            stored.LOGPROBS_FIELD_NUMBER: self.logprobs,
        }
        return join_fields(large, stored.SerializeToString())


def _check_same(group: pb.Group, field: str) -> None:
    """All sequences have it, or none."""
    sent = [bool(getattr(sequence, field)) for sequence in group.sequences]
    if any(sent) and not all(sent):
        raise InvalidPostError(
            ("sequences", sent.index(False), field), "missing, and other sequences of the group have it"
        )


def _plainly_right(group: pb.Group, flat: _Flat, limits: Limits) -> bool:
    """Whether everything is right, as the usual group is; all sequences at once, because that is ten times faster.

    False only means that someone has to look at each sequence.
    """
    for sequence in group.sequences:
        length = len(sequence.loss_mask)
        if not 0 < length <= (limits.max_token_length if limits.max_token_length > 0 else length):
            return False
        if len(sequence.tokens) != 4 * length or len(sequence.logprobs) not in (0, 4 * length):
            return False
        if sequence.ref_logprobs or sequence.advantages or sequence.overrides or not math.isfinite(sequence.score):
            return False
        if sequence.distill_k or sequence.distill_token_ids or sequence.distill_logprobs:
            return False
    if len(flat.logprobs) not in (0, len(flat.tokens)):
        return False
    top = limits.vocabulary - 1 if limits.vocabulary > 0 else INT32_MAX
    return (
        flat.loss_mask.count(0) + flat.loss_mask.count(1) == len(flat.loss_mask)
        and int(np.frombuffer(flat.tokens, "<u4").max()) <= top
        and bool(np.isfinite(np.frombuffer(flat.logprobs, "<f4")).all())
    )


class _Checker:
    """Checks one sequence."""

    def __init__(self, index: int, limits: Limits) -> None:
        self._index = index
        self._limits = limits

    def _wrong(self, field: str, why: str) -> NoReturn:
        raise InvalidPostError(("sequences", self._index, field), why)

    def check(self, sequence: pb.Sequence) -> None:
        length = self._tokens(sequence.tokens)
        if len(sequence.loss_mask) != length:
            self._wrong("loss_mask", f"{len(sequence.loss_mask)} bytes for {length} tokens")
        if sequence.loss_mask.count(0) + sequence.loss_mask.count(1) != length:
            self._wrong("loss_mask", "must hold only 0 and 1")
        if not math.isfinite(sequence.score):
            self._wrong("score", f"{sequence.score} is not a finite number")
        self._floats("logprobs", sequence.logprobs, 0, length)
        self._floats("ref_logprobs", sequence.ref_logprobs, 0, length)
        self._floats("advantages", sequence.advantages, 0, 1, length)
        if sequence.distill_k or sequence.distill_token_ids or sequence.distill_logprobs:
            values = length * sequence.distill_k
            if len(sequence.distill_token_ids) != 4 * values:
                have = len(sequence.distill_token_ids)
                self._wrong("distill_token_ids", f"{have} bytes; {4 * values} belong to {length} tokens")
            self._floats("distill_logprobs", sequence.distill_logprobs, values)
        _check_object(("sequences", self._index, "overrides"), sequence.overrides)

    def _tokens(self, data: bytes) -> int:
        length, odd = divmod(len(data), 4)
        if odd or not length:
            self._wrong("tokens", f"{len(data)} bytes are no list of int32")
        if 0 < self._limits.max_token_length < length:
            self._wrong("tokens", f"{length} tokens; the trainer takes at most {self._limits.max_token_length}")
        tokens = np.frombuffer(data, "<i4")
        top = self._limits.vocabulary - 1 if self._limits.vocabulary > 0 else INT32_MAX
        if int(tokens.min()) < 0 or int(tokens.max()) > top:
            wrong = tokens[(tokens < 0) | (tokens > top)][0]
            self._wrong("tokens", f"{wrong} is not within 0 and {top}")
        return length

    def _floats(self, field: str, data: bytes, *counts: int) -> None:
        count, odd = divmod(len(data), 4)
        if odd or count not in counts:
            self._wrong(field, f"{len(data)} bytes are not {counts[-1]} times float32")
        values = np.frombuffer(data, "<f4")
        if not np.isfinite(values).all():
            self._wrong(field, f"{values[~np.isfinite(values)][0]} is not a finite number")


def _check_object(where: tuple[str | int, ...], text: str) -> None:
    if not text:
        return
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InvalidPostError(where, f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidPostError(where, "must be a JSON object")
