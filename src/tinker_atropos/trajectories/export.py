"""What a run leaves behind when it is over: its ledger, and the payload that was not trained, in a directory or bucket.

The files are those of a store of the embedded kind that was closed in order, whatever store the run had:
`tinker-atropos audit` reads them, and `tinker-atropos trajectories --store` can serve from them. `run.json` is for
people.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from isal.isal_zlib import crc32

from tinker_atropos.trajectories.ledger import Ledger
from tinker_atropos.trajectories.store.segment import SEAL, header

logger = logging.getLogger(__name__)

SUMMARY = "run.json"


def segment_name(number: int) -> str:
    return f"segment-{number:08}.log"


def snapshot_name(number: int) -> str:
    return f"snapshot-{number:08}.json"


class ExportError(Exception):
    """The export could not be written; the message says where and why."""


class Export(ABC):
    """Writes a run's export to one place; again and again, each time whole or not at all."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._written: tuple[object, ...] | None = None

    def due(self, ledger: Ledger) -> bool:
        """Is there a run, and anything in its ledger that the last export does not say?"""
        return ledger.epoch > 0 and self._written != _mark(ledger)

    async def check(self) -> None:
        """Say in the log what would keep an export from being written, as far as that can be known before."""
        try:
            await self._look()
        except ExportError as error:
            logger.warning("as it is, the run could not be exported when it is over: %s", error)

    async def write(self, ledger: Ledger, payloads: AsyncIterator[tuple[int, bytes]], now: float) -> None:
        """payloads: of the groups that still have one. Nothing may move in the ledger meanwhile. Raises ExportError."""
        mark, snapshot = _mark(ledger), ledger.to_snapshot()
        snapshot = crc32(snapshot).to_bytes(4, "little") + snapshot
        await self._write((record(*payload) async for payload in payloads), snapshot, summary(ledger, now))
        self._written = mark

    @abstractmethod
    async def _look(self) -> None:
        """Raises ExportError when the place cannot be written to."""

    @abstractmethod
    async def _write(self, records: AsyncIterator[bytes], snapshot: bytes, told: Mapping[str, Any]) -> None:
        """records: of a segment, without its seal. snapshot: a whole file. told: `run.json`."""


class DirectoryExport(Export):
    """Written beside and renamed, so that the directory is there whole or not at all."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory))
        self.directory = directory

    async def _look(self) -> None:
        if self._is_foreign():
            raise ExportError(f"{self.directory} is there already and is no export; give a folder of its own")

    async def _write(self, records: AsyncIterator[bytes], snapshot: bytes, told: Mapping[str, Any]) -> None:
        beside = self.directory.with_name(f".{self.directory.name}.part")
        try:
            await self._look()
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            with (beside / segment_name(1)).open("xb") as file:
                async for one in records:
                    file.write(one)
                file.write(SEAL)
                _sync(file.fileno())
            _write(beside / snapshot_name(2), snapshot)
            _write(beside / SUMMARY, readable(told))
            _sync_directory(beside)
            self._put_in_place(beside)
        except OSError as error:
            raise ExportError(f"cannot write the export {self.directory}: {error.strerror or error}") from error

    def _is_foreign(self) -> bool:
        if not self.directory.is_dir():
            return self.directory.exists()
        return any(self.directory.iterdir()) and not (self.directory / SUMMARY).exists()

    def _put_in_place(self, beside: Path) -> None:
        old = self.directory.with_name(f".{self.directory.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self.directory.rename(old)
        beside.rename(self.directory)
        _sync_directory(self.directory.parent)
        shutil.rmtree(old, ignore_errors=True)


def record(number: int, payload: bytes) -> bytes:
    """A payload as it stands in a segment."""
    return header(b"", number, len(payload), crc32(payload)) + payload


def readable(told: Mapping[str, Any]) -> bytes:
    return orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n"


def summary(ledger: Ledger, now: float) -> Mapping[str, Any]:
    """The run in a few lines, for people."""
    return {
        "run": ledger.settings.run_id,
        "base_model": ledger.settings.base_model,
        "step": ledger.step,
        "epoch": ledger.epoch,
        "checkpoint": ledger.state.checkpoint_path if ledger.state else None,
        "sampler_weights": ledger.state.sampler_path if ledger.state else None,
        "ledger": ledger.sums(),
        "dropped": dict(ledger.reasons),
        "exported_at": now,
    }


def _mark(ledger: Ledger) -> tuple[object, ...]:
    covered = ledger.state.checkpoint_path if ledger.state else ""
    return ledger.epoch, ledger.step, covered, ledger.last_batch, *ledger.sums().values()


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        _sync(file.fileno())


def _sync(fd: int) -> None:
    os.fsync(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
