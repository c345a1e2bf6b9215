"""Protobuf's wire format, for messages that are put together without copying their large fields twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinker_atropos.protocol import trajectories_pb2 as pb

TOKENS = pb.StoredGroup.TOKENS_FIELD_NUMBER
LOSS_MASK = pb.StoredGroup.LOSS_MASK_FIELD_NUMBER
LOGPROBS = pb.StoredGroup.LOGPROBS_FIELD_NUMBER


def length_delimited(field: int, length: int) -> bytes:
    """What stands before bytes, or a message, inside a message: its field's tag and its length."""
    text = bytearray((field << 3 | 2,))
    while length > 0x7F:
        text.append(length & 0x7F | 0x80)
        length >>= 7
    text.append(length)
    return bytes(text)


def with_arrays(group: pb.StoredGroup, arrays: Mapping[int, Any]) -> bytes:
    """A group as it is stored, with its large fields (bytes or arrays), which are copied once and not three times."""
    parts = [group.SerializeToString()]
    for field, values in arrays.items():
        if size := memoryview(values).nbytes:
            parts += (length_delimited(field, size), values)
    return b"".join(parts)
