"""The collector leaves alone what stays: no pause grows with the ledger."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from tinker_atropos.trajectories import pauses


@pytest.fixture
def collector() -> Iterator[None]:
    threshold, callbacks, interval = gc.get_threshold(), list(gc.callbacks), sys.getswitchinterval()
    pauses.keep_short()
    yield
    gc.set_threshold(*threshold)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("collector")
def test_what_stays_is_looked_at_no_more() -> None:
    kept = [[number] for number in range(200_000)]
    assert gc.get_freeze_count() > 150_000
    assert sum(gc.get_count()) < 50_000
    assert kept[-1] == [199_999]


@pytest.mark.usefixtures("collector")
def test_young_cycles_are_still_freed() -> None:
    class Node:
        alive = 0

        def __init__(self) -> None:
            self.me = self
            Node.alive += 1

        def __del__(self) -> None:
            Node.alive -= 1

    for _ in range(100_000):
        Node()
    assert Node.alive < 50_000
