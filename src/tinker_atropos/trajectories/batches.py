"""A stored group on its way out: to our trainer as a message, to a plain Atropos trainer as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.ledger import Group
from tinker_atropos.trajectories.posts import MASKED

Array = npt.NDArray[Any]


def to_message(group: Group, payload: bytes, staleness: int) -> pb.Group:
    """For a lease: logprobs count only where the policy sampled, so they are zero elsewhere."""
    stored = pb.StoredGroup.FromString(payload)
    message = pb.Group(
        id=group.number,
        environment=group.environment,
        instance=group.instance,
        staleness=staleness,
        group_overrides=stored.group_overrides,
    )
    if group.oldest is not None:
        message.oldest.epoch, message.oldest.step = group.oldest
    lengths = _lengths(stored)
    scores = np.frombuffer(stored.scores, "<f8").tolist()
    tokens, loss_mask, reference = stored.tokens, stored.loss_mask, stored.ref_logprobs
    logprobs = stored.logprobs
    if logprobs:
        sampled = np.frombuffer(loss_mask, np.uint8)
        logprobs = np.where(sampled, np.frombuffer(logprobs, "<f4"), np.float32(0)).tobytes()
    for score, (start, end) in zip(scores, _spans(lengths), strict=True):
        sequence = message.sequences.add(
            tokens=tokens[4 * start : 4 * end], loss_mask=loss_mask[start:end], score=score
        )
        if logprobs:
            sequence.logprobs = logprobs[4 * start : 4 * end]
        if reference:
            sequence.ref_logprobs = reference[4 * start : 4 * end]
    _add_rare(message, stored, lengths)
    return message


def _add_rare(message: pb.Group, stored: pb.StoredGroup, lengths: list[int]) -> None:
    """What most groups do not have."""
    if stored.advantages:
        spans = _spans(np.frombuffer(stored.advantage_lengths, "<u4").tolist())
        for sequence, (start, end) in zip(message.sequences, spans, strict=True):
            sequence.advantages = stored.advantages[4 * start : 4 * end]
    if stored.overrides:
        for sequence, overrides in zip(message.sequences, stored.overrides, strict=True):
            sequence.overrides = overrides
    if stored.distill_k:
        ks = np.frombuffer(stored.distill_k, "<i4").tolist()
        spans = _spans([k * length for k, length in zip(ks, lengths, strict=True)])
        for sequence, k, (start, end) in zip(message.sequences, ks, spans, strict=True):
            sequence.distill_k = k
            sequence.distill_token_ids = stored.distill_token_ids[4 * start : 4 * end]
            sequence.distill_logprobs = stored.distill_logprobs[4 * start : 4 * end]


def to_json(payload: bytes) -> bytes:
    """Atropos' fourteen keys, nulls included."""
    stored = pb.StoredGroup.FromString(payload)
    extras: dict[str, Any] = orjson.loads(stored.atropos) if stored.atropos else {}
    lengths = _lengths(stored)
    tokens = np.frombuffer(stored.tokens, "<i4")
    if stored.masks:
        masks: Array = np.frombuffer(stored.masks, "<i4")
    else:
        masks = np.where(np.frombuffer(stored.loss_mask, np.uint8), tokens, np.int32(MASKED))
    ks = np.frombuffer(stored.distill_k, "<i4").tolist()
    return orjson.dumps(
        {
            "tokens": _split(tokens, lengths),
            "masks": _split(masks, lengths),
            "scores": np.frombuffer(stored.scores, "<f8"),
            "advantages": _floats(stored.advantages, np.frombuffer(stored.advantage_lengths, "<u4").tolist()),
            "ref_logprobs": _floats(stored.ref_logprobs, lengths),
            "messages": extras.get("messages"),
            "generation_params": extras.get("generation_params"),
            "inference_logprobs": _floats(stored.logprobs, lengths),
            "overrides": [orjson.loads(text) if text else None for text in stored.overrides] or None,
            "group_overrides": orjson.loads(stored.group_overrides) if stored.group_overrides else None,
            "images": extras.get("images"),
            "env_id": extras.get("env_id"),
            "distill_token_ids": _candidates(np.frombuffer(stored.distill_token_ids, "<i4"), ks, lengths),
            "distill_logprobs": _candidates(np.frombuffer(stored.distill_logprobs, "<f4"), ks, lengths),
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _lengths(stored: pb.StoredGroup) -> list[int]:
    lengths: list[int] = np.frombuffer(stored.lengths, "<u4").tolist()
    return lengths


def _spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each row in the flat array."""
    return list(pairwise([0, *accumulate(lengths)]))


def _split(flat: Array, lengths: Sequence[int]) -> list[Array]:
    return [flat[start:end] for start, end in _spans(lengths)]


def _floats(data: bytes, lengths: Sequence[int]) -> list[Array] | None:
    return _split(np.frombuffer(data, "<f4"), lengths) if data else None


def _candidates(flat: Array, ks: Sequence[int], lengths: Sequence[int]) -> list[Array] | None:
    if not ks:
        return None
    rows = _split(flat, [k * length for k, length in zip(ks, lengths, strict=True)])
    return [row.reshape(-1, k) for row, k in zip(rows, ks, strict=True)]
