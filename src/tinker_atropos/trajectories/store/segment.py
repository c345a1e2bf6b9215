"""The embedded store's file format: records in segments, and how they are read back after any kind of end.

A record is a header of 28 bytes, a journal entry and a payload:

    magic  entry_len  payload_len  payload_number  entry_crc  payload_crc  header_crc
    u16    u32        u32          u64             u32        u32          u16          (little-endian)

`entry_crc` and `payload_crc` are CRC-32; `header_crc` is the lower half of the CRC-32 of the bytes before it. A record
whose entry is empty is a payload that compaction moved here; payload length 0 and number 0 mean no payload. A record
with neither is the seal: the segment is complete. What follows a segment's last record is zeros.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isal.isal_zlib import crc32

HEADER = struct.Struct("<HIIQIIH")
_BEFORE_CRC = struct.Struct("<HIIQII")
MAGIC = 0x5254


@dataclass(frozen=True, slots=True)
class Place:
    """Where a payload lies."""

    segment: int
    offset: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record as `scan` found it."""

    entry: bytes
    payload_number: int
    payload: Place | None
    end: int
    """Offset of the byte after it."""

    @property
    def seal(self) -> bool:
        """Whether this says that the segment is complete."""
        return not self.entry and self.payload is None


def header(entry: bytes, payload_number: int, payload_size: int, payload_crc: int) -> bytes:
    """The bytes that go before an entry and its payload."""
    start = _BEFORE_CRC.pack(MAGIC, len(entry), payload_size, payload_number, crc32(entry), payload_crc)
    return start + (crc32(start) & 0xFFFF).to_bytes(2, "little")


SEAL = header(b"", 0, 0, 0)


def heads(data: bytes, number: int) -> Iterator[Record]:
    """Every record of a segment that is sound, from its records without their payloads, one behind the other."""
    at = end = 0
    while at < len(data):
        _, entry_len, payload_len, payload_number, _, payload_crc, _ = HEADER.unpack_from(data, at)
        at += HEADER.size
        start = end + HEADER.size + entry_len
        end = start + payload_len
        place = Place(number, start, payload_len, payload_crc) if payload_len else None
        yield Record(data[at : at + entry_len], payload_number, place, end)
        at += entry_len


def scan(path: Path, number: int, *, payloads: bool) -> Iterator[Record]:
    """Every whole record of a segment, up to its seal or the first torn one; `payloads` = check their contents too."""
    size = path.stat().st_size
    with path.open("rb") as file:
        # All of it is read ahead, or nothing: what is skipped need not be.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED if payloads else os.POSIX_FADV_RANDOM)
        offset = 0
        while offset + HEADER.size <= size:
            raw = file.read(HEADER.size)
            magic, entry_len, payload_len, payload_number, entry_crc, payload_crc, header_crc = HEADER.unpack(raw)
            if magic != MAGIC or crc32(raw[:-2]) & 0xFFFF != header_crc:
                return
            start = offset + HEADER.size + entry_len
            end = start + payload_len
            if end > size:
                return
            entry = file.read(entry_len)
            if crc32(entry) != entry_crc:
                return
            place = None
            if payload_len:
                place = Place(number, start, payload_len, payload_crc)
                if not payloads:
                    file.seek(end)
                elif crc32(file.read(payload_len)) != payload_crc:
                    return
            record = Record(entry, payload_number, place, end)
            yield record
            if record.seal:
                return
            offset = end
