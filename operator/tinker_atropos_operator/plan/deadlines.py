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

    def passed(self, now: dt.datetime) -> bool:
        return now >= self.at

    def seconds_left(self, now: dt.datetime) -> float:
        return max(0.0, (self.at - now).total_seconds())


def startup_deadline(started: dt.datetime, startup: str, seconds: float, missing: str) -> Deadline:
    """`missing` says what the run still waits for."""
    return Deadline(
        started + dt.timedelta(seconds=seconds),
        "StartupDeadlineExceeded",
        f"the run has not begun to train within deadlines.startup {startup}: {missing}",
    )


def secret_deadline(since: dt.datetime, startup: Deadline, message: str) -> Deadline:
    """since: when the Secret was first found missing."""
    return Deadline(min(startup.at, since + dt.timedelta(seconds=SECRET_GRACE_SECONDS)), "SecretMissing", message)
