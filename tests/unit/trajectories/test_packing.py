"""Batches are cut first in, first out, and sum exactly to the batch size."""

from __future__ import annotations

import random

import pytest

from tinker_atropos.trajectories.packing import Candidate, Queue, pack


def candidates(*sizes: int) -> list[Candidate]:
    return [Candidate(number, size, "e") for number, size in enumerate(sizes, 1)]


@pytest.mark.parametrize(
    ("behaviour", "sizes", "batch_size", "chosen"),
    [
        ("equal groups are taken from the front", [4, 4, 4, 4, 4], 16, [1, 2, 3, 4]),
        ("a sum below the batch size is no batch", [4, 4, 4], 16, []),
        ("nothing queued is no batch", [], 16, []),
        ("6 into 16 never sums", [6] * 12, 16, []),
        ("6 beside 4: the oldest that fit", [6, 6, 6, 4, 4, 4], 16, [1, 2, 4]),
        ("3 beside 4: the oldest that fit", [3, 3, 3, 3, 4, 4, 4, 4], 16, [1, 2, 3, 4, 5]),
        ("3 beside 4 with one 4 at the head", [4, 3, 3, 3, 3, 4, 4, 4], 16, [1, 2, 3, 4, 5]),
        ("a group larger than the batch does not block those behind it", [32, 8, 8], 16, [2, 3]),
        ("parts of groups pack too", [1, 3, 1, 3, 1, 3, 1, 3], 8, [1, 2, 3, 4]),
        ("a jump over the batch size is avoided", [8, 4, 8, 4], 16, [1, 2, 4]),
        ("one group is the whole batch", [16], 16, [1]),
        ("the oldest group is taken whenever some exact choice holds it", [5, 7, 7, 2, 9], 16, [1, 4, 5]),
    ],
)
def test_pack(behaviour: str, sizes: list[int], batch_size: int, chosen: list[int]) -> None:
    assert [candidate.number for candidate in pack(candidates(*sizes), batch_size)] == chosen, behaviour


def test_pack_finds_a_choice_whenever_there_is_one_and_it_is_the_oldest() -> None:
    rng = random.Random(7)
    for _ in range(300):
        sizes = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 10))]
        batch_size = rng.randrange(1, 20)
        choices = ([i for i in range(len(sizes)) if bits >> i & 1] for bits in range(1, 1 << len(sizes)))
        exact = [choice for choice in choices if sum(sizes[i] for i in choice) == batch_size]
        wanted = [index + 1 for index in min(exact)] if exact else []
        assert [candidate.number for candidate in pack(candidates(*sizes), batch_size)] == wanted, (sizes, batch_size)


class TestQueue:
    def test_front_is_ordered_by_arrival_over_environments_and_sizes(self) -> None:
        queue = Queue()
        for number, (size, environment) in enumerate([(4, "a"), (2, "b"), (4, "b"), (2, "a")], 1):
            queue.add(Candidate(number, size, environment))
        assert [candidate.number for candidate in queue.front(8)] == [1, 2, 3, 4]
        assert (queue.groups, queue.sequences) == (4, 12)

    def test_front_is_bounded_by_the_batch_not_by_the_queue(self) -> None:
        queue = Queue()
        for number in range(1, 10_001):
            queue.add(Candidate(number, 4, "a"))
        assert len(queue.front(16)) == 4

    def test_a_group_that_comes_back_goes_where_it_was(self) -> None:
        queue = Queue()
        made = [Candidate(number, 4, "a") for number in range(1, 6)]
        for candidate in made:
            queue.add(candidate)
        queue.remove(made[1:3])
        queue.add(made[2])
        queue.add(made[1])
        assert [candidate.number for candidate in queue] == [1, 2, 3, 4, 5]

    def test_groups_larger_than_the_batch_are_not_in_front(self) -> None:
        queue = Queue()
        queue.add(Candidate(1, 32, "a"))
        assert queue.front(16) == []
