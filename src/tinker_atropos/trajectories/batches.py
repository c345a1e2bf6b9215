"""A stored group on its way out: to our trainer as a message, to a plain Atropos trainer as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.ledger import Group
from tinker_atropos.trajectories.posts import MASKED


def to_message(group: Group, payload: bytes, staleness: int) -> pb.Group:
    """For a lease: logprobs count only where the policy sampled, so they are zero elsewhere."""
    message = pb.Group.FromString(payload)
    message.id = group.number
    message.environment, message.instance, message.staleness = group.environment, group.instance, staleness
    message.atropos = ""
    if group.oldest is not None:
        message.oldest.epoch, message.oldest.step = group.oldest
    for sequence in message.sequences:
        if sequence.logprobs:
            sampled = np.frombuffer(sequence.loss_mask, np.uint8)
            values = np.frombuffer(sequence.logprobs, np.float32)
            sequence.logprobs = np.where(sampled, values, np.float32(0)).tobytes()
        sequence.masks = b""
    return message


def to_json(payload: bytes) -> bytes:
    """Atropos' fourteen keys, nulls included."""
    message = pb.Group.FromString(payload)
    sequences = message.sequences
    extras: dict[str, Any] = orjson.loads(message.atropos) if message.atropos else {}
    tokens = [np.frombuffer(sequence.tokens, np.int32) for sequence in sequences]
    masks = []
    for sequence, ids in zip(sequences, tokens, strict=True):
        if sequence.masks:
            masks.append(np.frombuffer(sequence.masks, np.int32))
        else:
            masks.append(np.where(np.frombuffer(sequence.loss_mask, np.uint8), ids, np.int32(MASKED)))
    return orjson.dumps(
        {
            "tokens": tokens,
            "masks": masks,
            "scores": [sequence.score for sequence in sequences],
            "advantages": _floats([sequence.advantages for sequence in sequences]),
            "ref_logprobs": _floats([sequence.ref_logprobs for sequence in sequences]),
            "messages": extras.get("messages"),
            "generation_params": extras.get("generation_params"),
            "inference_logprobs": _floats([sequence.logprobs for sequence in sequences]),
            "overrides": _objects([sequence.overrides for sequence in sequences]),
            "group_overrides": orjson.loads(message.group_overrides) if message.group_overrides else None,
            "images": extras.get("images"),
            "env_id": extras.get("env_id"),
            "distill_token_ids": _candidates(sequences, "distill_token_ids", np.int32),
            "distill_logprobs": _candidates(sequences, "distill_logprobs", np.float32),
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _floats(rows: list[bytes]) -> Any:
    return [np.frombuffer(row, np.float32) for row in rows] if any(rows) else None


def _objects(rows: list[str]) -> Any:
    return [orjson.loads(row) if row else None for row in rows] if any(rows) else None


def _candidates(sequences: Any, field: str, kind: type) -> Any:
    if not any(sequence.distill_k for sequence in sequences):
        return None
    return [np.frombuffer(getattr(sequence, field), kind).reshape(-1, sequence.distill_k) for sequence in sequences]
