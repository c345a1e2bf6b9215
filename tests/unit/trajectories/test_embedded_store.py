"""The embedded store: durable in order, torn ends cut off, space given back, faults said and nothing lost."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tinker_atropos.trajectories.store import StoreCorruptError, StoreUnavailableError, heads
from tinker_atropos.trajectories.store.embedded import EmbeddedStore
from tinker_atropos.trajectories.store.segment import scan


def join(snapshot: bytes | None, entries: Iterable[bytes]) -> bytes:
    """A fold whose result shows everything that went into it."""
    return b"|".join([*([snapshot] if snapshot else []), *entries])


async def opened(folder: Path, **limits: Any) -> tuple[EmbeddedStore, bytes]:
    store = EmbeddedStore(folder, join, **{"free_bytes": 0, **limits})
    recovered = await store.open()
    return store, join(recovered.snapshot, recovered.entries)


async def fill(store: EmbeddedStore, first: int, last: int, size: int = 100) -> None:
    await asyncio.gather(*(store.append(b"e%d" % n, (n, bytes([n % 256]) * size)) for n in range(first, last + 1)))


def journal(first: int, last: int) -> bytes:
    return b"|".join(b"e%d" % number for number in range(first, last + 1))


async def test_what_was_appended_is_there_after_opening_again(tmp_path: Path) -> None:
    store, content = await opened(tmp_path / "store")
    assert content == b""
    await fill(store, 1, 50)
    await store.append(b"no payload")
    await store.close()
    store, content = await opened(tmp_path / "store")
    assert content == journal(1, 50) + b"|no payload"
    assert await store.read([7, 3]) == [b"\x07" * 100, b"\x03" * 100]
    await store.close()


async def test_a_last_record_torn_at_any_byte_is_cut_off_and_the_rest_is_whole(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "whole")
    await fill(store, 1, 3)
    await store.close()
    segment = tmp_path / "whole" / "segment-00000001.log"
    data = segment.read_bytes()
    ends = [record.end for record in scan(segment, 1, payloads=True)]
    assert ends[-1] == len(data)
    for cut in range(ends[1], ends[2]):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        (folder / segment.name).write_bytes(data[:cut])
        store, content = await opened(folder)
        assert content == journal(1, 2), cut
        await store.append(b"after")
        await store.close()
        store, content = await opened(folder)
        assert content == journal(1, 2) + b"|after", cut
        await store.close()


async def test_a_last_record_with_any_byte_wrong_is_cut_off(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "whole")
    await fill(store, 1, 2, size=20)
    await store.close()
    segment = tmp_path / "whole" / "segment-00000001.log"
    data = segment.read_bytes()
    first, second, _ = (record.end for record in scan(segment, 1, payloads=True))
    for position in range(first, second):
        folder = tmp_path / f"flip-{position}"
        folder.mkdir()
        (folder / segment.name).write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        store, content = await opened(folder)
        assert content == b"e1", position
        await store.close()


async def test_damage_in_a_sealed_segment_is_refused_and_named(tmp_path: Path) -> None:
    for _ in range(2):
        store, _ = await opened(tmp_path)
        await store.append(b"entry")
        await store.close()
    with (tmp_path / "segment-00000001.log").open("r+b") as file:
        file.seek(10)
        file.write(b"\xff")
    with pytest.raises(StoreCorruptError, match=r"segment-00000001\.log: damaged at byte 0"):
        await opened(tmp_path)


class TestHeads:
    """What is noted of a sealed segment's records, so that they are not looked for among the payloads."""

    @staticmethod
    async def _filled(folder: Path) -> Path:
        """A store of two sealed segments whose first has its heads beside it; the first."""
        store, _ = await opened(folder)
        await fill(store, 1, 20, 1000)
        await store.append(b"no payload")
        await store.close()
        store, _ = await opened(folder)
        await store.append(b"second", (21, b"x"))
        await store.close()
        return folder / "segment-00000001.log"

    async def test_they_say_what_the_segment_says(self, tmp_path: Path) -> None:
        segment = await self._filled(tmp_path / "store")
        assert heads.read(segment, 1) == list(scan(segment, 1, payloads=False))
        store, content = await opened(tmp_path / "store")
        assert content == journal(1, 20) + b"|no payload|second"
        assert await store.read([7, 21]) == [b"\x07" * 1000, b"x"]
        await store.close()

    async def test_they_are_enough(self, tmp_path: Path) -> None:
        """The entries are not read from the segment any more."""
        segment = await self._filled(tmp_path / "store")
        data = bytearray(segment.read_bytes())
        data[data.index(b"e5")] = 0
        segment.write_bytes(data)
        store, content = await opened(tmp_path / "store")
        assert content == journal(1, 20) + b"|no payload|second"
        await store.close()

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda data, _: b"",
            lambda data, _: data[:-1],
            lambda data, _: data[:40] + bytes([data[40] ^ 1]) + data[41:],
            lambda data, _: bytes(len(data)),
            lambda data, other: other,
        ],
        ids=["empty", "cut short", "a byte changed", "zeros", "of another segment"],
    )
    async def test_spoilt_ones_are_not_used(self, tmp_path: Path, spoil: Callable[[bytes, bytes], bytes]) -> None:
        segment = await self._filled(tmp_path / "store")
        short, _ = await opened(tmp_path / "other")
        await fill(short, 1, 3, 1000)
        await short.close()
        other = tmp_path / "other" / "segment-00000001.log"
        path = heads.path_of(segment)
        path.write_bytes(spoil(path.read_bytes(), heads.path_of(other).read_bytes()))
        assert heads.read(segment, 1) is None
        store, content = await opened(tmp_path / "store")
        assert content == journal(1, 20) + b"|no payload|second"
        await store.close()

    async def test_a_segment_that_is_mostly_entries_has_none(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path / "store")
        await asyncio.gather(*(store.append(b"an entry without a payload") for _ in range(20)))
        await store.close()
        assert not heads.path_of(tmp_path / "store" / "segment-00000001.log").exists()

    async def test_a_segment_that_a_killed_process_left_open_gets_them_at_the_next_start(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path / "killed")
        await fill(store, 1, 20, 1000)
        folder = Path(shutil.copytree(tmp_path / "killed", tmp_path / "store"))
        await store.close()
        assert not list(folder.glob("*.heads"))
        store, _ = await opened(folder)
        await store.close()
        segment = folder / "segment-00000001.log"
        assert heads.read(segment, 1) == list(scan(segment, 1, payloads=False))

    async def test_they_go_with_their_segment(self, tmp_path: Path) -> None:
        segment = await self._filled(tmp_path / "store")
        store, _ = await opened(tmp_path / "store")
        store.forget(range(1, 22))
        await store.compact()
        await store.close()
        assert not segment.exists() and not heads.path_of(segment).exists()
        heads.path_of(segment).write_bytes(b"left by a process that was killed")
        store, _ = await opened(tmp_path / "store")
        await store.close()
        assert not heads.path_of(segment).exists()


async def test_a_damaged_payload_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await fill(store, 1, 1)
    segment = tmp_path / "segment-00000001.log"
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size - 1)
        file.write(b"\xff")
    with pytest.raises(StoreCorruptError, match="damaged"):
        await store.read([1])
    await store.close()


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    with pytest.raises(StoreUnavailableError, match="in use by another process"):
        await opened(tmp_path)
    await store.close()


async def test_a_directory_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="file/store"):
        await opened(tmp_path / "file" / "store")


class TestCompaction:
    async def test_entries_become_a_snapshot_and_forgotten_payloads_leave_the_disk(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=2000)
        for first in range(1, 100, 5):
            await fill(store, first, first + 4)
        store.forget(range(1, 91))
        await store.compact()
        assert store.statistics()["bytes"] < 3000
        assert await store.read([95]) == [bytes([95]) * 100]
        await store.close()
        store, content = await opened(tmp_path, segment_bytes=2000)
        assert content == journal(1, 100)
        store.retain(range(91, 101))
        assert await store.read(list(range(91, 101))) == [bytes([number]) * 100 for number in range(91, 101)]
        await store.close()

    async def test_it_starts_by_itself_when_segments_are_nearly_empty(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=2000)
        for number in range(1, 200):
            await fill(store, number, number)
            store.forget([number])
        await store.close()
        assert len(list(tmp_path.glob("segment-*"))) < 6
        store, content = await opened(tmp_path)
        assert content == journal(1, 199)
        await store.close()

    async def test_it_starts_by_itself_when_the_journal_is_long(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=500, journal_bytes=2000)
        for number in range(1, 300):
            await store.append(b"e%d" % number)
        await store.close()
        assert len(list(tmp_path.glob("snapshot-*.json"))) == 1
        store, content = await opened(tmp_path)
        assert content == journal(1, 299)
        await store.close()

    async def test_again_without_anything_new_it_changes_nothing(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=1000)
        await fill(store, 1, 30)
        for _ in range(3):
            await store.compact()
        await store.close()
        assert len(list(tmp_path.glob("snapshot-*.json"))) == 1
        store, content = await opened(tmp_path)
        assert content == journal(1, 30)
        await store.close()

    async def test_a_missing_snapshot_is_refused(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=1000)
        await fill(store, 1, 30)
        store.forget(range(1, 31))
        await store.compact()
        await store.close()
        for path in tmp_path.glob("snapshot-*.json"):
            path.unlink()
        with pytest.raises(StoreCorruptError, match="the snapshot before it is gone"):
            await opened(tmp_path)

    async def test_a_fold_that_fails_is_put_off_and_nothing_is_lost(self, tmp_path: Path) -> None:
        def broken(_: bytes | None, __: Iterable[bytes]) -> bytes:
            raise KeyError("fold")

        store = EmbeddedStore(tmp_path, broken, free_bytes=0)
        await store.open()
        await fill(store, 1, 30)
        await store.compact()
        await fill(store, 31, 31)
        await store.close()
        store, content = await opened(tmp_path)
        assert content == journal(1, 31)
        await store.close()

    async def test_appends_during_compaction_are_kept(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=1000)
        await fill(store, 1, 30)
        store.forget(range(1, 30))
        await asyncio.gather(store.compact(), fill(store, 31, 60))
        await store.close()
        store, content = await opened(tmp_path)
        assert content == journal(1, 60)
        assert len(await store.read(list(range(30, 61)))) == 31
        await store.close()

    async def test_a_payload_forgotten_while_it_moves_stays_forgotten(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=1000)
        await fill(store, 1, 30)
        store.forget(range(1, 30))
        compaction = asyncio.ensure_future(store.compact())
        while not list(tmp_path.glob("snapshot-*.json")):
            await asyncio.sleep(0)
        store.forget([30])
        await compaction
        with pytest.raises(StoreCorruptError, match="group 30 has no payload"):
            await store.read([30])
        await store.close()

    async def test_a_crash_between_snapshot_and_deletion_loses_nothing(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=1000)
        await fill(store, 1, 30)
        await store.close()
        old = {path.name: path.read_bytes() for path in tmp_path.glob("segment-*")}
        store, _ = await opened(tmp_path, segment_bytes=1000)
        store.retain([30])
        await store.compact()
        await store.close()
        for name, data in old.items():  # as if the deletions had not happened
            (tmp_path / name).write_bytes(data)
        (tmp_path / "snapshot-00000099.tmp").write_bytes(b"half")
        store, content = await opened(tmp_path)
        assert content == journal(1, 30)
        assert await store.read([30]) == [bytes([30]) * 100]
        assert not (tmp_path / "snapshot-00000099.tmp").exists()
        await store.close()


class TestPreparedSegments:
    async def test_writing_goes_on_in_a_segment_of_zeros(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path, segment_bytes=20_000)
        for first in range(1, 500, 5):
            await fill(store, first, first + 4)
        prepared = [path for path in tmp_path.glob("segment-*.log") if path.stat().st_size >= 20_000]
        assert len(prepared) > 1
        await store.close()
        store, content = await opened(tmp_path, segment_bytes=20_000)
        assert content == journal(1, 500)
        assert len(await store.read(list(range(1, 501)))) == 500
        await store.close()

    async def test_a_small_store_has_none(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path)
        await fill(store, 1, 10)
        await store.close()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000

    async def test_an_end_without_a_seal_is_sealed_where_the_last_whole_record_ends(self, tmp_path: Path) -> None:
        store, _ = await opened(tmp_path / "whole", segment_bytes=20_000)
        for first in range(1, 100, 5):
            await fill(store, first, first + 4)
        live = tmp_path / "live"
        shutil.copytree(tmp_path / "whole", live)  # as a crash leaves it: no seal, zeros to the end
        await store.close()
        store, content = await opened(live)
        assert content == journal(1, 99) + b"|e100"
        await store.append(b"after")
        await store.close()
        store, content = await opened(live)
        assert content == journal(1, 100) + b"|after"
        await store.close()


class TestFaults:
    async def test_a_full_disk_refuses_what_it_cannot_hold_and_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, _ = await opened(tmp_path)
        await fill(store, 1, 3)
        real = os.pwritev

        def half(fd: int, parts: list[bytes], position: int, flags: int = 0) -> int:
            real(fd, [b"".join(parts)[:50]], position)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwritev", half)
        with pytest.raises(StoreUnavailableError, match="No space left on device"):
            await store.append(b"e4", (4, b"x" * 100))
        monkeypatch.setattr(os, "pwritev", real)
        await store.append(b"e5")
        await store.close()
        store, content = await opened(tmp_path)
        assert content == journal(1, 3) + b"|e5"
        await store.close()

    async def test_a_file_system_without_synchronous_writes_is_synced_afterwards(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, _ = await opened(tmp_path)
        real, synced = os.pwritev, []

        def old(fd: int, parts: list[bytes], position: int, flags: int = 0) -> int:
            if flags:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return real(fd, parts, position)

        monkeypatch.setattr(os, "pwritev", old)
        monkeypatch.setattr(os, "fdatasync", synced.append)
        await store.append(b"e1")
        assert len(synced) == 1
        await store.close()
        store, content = await opened(tmp_path)
        assert content == b"e1"
        await store.close()

    async def test_a_short_write_is_finished(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store, _ = await opened(tmp_path)
        real = os.pwritev
        monkeypatch.setattr(
            os, "pwritev", lambda fd, parts, position, flags=0: real(fd, [b"".join(parts)[:37]], position)
        )
        await fill(store, 1, 3)
        monkeypatch.setattr(os, "pwritev", real)
        await store.close()
        store, content = await opened(tmp_path)
        assert content == journal(1, 3)
        await store.close()

    async def test_a_failed_sync_is_no_acknowledgement_and_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, _ = await opened(tmp_path)
        real, calls = os.pwritev, []

        def fail_once(fd: int, parts: list[bytes], position: int, flags: int = 0) -> int:
            calls.append(real(fd, parts, position))
            if len(calls) == 1:
                raise OSError(errno.EIO, "Input/output error")
            return calls[-1]

        monkeypatch.setattr(os, "pwritev", fail_once)
        with pytest.raises(StoreUnavailableError, match="Input/output error"):
            await store.append(b"e1")
        await store.append(b"e2")
        await store.close()
        store, content = await opened(tmp_path)
        assert content == b"e2"
        await store.close()

    async def test_what_cannot_be_taken_back_stops_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, _ = await opened(tmp_path)

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(os, "pwritev", fail)
            broken.setattr(os, "ftruncate", fail)
            with pytest.raises(StoreUnavailableError):
                await store.append(b"e1")
        with pytest.raises(StoreUnavailableError, match="restart the server"):
            await store.append(b"e2")
        await store.close()

    async def test_on_a_nearly_full_disk_payloads_are_refused_and_acknowledgements_still_fit(
        self, tmp_path: Path
    ) -> None:
        store, _ = await opened(tmp_path, free_bytes=1 << 60)
        refused, acknowledged = store.append(b"post", (1, b"x")), store.append(b"ack")
        with pytest.raises(StoreUnavailableError, match="nearly full"):
            await refused
        await acknowledged
        await store.close()
        store, content = await opened(tmp_path)
        assert content == b"ack"
        await store.close()
