"""How old a policy version is for a step, when some epochs were abandoned on the way.

A trainer that takes over goes on from a saved step; what older epochs did after that step is not in the surviving
weights. Groups that were sampled by such a lost step count from the step where their epoch was abandoned.
"""

from __future__ import annotations

from typing import NamedTuple


class Version(NamedTuple):
    """Which weights sampled a token: the epoch that published them and their optimizer step."""

    epoch: int
    step: int


class Lineage:
    """Where each epoch was abandoned."""

    def __init__(self) -> None:
        self._cut: dict[int, int] = {}  # epoch -> the last of its steps that survives

    def take_over(self, epoch: int, step: int) -> None:
        """`epoch` goes on from the weights of `step`: of every older epoch nothing after that survives."""
        self._cut[epoch - 1] = step

    def surviving_step(self, version: Version) -> int:
        """The newest surviving step whose weights these tokens can be said to come from."""
        cuts = [cut for epoch, cut in self._cut.items() if epoch >= version.epoch]
        return min([version.step, *cuts])

    def staleness(self, version: Version, for_step: int) -> int:
        """Optimizer steps between the weights that sampled and the weights that `for_step` starts from."""
        return for_step - 1 - self.surviving_step(version)

    def to_json(self) -> list[list[int]]:
        return [[epoch, cut] for epoch, cut in self._cut.items()]

    @classmethod
    def from_json(cls, cuts: list[tuple[int, int]]) -> Lineage:
        lineage = cls()
        lineage._cut = dict(cuts)
        return lineage
