"""Token counts: what is prefilled once, what is read from it again, and that a restart forgets nothing."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from tinker_atropos.local_tinker.metering import Meter
from tinker_atropos.local_tinker.registry import Registry

HOUR = 3600


class Clock:
    now = 10 * HOUR + 5.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("prompt", "samples", "cached", "expected"),
    [
        (10, 1, False, (10, 0)),
        (10, 16, False, (10, 150)),
        (10, 1, True, (0, 10)),
        (10, 4, True, (0, 40)),
    ],
    ids=["one sample", "a group", "equal prompt beside it", "equal group beside it"],
)
def test_prefill(tmp_path: Path, prompt: int, samples: int, cached: bool, expected: tuple[int, int]) -> None:
    meter = Meter(Registry(tmp_path / "r"), Clock())
    meter.sampled("s", prompt, samples, 7, cached=cached)
    totals = meter.totals()
    assert (totals["prefill"], totals["cached_prefill"], totals["sample"]) == (*expected, 7)


def test_counts_by_session_survive_a_restart(tmp_path: Path) -> None:
    meter = Meter(Registry(tmp_path / "r"), Clock())
    meter.trained("a", 5)
    meter.trained("b", 7)
    meter.trained("a", 1)
    meter.saved("a")
    totals = Meter(Registry(tmp_path / "r"), Clock()).totals()
    assert (totals["train"], totals["checkpoint"]) == (13, 1)
    assert {session: own["train"] for session, own in totals["sessions"].items()} == {"a": 6, "b": 7}


def test_events_are_hourly(tmp_path: Path) -> None:
    clock = Clock()
    meter = Meter(Registry(tmp_path / "r"), clock)
    meter.trained("a", 5)
    clock.now += HOUR
    meter.trained("a", 6)
    meter.trained("a", 6)

    def between(first: int, last: int) -> list[int]:
        bounds = (dt.datetime.fromtimestamp(hour * HOUR, dt.UTC) for hour in (first, last))
        return [event["event_info"]["token_count"] for event in meter.events(*bounds, "m")["data"]]

    assert between(10, 12) == [5, 12]
    assert between(10, 11) == [5]
    assert between(12, 13) == []
