"""Checkpoints on disk: each appears whole or not at all, whenever the process dies.

    runs/<run>/<kind>/<name>.json          the record; replacing this file is what commits
    runs/<run>/<kind>/<name>.<unique>/     what the record points to, complete before the record exists

Folders without a record are leftovers of a crash and are removed at start.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.lora import LoraSettings, peft_config

TRAINING, SAMPLER, SNAPSHOT = "weights", "sampler_weights", "snapshots"
TYPES = {TRAINING: "training", SAMPLER: "sampler"}
LONGEST_TTL = 10 * 365 * 24 * 3600

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_ADAPTER, _MOMENTS = "adapter_model.safetensors", "optimizer.safetensors"

Tensors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Record:
    """All that is known of a checkpoint without reading its tensors."""

    run: str
    kind: str
    name: str
    folder: str
    base_model: str
    lora: LoraSettings
    step: int
    has_optimizer: bool
    size: int
    created: str
    expires: str | None = None
    user_metadata: dict[str, str] | None = None

    @property
    def path(self) -> str:
        return f"tinker://{self.run}/{self.kind}/{self.name}"

    def expired(self, now: dt.datetime) -> bool:
        return self.expires is not None and dt.datetime.fromisoformat(self.expires) <= now

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "lora": vars(self.lora)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Record:
        return cls(**{**fields, "lora": LoraSettings(**fields["lora"])})


@dataclass(frozen=True)
class Contents:
    """The tensors of a checkpoint."""

    adapter: Tensors
    first: Tensors | None
    second: Tensors | None


def parse_path(path: str, kinds: tuple[str, ...] = (TRAINING, SAMPLER, SNAPSHOT)) -> tuple[str, str, str]:
    """(run, kind, name) of a tinker:// path; refuses what could leave the data folder."""
    parts = path.removeprefix("tinker://").split("/")
    known = path.startswith("tinker://") and len(parts) == 3 and parts[1] in kinds
    if not known or not all(_SAFE.fullmatch(part) for part in parts):
        shown = " or ".join(f"tinker://<run>/{kind}/<name>" for kind in kinds if kind != SNAPSHOT)
        raise UserError(f"path: {path!r} is not of the form {shown}")
    return parts[0], parts[1], parts[2]


class Checkpoints:
    """The store. Reads are answered from memory; every change is on disk before it is visible."""

    def __init__(self, root: Path, clock: Callable[[], dt.datetime], shortest_ttl: int = 3600) -> None:
        self._root = root / "runs"
        self._clock = clock
        self._shortest_ttl = shortest_ttl
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str, str], Record] = {}
        self._recover()

    def _recover(self) -> None:
        for path in self._root.glob("*/*/*.json"):
            record = Record.from_json(json.loads(path.read_text()))
            self._records[record.run, record.kind, record.name] = record
        kept = {(r.run, r.kind, r.folder) for r in self._records.values()}
        for path in self._root.glob("*/*/*"):
            run, kind = path.parts[-3:-1]
            if path.is_dir() and (run, kind, path.name) not in kept:
                shutil.rmtree(path)
            elif path.name.endswith(".tmp"):
                path.unlink()

    # ------------------------------------------------------------------ reading

    def find(self, path: str, kinds: tuple[str, ...] = (TRAINING, SAMPLER, SNAPSHOT)) -> Record:
        """The record of a path; an expired checkpoint is gone."""
        record = self._records.get(parse_path(path, kinds))
        if record is None or record.expired(self._clock()):
            raise UserError(f"{path}: no such checkpoint on this server (never saved, deleted or expired)", status=404)
        return record

    def load(self, record: Record, *, optimizer: bool) -> Contents:
        """Read the tensors. The optimizer's are there only if they were saved and are asked for."""
        folder = self._folder(record)
        try:
            adapter = load_file(str(folder / _ADAPTER))
            moments = load_file(str(folder / _MOMENTS)) if optimizer and record.has_optimizer else None
        except FileNotFoundError:
            raise UserError(f"{record.path}: deleted while it was being read", status=404) from None
        if moments is None:
            return Contents(adapter, None, None)
        first = {name[2:]: value for name, value in moments.items() if name.startswith("m.")}
        second = {name[2:]: value for name, value in moments.items() if name.startswith("v.")}
        return Contents(adapter, first, second)

    def listed(self, run: str | None = None) -> list[Record]:
        """Checkpoints that clients may see, oldest first."""
        now = self._clock()
        with self._lock:
            records = list(self._records.values())
        chosen = [r for r in records if r.kind != SNAPSHOT and run in (None, r.run) and not r.expired(now)]
        return sorted(chosen, key=lambda r: (r.created, r.kind, r.name))

    # ------------------------------------------------------------------ changing

    def save(
        self,
        path: str,
        *,
        base_model: str,
        lora: LoraSettings,
        adapter: Tensors,
        moments: tuple[Tensors, Tensors] | None = None,
        step: int = 0,
        ttl: int | None = None,
        user_metadata: dict[str, str] | None = None,
        overwrite: bool = True,
    ) -> Record:
        """Write a checkpoint and commit it."""
        run, kind, name = parse_path(path)
        expires = self._expiry(ttl)
        old = self._records.get((run, kind, name))
        if old is not None and not overwrite and not old.expired(self._clock()):
            raise UserError(f"{path}: already exists; choose another name or pass overwrite=True", status=409)
        parent = self._root / run / kind
        folder = parent / f"{name}.{uuid.uuid4().hex[:12]}"
        folder.mkdir(parents=True)
        files = {
            _ADAPTER: save(dict(adapter)),
            "adapter_config.json": json.dumps(peft_config(lora, base_model), indent=2).encode(),
        }
        if moments is not None:
            both = {f"m.{key}": value for key, value in moments[0].items()}
            both |= {f"v.{key}": value for key, value in moments[1].items()}
            files[_MOMENTS] = save(both)
        for file, content in files.items():
            _write(folder / file, content)
        _sync(folder)
        record = Record(
            run=run,
            kind=kind,
            name=name,
            folder=folder.name,
            base_model=base_model,
            lora=lora,
            step=step,
            has_optimizer=moments is not None,
            size=sum(map(len, files.values())),
            created=self._clock().isoformat(),
            expires=expires,
            user_metadata=user_metadata,
        )
        self._commit(record)
        if old is not None:
            shutil.rmtree(self._folder(old), ignore_errors=True)
        return record

    def set_ttl(self, path: str, ttl: int | None) -> None:
        """Count the time to live from now; None keeps the checkpoint for good."""
        self._commit(replace(self.find(path), expires=self._expiry(ttl)))

    def delete(self, path: str) -> None:
        """The record goes first: half a deletion is a leftover folder, never half a checkpoint."""
        self._remove(self.find(path))

    def delete_snapshots(self, run_prefix: str) -> None:
        """Remove unnamed sampler weights of a session's runs."""
        for record in list(self._records.values()):
            if record.kind == SNAPSHOT and record.run.startswith(run_prefix):
                self._remove(record)

    def keep_snapshots(self, run: str, count: int) -> None:
        """Remove all but the newest unnamed sampler weights of a run: a long run makes one in every step."""
        snapshots = [record for record in list(self._records.values()) if (record.run, record.kind) == (run, SNAPSHOT)]
        for record in sorted(snapshots, key=lambda r: r.created)[:-count]:
            self._remove(record)

    def expire(self) -> list[Record]:
        """Remove what has outlived its time; returns it."""
        now = self._clock()
        gone = [record for record in list(self._records.values()) if record.expired(now)]
        for record in gone:
            self._remove(record)
        return gone

    def _expiry(self, ttl: int | None) -> str | None:
        if ttl is None:
            return None
        if not self._shortest_ttl <= ttl <= LONGEST_TTL:
            raise UserError(
                f"ttl_seconds: {ttl} is not between {self._shortest_ttl} and {LONGEST_TTL} (or null for never)"
            )
        return (self._clock() + dt.timedelta(seconds=ttl)).isoformat()

    def _folder(self, record: Record) -> Path:
        return self._root / record.run / record.kind / record.folder

    def _commit(self, record: Record) -> None:
        parent = self._root / record.run / record.kind
        path = parent / f"{record.name}.json"
        unfinished = parent / f"{record.name}.json.{uuid.uuid4().hex[:8]}.tmp"
        _write(unfinished, json.dumps(record.to_json()).encode())
        with self._lock:
            unfinished.replace(path)
            self._records[record.run, record.kind, record.name] = record
        _sync(parent)

    def _remove(self, record: Record) -> None:
        with self._lock:
            key = (record.run, record.kind, record.name)
            if self._records.get(key) != record:
                return
            (self._root / record.run / record.kind / f"{record.name}.json").unlink(missing_ok=True)
            del self._records[key]
        shutil.rmtree(self._folder(record), ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
