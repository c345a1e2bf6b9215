"""How long groups take from the end of a rollout's sampling to their post, as seen, by environment.

A rollout waits for the slowest of its group and for the scoring of all. Pure: durations in, an expectation out.
"""

from __future__ import annotations

_MARGIN = 2.0
"""A group is given up only after so many times the longest that was seen."""
_FADE = 0.02
"""So much of the longest is forgotten with each group: half in 35."""


class Delays:
    """The longest delay of late, by environment, with a margin and within limits."""

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self._longest: dict[str, float] = {}

    def saw(self, environment: str, seconds: float) -> None:
        before = self._longest.get(environment, 0.0)
        self._longest[environment] = max(min(max(seconds, 0.0), self._most), before * (1.0 - _FADE))

    def all(self) -> dict[str, float]:
        """What is expected of each environment whose groups were seen."""
        return {environment: self.expected(environment) for environment in self._longest}

    def expected(self, environment: str) -> float:
        """Seconds after which a group that has not come is not expected any more."""
        return min(self._most, max(self._least, _MARGIN * self._longest.get(environment, 0.0)))
