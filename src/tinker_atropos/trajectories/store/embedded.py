"""The default store: append-only segments under one directory, no server to run.

Appends are collected while a write is under way and then written and synced together by one thread (group commit), so
the event loop never waits for the disk. A record that was torn by a crash is left out at the next start; it was never
acknowledged. Segments are filled with zeros before they are used: a sync is then one write to the disk and does not
wait for the file system's journal, which other files keep busy. Compaction folds sealed segments into a snapshot, moves
the few payloads of nearly empty segments on, and deletes the files; it runs in its own thread on the files alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

from isal.isal_zlib import crc32

from tinker_atropos.trajectories.store import Fold, Recovered, StoreCorruptError, StoreUnavailableError, heads
from tinker_atropos.trajectories.store.segment import SEAL, Place, Record, header, scan
from tinker_atropos.trajectories.store.tail import Tail, lay_ready
from tinker_atropos.trajectories.store.writer import Writer

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
JOURNAL_BYTES = 16 << 20
"""Fold once this many bytes of entries lie in sealed segments."""
FREE_BYTES = 64 << 20
"""Payloads are refused when the disk has less left, so that acknowledgements, which free space, still fit."""
SPARSE = 0.25
"""A sealed segment with a smaller share of living payload bytes is emptied and deleted."""
_LOOK_SECONDS = 0.25
_READERS = 16


_Append = tuple[bytes, int, bytes, asyncio.Future[None]]
"""Entry, payload's number, payload, and who waits."""
_REFUSED = Place(-1, 0, 0, 0)
"""Where a payload lies for which there was no room."""


class EmbeddedStore:
    """A `Store` in a directory."""

    def __init__(
        self,
        directory: Path,
        fold: Fold,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        journal_bytes: int = JOURNAL_BYTES,
        free_bytes: int = FREE_BYTES,
    ) -> None:
        self._directory = directory
        self._fold = fold
        self._segment_bytes = segment_bytes
        self._journal_bytes = journal_bytes
        self._free_bytes = free_bytes
        self._writer = Writer()
        self._compactor = ThreadPoolExecutor(1, "store-compactor")
        self._index: dict[int, Place] = {}
        self._files: dict[
            int, FileIO
        ] = {}  # for reading, by segment number; a file closes when nobody reads it any more
        self._sizes: dict[int, int] = {}  # bytes in each segment, the open one included
        self._living: Counter[int] = Counter()  # payload bytes still needed, by segment
        self._journal: Counter[int] = Counter()  # bytes of entries, by segment
        self._folded = 0  # segments below this number are in the snapshot
        self._active = 0
        self._tail: Tail | None = None
        self._end = 0
        self._pending: list[_Append] = []
        self._loop: asyncio.AbstractEventLoop
        self._idle = asyncio.Event()  # nothing is pending or being written
        self._idle.set()
        self._compacting: asyncio.Task[None] | None = None
        self._broken = ""
        self._spare = directory / "spare.log"
        self._spare_ready = False
        self._prepared = False
        self._looked, self._room = float("-inf"), 0
        self._preparing: asyncio.Future[None] | None = None
        self._heads: list[bytes] = []  # of the open segment's records
        self._lock: FileIO | None = None
        self.on_sync: Callable[[float], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None  # never: the lock is held until the end

    # -- opening ---------------------------------------------------------------------------------------------------

    async def open(self) -> Recovered:
        self._loop = asyncio.get_running_loop()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = FileIO(self._directory / "lock", "a")
        except OSError as error:
            raise StoreUnavailableError(f"store directory {self._directory}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreUnavailableError(f"store directory {self._directory} is in use by another process") from error
        for left_over in self._directory.glob("*.tmp"):
            left_over.unlink()
        self._spare_ready = self._spare.exists()
        snapshot = self._newest_snapshot()
        segments = sorted(int(path.stem.removeprefix("segment-")) for path in self._directory.glob("segment-*.log"))
        if snapshot is None and segments and segments[0] > 1:
            raise StoreCorruptError(
                f"{self._directory} begins with segment {segments[0]} and the snapshot before it is gone"
            )
        entries: list[bytes] = []
        with ThreadPoolExecutor(_READERS, "store-reader") as readers:
            found = readers.map(lambda number: self._scan(number, number == segments[-1]), segments)
            for number, records in zip(segments, found, strict=True):
                self._take_segment(number, number == segments[-1], records, entries)
        for path in self._directory.glob("segment-*.heads"):
            if not path.with_suffix(".log").exists():
                path.unlink()
        self._start_segment((segments[-1] if segments else max(0, self._folded - 1)) + 1)
        return Recovered(snapshot, entries)

    def _path(self, number: int) -> Path:
        return self._directory / f"segment-{number:08}.log"

    def _snapshot(self, until: int) -> Path:
        return self._directory / f"snapshot-{until:08}.json"

    def _snapshots(self) -> list[Path]:
        return sorted(self._directory.glob("snapshot-*.json"), reverse=True)

    def _newest_snapshot(self) -> bytes | None:
        for path in self._snapshots():
            self._folded = int(path.stem.removeprefix("snapshot-"))
            return _read_snapshot(path)
        return None

    def _scan(self, number: int, last: bool) -> list[Record]:
        """Several segments at once: what is on the disk alone is many small reads, each of which waits for it."""
        path = self._path(number)
        known = None if last else heads.read(path, number)
        return list(scan(path, number, payloads=last)) if known is None else known

    def _take_segment(self, number: int, last: bool, records: Sequence[Record], entries: list[bytes]) -> None:
        path = self._path(number)
        end, sealed = 0, False
        for record in records:
            if record.seal:
                sealed = True
                break
            end = record.end
            if record.entry and number >= self._folded:
                entries.append(record.entry)
            self._journal[number] += len(record.entry)
            if record.payload:
                self._place(record.payload_number, record.payload)
        if not sealed:
            if not last:
                raise StoreCorruptError(f"{path}: damaged at byte {end}, and later segments exist; restore the file")
            logger.info("%s ended at byte %d without a seal: the last process did not end in order", path.name, end)
            tail = Tail(path)
            try:
                tail.write((SEAL,), end)
            finally:
                tail.close()
        if not heads.path_of(path).exists():
            self._note_heads(number, heads.parts_of(records))
        self._files[number] = FileIO(path, "r")
        self._sizes[number] = end

    def _place(self, number: int, place: Place) -> None:
        self.forget((number,))
        self._index[number] = place
        self._living[place.segment] += place.length

    def _start_segment(self, number: int) -> None:
        """Begin to write to a segment: the one that lies ready, or an empty file that grows."""
        if self._tail is not None:
            self._tail.write((SEAL,), self._end)
            self._tail.close()
            self._note_heads(self._active, self._heads)
        self._heads = []
        path = self._path(number)
        self._prepared, self._spare_ready = self._spare_ready, False
        if self._prepared:
            self._spare.rename(path)
        self._tail = Tail(path, direct=self._prepared)
        self._sync_directory()
        self._files[number] = FileIO(path, "r")
        self._active, self._end = number, 0
        self._sizes[number] = 0

    def _prepare_if_due(self) -> None:
        """Runs that store little need none; on a disk with little room there is none."""
        if self._preparing is not None or self._broken or self._end < self._segment_bytes // 64 or self._spare_ready:
            return
        space = os.statvfs(self._directory)
        if space.f_bavail * space.f_frsize > self._free_bytes + 4 * self._segment_bytes:
            self._preparing = asyncio.get_running_loop().run_in_executor(
                self._compactor, lay_ready, self._spare, self._segment_bytes
            )
            self._preparing.add_done_callback(self._prepared_spare)

    def _prepared_spare(self, done: asyncio.Future[None]) -> None:
        self._preparing = None
        self._spare_ready = not done.cancelled() and done.exception() is None
        if not self._spare_ready and not done.cancelled():
            logger.warning("store: no segment could be prepared: %s", done.exception())

    def _note_heads(self, segment: int, parts: Sequence[bytes]) -> None:
        try:
            heads.write(self._path(segment), parts)
        except OSError as error:  # the next start then asks the segment
            logger.debug("store: the heads of a segment were not written down: %s", error)

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, entry: bytes, payload: tuple[int, bytes] | None = None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        number, data = payload or (0, b"")
        self._pending.append((entry, number, data, future))
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._commit)  # together with what else is ready now
        return future

    def _commit(self) -> None:
        """Lay out what is pending and give it to the writer, whose thread then only writes and syncs."""
        batch, self._pending = self._pending, []
        roll = self._end >= self._segment_bytes or (self._spare_ready and self._end > 0 and not self._prepared)
        segment, end = (self._active + 1, 0) if roll else (self._active, self._end)
        begin, entries = end, 0
        parts: list[bytes] = []
        written: list[bytes] = []
        places: list[Place | None] = []
        for entry, number, payload, _ in batch:
            if payload and not self._fits(len(payload)):
                places.append(_REFUSED)
                continue
            checksum = crc32(payload)
            head = header(entry, number, len(payload), checksum)
            parts += (head, entry, payload)
            written += (head, entry)
            start = end + len(head) + len(entry)
            end = start + len(payload)
            entries += len(entry)
            places.append(Place(segment, start, len(payload), checksum) if payload else None)

        def done(result: float | OSError) -> None:
            if not isinstance(result, OSError):
                self._journal[segment] += entries
                self._sizes[segment] = self._end = end
                self._heads += written
            self._committed(batch, places, result)

        self._writer.do(self._loop, lambda: self._write(parts, begin, roll), done)

    def _fits(self, size: int) -> bool:
        """Whether a payload leaves enough of the disk free; looked up a few times a second."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            space = os.statvfs(self._directory)
            self._room = space.f_bavail * space.f_frsize - self._free_bytes
        self._room -= size
        return self._room >= 0

    def _write(self, parts: Sequence[bytes], position: int, roll: bool) -> float:
        """In the writer's thread: write and sync a batch, all of it or nothing; seconds that it took."""
        if self._broken:
            raise OSError(errno.EIO, self._broken)
        started = time.perf_counter()
        if roll:
            self._start_segment(self._active + 1)
        assert self._tail is not None
        try:
            self._tail.write(parts, position)
        except OSError as error:
            self._undo(error)
            raise
        return time.perf_counter() - started

    def _committed(self, batch: Sequence[_Append], places: Sequence[Place | None], result: float | OSError) -> None:
        if isinstance(result, OSError):
            reason = StoreUnavailableError(f"the store cannot be written: {result.strerror or result}")
            logger.error("store: %s", reason)
            for _, _, _, future in batch:
                if not future.cancelled():
                    future.set_exception(reason)
        else:
            self.on_sync(result)
            for (entry, number, _, future), place in zip(batch, places, strict=True):
                if place is _REFUSED:
                    if not future.cancelled():
                        future.set_exception(StoreUnavailableError("the store's disk is nearly full"))
                    continue
                if place is not None and (entry or number in self._index):  # a payload that moves may be gone by now
                    self._place(number, place)
                if not future.cancelled():
                    future.set_result(None)
        self._go_on()

    def _go_on(self) -> None:
        if self._pending:
            self._loop.call_soon(self._commit)
        else:
            self._idle.set()
            self._prepare_if_due()
            self._compact_if_due()

    def _undo(self, error: OSError) -> None:
        """Nothing of a failed write may stay: what was decided afterwards would contradict it."""
        assert self._tail is not None
        try:
            self._tail.cut(self._end)
        except OSError:
            self._broken = f"{error.strerror}; restart the server once the disk works again"

    # -- payloads --------------------------------------------------------------------------------------------------

    async def read(self, numbers: Sequence[int]) -> list[bytes]:
        wanted: list[tuple[FileIO, Place]] = []
        for number in numbers:
            place = self._index.get(number)
            if place is None:
                raise StoreCorruptError(f"group {number} has no payload in {self._directory}")
            wanted.append((self._files[place.segment], place))
        return await asyncio.get_running_loop().run_in_executor(None, _read_all, wanted)

    def retain(self, numbers: Collection[int]) -> None:
        self.forget([number for number in self._index if number not in numbers])

    def forget(self, numbers: Collection[int]) -> None:
        for number in numbers:
            place = self._index.pop(number, None)
            if place is not None:
                self._living[place.segment] -= place.length

    # -- compaction ------------------------------------------------------------------------------------------------

    def _compact_if_due(self) -> None:
        if self._compacting is not None or self._broken:
            return
        sealed = [number for number in self._sizes if number < self._active]
        unfolded = sum(self._journal[number] for number in sealed if number >= self._folded)
        dead = [number for number in sealed if self._living[number] <= SPARSE * self._sizes[number]]
        if unfolded >= self._journal_bytes or len(dead) >= 2:
            self._compacting = asyncio.create_task(self._compact())

    async def compact(self) -> None:
        """Seal the open segment and compact now."""
        if self._compacting is None:
            while not self._idle.is_set():
                await self._idle.wait()
            self._idle.clear()
            sealed: asyncio.Future[None] = self._loop.create_future()
            self._writer.do(self._loop, self._start_next_segment, lambda _: sealed.set_result(None))
            await sealed
            self._compacting = asyncio.create_task(self._compact())
            self._go_on()
        await self._compacting

    def _start_next_segment(self) -> None:
        if self._end:
            self._start_segment(self._active + 1)

    async def _compact(self) -> None:
        try:
            until = self._active
            if until > self._folded:
                await asyncio.get_running_loop().run_in_executor(self._compactor, self._fold_until, until)
                self._folded = until
            await self._sweep(until)
        except (OSError, StoreUnavailableError) as error:
            logger.warning("store: compaction put off: %s", error)
        except Exception:
            logger.exception("store: compaction put off")
        finally:
            self._compacting = None

    def _fold_until(self, until: int) -> None:
        """In the compactor's thread: snapshot-<until> stands for every entry before segment `until`."""
        old = [path for path in self._snapshots() if path != self._snapshot(until)]
        if self._folded and not old:
            raise StoreCorruptError(f"{self._snapshot(self._folded)} is gone")
        snapshot = self._fold(_read_snapshot(old[0]) if old else None, self._sealed_entries(self._folded, until))
        temporary = self._directory / f"snapshot-{until:08}.tmp"
        with temporary.open("wb") as file:
            file.write(crc32(snapshot).to_bytes(4, "little") + snapshot)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._snapshot(until))
        self._sync_directory()
        for path in old:
            path.unlink()

    def _sealed_entries(self, first: int, until: int) -> Iterator[bytes]:
        for number in range(first, until):
            if number in self._sizes:
                yield from (record.entry for record in scan(self._path(number), number, payloads=False) if record.entry)

    async def _sweep(self, until: int) -> None:
        """Delete folded segments without living payloads; move the last ones out of nearly empty segments first."""
        for number in [number for number in self._sizes if number < until]:
            if self._living[number] > SPARSE * self._sizes[number]:
                continue
            staying = [payload for payload, place in self._index.items() if place.segment == number]
            payloads = await self.read(staying)
            await asyncio.gather(
                *(self.append(b"", (payload, data)) for payload, data in zip(staying, payloads, strict=True))
            )
            del self._sizes[number], self._files[number]
            self._living.pop(number, None)
            self._journal.pop(number, None)
            self._path(number).unlink()
            heads.path_of(self._path(number)).unlink(missing_ok=True)

    # -- ending ----------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, float]:
        return {
            "bytes": float(sum(self._sizes.values())),
            "living_bytes": float(sum(self._living.values())),
            "segments": float(len(self._sizes)),
        }

    async def close(self) -> None:
        while self._compacting is not None or not self._idle.is_set():
            await self._idle.wait()
            if self._compacting is not None:
                await asyncio.wait((self._compacting,))
        if self._preparing is not None:
            await asyncio.wait((self._preparing,))
        self._writer.end()
        self._compactor.shutdown()
        if self._tail is not None:
            with contextlib.suppress(OSError):
                self._tail.write((SEAL,), self._end)
                self._note_heads(self._active, self._heads)
            self._tail.close()
            self._tail = None
        self._files.clear()
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()


def look_into(directory: Path) -> Recovered:
    """What a store holds, without taking it over or changing anything; a torn end is left out."""
    snapshot, first = None, 0
    for path in sorted(directory.glob("snapshot-*.json"), reverse=True)[:1]:
        snapshot, first = _read_snapshot(path), int(path.stem.removeprefix("snapshot-"))
    numbers = sorted(int(path.stem.removeprefix("segment-")) for path in directory.glob("segment-*.log"))
    entries = [
        record.entry
        for number in numbers
        if number >= first
        for record in scan(directory / f"segment-{number:08}.log", number, payloads=False)
        if record.entry
    ]
    return Recovered(snapshot, entries)


def _read_all(wanted: Sequence[tuple[FileIO, Place]]) -> list[bytes]:
    payloads = []
    for file, place in wanted:
        data = os.pread(file.fileno(), place.length, place.offset)
        if crc32(data) != place.crc:
            raise StoreCorruptError(f"{file.name!r}: the payload at byte {place.offset} is damaged")
        payloads.append(data)
    return payloads


def _read_snapshot(path: Path) -> bytes:
    return snapshot_in(path.read_bytes(), str(path))


def snapshot_in(data: bytes, name: str) -> bytes:
    """The snapshot in a file's contents; name: the file's, for people."""
    if len(data) < 4 or crc32(data[4:]) != int.from_bytes(data[:4], "little"):
        raise StoreCorruptError(f"{name}: damaged; restore the file")
    return data[4:]
