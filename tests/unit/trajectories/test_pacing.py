"""Rollouts start only when they can be trained in time; slow tasks are trained as often as sampled (AP-5, AP-31)."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import pytest

from tinker_atropos.trajectories.pacing import EXPECTED_SECONDS, SAMPLING_SECONDS, Pacing, Situation


def situation(**changes: Any) -> Situation:
    usual: dict[str, Any] = {
        "batch_size": 16, "limit": 1, "step": 0, "policy_step": 0, "waiting": 0, "waiting_by_environment": {},
        "weights": {},
    }  # fmt: skip
    return Situation(**{**usual, **changes})


def granted(pacing: Pacing, count: int, now: float = 0.0, **changes: Any) -> int:
    """How many of `count` groups of four may start."""
    for number in range(count):
        pacing.want((1, f"w{number}"), "e", "i", 4)
    return len(pacing.grants(situation(**changes), now))


@pytest.mark.parametrize(
    ("behaviour", "changes", "count"),
    [
        ("one batch for each step that a group may be late, and the next one", {}, 8),
        ("on-policy: one batch", {"limit": 0}, 4),
        ("what waits already counts", {"waiting": 20}, 3),
        ("a full queue lets nobody start", {"waiting": 32}, 0),
        ("more than full too", {"waiting": 48}, 0),
        ("without a limit everybody starts", {"limit": None, "waiting": 1000}, 20),
        ("before a trainer is there too", {"batch_size": -1}, 20),
        ("a policy that is behind takes room", {"step": 5, "policy_step": 4}, 4),
        ("on-policy nobody starts until the policy is there", {"limit": 0, "step": 5, "policy_step": 4}, 0),
    ],
)
def test_room(behaviour: str, changes: dict[str, Any], count: int) -> None:
    assert granted(Pacing(), 20, **changes) == count, behaviour


def test_a_want_larger_than_the_whole_room_starts_alone_and_blocks_nobody_for_ever() -> None:
    pacing = Pacing()
    pacing.want((1, "large"), "e", "i", 64)
    pacing.want((1, "small"), "e", "i", 4)
    assert pacing.grants(situation(limit=0), 0.0) == [(1, "large")]
    pacing.posted("e", "i", 64)
    assert pacing.grants(situation(limit=0), 0.0) == [(1, "small")]


class TestCredits:
    def test_a_group_that_is_posted_settles_its_credit(self) -> None:
        pacing = Pacing()
        assert granted(pacing, 20) == 8
        pacing.posted("e", "i", 4)
        assert pacing.running == 28
        assert pacing.grants(situation(waiting=4), 0.0) == []

    def test_several_requests_make_one_group(self) -> None:
        pacing = Pacing()
        for number in range(4):
            pacing.want((1, f"{number}"), "e", "i", 1)
        assert len(pacing.grants(situation(), 0.0)) == 4
        pacing.posted("e", "i", 4)
        assert pacing.running == 0

    def test_those_that_ended_sampling_are_settled_first(self) -> None:
        pacing = Pacing()
        granted(pacing, 2)
        pacing.sampled((1, "w1"), 0.0)
        pacing.posted("e", "i", 4)
        pacing.expire(EXPECTED_SECONDS + 1)
        assert pacing.running == 4

    def test_posts_of_another_instance_settle_nothing(self) -> None:
        pacing = Pacing()
        granted(pacing, 2)
        pacing.posted("e", "other", 4)
        assert pacing.running == 8

    def test_one_whose_group_never_comes_expires(self) -> None:
        pacing = Pacing()
        assert granted(pacing, 20, limit=0) == 4
        pacing.sampled((1, "w0"), 100.0)
        assert pacing.grants(situation(limit=0), 100.0 + EXPECTED_SECONDS - 1) == []
        assert pacing.grants(situation(limit=0), 100.0 + EXPECTED_SECONDS) == [(1, "w4")]

    def test_one_that_goes_on_does_not_expire(self) -> None:
        pacing = Pacing()
        granted(pacing, 1)
        pacing.sampled((1, "w0"), 0.0)
        pacing.continued((1, "w0"), "e", "i", 4, 0, 10.0)
        pacing.expire(10.0 + SAMPLING_SECONDS - 1)
        assert pacing.running == 4
        pacing.expire(10.0 + SAMPLING_SECONDS)
        assert pacing.running == 0

    def test_one_that_is_given_up_makes_room_at_once(self) -> None:
        pacing = Pacing()
        assert granted(pacing, 20) == 8
        pacing.abandoned((1, "w3"))
        assert pacing.grants(situation(), 0.0) == [(1, "w8")]

    def test_one_that_gave_up_waiting_is_not_granted(self) -> None:
        pacing = Pacing()
        granted(pacing, 9)
        pacing.abandoned((1, "w8"))
        pacing.abandoned((1, "w0"))
        assert pacing.grants(situation(), 0.0) == []

    def test_after_a_restart_running_ones_are_adopted(self) -> None:
        pacing = Pacing()
        pacing.continued((1, "a"), "e", "i", 4, 0, 0.0)
        assert pacing.running == 4

    def test_when_the_stream_ends_nobody_waits_and_what_runs_expires_soon(self) -> None:
        pacing = Pacing()
        granted(pacing, 20)
        pacing.stream_ended(1, 0.0)
        assert pacing.held == 0 and pacing.running == 32
        pacing.expire(EXPECTED_SECONDS)
        assert pacing.running == 0

    def test_where_few_groups_come_more_rollouts_may_run(self) -> None:
        pacing = Pacing()
        for number in range(100):
            pacing.want((2, f"{number}"), "e", "i", 4)
            pacing.grants(situation(limit=None), 0.0)
        pacing.stream_ended(2, 0.0)
        pacing.expire(1000.0)
        assert granted(pacing, 200, now=1000.0) > 40
        assert granted(Pacing(), 200) == 8


def test_the_environment_with_least_under_way_for_its_weight_is_next() -> None:
    pacing = Pacing()
    for number in range(8):
        pacing.want((1, f"fast{number}"), "fast", "f", 4)
    for number in range(8):
        pacing.want((1, f"slow{number}"), "slow", "s", 4)
    grants = pacing.grants(situation(waiting=12, waiting_by_environment={"fast": 12}, limit=2), 0.0)
    assert Counter(key[1][:4] for key in grants) == {"fast": 3, "slow": 6}


@pytest.mark.parametrize("limit", [0, 1, 2, 4])
def test_tasks_of_very_different_length_are_trained_as_they_are_sampled(limit: int) -> None:
    """Tasks of 1 s and 60 s, a trainer that takes 5 s a step: nothing is too old, and the mix stays."""
    rng = random.Random(limit)
    pacing, now, step, policy = Pacing(), 0.0, 0, 0
    queue: list[tuple[int, str]] = []
    events: list[tuple[float, int, str, Any]] = []
    sampled, trained, stale = Counter[str](), Counter[str](), 0
    busy, number = False, 0

    def offer() -> None:
        nonlocal number
        while pacing.held < 4 * 24:  # 24 workers wait at any time
            kind = rng.choice(("short", "long"))
            number += 1
            pacing.want((1, f"{number}:{kind}"), "e", "i", 4)
        waiting = 4 * len(queue) + (16 if busy else 0)
        for key in pacing.grants(situation(limit=limit, step=step, policy_step=policy, waiting=waiting), now):
            kind = key[1].partition(":")[2]
            sampled[kind] += 1
            heapq.heappush(
                events, (now + (1 if kind == "short" else 60), len(events) + number, "posted", (kind, policy))
            )

    offer()
    while step < 150:
        now, _, what, detail = heapq.heappop(events)
        if what == "posted":
            pacing.posted("e", "i", 4)
            queue.append((detail[1], detail[0]))
        else:
            busy = False
            step = policy = step + 1
        if not busy and len(queue) >= 4:
            batch, queue = queue[:4], queue[4:]
            for version, kind in batch:
                stale += step - version > limit
                trained[kind] += 1
            busy = True
            heapq.heappush(events, (now + 5, -1, "trained", None))
        offer()
    assert stale == 0
    assert trained["long"] / trained.total() == pytest.approx(sampled["long"] / sampled.total(), abs=0.03)
