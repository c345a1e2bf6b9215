"""Which queued groups make the next batch: the oldest ones whose sequences sum exactly to the batch size.

Pure, and linear in the batch: however long the queue is, only the first groups of each size can matter.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A queued group as packing sees it; numbers grow with age of arrival."""

    number: int
    sequences: int
    environment: str


class Queue:
    """Groups that wait for a batch, first in first out, held apart by environment and size."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], deque[Candidate]] = {}
        self.groups = 0
        self.sequences = 0

    def add(self, candidate: Candidate) -> None:
        line = self._lines.setdefault((candidate.environment, candidate.sequences), deque())
        if line and line[-1].number > candidate.number:  # given back: it goes where it was
            line.insert(bisect.bisect_left(line, candidate), candidate)
        else:
            line.append(candidate)
        self.groups += 1
        self.sequences += candidate.sequences

    def remove(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            key = (candidate.environment, candidate.sequences)
            line = self._lines[key]
            if line[0] is candidate or line[0] == candidate:
                line.popleft()
            else:
                line.remove(candidate)
            if not line:
                del self._lines[key]
            self.groups -= 1
            self.sequences -= candidate.sequences

    def front(self, batch_size: int) -> list[Candidate]:
        """The groups that a batch could take, oldest first."""
        lines = (islice(line, batch_size // size) for (_, size), line in self._lines.items() if size <= batch_size)
        return list(merge(*lines))

    def oldest(self) -> Candidate | None:
        return min((line[0] for line in self._lines.values()), default=None)

    def heads(self) -> dict[tuple[str, int], int]:
        """Number of the oldest group by environment and size."""
        return {key: line[0].number for key, line in self._lines.items()}

    def sizes(self) -> dict[tuple[str, int], int]:
        """Number of waiting groups by environment and size."""
        return {key: len(line) for key, line in self._lines.items()}

    def __iter__(self) -> Iterator[Candidate]:
        return merge(*self._lines.values())


def pack(candidates: Sequence[Candidate], batch_size: int) -> list[Candidate]:
    """The first-in-first-out choice that sums exactly to `batch_size`; empty when there is none.

    Of all exact choices it takes the one that holds the oldest group, then the next oldest, and so on.
    """
    total, chosen = 0, []
    for candidate in candidates:
        if total + candidate.sequences > batch_size:
            break
        chosen.append(candidate)
        total += candidate.sequences
        if total == batch_size:
            return chosen
    if sum(candidate.sequences for candidate in candidates) < batch_size:
        return []
    # reachable[i]: bit s is set when some of candidates[i:] sum to s
    mask = (1 << (batch_size + 1)) - 1
    reachable = [1] * (len(candidates) + 1)
    for index in range(len(candidates) - 1, -1, -1):
        after = reachable[index + 1]
        reachable[index] = (after | after << candidates[index].sequences) & mask
    if not reachable[0] >> batch_size & 1:
        return []
    chosen, missing = [], batch_size
    for index, candidate in enumerate(candidates):
        if candidate.sequences <= missing and reachable[index + 1] >> (missing - candidate.sequences) & 1:
            chosen.append(candidate)
            missing -= candidate.sequences
    return chosen


def pack_parts(
    lines: Mapping[str, Sequence[Candidate]],
    batch_size: int,
    wanted: Mapping[str, float],
    least: Mapping[str, int],
    most: Mapping[str, int],
) -> list[Candidate]:
    """A choice that sums exactly to `batch_size`, of each line (oldest first) a part within its limits.

    Of all such choices one whose parts are nearest to what is wanted of each line; a part that would pass its line's
    oldest group by is taken only when the others are much farther off. Empty when there is none near enough.
    """
    sums = {name: _sums(line, batch_size) for name, line in lines.items()}
    for near in _NEAR:
        # Sum so far -> the cheapest way to it: cost, and the part of each line.
        ways: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        complete = True
        for name, line in lines.items():
            allowed = [part for part in sums[name] if least[name] <= part <= most[name]]
            parts = _nearest(allowed, wanted[name], near)
            complete = complete and len(parts) == len(allowed)
            without = set(_sums(line[1:], batch_size))
            passed = float(2 * line[0].sequences) ** 2
            costs = [
                (part, (part - wanted[name]) ** 2 + (passed if part and part - line[0].sequences not in without else 0))
                for part in parts
            ]
            longer: dict[int, tuple[float, tuple[int, ...]]] = {}
            for total, (cost, way) in ways.items():
                for part, more in costs:
                    reached = total + part
                    known = longer.get(reached)
                    if reached <= batch_size and (known is None or cost + more < known[0]):
                        longer[reached] = (cost + more, (*way, part))
            ways = longer
        if batch_size in ways:
            parts_of = zip(lines.values(), ways[batch_size][1], strict=True)
            return [candidate for line, part in parts_of for candidate in pack(line, part)]
        if complete:
            break
    return []


_NEAR = (8, 32, 128)
"""How many parts of each line are tried: those nearest to what is wanted, and more when they do not sum."""


def _sums(candidates: Sequence[Candidate], limit: int) -> list[int]:
    """Every sum that some of the candidates have, in order."""
    mask, reachable = (1 << (limit + 1)) - 1, 1
    for candidate in candidates:
        reachable |= reachable << candidate.sequences & mask
    return [total for total, bit in enumerate(reversed(bin(reachable)[2:])) if bit == "1"]


def _nearest(ordered: Sequence[int], wanted: float, count: int) -> Sequence[int]:
    start = bisect.bisect_left(ordered, wanted)
    around = ordered[max(0, start - count) : start + count]
    return sorted(sorted(around, key=lambda part: abs(part - wanted))[:count])
