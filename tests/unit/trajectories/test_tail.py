"""A segment's open end: what was written is there, directly or not, whatever the sizes and whatever goes wrong."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tinker_atropos.trajectories.store.tail import Tail, lay_ready

SIZE = 4 << 20


def without_direct_writes(real: Callable[..., int]) -> Callable[..., int]:
    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, mode)

    return opened


def with_larger_blocks(real: Callable[..., int]) -> Callable[..., int]:
    """A disk that opens files for direct writes and then wants other sizes."""

    def written(fd: int, parts: Sequence[Any], position: int, flags: int = 0) -> int:
        direct = _flags(fd) & os.O_DIRECT
        if direct and sum(map(len, parts)) % 65536:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, parts, position, flags)

    return written


def _flags(fd: int) -> int:
    text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    return int(text.partition("flags:")[2].split()[0], 8)


@pytest.fixture(params=["as the disk can", "no direct writes", "larger blocks"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "no direct writes":
        monkeypatch.setattr(os, "open", without_direct_writes(os.open))
    if request.param == "larger blocks":
        monkeypatch.setattr(os, "pwritev", with_larger_blocks(os.pwritev))
    path = tmp_path / "segment.log"
    lay_ready(path, SIZE)
    assert path.read_bytes() == bytes(SIZE)
    return path


@pytest.mark.parametrize("sizes", [(1, 3), (1, 9000), (4095, 4097), (100_000, 900_000), (1_000_000, 1_500_000)])
def test_what_was_written_stands_before_zeros(path: Path, sizes: tuple[int, int]) -> None:
    rng = random.Random(str(sizes))
    tail, written = Tail(path, direct=True), b""
    while len(written) < SIZE - 3 * sizes[1] and len(written) < 400 * sizes[1]:
        parts = [rng.randbytes(rng.randint(*sizes)) for _ in range(rng.randint(1, 3))]
        tail.write(parts, len(written))
        written += b"".join(parts)
        if rng.random() < 0.1:
            assert path.read_bytes()[: len(written) + 9] == written + bytes(9)  # readers see it at once
    tail.close()
    assert path.read_bytes() == written + bytes(SIZE - len(written))


def test_writing_goes_on_behind_the_file_s_end(path: Path) -> None:
    tail, data = Tail(path, direct=True), random.Random(3).randbytes(SIZE - 100)
    tail.write((data,), 0)
    tail.write((b"x" * 5000,), len(data))
    tail.write((b"seal",), len(data) + 5000)
    tail.close()
    assert path.read_bytes().rstrip(b"\0") == data + b"x" * 5000 + b"seal"


def test_a_write_that_failed_is_cut_away_and_the_next_one_takes_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = Tail(path, direct=True)
    tail.write((b"a" * 5000,), 0)
    real = os.pwritev

    def half(fd: int, parts: Sequence[bytes], position: int, flags: int = 0) -> int:
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"b" * 5000)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", half)
    with pytest.raises(OSError, match="No space left"):
        tail.write((b"b" * 9000,), 5000)
    monkeypatch.setattr(os, "pwritev", real)
    tail.cut(5000)
    assert path.read_bytes() == b"a" * 5000
    tail.write((b"c" * 100,), 5000)
    tail.write((b"d" * 100,), 5100)
    tail.close()
    assert path.read_bytes() == b"a" * 5000 + b"c" * 100 + b"d" * 100
