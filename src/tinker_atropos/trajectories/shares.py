"""How batches are divided between environments: weights as a target, minimum and maximum shares as limits.

Pure. Each batch gives an environment what it is owed; what it could not supply is not owed to it later, so that an
environment that was away does not take whole batches when it comes back. Within a batch the order of choice is: what
the minimum shares need, then what is owed, then the rest; each first in, first out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tinker_atropos.trajectories.packing import Candidate, pack
from tinker_atropos.trajectories.settings import Share

WINDOW = 50
"""Batches that shares are reported over."""
_POINTS = 0.02


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
        """Which environments had nothing left and got less than their target, by batch."""
        self.owed: dict[str, float] = {}

    def add(self, batch: Mapping[str, int], shares: Mapping[str, Share], left: Iterable[str]) -> None:
        """Count a batch: sequences by environment; `left` = the environments that still have groups queued."""
        total = sum(batch.values())
        weights = {name: weight_of(name, shares) for name in {*batch, *shares}}
        whole = sum(weights.values()) or 1.0
        able = set(left)
        short = [
            name for name, weight in weights.items() if name not in able and batch.get(name, 0) < total * weight / whole
        ]
        rest = total - sum(batch.get(name, 0) for name in short)
        others = sum(weight for name, weight in weights.items() if name not in short) or 1.0
        for name, weight in weights.items():
            if name not in short:
                owed = self.owed.get(name, 0.0) + rest * weight / others - batch.get(name, 0)
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
        names = {*shares, *(name for batch in self.recent for name in batch)}
        weights = {name: weight_of(name, shares) for name in names}
        whole = sum(weights.values())
        return {name: weight / whole for name, weight in weights.items()} if whole else {}

    def complaints(self, shares: Mapping[str, Share]) -> dict[str, str]:
        """Which environments cannot supply their share, with numbers."""
        realised, targets = self.realised(), self.targets(shares)
        times = Counter(name for names in self.short for name in names)
        return {
            name: (
                f"environment {name} cannot supply its share: {realised.get(name, 0.0):.1%} of the last "
                f"{len(self.recent)} batches instead of {target:.1%}; it had nothing left in {times[name]} of them"
            )
            for name, target in targets.items()
            if times[name] and realised.get(name, 0.0) < target - _POINTS
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


def minima(shares: Mapping[str, Share], batch_size: int) -> dict[str, int]:
    """Sequences that each batch must hold, by environment; shares that sum to more than 1 are scaled."""
    asked = {name: share.minimum for name, share in shares.items() if share.minimum > 0}
    scale = 1.0 / max(1.0, sum(asked.values()))
    return {name: int(batch_size * share * scale) for name, share in asked.items()}


def choose(
    front: Sequence[Candidate], batch_size: int, shares: Mapping[str, Share], mix: Mix, *, strict: bool = True
) -> Choice:
    """The next batch out of the queue's front (oldest first); without `strict` the limits are only preferences."""
    if len({candidate.environment for candidate in front} | set(shares)) <= 1:
        return Choice(pack(front, batch_size))
    needed = minima(shares, batch_size)
    most = {name: int(batch_size * share.maximum) for name, share in shares.items() if share.maximum > 0}
    names = {candidate.environment for candidate in front}
    weights = {name: weight_of(name, shares) for name in names | set(shares)}
    whole = sum(weights.values()) or 1.0
    owed = {name: batch_size * weights[name] / whole + mix.owed.get(name, 0.0) for name in names}

    ranked: list[tuple[int, Candidate]] = []
    taken = Counter[str]()
    for candidate in front:
        name = candidate.environment
        if taken[name] < needed.get(name, 0):
            rank = 0
        elif taken[name] + candidate.sequences / 2 <= owed[name]:
            rank = 1
        else:
            rank = 2
        beyond = taken[name] + candidate.sequences > most.get(name, batch_size)
        taken[name] += candidate.sequences
        if beyond and strict:
            continue
        ranked.append((3 if beyond else rank, candidate))
    chosen = pack([candidate for _, candidate in sorted(ranked, key=lambda item: item[0])], batch_size)
    got = Counter[str]()
    for candidate in chosen:
        got[candidate.environment] += candidate.sequences
    if strict:
        for name, count in needed.items():
            if got[name] < count and (chosen or taken[name] < count):
                have = taken[name] if taken[name] < count else got[name]
                return Choice(
                    [], f"environment {name} must have {count} sequences of each batch and {have} can be taken"
                )
        if not chosen and most:
            limits = ", ".join(f"{name} at most {count}" for name, count in sorted(most.items()))
            return Choice([], f"the maximum shares leave no batch of {batch_size} ({limits})")
    return Choice(sorted(chosen))


def largest(front: Sequence[Candidate], batch_size: int) -> list[Candidate]:
    """The choice with the largest sum below `batch_size`: a short batch, for runs that prefer one to waiting."""
    for size in range(batch_size - 1, 0, -1):
        chosen = pack(front, size)
        if chosen:
            return chosen
    return []
