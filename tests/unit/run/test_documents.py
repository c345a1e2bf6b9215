"""Figures in the documentation that programs hold: they are the programs'."""

from __future__ import annotations

import re
from pathlib import Path

from tinker_atropos.protocol import exit_codes
from tinker_atropos.run import quantity
from tinker_atropos.run.pod_requests import REQUESTS

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_table_of_what_pods_ask_for_is_what_they_ask_for() -> None:
    text = (DOCS / "run-file.md").read_text()
    rows = re.findall(r"^\|[^|]*\| `([a-z-]+)` \| (\d+m) \| (\d+Mi) \|$", text, re.M)
    assert {name: {"cpu": cpu, "memory": memory} for name, cpu, memory in rows} == REQUESTS
    sums = {kind: sum(quantity.parse(requests[kind]) for requests in REQUESTS.values()) for kind in ("cpu", "memory")}
    assert f"{sums['cpu'] * 1000}m and {sums['memory'] / 2**20}Mi in all" in text, "the quick start has one of each"


def test_every_exit_status_is_in_the_table() -> None:
    numbers = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|[^|]+\| (yes|no|) ?\|$", (DOCS / "command-line.md").read_text(), re.M)
    told = {int(number): again for number, programs, again in rows if "trainer" in programs}
    assert told == {number: "no" if number in exit_codes.FATAL else "yes" for number in numbers}
