"""Refused posts are told to more people than who sent them: at once, and then not too often."""

from __future__ import annotations

import pytest

from tinker_atropos.trajectories.posts import InvalidPostError
from tinker_atropos.trajectories.refusals import LOG_SECONDS, OVER_SECONDS, Refusals

NAN = InvalidPostError(("scores", 3), "nan is not a finite number")
LONG = InvalidPostError(("tokens", 0), "5000 tokens; the trainer takes at most 4096")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


LOGGED: dict[str, tuple[list[tuple[float, str, InvalidPostError]], list[str]]] = {
    "the first": ([(0, "e", NAN)], ["refused a post of environment e: scores[3]: nan is not a finite number"]),
    "others within a minute": (
        [(0, "e", NAN), (1, "e", NAN), (58, "e", NAN)],
        ["refused a post of environment e: scores[3]: nan is not a finite number"],
    ),
    "a minute of them": (
        [(0, "e", NAN), (30, "e", NAN), (LOG_SECONDS - 30, "e", NAN), (1, "e", NAN)],
        [
            "refused a post of environment e: scores[3]: nan is not a finite number",
            "refused 2 more posts of environment e in 60 s, the last one: scores[3]: nan is not a finite number",
        ],
    ),
    "another reason": (
        [(0, "e", NAN), (1, "e", LONG)],
        [
            "refused a post of environment e: scores[3]: nan is not a finite number",
            "refused a post of environment e: tokens[0]: 5000 tokens; the trainer takes at most 4096",
        ],
    ),
    "another environment": (
        [(0, "e", NAN), (1, "", NAN)],
        [
            "refused a post of environment e: scores[3]: nan is not a finite number",
            "refused a post of an environment without a name: scores[3]: nan is not a finite number",
        ],
    ),
}


@pytest.mark.parametrize(("posts", "lines"), LOGGED.values(), ids=LOGGED)
def test_what_is_logged(
    posts: list[tuple[float, str, InvalidPostError]], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for seconds, environment, error in posts:
        clock.now += seconds
        refusals.add(environment, error)
    assert [record.message for record in caplog.records] == lines


def test_it_is_over_when_none_was_refused_for_long() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    refusals.add("e", NAN)
    clock.now += OVER_SECONDS - 1
    refusals.add("f", NAN)
    assert sorted(refusals.current()) == ["e", "f"]
    clock.now += 2
    assert sorted(refusals.current()) == ["f"]
    assert refusals.environments["e"].count == 1, "what was counted stays"


def test_names_from_outside_take_a_bounded_place() -> None:
    refusals = Refusals(Clock())
    for number in range(1000):
        refusals.add(f"e{number}", InvalidPostError((f"field{number}",), "x" * 1000))
        refusals.add("e0", InvalidPostError((f"field{number}",), "x" * 1000))
    assert len(refusals.environments) <= 201
    assert sum(refused.count for refused in refusals.environments.values()) == 2000
    assert len(refusals.environments["e0"].told) <= 21
    assert len(refusals.environments["e0"].last) <= 301


@pytest.mark.parametrize(
    ("where", "field"),
    [
        (("scores", 3), "scores"),
        (("sequences", 0, "logprobs"), "logprobs"),
        (("sequences",), "body"),
        ((2, "tokens"), "tokens"),
        ((), "body"),
    ],
)
def test_the_field_is_named_without_places(where: tuple[str | int, ...], field: str) -> None:
    assert InvalidPostError(where, "wrong").field == field
