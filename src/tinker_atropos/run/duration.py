"""Durations as people write them in a run file: "90s", "10m", "1h30m"."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
"""The same form for a CRD schema."""


def parse_duration(text: str) -> float:
    """Seconds of a duration such as "1h30m". Raises ValueError naming the value."""
    if not re.fullmatch(PATTERN, text):
        raise ValueError(f"{text!r} is no duration; write it like 90s, 10m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
