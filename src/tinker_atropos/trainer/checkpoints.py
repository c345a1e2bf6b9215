"""Names of saved weights, and which of them may go.

Every name carries the epoch: a step that is redone after a crash must not collide with what its first try left behind.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

KEEP_SAMPLERS = 4
"""Newest sampler weights that stay: the gateway may still be opening an older one than the newest."""

FINAL = "final"


def sampler_name(epoch: int, step: int) -> str:
    return f"e{epoch:04d}-s{step:06d}"


def rolling_name(epoch: int, step: int) -> str:
    return f"rolling-e{epoch:04d}-s{step:06d}"


def named(step: int) -> str:
    return f"step-{step:06d}"


def is_named_step(step: int, interval: int) -> bool:
    """A named checkpoint is kept after every `interval` steps; 0 = never."""
    return interval > 0 and step % interval == 0


@dataclass
class Retention:
    """What this process saved and what of it is superseded."""

    samplers: deque[str] = field(default_factory=deque)
    rolling: str | None = None

    def sampler_saved(self, path: str) -> list[str]:
        """Paths that may be deleted now that `path` is published."""
        self.samplers.append(path)
        return [self.samplers.popleft() for _ in range(len(self.samplers) - KEEP_SAMPLERS)]

    def state_covered(self, path: str, is_named: bool) -> list[str]:
        """Paths that may be deleted now that the state at `path` is recorded as covering."""
        superseded = [self.rolling] if self.rolling and self.rolling != path else []
        self.rolling = None if is_named else path
        return superseded

    def current(self, state_path: str | None) -> list[str]:
        """Paths that must not expire while the trainer waits."""
        return [path for path in (self.samplers[-1] if self.samplers else None, state_path) if path]
