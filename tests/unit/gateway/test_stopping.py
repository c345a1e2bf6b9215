"""Where a completion ends and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tinker_atropos.gateway.generation import Completion, FinishReason, Sampled, Sampling
from tinker_atropos.gateway.stopping import finish, stop_for_service

EOS = 1
END = 2
SPECIAL = {0: "<pad>", EOS: "<eos>", END: "<end>"}


def decode(tokens: Sequence[int], skip_special_tokens: bool) -> str:
    """Token n > 2 is the character n; the others are special."""
    return "".join(
        "" if token in SPECIAL and skip_special_tokens else SPECIAL.get(token, chr(token)) for token in tokens
    )


def ids(text: str, *more: int) -> list[int]:
    return [*map(ord, text), *more]


def finished(tokens: list[int], reason: FinishReason, **sampling: Any) -> Completion:
    sampled = Sampled(
        np.array(tokens, np.int32),
        -np.arange(len(tokens), dtype=np.float32),
        reason,
        [[(token, 0.0)] for token in tokens],
    )
    return finish(sampled, Sampling(**sampling), eos_ids={EOS}, special=list(SPECIAL.values()), decode=decode)


@pytest.mark.parametrize(
    ("behaviour", "tokens", "reason", "sampling", "text", "kept", "ended", "matched"),
    [
        ("ran into the limit", ids("abc"), "length", {}, "abc", 3, "length", None),
        ("end of sequence", ids("ab", EOS), "stop", {}, "ab", 3, "stop", EOS),
        ("end of sequence as the last allowed token", ids("ab", EOS), "length", {}, "ab", 3, "stop", EOS),
        ("service went on after it", ids("ab", EOS, *ids("cd")), "length", {}, "ab", 3, "stop", EOS),
        (
            "end of sequence is ignored",
            ids("ab", EOS, *ids("cd")),
            "length",
            {"ignore_eos": True},
            "abcd",
            5,
            "length",
            None,
        ),
        ("stop string", ids("ab</a>"), "stop", {"stop": ("</a>",)}, "ab", 6, "stop", "</a>"),
        (
            "stop string, kept",
            ids("ab</a>"),
            "stop",
            {"stop": ("</a>",), "keep_stop": True},
            "ab</a>",
            6,
            "stop",
            "</a>",
        ),
        ("service went on after the string", ids("ab!cd"), "length", {"stop": ("!",)}, "ab", 3, "stop", "!"),
        ("the first of several strings", ids("a?b!c"), "length", {"stop": ("!", "?")}, "a", 2, "stop", "?"),
        ("string does not come", ids("abc"), "length", {"stop": ("!",)}, "abc", 3, "length", None),
        ("string at the very beginning", ids("!ab"), "length", {"stop": ("!",)}, "", 1, "stop", "!"),
        (
            "end of sequence before the string",
            ids("ab", EOS, *ids("!")),
            "length",
            {"stop": ("!",)},
            "ab",
            3,
            "stop",
            EOS,
        ),
        ("string that is a special token", ids("ab", END), "stop", {"stop": ("<end>",)}, "ab", 3, "stop", "<end>"),
        (
            "special tokens before the string vanish",
            ids("a", END, *ids("b!")),
            "stop",
            {"stop": ("!",)},
            "ab",
            4,
            "stop",
            "!",
        ),
        ("stop token id", ids("ab;cd"), "length", {"stop_token_ids": (ord(";"),)}, "ab", 3, "stop", ord(";")),
        (
            "stop token id, kept",
            ids("ab;"),
            "stop",
            {"stop_token_ids": (ord(";"),), "keep_stop": True},
            "ab;",
            3,
            "stop",
            ord(";"),
        ),
        (
            "id and string, id first",
            ids("a;b!"),
            "length",
            {"stop": ("!",), "stop_token_ids": (ord(";"),)},
            "a",
            2,
            "stop",
            ord(";"),
        ),
        (
            "id and string, string first",
            ids("a!b;"),
            "length",
            {"stop": ("!",), "stop_token_ids": (ord(";"),)},
            "a",
            2,
            "stop",
            "!",
        ),
        (
            "special tokens stay when wanted",
            ids("a", END, *ids("b")),
            "length",
            {"skip_special_tokens": False},
            "a<end>b",
            3,
            "length",
            None,
        ),
        ("service stopped for reasons of its own", ids("ab"), "stop", {}, "ab", 2, "stop", None),
        ("nothing was sampled", [], "stop", {"stop": ("!",)}, "", 0, "stop", None),
    ],
)
def test_finish(
    behaviour: str,
    tokens: list[int],
    reason: FinishReason,
    sampling: dict[str, Any],
    text: str,
    kept: int,
    ended: str,
    matched: Any,
) -> None:
    completion = finished(tokens, reason, **sampling)
    assert completion.text == text, behaviour
    assert completion.tokens.tolist() == tokens[:kept]
    assert completion.reason == ended
    assert completion.matched == matched
    assert len(completion.logprobs) == len(completion.tokens) == len(completion.top or [])


def test_logprobs_are_those_of_the_service_to_the_last_bit() -> None:
    logprobs = np.array([-0.1, -1e-7, -30.123457], np.float32)
    sampled = Sampled(np.array(ids("abc"), np.int32), logprobs, "length")
    completion = finish(sampled, Sampling(), eos_ids=set(), special=[], decode=decode)
    assert completion.logprobs.dtype == np.float32
    assert completion.logprobs.tobytes() == logprobs.tobytes()


@pytest.mark.parametrize("position", range(1, 40))
def test_a_stop_string_anywhere_in_a_long_completion(position: int) -> None:
    tokens = ids("a" * position + "!" + "b" * (40 - position))
    assert len(finished(tokens, "length", stop=("!",)).tokens) == position + 1


@pytest.mark.parametrize(
    ("behaviour", "sampling", "stop"),
    [
        ("the service's own end of sequence", {}, None),
        ("nothing ends it", {"ignore_eos": True}, []),
        ("strings, and the end of sequence stays", {"stop": ("a",)}, ["a", "<eos>"]),
        ("strings alone", {"stop": ("a",), "ignore_eos": True}, ["a"]),
        ("ids, and the end of sequence stays", {"stop_token_ids": (9,)}, [9, EOS]),
        ("strings come before ids, which are cut afterwards", {"stop": ("a",), "stop_token_ids": (9,)}, ["a", "<eos>"]),
        ("nothing twice", {"stop_token_ids": (EOS,)}, [EOS]),
    ],
)
def test_stop_for_service(behaviour: str, sampling: dict[str, Any], stop: Any) -> None:
    assert stop_for_service(Sampling(**sampling), [(EOS, "<eos>")]) == stop, behaviour
