"""Has the run taken too long to get somewhere?"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

SECRET_GRACE_SECONDS = 60.0
"""A Secret that is applied together with the run may come a little later; one that does not is a mistake worth saying
soon."""


@dataclass(frozen=True)
class Deadline:
    """A moment, and what the run fails with when nothing has changed by then."""

    at: dt.datetime
    reason: str
    message: str
    brief: str = ""
    """The message in one line; empty = as it is."""

    def passed(self, now: dt.datetime) -> bool:
        return now >= self.at

    def seconds_left(self, now: dt.datetime) -> float:
        return max(0.0, (self.at - now).total_seconds())


def startup_deadline(started: dt.datetime, startup: str, seconds: float, missing: str, brief: str) -> Deadline:
    """`missing` says what the run still waits for; brief: the same in one line."""
    late = f"the run has not begun to train within deadlines.startup {startup}"
    return Deadline(
        started + dt.timedelta(seconds=seconds),
        "StartupDeadlineExceeded",
        f"{late}: {missing}",
        f"not begun within deadlines.startup {startup}: {brief}",
    )


def secret_deadline(since: dt.datetime, startup: Deadline, message: str, brief: str) -> Deadline:
    """since: when the Secret was first found missing."""
    at = min(startup.at, since + dt.timedelta(seconds=SECRET_GRACE_SECONDS))
    return Deadline(at, "SecretMissing", message, brief)
