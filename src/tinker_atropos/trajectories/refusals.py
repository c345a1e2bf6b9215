"""Posts that were refused: who sent them and what was wrong, so that more people hear of it than who sent them.

Whoever posts learns it from the answer; the person who runs it all reads another log. What is kept is bounded, since
names and fields come from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tinker_atropos.trajectories.posts import InvalidPostError

logger = logging.getLogger(__name__)

LOG_SECONDS = 60.0
"""The same of the same environment is logged at most so often."""
OVER_SECONDS = 600.0
"""Without a refused post for so long it is over."""
_MOST_ENVIRONMENTS, _MOST_FIELDS, _MOST_CHARACTERS = 200, 20, 300
_MANY = "(many)"


@dataclass(slots=True)
class _Told:
    """What the log says of one field of one environment."""

    at: float
    since: int = 0
    """Refused since the log said so."""


@dataclass(slots=True)
class Refused:
    """The refused posts of one environment, since this process started."""

    count: int = 0
    last: str = ""
    last_at: float = 0.0
    told: dict[str, _Told] = field(default_factory=dict)


class Refusals:
    """All refused posts of this process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.environments: dict[str, Refused] = {}

    def add(self, environment: str, error: InvalidPostError) -> None:
        """One post; a list of groups counts each of them."""
        if environment not in self.environments and len(self.environments) >= _MOST_ENVIRONMENTS:
            environment = _MANY
        refused = self.environments.setdefault(environment, Refused())
        now, reason = self._clock(), str(error)
        refused.count += 1
        refused.last = reason if len(reason) <= _MOST_CHARACTERS else reason[:_MOST_CHARACTERS] + "…"
        refused.last_at = now
        name = error.field
        if name not in refused.told and len(refused.told) >= _MOST_FIELDS:
            name = _MANY
        told = refused.told.get(name)
        if told is None:
            refused.told[name] = _Told(now)
            logger.warning("refused a post of %s: %s", named(environment), refused.last)
            return
        told.since += 1
        if now - told.at >= LOG_SECONDS:
            logger.warning(
                "refused %d more posts of %s in %.0f s, the last one: %s",
                told.since,
                named(environment),
                now - told.at,
                refused.last,
            )
            told.at, told.since = now, 0

    def current(self) -> dict[str, Refused]:
        """By environment, those that are not over."""
        since = self._clock() - OVER_SECONDS
        return {name: refused for name, refused in self.environments.items() if refused.last_at > since}


def named(environment: str) -> str:
    return f"environment {environment}" if environment else "an environment without a name"
