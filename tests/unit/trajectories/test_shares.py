"""Batches are divided by weights, within minimum and maximum shares, as far as the environments can supply."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tinker_atropos.trajectories.packing import Candidate, Queue
from tinker_atropos.trajectories.settings import Share
from tinker_atropos.trajectories.shares import Choice, Mix, choose, lacking, largest, minima, targets_of


def shares(**weights: float | Share) -> dict[str, Share]:
    return {name: Share(name, value) if isinstance(value, int | float) else value for name, value in weights.items()}


class Supply:
    """Environments that fill a queue at their own rates while batches are cut."""

    def __init__(self, asked: dict[str, Share], batch_size: int = 32) -> None:
        self.asked = asked
        self.batch_size = batch_size
        self.queue = Queue()
        self.mix = Mix()
        self.number = 0
        self.got = Counter[str]()

    def post(self, environment: str, count: int = 1, size: int = 4) -> None:
        for _ in range(count):
            self.number += 1
            self.queue.add(Candidate(self.number, size, environment))

    def cut(self, *, strict: bool = True) -> Choice:
        choice = choose(self.queue.front(self.batch_size), self.batch_size, self.asked, self.mix, strict=strict)
        if choice.groups:
            batch = Counter[str]()
            for candidate in choice.groups:
                batch[candidate.environment] += candidate.sequences
            assert sum(batch.values()) == self.batch_size
            self.queue.remove(choice.groups)
            largest = max(candidate.sequences for candidate in choice.groups)
            self.mix.add(batch, self.asked, {name for name, _ in self.queue.sizes()}, largest)
            self.got.update(batch)
        return choice

    def share(self, name: str) -> float:
        return self.got[name] / sum(self.got.values())


@pytest.mark.parametrize(
    ("weights", "posted", "sizes"),
    [
        ({"a": 1, "b": 1}, {"a": 50, "b": 5}, {"a": 4, "b": 4}),
        ({"a": 1, "b": 3}, {"a": 30, "b": 10}, {"a": 4, "b": 4}),
        ({"a": 1, "b": 2, "c": 5}, {"a": 10, "b": 10, "c": 10}, {"a": 4, "b": 4, "c": 4}),
        ({"a": 0.2, "b": 0.8}, {"a": 20, "b": 20}, {"a": 2, "b": 8}),
        ({"a": 1, "b": 1}, {"a": 20, "b": 20}, {"a": 16, "b": 4}),
    ],
)
def test_weights_are_kept_within_two_points_over_fifty_batches(
    weights: dict[str, float], posted: dict[str, int], sizes: dict[str, int]
) -> None:
    supply = Supply(shares(**weights))
    for _ in range(50):
        for name, count in posted.items():
            supply.post(name, count, sizes[name])
        assert supply.cut().groups
    for name, weight in weights.items():
        assert supply.share(name) == pytest.approx(weight / sum(weights.values()), abs=0.02)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"a": Share("a", 10.0), "b": Share("b", 1.0, 0.25)}, {"a": 0.75, "b": 0.25}),
        ({"a": Share("a", 1.0, 0.0, 0.25), "b": Share("b", 1.0)}, {"a": 0.25, "b": 0.75}),
        ({"a": Share("a", 1.0, 0.5), "b": Share("b", 1.0, 0.25), "c": Share("c", 2.0, 0.0, 0.25)}, None),
        ({"a": Share("a", 1.0, 0.0, 0.4), "b": Share("b", 4.0), "c": Share("c", 1.0, 0.3)}, None),
    ],
)
@pytest.mark.parametrize("posted", [{"a": 20, "b": 20, "c": 20}, {"a": 9, "b": 12, "c": 12}])
def test_limits_and_weights_are_kept_within_two_points_over_fifty_batches(
    asked: dict[str, Share], expected: dict[str, float] | None, posted: dict[str, int]
) -> None:
    """When supply allows: everybody posts at least what is its own, in groups of 2 to 8."""
    supply = Supply(asked, batch_size=40)
    rng = random.Random(7)
    for _ in range(50):
        for name in asked:
            left = posted[name] * 4
            while left > 0:
                size = rng.choice((2, 4, 8))
                supply.post(name, 1, size)
                left -= size
        assert supply.cut().groups
    targets = targets_of(asked, asked)
    assert expected is None or targets == pytest.approx(expected)
    for name, target in targets.items():
        assert supply.share(name) == pytest.approx(target, abs=0.02)
    assert supply.mix.complaints(asked, 4) == {}


TARGETS: dict[str, tuple[dict[str, Share], dict[str, float]]] = {
    "by weight": ({"a": Share("a", 1.0), "b": Share("b", 3.0)}, {"a": 0.25, "b": 0.75}),
    "a minimum above the weight": ({"a": Share("a", 9.0), "b": Share("b", 1.0, 0.4)}, {"a": 0.6, "b": 0.4}),
    "a minimum below the weight": ({"a": Share("a", 1.0), "b": Share("b", 1.0, 0.4)}, {"a": 0.5, "b": 0.5}),
    "a maximum below the weight": ({"a": Share("a", 3.0, 0.0, 0.5), "b": Share("b", 1.0)}, {"a": 0.5, "b": 0.5}),
    "what is left goes by weight": (
        {"a": Share("a", 8.0, 0.0, 0.4), "b": Share("b", 1.0), "c": Share("c", 2.0)},
        {"a": 0.4, "b": 0.2, "c": 0.4},
    ),
    "minima that are everything": ({"a": Share("a", 1.0, 0.7), "b": Share("b", 1.0, 0.3)}, {"a": 0.7, "b": 0.3}),
    "minima that are too much are scaled": (
        {"a": Share("a", 1.0, 0.9), "b": Share("b", 1.0, 0.9)},
        {"a": 0.5, "b": 0.5},
    ),
    "maxima that are too little leave the rest to nobody": (
        {"a": Share("a", 1.0, 0.0, 0.3), "b": Share("b", 1.0, 0.0, 0.3)},
        {"a": 0.3, "b": 0.3},
    ),
    "no weight at all": ({"a": Share("a", 0.0), "b": Share("b", 1.0)}, {"a": 0.0, "b": 1.0}),
}


@pytest.mark.parametrize(("asked", "targets"), TARGETS.values(), ids=TARGETS)
def test_targets_are_weights_within_limits(asked: dict[str, Share], targets: dict[str, float]) -> None:
    assert targets_of(asked, asked) == pytest.approx(targets)


def test_without_weights_environments_share_equally() -> None:
    supply = Supply({})
    for _ in range(50):
        supply.post("fast", 20)
        supply.post("slow", 4)
        supply.cut()
    assert supply.share("slow") == pytest.approx(0.5, abs=0.02)


def test_one_environment_alone_is_plain_first_in_first_out() -> None:
    supply = Supply({})
    supply.post("a", 20)
    assert [candidate.number for candidate in supply.cut().groups] == list(range(1, 9))


class TestShortSupply:
    def test_the_others_fill_up_and_it_is_said_with_numbers(self) -> None:
        supply = Supply(shares(fast=1, slow=1))
        for _ in range(50):
            supply.post("fast", 20)
            supply.post("slow", 1)
            supply.cut()
        assert supply.share("slow") == pytest.approx(1 / 8)
        assert supply.mix.complaints(supply.asked, 4) == {
            "slow": "environment slow cannot supply its share: 12.5% of the last 50 batches instead of 50.0%; "
            "it had nothing left in 50 of them"
        }

    def test_what_it_could_not_supply_is_not_owed_to_it_later(self) -> None:
        supply = Supply(shares(a=1, b=1))
        for _ in range(30):
            supply.post("a", 8)
            supply.cut()
        supply.got.clear()
        for _ in range(10):
            supply.post("a", 8)
            supply.post("b", 8)
            supply.cut()
        assert supply.share("b") == pytest.approx(0.5, abs=0.06)

    def test_a_minimum_that_was_waived_is_complained_of_with_numbers(self) -> None:
        supply = Supply(shares(fast=10.0, slow=Share("slow", 1.0, 0.5)))
        for _ in range(50):
            supply.post("fast", 20)
            supply.post("slow", 1)
            assert not supply.cut().groups and supply.cut(strict=False).groups
        assert supply.mix.complaints(supply.asked, 4) == {
            "slow": "environment slow cannot supply its share: 12.5% of the last 50 batches instead of 50.0%; "
            "it had nothing left in 50 of them"
        }

    def test_nobody_complains_when_shares_are_kept(self) -> None:
        supply = Supply(shares(a=1, b=1))
        for _ in range(50):
            supply.post("a", 8)
            supply.post("b", 8)
            supply.cut()
        assert supply.mix.complaints(supply.asked, 4) == {}

    def test_a_batch_that_cannot_be_split_evenly_is_no_lack(self) -> None:
        """Three environments of one speed, four groups in a batch: each posts four groups while three are trained."""
        supply = Supply(shares(a=1, b=1, c=1), batch_size=16)
        for number in range(50):
            for place, name in enumerate("abc"):
                supply.post(name, 2 if (number + place) % 3 == 0 else 1)
            assert supply.cut().groups
            assert supply.mix.complaints(supply.asked, 4) == {}, number
        assert supply.share("c") == pytest.approx(1 / 3, abs=0.02)

    @pytest.mark.parametrize("late", range(3))
    def test_one_that_posts_just_its_own_among_others_with_plenty_is_no_lack(self, late: int) -> None:
        """c posts four groups while three batches are trained."""
        supply = Supply(shares(a=1, b=1, c=1), batch_size=16)
        for number in range(48):
            for name, count in {"a": 2, "b": 2, "c": 2 if number % 3 == late else 1}.items():
                supply.post(name, count)
            assert supply.cut().groups
            assert supply.mix.complaints(supply.asked, 4) == {}, number
        assert supply.share("c") == pytest.approx(1 / 3, abs=0.02)

    @pytest.mark.parametrize(("groups", "told"), [(16, False), (14, False), (13, True), (0, True)])
    def test_two_groups_too_few_in_a_young_run_are_no_lack(self, groups: int, told: bool) -> None:
        """Of 12 batches of four groups 16 are its own: 14 are 29.2 %."""
        mix = Mix()
        for number in range(12):
            own = groups // 12 + (number < groups % 12)
            mix.recent.append({"a": 8 - 4 * (own > 1), "b": 8 - 4 * (own > 0), "c": 4 * own})
            mix.short.append(["c"])
        assert set(mix.complaints(shares(a=1, b=1, c=1), 4)) == ({"c"} if told else set())

    def test_one_group_of_what_would_be_more_is_a_lack_in_the_long_run(self) -> None:
        supply = Supply(shares(a=1, b=1, c=1), batch_size=16)
        for _ in range(50):
            for name, count in {"a": 2, "b": 2, "c": 1}.items():
                supply.post(name, count)
            assert supply.cut().groups
        assert list(supply.mix.complaints(supply.asked, 4)) == ["c"]


class TestMinimum:
    asked = shares(a=Share("a", 10.0), b=Share("b", 1.0, 0.25))

    def test_every_batch_holds_it(self) -> None:
        supply = Supply(self.asked)
        rng = random.Random(1)
        for _ in range(200):
            supply.post(rng.choice("aab"), rng.randrange(1, 5), rng.choice((2, 4)))
            for candidate in [supply.cut()]:
                if candidate.groups:
                    assert sum(item.sequences for item in candidate.groups if item.environment == "b") >= 8
        assert supply.got["b"] > 0

    def test_without_supply_there_is_no_batch_and_it_is_said(self) -> None:
        supply = Supply(self.asked)
        supply.post("a", 20)
        supply.post("b", 1)
        choice = supply.cut()
        assert choice.groups == []
        assert choice.missing == (
            "environment b cannot supply its share: 8 sequences of each batch must be its own and 4 can be taken"
        )

    def test_waived_the_others_fill_up(self) -> None:
        supply = Supply(self.asked)
        supply.post("a", 20)
        supply.post("b", 1)
        assert Counter(candidate.environment for candidate in supply.cut(strict=False).groups) == {"a": 7, "b": 1}

    def test_more_than_everything_is_scaled(self) -> None:
        assert minima(shares(a=Share("a", 1, 0.7), b=Share("b", 1, 0.7)), 16) == {"a": 8, "b": 8}


LACKING: dict[str, tuple[dict[str, Share], dict[str, int], set[str]]] = {
    "below its minimum": (shares(a=1, b=Share("b", 1, 0.5)), {"a": 8}, {"b"}),
    "minimum kept": (shares(a=Share("a", 1, 0, 0.5), b=Share("b", 1, 0.25)), {"a": 6, "b": 2}, {"b"}),
    "one beyond its maximum": (shares(a=Share("a", 1, 0, 0.5), b=1, c=Share("c", 1, 0, 0.5)), {"a": 8}, {"b", "c"}),
}


@pytest.mark.parametrize(("asked", "batch", "names"), LACKING.values(), ids=LACKING)
def test_who_would_have_to_post(asked: dict[str, Share], batch: dict[str, int], names: set[str]) -> None:
    chosen = [Candidate(number, 1, name) for name, count in batch.items() for number in range(count)]
    assert lacking(chosen, 8, asked) == names


class TestMaximum:
    asked = shares(a=Share("a", 1.0, 0.0, 0.25), b=1)

    def test_no_batch_holds_more(self) -> None:
        supply = Supply(self.asked)
        for _ in range(20):
            supply.post("a", 8)
            supply.post("b", 8)
            assert sum(item.sequences for item in supply.cut().groups if item.environment == "a") == 8

    def test_alone_it_makes_no_batch_until_the_limit_is_waived(self) -> None:
        supply = Supply(self.asked)
        supply.post("a", 20)
        assert supply.cut().missing == "the maximum shares leave no batch of 32 (a at most 8)"
        assert len(supply.cut(strict=False).groups) == 8


def test_a_mix_survives_a_snapshot() -> None:
    supply = Supply(shares(a=1, b=2))
    for _ in range(60):
        supply.post("a", 8)
        supply.post("b", 2)
        supply.cut()
    again = Mix.from_json(supply.mix.to_json())
    assert again.to_json() == supply.mix.to_json()
    assert again.realised() == supply.mix.realised()


@pytest.mark.parametrize(
    ("sizes", "batch_size", "total"), [([6, 6, 6], 16, 12), ([3], 16, 3), ([20], 16, 0), ([5, 7, 9], 13, 12)]
)
def test_a_short_batch_is_as_large_as_it_can_be(sizes: list[int], batch_size: int, total: int) -> None:
    front = [Candidate(number, size, "a") for number, size in enumerate(sizes, 1)]
    assert sum(candidate.sequences for candidate in largest(front, batch_size)) == total
