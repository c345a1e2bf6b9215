"""Protobuf's wire format, for messages that are put together without copying their large fields twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def length_delimited(field: int, length: int) -> bytes:
    """What stands before bytes, or a message, inside a message: its field's tag and its length."""
    text = bytearray((field << 3 | 2,))
    while length > 0x7F:
        text.append(length & 0x7F | 0x80)
        length >>= 7
    text.append(length)
    return bytes(text)


def join_fields(fields: Mapping[int, Any], rest: bytes) -> bytes:
    """A message of these fields (bytes or arrays; empty = not sent) and of others that are serialized already.

    Large fields are copied once here, and three times by a message object.
    """
    parts: list[Any] = []
    for field, values in fields.items():
        if size := memoryview(values).nbytes:
            parts += (length_delimited(field, size), values)
    return b"".join([*parts, rest])
