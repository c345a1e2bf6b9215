"""Promises and the order of calls."""

from __future__ import annotations

import pytest

from tinker_atropos.local_tinker.futures import KEEP_FETCHED, KEEP_UNFETCHED, Outcome, Promises, SequenceGate, failed


@pytest.mark.parametrize(
    ("arrivals", "released"),
    [
        ([1, 2, 3], [[1], [2], [3]]),
        ([2, 3, 1], [[], [], [1, 2, 3]]),
        ([1, 1, 2], [[1], [], [2]]),
        ([2, 2, 1], [[], [], [1, 2]]),
        ([1, 3, 1, 2], [[1], [], [], [2, 3]]),
    ],
    ids=["in order", "first one last", "sent again after it passed", "sent again while held", "a hole that is filled"],
)
def test_calls_pass_once_and_in_order(arrivals: list[int], released: list[list[int]]) -> None:
    gate: SequenceGate[int] = SequenceGate()
    assert [gate.offer(number, number) for number in arrivals] == released


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_same_request_has_the_same_promise() -> None:
    promises = Promises(Clock())
    first, fresh = promises.open("a")
    again, fresh_again = promises.open("a")
    assert (fresh, fresh_again) == (True, False)
    assert first is again


async def test_first_outcome_wins() -> None:
    promises = Promises(Clock())
    promise, _ = promises.open("a")
    assert not promise.settled.is_set()
    promises.settle(promise, failed("cancelled", "user"))
    promises.settle(promise, Outcome(json={"too": "late"}))
    await promise.settled.wait()
    assert promise.outcome == Outcome(json={"error": "cancelled", "category": "user"})


@pytest.mark.parametrize(
    ("settled", "fetched", "waited", "kept"),
    [
        (False, False, KEEP_UNFETCHED + 1, True),
        (True, False, KEEP_FETCHED + 1, True),
        (True, False, KEEP_UNFETCHED + 1, False),
        (True, True, KEEP_FETCHED - 1, True),
        (True, True, KEEP_FETCHED + 1, False),
    ],
    ids=["pending", "not fetched yet", "nobody came", "fetched just now", "fetched a while ago"],
)
def test_what_is_forgotten(settled: bool, fetched: bool, waited: float, kept: bool) -> None:
    clock = Clock()
    promises = Promises(clock)
    promise, _ = promises.open("a")
    if settled:
        promises.settle(promise, Outcome(json={}))
    if fetched:
        promises.fetched(promise)
    clock.now = waited
    promises.forget_old()
    assert (promises.find("a") is not None) is kept
