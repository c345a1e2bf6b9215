"""When the relay asks again instead of answering: what makes an environment's request survive a restart of its server.

An unmodified environment exits after three failures within a few seconds and throws its running rollouts away, so
everything that can heal by waiting is waited for here. Pure: the caller brings clock, randomness and the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST_DELAY = 0.05
"""Seconds; a server that closed an idle connection just then is there again at once."""

LONGEST_DELAY = 2.0
"""Seconds. An API server's pod is back within some seconds; asking more rarely would only make the run wait."""

SERVER_ERROR_PATIENCE = 60.0
"""Seconds for which a 500 counts as the hiccup of a restart; after that it is an answer that somebody must see."""

STATUS_PATIENCE = 200.0
"""Seconds for which a status poll is held before it gets the last known answer: unmodified environments give up a poll
after 300 s, and exit when three in a row failed."""

AWAY = frozenset({502, 503, 504})
"""Nobody is there to answer, or it says itself that it can not now."""


@dataclass(frozen=True)
class Attempt:
    """What came of one attempt. status None = no complete answer (refused, reset, no such host)."""

    status: int | None
    retry_after: float | None = None


def asks_again(attempt: Attempt, held_seconds: float) -> bool:
    """Whether the same request is sent once more. held_seconds: since the environment asked."""
    if attempt.status is None or attempt.status in AWAY:
        return True
    return attempt.status == 500 and held_seconds < SERVER_ERROR_PATIENCE


def delay(attempt: Attempt, failures: int, random: Callable[[], float]) -> float:
    """Seconds before the next attempt, after `failures` (≥ 1) in a row. random: uniform in [0, 1)."""
    if attempt.retry_after is not None:
        return min(max(attempt.retry_after, FIRST_DELAY), LONGEST_DELAY)
    longest = min(FIRST_DELAY * 2.0 ** min(failures - 1, 16), LONGEST_DELAY)
    return longest * (0.5 + 0.5 * random())  # spread: every environment of a run asks at the same moment otherwise


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header; its date form is not worth understanding for waits that are capped anyway."""
    try:
        seconds = float(value) if value else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < float("inf") else None
