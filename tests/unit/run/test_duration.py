"""Durations as people write them."""

from __future__ import annotations

import pytest

from tinker_atropos.run.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), ("2d", 172_800)]
)
def test_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "-5m", "5x", "1h 30m"])
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 90s, 10m or 1h30m"):
        parse_duration(text)
