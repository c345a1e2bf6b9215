"""When the relay asks again, and how long it waits before."""

from __future__ import annotations

import pytest

from tinker_atropos.relay.patience import (
    FIRST_DELAY,
    LONGEST_DELAY,
    SERVER_ERROR_PATIENCE,
    Attempt,
    asks_again,
    delay,
    retry_after,
)


@pytest.mark.parametrize(
    ("behaviour", "status", "held", "again"),
    [
        ("no answer at all", None, 0, True),
        ("no answer for a day", None, 86_400, True),
        ("bad gateway", 502, 0, True),
        ("service unavailable for a day", 503, 86_400, True),
        ("gateway timeout", 504, 5, True),
        ("server error just after a restart", 500, 1, True),
        ("server error that stays", 500, SERVER_ERROR_PATIENCE, False),
        ("not implemented is an answer", 501, 0, False),
        ("success", 200, 0, False),
        ("redirect", 307, 0, False),
        ("bad request passes at once", 400, 0, False),
        ("wrong token passes at once", 401, 0, False),
        ("unprocessable passes at once", 422, 0, False),
        ("too many passes at once", 429, 0, False),
    ],
)
def test_asks_again(behaviour: str, status: int | None, held: float, again: bool) -> None:
    assert asks_again(Attempt(status), held) is again, behaviour


def test_the_first_repetition_comes_at_once_and_later_ones_are_capped() -> None:
    delays = [delay(Attempt(None), failures, lambda: 1.0) for failures in range(1, 40)]
    assert delays[0] == FIRST_DELAY
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY


def test_delays_are_spread() -> None:
    assert delay(Attempt(503), 10, lambda: 0.0) == LONGEST_DELAY / 2
    assert delay(Attempt(503), 10, lambda: 0.5) < delay(Attempt(503), 10, lambda: 0.9)


@pytest.mark.parametrize(
    ("header", "wait"),
    [("1", 1.0), ("0", FIRST_DELAY), ("3600", LONGEST_DELAY)],
)
def test_retry_after_is_followed_within_bounds(header: str, wait: float) -> None:
    assert delay(Attempt(503, retry_after(header)), 9, lambda: 0.3) == wait


@pytest.mark.parametrize("header", [None, "", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "inf", "nan"])
def test_other_retry_after_is_ignored(header: str | None) -> None:
    assert retry_after(header) is None
