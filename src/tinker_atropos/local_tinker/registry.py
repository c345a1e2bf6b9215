"""Sessions, samplers, runs and token counts in a small SQLite file, so that they survive a killed process.

Clients keep their sampling clients over a restart of the server; only what was in training is lost with the memory.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, created REAL NOT NULL, seen REAL NOT NULL, finished TEXT,
    display_name TEXT, project_id TEXT, user_metadata TEXT NOT NULL, tags TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS samplers (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, base_model TEXT NOT NULL, weights TEXT, model_path TEXT);
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, base_model TEXT NOT NULL, lora TEXT NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL, user_metadata TEXT);
CREATE TABLE IF NOT EXISTS usage (
    hour INTEGER NOT NULL, session TEXT NOT NULL, kind TEXT NOT NULL, amount INTEGER NOT NULL,
    PRIMARY KEY (hour, session, kind));
"""


@dataclass(frozen=True)
class Session:
    id: str
    created: float
    seen: float
    finished: str | None
    display_name: str | None
    project_id: str | None
    user_metadata: dict[str, Any]
    tags: list[str]


@dataclass(frozen=True)
class Sampler:
    """What a sampling session samples from: the base model, or weights at a path (the client's own: `model_path`)."""

    id: str
    session: str
    base_model: str
    weights: str | None
    model_path: str | None


@dataclass(frozen=True)
class Run:
    id: str
    session: str
    base_model: str
    lora: dict[str, Any]
    created: float
    used: float
    user_metadata: dict[str, Any] | None


@dataclass(frozen=True)
class Usage:
    """Amount of one kind (tokens, or number of checkpoints) of one session within one hour (start, epoch seconds)."""

    hour: int
    session: str
    kind: str
    amount: int


class Registry:
    """Thread-safe; every call is one transaction."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    # ------------------------------------------------------------------ sessions

    def add_session(self, session: Session) -> None:
        self._run(
            "INSERT OR IGNORE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            session.id,
            session.created,
            session.seen,
            session.finished,
            session.display_name,
            session.project_id,
            json.dumps(session.user_metadata),
            json.dumps(session.tags),
        )

    def session(self, session_id: str) -> Session | None:
        rows = self._run("SELECT * FROM sessions WHERE id = ?", session_id)
        return self._session(rows[0]) if rows else None

    def sessions(self) -> list[Session]:
        """Newest first."""
        return [self._session(row) for row in self._run("SELECT * FROM sessions ORDER BY created DESC, id")]

    @staticmethod
    def _session(row: tuple[Any, ...]) -> Session:
        fields = (*row[:6], json.loads(row[6]), json.loads(row[7]))
        return Session(*fields)

    def touch_session(self, session_id: str, now: float) -> None:
        self._run("UPDATE sessions SET seen = ? WHERE id = ?", now, session_id)

    def finish_session(self, session_id: str, reason: str) -> None:
        """The first reason stays. Samplers of the session go with it."""
        self._run("UPDATE sessions SET finished = ? WHERE id = ? AND finished IS NULL", reason, session_id)
        self._run("DELETE FROM samplers WHERE session = ?", session_id)

    # ------------------------------------------------------------------ samplers

    def add_sampler(self, sampler: Sampler) -> None:
        self._run(
            "INSERT OR REPLACE INTO samplers VALUES (?, ?, ?, ?, ?)",
            sampler.id,
            sampler.session,
            sampler.base_model,
            sampler.weights,
            sampler.model_path,
        )

    def sampler(self, sampler_id: str) -> Sampler | None:
        rows = self._run("SELECT * FROM samplers WHERE id = ?", sampler_id)
        return Sampler(*rows[0]) if rows else None

    def samplers_of(self, session_id: str) -> list[str]:
        return [row[0] for row in self._run("SELECT id FROM samplers WHERE session = ? ORDER BY id", session_id)]

    # ------------------------------------------------------------------ runs

    def add_run(self, run: Run) -> None:
        self._run(
            "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)",
            run.id,
            run.session,
            run.base_model,
            json.dumps(run.lora),
            run.created,
            run.used,
            None if run.user_metadata is None else json.dumps(run.user_metadata),
        )

    def run(self, run_id: str) -> Run | None:
        rows = self._run("SELECT * FROM runs WHERE id = ?", run_id)
        return self._as_run(rows[0]) if rows else None

    def runs(self) -> list[Run]:
        """Newest first."""
        return [self._as_run(row) for row in self._run("SELECT * FROM runs ORDER BY created DESC, id")]

    def runs_of(self, session_id: str) -> list[str]:
        return [row[0] for row in self._run("SELECT id FROM runs WHERE session = ? ORDER BY created, id", session_id)]

    def touch_run(self, run_id: str, now: float) -> None:
        self._run("UPDATE runs SET used = ? WHERE id = ?", now, run_id)

    @staticmethod
    def _as_run(row: tuple[Any, ...]) -> Run:
        metadata = None if row[6] is None else json.loads(row[6])
        return Run(row[0], row[1], row[2], json.loads(row[3]), row[4], row[5], metadata)

    # ------------------------------------------------------------------ usage

    def add_usage(self, hour: int, session: str, kind: str, amount: int) -> None:
        self._run(
            "INSERT INTO usage VALUES (?, ?, ?, ?) "
            "ON CONFLICT (hour, session, kind) DO UPDATE SET amount = amount + excluded.amount",
            hour,
            session,
            kind,
            amount,
        )

    def usage(self) -> list[Usage]:
        return [Usage(*row) for row in self._run("SELECT * FROM usage ORDER BY hour, amount DESC, session, kind")]
