"""What keeps batches from being made as asked is named once, with numbers, and not any more when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_atropos.trajectories.ledger import Ledger
from tinker_atropos.trajectories.posts import InvalidPostError
from tinker_atropos.trajectories.refusals import OVER_SECONDS, Refusals
from tinker_atropos.trajectories.settings import Settings, Share
from tinker_atropos.trajectories.starvation import PACKING, PASSED_OVER, REFUSED, SHARE, Starvation


class Run:
    """A ledger whose batches are cut and looked at."""

    def __init__(self, **settings: Any) -> None:
        self.ledger = Ledger()
        self.now = 1000.0
        self.refusals = Refusals(lambda: self.now)
        self.starvation = Starvation(self.refusals)
        self.posted = self.step = 0
        self.new: list[tuple[str, str]] = []
        self.apply(self.ledger.take_over(Settings(**{"run_id": "r", "batch_size": 16, **settings}), "t", None, 0.0))

    def apply(self, event: dict[str, Any]) -> None:
        self.ledger.apply(event)

    def post(self, environment: str, *sizes: int) -> None:
        for size in sizes:
            self.posted += 1
            fields = {"id": self.posted, "env": environment, "n": size, "tok": 1, "smp": 1, "at": self.now}
            self.apply({"t": "stored", **fields})

    def cut(self) -> bool:
        events = self.ledger.lease(1, self.step + 1, self.now + 100, self.now)
        for event in events:
            self.apply(event)
        if events and "groups" in events[-1]:
            self.step += 1
            groups = [self.ledger.groups[number].candidate for number in events[-1]["groups"]]
            self.starvation.batch_cut(self.ledger.queue, groups)
        self.new += [warning.key for warning in self.starvation.look(self.ledger, self.now)]
        return bool(events)

    @property
    def messages(self) -> list[str]:
        return [warning.message for warning in self.starvation.warnings]


def test_all_is_well() -> None:
    run = Run(shares=(Share("a"), Share("b")))
    for _ in range(20):
        run.post("a", 4, 4)
        run.post("b", 4, 4)
        assert run.cut()
    assert run.new == [] and run.messages == []


def test_an_environment_short_of_its_share_is_new_once_and_gone_when_it_supplies() -> None:
    run = Run(shares=(Share("a"), Share("b")))
    for _ in range(10):
        run.post("a", 4, 4, 4)
        run.post("b", 4)
        run.cut()
    assert run.new == [(SHARE, "b")]
    assert run.messages == [
        "environment b cannot supply its share: 25.0% of the last 10 batches instead of 50.0%; "
        "it had nothing left in 10 of them"
    ]
    for _ in range(60):
        run.post("a", 4, 4, 4)
        run.post("b", 4, 4, 4)
        run.cut()
    assert run.messages == [] and run.new == [(SHARE, "b")]


@pytest.mark.parametrize(("below", "known", "complains"), [(3, False, True), (1.5, False, False), (1.5, True, True)])
def test_a_complaint_does_not_come_and_go_at_its_limit(below: float, known: bool, complains: bool) -> None:
    ledger = Run(shares=(Share("a"), Share("b"))).ledger
    points = round(below * 10)
    ledger.mix.recent.append({"a": 500 + points, "b": 500 - points})
    ledger.mix.short.append(["b"])
    assert bool(ledger.mix.complaints(ledger.shares(), 4, {"b"} if known else ())) == complains


def test_sizes_that_sum_to_no_batch_are_named_when_patience_ends() -> None:
    run = Run()
    run.post("a", 6, 6, 6)
    assert not run.cut() and run.new == []
    run.now += 61
    assert not run.cut() and not run.cut()
    assert run.new == [(PACKING, "")]
    assert run.messages == ["no choice of the queued groups sums to 16 sequences exactly (groups by size: 3 of 6)"]
    run.post("a", 4)
    assert run.cut()
    assert run.messages == []


def test_groups_that_batches_pass_over_are_named() -> None:
    run = Run()
    run.post("a", 3)
    for _ in range(PASSED_OVER):
        assert run.messages == []
        run.post("a", 4, 4, 4, 4)
        assert run.cut()
    assert run.new == [(PACKING, "a")]
    assert run.messages == [
        "groups of environment a wait while younger ones are trained, because no choice with them sums to 16 "
        "sequences: 1 of 3"
    ]
    run.post("a", 1, 4, 4, 4)
    assert run.cut()
    assert run.messages == []


def test_a_long_queue_in_order_passes_nobody_over() -> None:
    run = Run()
    for _ in range(40):
        run.post("a", 4, 4, 4, 4)
        run.post("b", 2, 2, 4)
    while run.cut():
        assert run.messages == []


def test_refused_posts_are_named_before_there_is_any_batch() -> None:
    run = Run()
    for _ in range(3):
        run.refusals.add("a", InvalidPostError(("scores", 0), "nan is not a finite number"))
        assert not run.cut()
    assert run.new == [(REFUSED, "a")]
    assert run.messages == [
        "3 posts of environment a were refused and none taken; the last refusal: scores[0]: nan is not a finite number"
    ]
    run.post("a", 8, 8)
    assert run.cut()
    assert run.messages == [
        "3 posts of environment a were refused and 2 taken; the last refusal: scores[0]: nan is not a finite number"
    ]
    run.now += OVER_SECONDS
    assert not run.cut()
    assert run.messages == []
