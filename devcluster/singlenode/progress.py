"""What the person waiting at the terminal is told: what is happening now and how long it usually takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Progress goes to stderr: stdout belongs to what a program asked for."""
    print(f"[devcluster] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str, usually: str) -> Iterator[None]:
    say(f"{what} (usually {usually}) ...")
    start = time.monotonic()
    yield
    say(f"{what}: done in {time.monotonic() - start:.1f} s")
