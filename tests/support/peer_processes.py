"""Programs of a run as real processes, for tests that want real peers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

OWN = (sys.executable, "-m", "tinker_atropos.cli.main")
KEY = "tml-test"
GROUP = 4
BATCH = 8


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def until(check: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError, OSError):
            value = check()
            if value:
                return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {seconds} s")


@dataclass
class Program:
    """One process with its output in a file."""

    arguments: list[str]
    log: Path
    health: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> Program:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*OWN, *self.arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "TINKER_API_KEY": KEY, **self.variables},
            )
        if wait and self.health:
            until(self._healthy, f"{self.arguments[0]} ready", 90)
        return self

    def _healthy(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.text()
        return httpx.get(str(self.health), timeout=2).status_code == 200

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)

    def wait(self, seconds: float = 120) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.arguments[0]} did not end:\n{self.text()}") from None

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def records(self) -> list[dict[str, Any]]:
        """Log records; a line cut by a kill is passed over."""
        found = []
        for line in self.text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def steps(self) -> list[int]:
        """Optimizer steps that this program's processes finished, in order."""
        return [record["step"] for record in self.records() if str(record.get("message", "")).startswith("step ")]


@dataclass
class Server:
    """A trajectory server and where it listens."""

    program: Program
    url: str
    grpc: str
    store: Path

    def ledger(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/ledger", timeout=5).json()
        return answer


def group(seed: int, size: int = GROUP) -> dict[str, Any]:
    """A group of distinct sequences, half of them good."""
    rng = random.Random(seed)
    tokens = [[rng.randrange(10, 40) for _ in range(10)] for _ in range(size)]
    return {
        "tokens": tokens,
        "masks": [[-100] * 4 + sequence[4:] for sequence in tokens],
        "scores": [float(index % 2) for index in range(size)],
        "inference_logprobs": [[1.0] * 4 + [-3.0 + rng.random() for _ in range(6)] for _ in range(size)],
    }


def end_of(program: Program) -> dict[str, Any]:
    """The last report that the program left as its termination message."""
    path = program.arguments[program.arguments.index("--termination-log") + 1]
    report: dict[str, Any] = json.loads(Path(path).read_text())
    return report
