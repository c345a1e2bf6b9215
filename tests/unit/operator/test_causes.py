"""Several troubles in one line: equal causes once with their parts, everything else as far as there is room."""

from __future__ import annotations

import pytest

from tinker_atropos_operator.plan.causes import MAX_BRIEF, brief, listed, whole
from tinker_atropos_operator.plan.pods import Trouble


def quota(part: str, *items: str) -> Trouble:
    message = f"your cluster: the quota small leaves no room for pods of {part} (…)"
    return Trouble("PodsRefused", message, "", part, "the quota small leaves no room", "raise it", items)


PULL = Trouble("ImagePullFailed", "whole text", "p", "environment a", "the image x:1 cannot be pulled", "correct it")
SECRET = Trouble("SecretMissing", "whole secret", "q", "the trainer", "the Secret s does not exist", "create it")
BRIEF: dict[str, tuple[list[Trouble], list[str], str]] = {
    "one cause with its next action": (
        [PULL],
        [],
        "environment a: the image x:1 cannot be pulled; correct it",
    ),
    "one cause of three parts, with all that it is about": (
        [quota("the API server", "cpu"), quota("environment a", "cpu", "pods"), quota("the trainer", "memory")],
        [],
        "the API server, environment a and the trainer: the quota small leaves no room (cpu, pods and memory); "
        "raise it",
    ),
    "two causes": (
        [SECRET, PULL],
        [],
        "the trainer: the Secret s does not exist; environment a: the image x:1 cannot be pulled",
    ),
    "a cause and what else is waited for": (
        [PULL],
        ["the API server is not ready"],
        "environment a: the image x:1 cannot be pulled; correct it; the API server is not ready",
    ),
    "what else is waited for gives way": (
        [PULL],
        ["w" * 150],
        "environment a: the image x:1 cannot be pulled; correct it",
    ),
    "nothing wrong": (
        [],
        ["the API server is not ready", "the trainer's Job is not made yet"],
        "the API server is not ready; the trainer's Job is not made yet",
    ),
    "a trouble without few words": (
        [Trouble("Forbidden", "the API server forbids it", "")],
        [],
        "the API server forbids it",
    ),
    "nothing at all": ([], [], ""),
}


@pytest.mark.parametrize(("troubles", "more", "said"), BRIEF.values(), ids=BRIEF)
def test_brief(troubles: list[Trouble], more: list[str], said: str) -> None:
    assert brief(troubles, more) == said


def test_many_causes_stay_one_line_and_say_how_many_are_left_out() -> None:
    troubles = [Trouble("R", f"whole {n}", "", f"environment e{n}", f"cause {n} {'x' * 60}") for n in range(9)]
    said = brief(troubles)
    assert len(said) <= MAX_BRIEF and said.endswith("; 7 more in the conditions")
    assert whole(troubles) == "; ".join(f"whole {n}" for n in range(9))


def test_one_long_sentence_is_cut() -> None:
    assert len(listed(["y" * 5000])) == MAX_BRIEF


def test_the_whole_says_equal_messages_once() -> None:
    assert whole([PULL, PULL, SECRET]) == "whole text; whole secret"
