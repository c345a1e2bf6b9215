"""How batches are divided between environments: weights as a target, minimum and maximum shares as limits.

Pure. Each batch gives an environment what it is owed; what it could not supply is not owed to it later, so that an
environment that was away does not take whole batches when it comes back. Within an environment's part of a batch it is
first in, first out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tinker_atropos.trajectories.packing import Candidate, pack, pack_parts
from tinker_atropos.trajectories.settings import Share

WINDOW = 50
"""Batches that shares are reported over."""
_POINTS = 0.02
_EXACT = 1e-9
_GROUPS = 2
"""Groups that may be missing over the window: one that came too late, and one that batches cannot be split by."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A batch, or why there is none."""

    groups: list[Candidate]
    missing: str = ""
    """The limit that kept a batch from being made, as a sentence; it may be waived."""


class Mix:
    """What each environment got and is owed."""

    def __init__(self) -> None:
        self.recent: deque[dict[str, int]] = deque(maxlen=WINDOW)
        self.short: deque[list[str]] = deque(maxlen=WINDOW)
        """Which environments had nothing left and got at least a group less than they were owed, by batch."""
        self.owed: dict[str, float] = {}

    def add(self, batch: Mapping[str, int], shares: Mapping[str, Share], left: Iterable[str], group: int = 1) -> None:
        """Count a batch: sequences by environment; `left` = the environments that still have groups queued.

        Too little by less than a `group` (of so many sequences) is no lack of supply: a batch is made of whole ones. It
        stays owed.
        """
        total = sum(batch.values())
        targets = targets_of({*batch, *shares}, shares)
        able = set(left)
        short = [
            name
            for name, target in targets.items()
            if name not in able and self.owed.get(name, 0.0) + total * target - batch.get(name, 0) > group - _EXACT
        ]
        rest = total - sum(batch.get(name, 0) for name in short)
        others = sum(target for name, target in targets.items() if name not in short) or 1.0
        for name, target in targets.items():
            if name not in short:
                owed = self.owed.get(name, 0.0) + rest * target / others - batch.get(name, 0)
                self.owed[name] = max(-float(total), min(float(total), owed))
        self.recent.append(dict(batch))
        self.short.append(short)

    def realised(self) -> dict[str, float]:
        """Share of the recent batches, by environment."""
        totals = Counter[str]()
        for batch in self.recent:
            totals.update(batch)
        whole = sum(totals.values())
        return {name: count / whole for name, count in totals.items()} if whole else {}

    def targets(self, shares: Mapping[str, Share]) -> dict[str, float]:
        """What each environment should get, by the environments that there are."""
        return targets_of({*shares, *(name for batch in self.recent for name in batch)}, shares)

    def complaints(self, shares: Mapping[str, Share], group: int, known: Container[str] = ()) -> dict[str, str]:
        """Which environments cannot supply their share, with numbers.

        Groups of `group` sequences do not divide a batch evenly, and one can be late: so much is no lack. One that is
        `known` to be short stays so until it is well within the limit: no complaint comes and goes.
        """
        whole = sum(sum(batch.values()) for batch in self.recent) or 1
        enough = max(_POINTS, _GROUPS * group / whole)
        realised, targets = self.realised(), self.targets(shares)
        times = Counter(name for names in self.short for name in names)
        return {
            name: (
                f"environment {name} cannot supply its share: {realised.get(name, 0.0):.1%} of the last "
                f"{len(self.recent)} batches instead of {target:.1%}; it had nothing left in {times[name]} of them"
            )
            for name, target in targets.items()
            if times[name] and realised.get(name, 0.0) < target - enough * (0.5 if name in known else 1.0) - _EXACT
        }

    def to_json(self) -> list[object]:
        return [list(self.recent), list(self.short), self.owed]

    @classmethod
    def from_json(cls, content: Sequence[object]) -> Mix:
        mix = cls()
        recent, short, owed = content
        mix.recent.extend(recent)  # type: ignore[arg-type]
        mix.short.extend(short)  # type: ignore[arg-type]
        mix.owed = dict(owed)  # type: ignore[call-overload]
        return mix


def weight_of(name: str, shares: Mapping[str, Share]) -> float:
    share = shares.get(name)
    return 1.0 if share is None else share.weight


def targets_of(names: Iterable[str], shares: Mapping[str, Share]) -> dict[str, float]:
    """Part of the batches for each environment: by weight, but within its minimum and maximum."""
    weights = {name: weight_of(name, shares) for name in sorted(names)}
    return spread(1.0, dict.fromkeys(weights, 0.0), weights, *_limits(weights, shares))


def spread(
    total: float,
    base: Mapping[str, float],
    weights: Mapping[str, float],
    least: Mapping[str, float],
    most: Mapping[str, float],
) -> dict[str, float]:
    """Parts that sum to `total`: the base, and what is missing (or too much) by weight, each within its limits.

    Limits come first: the sum is another one when they leave no choice.
    """
    parts: dict[str, float] = {}
    free = dict(base)
    while free:
        rest, whole = total - sum(parts.values()) - sum(free.values()), sum(weights[name] for name in free)
        asked = {name: part + rest * (weights[name] / whole if whole else 1 / len(free)) for name, part in free.items()}
        bounded = {name: min(most[name], max(least[name], part)) for name, part in asked.items()}
        beyond = sum(bounded.values()) - sum(asked.values())
        # Whoever is bounded on the side that prevails keeps that; a bound on the other side may not hold any more.
        fixed = [name for name in free if (bounded[name] - asked[name]) * beyond > 0]
        for name in fixed or list(free):
            parts[name] = bounded[name]
            del free[name]
    return parts


def _limits(names: Iterable[str], shares: Mapping[str, Share]) -> tuple[dict[str, float], dict[str, float]]:
    least = {name: shares[name].minimum if name in shares else 0.0 for name in names}
    scale = 1.0 / max(1.0, sum(least.values()))
    most = {name: shares[name].maximum or 1.0 if name in shares else 1.0 for name in names}
    return {name: share * scale for name, share in least.items()}, most


def lacking(chosen: Iterable[Candidate], batch_size: int, shares: Mapping[str, Share]) -> set[str]:
    """Whose groups would have to come so that a batch keeps the limits: those below a minimum, else below a maximum."""
    got = Counter[str]()
    for candidate in chosen:
        got[candidate.environment] += candidate.sequences
    below = {name for name, count in minima(shares, batch_size).items() if got[name] < count}
    return below or {name for name, share in shares.items() if got[name] < _whole(batch_size * (share.maximum or 1.0))}


def _whole(sequences: float) -> int:
    """Rounded down, but 0.29 of 100 is 29."""
    return int(sequences + _EXACT)


def minima(shares: Mapping[str, Share], batch_size: int) -> dict[str, int]:
    """Sequences that each batch must hold, by environment; shares that sum to more than 1 are scaled."""
    asked = {name: share.minimum for name, share in shares.items() if share.minimum > 0}
    scale = 1.0 / max(1.0, sum(asked.values()))
    return {name: _whole(batch_size * share * scale) for name, share in asked.items()}


def choose(
    front: Sequence[Candidate], batch_size: int, shares: Mapping[str, Share], mix: Mix, *, strict: bool = True
) -> Choice:
    """The next batch out of the queue's front (oldest first); without `strict` the limits are only preferences."""
    if len({candidate.environment for candidate in front} | set(shares)) <= 1:
        return Choice(pack(front, batch_size))
    lines: dict[str, list[Candidate]] = {}
    for candidate in front:
        lines.setdefault(candidate.environment, []).append(candidate)
    needed = minima(shares, batch_size)
    limited = {name: _whole(batch_size * share.maximum) for name, share in shares.items() if share.maximum > 0}
    there = {name: min(batch_size, sum(item.sequences for item in line)) for name, line in lines.items()}
    most = {name: min(count, limited.get(name, batch_size)) for name, count in there.items()}
    if strict:
        for name, count in needed.items():
            if there.get(name, 0) < count:
                return Choice([], _too_few(name, count, there.get(name, 0)))
        if limited and sum(most.values()) < batch_size:
            limits = ", ".join(f"{name} at most {count}" for name, count in sorted(limited.items()))
            return Choice([], f"the maximum shares leave no batch of {batch_size} ({limits})")
    least = {name: min(needed.get(name, 0), count) for name, count in there.items()}
    targets = targets_of({*lines, *shares}, shares)
    owed = {name: batch_size * targets[name] + mix.owed.get(name, 0.0) for name in lines}
    wanted = spread(batch_size, owed, targets, least, most)
    if not strict:
        wanted, least, most = spread(batch_size, wanted, targets, least, there), dict.fromkeys(lines, 0), there
    chosen = pack_parts(lines, batch_size, wanted, least, most)
    if not chosen and not (strict and (needed or limited)):
        chosen = pack(front, batch_size)
    if not chosen and strict and pack(front, batch_size):
        return Choice([], _no_choice(batch_size, needed, limited))
    return Choice(sorted(chosen))


def _too_few(name: str, count: int, there: int) -> str:
    return (
        f"environment {name} cannot supply its share: {count} sequences of each batch must be its own and {there} "
        "can be taken"
    )


def _no_choice(batch_size: int, needed: Mapping[str, int], limited: Mapping[str, int]) -> str:
    limits = [f"{name} at least {count}" for name, count in sorted(needed.items())]
    limits += [f"{name} at most {count}" for name, count in sorted(limited.items())]
    return f"no choice of the queued groups that sums to {batch_size} keeps the shares ({', '.join(limits)})"


def largest(front: Sequence[Candidate], batch_size: int) -> list[Candidate]:
    """The choice with the largest sum below `batch_size`: a short batch, for runs that prefer one to waiting."""
    for size in range(batch_size - 1, 0, -1):
        chosen = pack(front, size)
        if chosen:
            return chosen
    return []
