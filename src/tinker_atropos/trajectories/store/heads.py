"""The heads of a sealed segment's records, kept beside it: a store is opened without a look at each among the payloads.

`segment-NNNNNNNN.heads` is the CRC-32 of what follows, and then the segment as it is without its payloads. It only
saves time (thousands of small reads, each of which waits for the disk after a reboot), so it is not synced; one that is
absent, damaged or of another segment is as good as none.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from isal.isal_zlib import crc32

from tinker_atropos.trajectories.store.segment import SEAL, Record, header, heads

LARGEST_SHARE = 0.25
"""Of a segment; where entries are most of it, reading it is no more work than reading its heads."""
_SUM_BYTES = 4


def path_of(segment: Path) -> Path:
    return segment.with_suffix(".heads")


def parts_of(records: Iterable[Record]) -> list[bytes]:
    """Headers and entries, without the seal."""
    parts: list[bytes] = []
    for record in records:
        if not record.seal:
            size, checksum = (record.payload.length, record.payload.crc) if record.payload else (0, 0)
            parts += (header(record.entry, record.payload_number, size, checksum), record.entry)
    return parts


def write(segment: Path, parts: Sequence[bytes]) -> None:
    """Make the heads of a segment that was just sealed, of its headers and entries, where they are worth it."""
    data = b"".join((*parts, SEAL))
    if len(data) <= LARGEST_SHARE * segment.stat().st_size:
        temporary = path_of(segment).with_suffix(".tmp")
        temporary.write_bytes(crc32(data).to_bytes(_SUM_BYTES, "little") + data)
        temporary.rename(path_of(segment))


def read(segment: Path, number: int) -> list[Record] | None:
    """Every record of a sealed segment; None = the segment itself must be asked."""
    with contextlib.suppress(OSError, struct.error):
        content = path_of(segment).read_bytes()
        data = content[_SUM_BYTES:]
        if crc32(data) == int.from_bytes(content[:_SUM_BYTES], "little"):
            records = list(heads(data, number))
            if records and records[-1].seal and _ends_at(segment, records[-1].end):
                return records
    return None


def _ends_at(segment: Path, end: int) -> bool:
    with segment.open("rb") as file:
        file.seek(end - len(SEAL))
        return file.read(len(SEAL)) == SEAL
