"""Rollouts start only when they can be trained in time; slow tasks are trained as often as sampled (AP-5, AP-31)."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import pytest

from tinker_atropos.trajectories.delays import Delays
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


DELAYS: dict[str, tuple[list[float], float]] = {
    "nothing seen yet": ([], 15.0),
    "groups that come at once": ([0.1, 2.0, 5.0], 15.0),
    "a slow one, with a margin": ([30.0], 60.0),
    "the longest counts": ([30.0, 1.0], 60.0 * 0.98),
    "it fades": ([30.0] + [1.0] * 200, 15.0),
    "beyond every bound": ([10_000.0], 600.0),
    "a clock that went back": ([-5.0], 15.0),
}


@pytest.mark.parametrize(("seen", "expected"), DELAYS.values(), ids=DELAYS)
def test_how_long_a_group_is_expected(seen: list[float], expected: float) -> None:
    delays = Delays(15.0, 600.0)
    for seconds in seen:
        delays.saw("e", seconds)
    assert delays.expected("e") == pytest.approx(expected)
    assert delays.expected("other") == 15.0


class TestLearning:
    """A group is given up when it would have come by what was seen, not after a fixed time."""

    @staticmethod
    def one(pacing: Pacing, name: str, now: float, prompt: bytes = b"p", environment: str = "e") -> None:
        pacing.want((1, name), environment, "i", 4, prompt)
        assert pacing.grants(situation(limit=None), now) == [(1, name)]
        pacing.sampled((1, name), now)

    def test_one_that_came_too_late_teaches_it(self) -> None:
        pacing = Pacing()
        self.one(pacing, "slow", 0.0)
        pacing.expire(EXPECTED_SECONDS)
        assert pacing.running == 0 and pacing.expired == 1
        pacing.posted("e", "i", 4, b"p", 60.0)
        assert pacing.expected_seconds == {"e": 120.0}
        self.one(pacing, "next", 100.0, b"q")
        pacing.expire(100.0 + 2 * 60.0 - 1)
        assert pacing.running == 4
        pacing.expire(100.0 + 2 * 60.0)
        assert pacing.running == 0

    def test_each_environment_has_its_own(self) -> None:
        pacing = Pacing()
        self.one(pacing, "slow", 0.0)
        pacing.posted("e", "i", 4, b"p", 60.0)
        self.one(pacing, "fast", 0.0, environment="f")
        pacing.expire(EXPECTED_SECONDS)
        assert pacing.running == 0

    def test_groups_that_never_come_teach_nothing(self) -> None:
        pacing = Pacing()
        for number in range(50):
            self.one(pacing, f"{number}", 100.0 * number, b"%d" % number)
            pacing.expire(100.0 * number + EXPECTED_SECONDS)
            assert pacing.running == 0

    def test_groups_of_one_prompt_that_never_came_do_not_make_those_that_come_look_slow(self) -> None:
        """An environment with a single prompt throws every other group away."""
        pacing = Pacing()
        for number in range(100):
            now = 10.0 * number
            self.one(pacing, f"dropped{number}", now, b"same")
            self.one(pacing, f"posted{number}", now + 1, b"same")
            pacing.posted("e", "i", 4, b"same", now + 3)
        self.one(pacing, "last", 5000.0, b"same")
        pacing.expire(5000.0 + EXPECTED_SECONDS)
        assert pacing.running == 0

    def test_a_prompt_that_comes_again_much_later_teaches_nothing(self) -> None:
        pacing = Pacing()
        self.one(pacing, "first", 0.0)
        pacing.expire(EXPECTED_SECONDS)
        pacing.posted("e", "i", 4, b"p", SAMPLING_SECONDS + 1)
        self.one(pacing, "next", 1000.0, b"q")
        pacing.expire(1000.0 + EXPECTED_SECONDS)
        assert pacing.running == 0

    def test_a_group_settles_its_own_credits_not_older_ones(self) -> None:
        pacing = Pacing()
        self.one(pacing, "old", 0.0, b"old")
        self.one(pacing, "new", 5.0, b"new")
        pacing.posted("e", "i", 4, b"new", 6.0)
        pacing.expire(EXPECTED_SECONDS)
        assert pacing.expired == 1, "the old one's is still expected until now"


class TestGroupsOfSeveralRequests:
    """With one request for each rollout (n=1), a group starts as a whole or not at all."""

    def want(self, pacing: Pacing, prompt: str, *numbers: int) -> None:
        for number in numbers:
            pacing.want((1, f"{prompt}{number}"), "e", "i", 1, prompt.encode())

    @staticmethod
    def started(pacing: Pacing, now: float = 0.0, **changes: Any) -> str:
        usual = {"group_size": 4, "limit": 0, "batch_size": 4}
        return " ".join(sorted(key[1] for key in pacing.grants(situation(**{**usual, **changes}), now)))

    def test_two_groups_that_ask_in_turns_do_not_lock_each_other_out(self) -> None:
        pacing = Pacing()
        for number in range(4):
            self.want(pacing, "a", number)
            self.want(pacing, "b", number)
        assert self.started(pacing) == "a0 a1 a2 a3"
        pacing.posted("e", "i", 4, b"a", 1.0)
        assert self.started(pacing, step=1, policy_step=1) == "b0 b1 b2 b3"

    def test_one_that_asks_later_joins_its_group_without_room_of_its_own(self) -> None:
        pacing = Pacing()
        self.want(pacing, "a", 0, 1)
        assert self.started(pacing) == "a0 a1"
        self.want(pacing, "b", 0, 1, 2, 3)
        self.want(pacing, "a", 2)
        assert self.started(pacing) == "a2"
        self.want(pacing, "a", 3)
        assert self.started(pacing) == "a3"

    def test_one_more_than_a_group_has_begins_another_group(self) -> None:
        pacing = Pacing()
        self.want(pacing, "a", 0, 1, 2, 3)
        assert self.started(pacing) == "a0 a1 a2 a3"
        self.want(pacing, "a", 4)
        assert self.started(pacing) == ""
        pacing.posted("e", "i", 4, b"a", 1.0)
        assert self.started(pacing) == "a4"

    def test_what_is_left_of_a_group_that_is_gone_begins_anew(self) -> None:
        pacing = Pacing()
        self.want(pacing, "a", 0, 1)
        assert self.started(pacing) == "a0 a1"
        for number in (0, 1):
            pacing.abandoned((1, f"a{number}"))
        self.want(pacing, "b", 0, 1, 2, 3)
        self.want(pacing, "a", 2)
        assert self.started(pacing) == "b0 b1 b2 b3"

    def test_requests_of_unknown_prompts_start_one_by_one(self) -> None:
        pacing = Pacing()
        for number in range(6):
            pacing.want((1, f"{number}"), "e", "i", 1)
        assert self.started(pacing) == "0 1 2 3"

    def test_a_group_in_one_request_is_none_of_this(self) -> None:
        pacing = Pacing()
        for number in range(3):
            pacing.want((1, f"{number}"), "e", "i", 4, b"same")
        assert self.started(pacing, batch_size=8) == "0 1"


@pytest.mark.parametrize("limit", [1, 3])
def test_slow_groups_of_single_requests_are_never_too_old_once_their_delay_is_known(limit: int) -> None:
    """Four requests of 1 to 60 s make a group, which is scored for 20 s; the trainer takes 5 s a step."""
    rng = random.Random(limit)
    pacing, now, step = Pacing(), 0.0, 0
    queue: list[int] = []
    events: list[tuple[float, int, str, Any]] = []
    groups: dict[str, list[int]] = {}
    stale = Counter[bool]()
    busy, number, begun = False, 0, 0

    def offer() -> None:
        nonlocal number, begun
        while pacing.held < 4 * 12:
            number += 1
            for part in range(4):
                pacing.want((1, f"{number}:{part}"), "e", "i", 1, b"%d" % number)
        changes = {"limit": limit, "step": step, "policy_step": step, "group_size": 4}
        for key in pacing.grants(situation(waiting=4 * len(queue) + (16 if busy else 0), **changes), now):
            begun += 1
            heapq.heappush(events, (now + rng.uniform(1, 60), begun, "sampled", (key, step)))

    offer()
    while step < 200:
        while not events:
            now += 1.0
            offer()
        now, _, what, detail = heapq.heappop(events)
        if what == "sampled":
            key, version = detail
            pacing.sampled(key, now)
            name = key[1].partition(":")[0]
            groups.setdefault(name, []).append(version)
            if len(groups[name]) == 4:
                heapq.heappush(events, (now + 20, int(name), "posted", name))
        elif what == "posted":
            pacing.posted("e", "i", 4, detail.encode(), now)
            queue.append(min(groups.pop(detail)))
        else:
            busy = False
            step += 1
        if not busy:  # the lease drops what is too old
            old = [version for version in queue if step - version > limit]
            stale[step > 20] += len(old)
            queue = [version for version in queue if step - version <= limit]
        if not busy and len(queue) >= 4:
            queue = queue[4:]
            busy = True
            heapq.heappush(events, (now + 5, -1, "trained", None))
        offer()
    assert stale[True] == 0


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
