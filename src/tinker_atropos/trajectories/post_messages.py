"""A group that came over gRPC: checked as strictly as one that came as JSON."""

from __future__ import annotations

import json
import math
from typing import NoReturn

import numpy as np

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.lineage import Version
from tinker_atropos.trajectories.posts import INT32_MAX, InvalidPostError, Limits, Post


def read_message(group: pb.Group, limits: Limits) -> Post:
    """The group as it is stored."""
    count = len(group.sequences)
    if count == 0:
        raise InvalidPostError(("sequences",), "the group is empty")
    if 0 < limits.batch_size < count:
        raise InvalidPostError(
            ("sequences",), f"a group of {count} sequences does not fit in a batch of {limits.batch_size}"
        )
    if _plainly_right(group, limits):
        total = sum(len(sequence.loss_mask) for sequence in group.sequences)
        sampled = sum(sequence.loss_mask.count(1) for sequence in group.sequences)
    else:
        total = sampled = 0
        for index, sequence in enumerate(group.sequences):
            length, own = _Checker(index, limits).check(sequence)
            total += length
            sampled += own
    _check_object(("group_overrides",), group.group_overrides)
    _check_object(("atropos",), group.atropos)
    oldest = Version(group.oldest.epoch, group.oldest.step) if group.HasField("oldest") else None
    stored = pb.Group(sequences=group.sequences, group_overrides=group.group_overrides, atropos=group.atropos)
    return Post(stored.SerializeToString(), None, count, total, sampled, oldest, 0)


def _plainly_right(group: pb.Group, limits: Limits) -> bool:
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
    masks = b"".join([sequence.loss_mask for sequence in group.sequences])
    tokens = np.frombuffer(b"".join([sequence.tokens for sequence in group.sequences]), "<i4")
    logprobs = np.frombuffer(b"".join([sequence.logprobs for sequence in group.sequences]), "<f4")
    top = limits.vocabulary - 1 if limits.vocabulary > 0 else INT32_MAX
    return (
        masks.count(0) + masks.count(1) == len(masks)
        and int(tokens.view("<u4").max()) <= top
        and bool(np.isfinite(logprobs).all())
    )


class _Checker:
    """Checks one sequence."""

    def __init__(self, index: int, limits: Limits) -> None:
        self._index = index
        self._limits = limits

    def _wrong(self, field: str, why: str) -> NoReturn:
        raise InvalidPostError(("sequences", self._index, field), why)

    def check(self, sequence: pb.Sequence) -> tuple[int, int]:
        """Number of tokens, and of the policy's own among them."""
        length = self._tokens(sequence.tokens)
        if len(sequence.loss_mask) != length:
            self._wrong("loss_mask", f"{len(sequence.loss_mask)} bytes for {length} tokens")
        own = sequence.loss_mask.count(1)
        if own + sequence.loss_mask.count(0) != length:
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
        return length, own

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
