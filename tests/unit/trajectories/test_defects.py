"""Every known defect of Atropos is in docs/atropos.md, and the test that the table names speaks of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINES = (ROOT / "docs" / "atropos.md").read_text().splitlines()
ROWS = {cells[1]: cells for line in LINES if len(cells := [cell.strip() for cell in line.split("|")]) == 6}
DEFECTS = [f"AP-{number}" for number in range(1, 32)]


def test_the_table_is_complete() -> None:
    assert [name for name in ROWS if name.startswith("AP-")] == DEFECTS


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_test_holds_the_behaviour(defect: str) -> None:
    text = (ROOT / "tests" / ROWS[defect][4]).read_text()
    assert re.search(rf"{defect}\b", text), f"{ROWS[defect][4]} does not name {defect}"
