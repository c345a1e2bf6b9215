"""What counts as the next turn of something that was sampled."""

from __future__ import annotations

import numpy as np
import pytest

from tinker_atropos.gateway.prefixes import Prefixes, prefix_hashes

ME = ("gsm8k", "gsm8k-0")


def tokens(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("behaviour", "prompt", "owners"),
    [
        ("another prompt", [9, 8, 7, 6, 5, 4], []),
        ("the same prompt again is a new rollout", [1, 2, 3], []),
        ("a part of the prompt", [1, 2], []),
        ("the next turn", [1, 2, 3, 10, 11, 4, 5], ["a"]),
        ("the next turn of another completion", [1, 2, 3, 20, 21, 4, 5], ["b"]),
        ("sampling goes on at the end itself", [1, 2, 3, 10, 11], ["a", "b"]),
        ("a chat that was written anew after the prompt", [1, 2, 3, 99, 4, 5], ["a", "b"]),
        ("a later turn has the tokens, not the start", [0, 1, 2, 3, 10, 11, 4], []),
    ],
)
def test_extended(behaviour: str, prompt: list[int], owners: list[str]) -> None:
    prefixes: Prefixes[str] = Prefixes()
    prefixes.remember(ME, [1, 2, 3], [tokens(10, 11)], "a")
    prefixes.remember(ME, [1, 2, 3], [tokens(20, 21)], "b")
    assert list(prefixes.extended(ME, prompt)) == owners, behaviour


def test_an_answer_without_tokens_is_no_end() -> None:
    prefixes: Prefixes[str] = Prefixes()
    prefixes.remember(ME, [1, 2], [tokens()], "a")
    assert len(prefixes) == 1


@pytest.mark.parametrize("scope", [("gsm8k", "gsm8k-1"), ("other", "gsm8k-0")])
def test_nobody_goes_on_from_what_somebody_else_sampled(scope: tuple[str, str]) -> None:
    prefixes: Prefixes[str] = Prefixes()
    prefixes.remember(ME, [1, 2], [tokens(3)], "a")
    assert list(prefixes.extended(scope, [1, 2, 3, 4])) == []
    assert list(prefixes.extended(ME, [1, 2, 3, 4])) == ["a"]


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    prefixes: Prefixes[str] = Prefixes(most=10)
    prefixes.remember(ME, [1, 1], [], "kept")
    for number in range(100):
        prefixes.remember((f"e{number}", "i"), [7, number], [], str(number))
        prefixes.remember(ME, [1, 1], [], "kept")
    assert len(prefixes) == 10
    assert len(prefixes._lengths) == 10
    assert list(prefixes.extended(ME, [1, 1, 2])) == ["kept"]
    assert list(prefixes.extended(("e3", "i"), [7, 3, 2])) == []
    assert list(prefixes.extended(("e99", "i"), [7, 99, 2])) == ["99"]


def test_the_askers_of_one_prompt_are_bounded() -> None:
    prefixes: Prefixes[int] = Prefixes()
    for number in range(5000):
        prefixes.remember(ME, [1], [], number)
    assert list(prefixes.extended(ME, [1, 2])) == list(range(5000 - 1024, 5000))


def test_hashes_tell_prefixes_apart() -> None:
    rng = np.random.default_rng(1)
    seen: set[tuple[tuple[int, ...], int]] = set()
    for _ in range(200):
        sequence = rng.integers(0, 3, size=100)
        hashes = prefix_hashes(sequence.tolist())
        again = prefix_hashes(sequence[:50].tolist())
        assert hashes[:50].tolist() == again.tolist(), "a prefix has the hash of itself"
        seen.update((tuple(sequence[: n + 1].tolist()), int(digest)) for n, digest in enumerate(hashes))
    assert len({digest for _, digest in seen}) == len(seen)


@pytest.mark.parametrize("pair", [([0], [0, 0]), ([1, 2], [2, 1]), ([0, 1], [1]), ([2**31 - 1], [0])])
def test_likely_mix_ups(pair: tuple[list[int], list[int]]) -> None:
    one, other = pair
    assert prefix_hashes(one)[-1] != prefix_hashes(other)[-1]
