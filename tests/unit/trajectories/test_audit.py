"""A ledger balances when every acknowledged group is in it once."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_atropos.trajectories.audit import balance


def entry(number: int, state: str = "covered", **fields: Any) -> dict[str, Any]:
    return {
        "id": number,
        "state": state,
        "environment": "e",
        "reason": "",
        "epoch": 1,
        "step": number,
        "batch": number,
        **fields,
    }


def test_a_balanced_ledger() -> None:
    result = balance([entry(1), entry(2, "dropped", reason="stale"), entry(3, "queued")], 3)
    assert result.faults == []
    assert (result.states, result.reasons, result.steps) == ({"covered": 1, "dropped": 1, "queued": 1}, {"stale": 1}, 1)
    assert result.environments["e", "dropped"] == 1


@pytest.mark.parametrize(
    ("entries", "stored", "fault"),
    [
        ([entry(1)], 2, "2 groups were acknowledged and 1 are in the ledger"),
        ([entry(1), entry(1)], 1, "group 1 is listed twice"),
        ([entry(1, "lost")], 1, "group 1 is in no known state: 'lost'"),
        ([entry(1, "dropped")], 1, "group 1 was dropped without a reason"),
        ([entry(1, step=4), entry(2, step=4)], 2, "step 4 of epoch 1 was trained from several batches: [1, 2]"),
    ],
)
def test_what_is_wrong_is_said(entries: list[dict[str, Any]], stored: int, fault: str) -> None:
    assert fault in balance(entries, stored).faults
