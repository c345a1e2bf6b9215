"""What a run leaves behind when it is over: its ledger, and the payload that was not trained, in a directory.

The directory is a store of the embedded kind that was closed in order, whatever store the run had:
`tinker-atropos audit` reads it, and `tinker-atropos trajectories --store` can serve from it. `run.json` is for people.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from isal.isal_zlib import crc32

from tinker_atropos.trajectories.ledger import Ledger
from tinker_atropos.trajectories.store.segment import SEAL, header

SUMMARY = "run.json"
_SEGMENT, _SNAPSHOT = "segment-00000001.log", "snapshot-00000002.json"


class ExportError(Exception):
    """The export could not be written; the message says where and why."""


class Export:
    """Writes a run's export to one directory; again and again, each time whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._written: tuple[object, ...] | None = None

    def due(self, ledger: Ledger) -> bool:
        """Is there a run, and anything in its ledger that the last export does not say?"""
        return ledger.epoch > 0 and self._written != _mark(ledger)

    async def write(self, ledger: Ledger, payloads: AsyncIterator[tuple[int, bytes]], now: float) -> None:
        """payloads: of the groups that still have one. Nothing may move in the ledger meanwhile. Raises ExportError."""
        mark, snapshot, told = _mark(ledger), ledger.to_snapshot(), summary(ledger, now)
        beside = self.directory.with_name(f".{self.directory.name}.part")
        try:
            if self._is_foreign():
                raise ExportError(f"{self.directory} is there already and is no export; give a folder of its own")
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            with (beside / _SEGMENT).open("xb") as file:
                async for number, payload in payloads:
                    file.write(header(b"", number, payload, crc32(payload)) + payload)
                file.write(SEAL)
                _sync(file.fileno())
            _write(beside / _SNAPSHOT, crc32(snapshot).to_bytes(4, "little") + snapshot)
            _write(beside / SUMMARY, orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n")
            _sync_directory(beside)
            self._put_in_place(beside)
        except OSError as error:
            raise ExportError(f"cannot write the export {self.directory}: {error.strerror or error}") from error
        self._written = mark

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
