"""Child processes that never outlive the run: each in a process group of its own, ended in order or killed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tinker_atropos.local.programs import Program

SECONDS_TO_END = 8.0
"""Between SIGTERM and SIGKILL."""

_PR_SET_PDEATHSIG = 1


class Process:
    """One started program. Its output goes into a file; `tail()` shows the end of it."""

    def __init__(self, program: Program, log_file: Path) -> None:
        self.program = program
        self.log_file = log_file
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, variables: Mapping[str, str]) -> None:
        """Start it. Raises OSError when the program cannot be started."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.program.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.program.directory,
                env={**os.environ, **variables, **self.program.environment},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    async def wait(self) -> int:
        """Exit status; negative = ended by that signal."""
        assert self._process is not None
        return await self._process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def signal(self, number: int) -> None:
        """Signal the whole group: an environment may have children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def end(self) -> None:
        """SIGTERM, then SIGKILL; the group is gone afterwards."""
        if self.running:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), SECONDS_TO_END)
        self.signal(signal.SIGKILL)  # also what a dead leader left behind
        if self._process is not None:
            await self._process.wait()

    def tail(self, lines: int = 15) -> list[str]:
        """Last lines of its output."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - 64 * 1024))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return [readable(line) for line in text.splitlines()[-lines:]]


def readable(line: str) -> str:
    """A line of output without what a terminal would obey; a log record in JSON as its level and message."""
    line = "".join(sign if sign.isprintable() or sign == "\t" else "\N{REPLACEMENT CHARACTER}" for sign in line)
    try:
        record = json.loads(line)
        said = f"{record['level']}: {record['message']}"
        cause = str(record.get("exception", "")).strip().splitlines()
    except (ValueError, TypeError, KeyError):
        return line
    return f"{said} ({cause[-1]})" if cause else said


def _die_with_parent() -> None:
    """Also when this process is killed with SIGKILL, its children get a SIGTERM (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
