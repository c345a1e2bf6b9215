"""The open end of a segment: appends that are on the disk when `write` returns.

Segments of zeros, laid ready, are written past the page cache where the file system can (O_DIRECT): payloads are read
once, by a trainer, and filling fresh pages with them, and before that with zeros, is a third of the server's CPU on a
virtual machine. Such writes go by whole blocks, so the last, half full block is kept and written again with what
follows: the same bytes to the same place, so that nothing that was acknowledged can be torn.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

BLOCK = 4096
_BUFFER_BYTES = 1 << 20
_IOV_MAX = 512


class Tail:
    """Writes to one file, each write where the last one ended."""

    def __init__(self, path: Path, *, direct: bool = False) -> None:
        self._path = path
        self._buffer: memoryview | None = None
        self._held = 0  # bytes of the last block, at the buffer's beginning
        self._fd = -1
        self._open(direct)

    def _open(self, direct: bool) -> None:
        before = self._fd
        self._fd, direct = _open(self._path, direct)
        self._buffer = memoryview(mmap.mmap(-1, _BUFFER_BYTES)) if direct else None
        if before >= 0:
            os.close(before)

    def write(self, parts: Sequence[bytes], position: int) -> None:
        """All parts, durable; after an OSError `cut` what may stand there now."""
        if self._buffer is None:
            write_and_sync(self._fd, parts, position)
            return
        buffer, full = self._buffer, self._held
        start = position - full
        for part in parts:
            rest = memoryview(part)
            while rest:
                count = min(len(rest), _BUFFER_BYTES - full)
                buffer[full : full + count] = rest[:count]
                full, rest = full + count, rest[count:]
                if full == _BUFFER_BYTES:
                    self._put(buffer, start)
                    start, full = start + full, 0
        end = -(-full // BLOCK) * BLOCK
        buffer[full:end] = bytes(end - full)
        if full:
            self._put(buffer[:end], start)
        self._held = full % BLOCK
        buffer[: self._held] = buffer[full - self._held : full]

    def _put(self, blocks: memoryview, position: int) -> None:
        try:
            write_and_sync(self._fd, (blocks,), position)
        except OSError as error:
            if self._buffer is None or error.errno != errno.EINVAL:
                raise
            self._open(direct=False)  # its blocks are larger
            write_and_sync(self._fd, (blocks,), position)

    def cut(self, position: int) -> None:
        """Take away what a write that failed left behind this place."""
        self._open(direct=False)
        os.ftruncate(self._fd, position)
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def write_and_sync(fd: int, parts: Sequence[bytes | memoryview], position: int) -> None:
    """One system call for the usual batch: every return from one waits for the interpreter's lock."""
    synced = False
    for first in range(0, len(parts), _IOV_MAX):
        some = parts[first : first + _IOV_MAX]
        total = sum(len(part) for part in some)
        try:
            written = os.pwritev(fd, some, position, os.RWF_DSYNC)
            synced = True
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            written, synced = os.pwritev(fd, some, position), False
        if written < total:
            rest = memoryview(b"".join(some))[written:]
            position += written
            while rest:
                count = os.pwrite(fd, rest, position)
                position += count
                rest = rest[count:]
            synced = False
        else:
            position += written
        if not synced:
            os.fdatasync(fd)


def lay_ready(path: Path, size: int) -> None:
    """A file of zeros, written out: later writes into it change no metadata."""
    temporary = path.with_suffix(".tmp")
    fd, _ = _open(temporary, direct=True)
    try:
        os.posix_fallocate(fd, 0, size)
        zeros = memoryview(mmap.mmap(-1, _BUFFER_BYTES))
        for position in range(0, size, _BUFFER_BYTES):  # piece by piece: no commit waits behind all of it
            write_and_sync(fd, (zeros[: -(-(size - position) // BLOCK) * BLOCK],), position)
    finally:
        os.close(fd)
    temporary.rename(path)


def _open(path: Path, direct: bool) -> tuple[int, bool]:
    """A file to write to, and whether it is written to directly."""
    if direct:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600), True
        except OSError as error:
            if error.errno != errno.EINVAL:  # this file system has none
                raise
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600), False
