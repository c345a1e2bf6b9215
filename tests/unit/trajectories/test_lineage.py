"""Staleness along the surviving lineage, also when epochs were abandoned."""

from __future__ import annotations

import pytest

from tinker_atropos.trajectories.lineage import Lineage, Version


@pytest.mark.parametrize(
    ("behaviour", "takeovers", "version", "for_step", "staleness"),
    [
        ("fresh weights", [], (1, 0), 1, 0),
        ("one step behind", [], (1, 3), 5, 1),
        ("a step that survives counts as itself", [(2, 5)], (1, 4), 7, 2),
        ("a lost step counts from where its epoch was abandoned", [(2, 5)], (1, 9), 7, 1),
        ("the new epoch's own steps count as themselves", [(2, 5)], (2, 6), 7, 0),
        ("abandoned twice, the earlier cut counts", [(2, 5), (3, 3)], (1, 9), 5, 1),
        ("abandoned twice, the second epoch's lost step", [(2, 5), (3, 6)], (2, 8), 8, 1),
        ("a later cut further on does not revive lost steps", [(2, 5), (3, 8)], (1, 7), 10, 4),
    ],
)
def test_staleness(
    behaviour: str, takeovers: list[tuple[int, int]], version: tuple[int, int], for_step: int, staleness: int
) -> None:
    lineage = Lineage()
    for epoch, step in takeovers:
        lineage.take_over(epoch, step)
    assert lineage.staleness(Version(*version), for_step) == staleness, behaviour
