"""The phase follows from the conditions alone; Events follow from transitions."""

from __future__ import annotations

import pytest

from tinker_atropos_operator.events import told
from tinker_atropos_operator.plan.conditions import Condition
from tinker_atropos_operator.plan.status import phase_of

PHASES = {
    "nothing known": ({}, "Pending"),
    "objects are being made": ({"Reconciling": ("True", "Creating")}, "Pending"),
    "parts start": ({"Reconciling": ("True", "Starting")}, "Starting"),
    "it works": ({"Ready": ("True", "Running"), "Reconciling": ("False", "Running")}, "Running"),
    "a part is being replaced": ({"Ready": ("False", "Recovering"), "Reconciling": ("True", "Recovering")}, "Running"),
    "somebody must act": ({"Ready": ("False", "x"), "Stalled": ("True", "x")}, "Stalled"),
    "complete": ({"Ready": ("True", "x"), "Complete": ("True", "x")}, "Complete"),
    "failed": ({"Failed": ("True", "x"), "Stalled": ("True", "x")}, "Failed"),
}


@pytest.mark.parametrize(("conditions", "phase"), PHASES.values(), ids=PHASES.keys())
def test_phase(conditions: dict[str, tuple[str, str]], phase: str) -> None:
    entries = [{"type": kind, "status": status, "reason": reason} for kind, (status, reason) in conditions.items()]
    assert phase_of(entries) == phase


@pytest.mark.parametrize(
    ("changed", "types"),
    [
        ([Condition("Ready", "True", "x"), Condition("AtroposAPIReady", "True", "x")], ["AtroposAPIReady"]),
        ([Condition("AtroposAPIReady", "False", "x")], []),
        ([Condition("Stalled", "True", "x")], ["Stalled"]),
        ([Condition("Stalled", "True", "x"), Condition("Failed", "True", "x")], ["Failed"]),
    ],
    ids=[
        "what only repeats others is not told",
        "turning false is not told",
        "trouble is told",
        "a failure is told once",
    ],
)
def test_which_transitions_become_events(changed: list[Condition], types: list[str]) -> None:
    assert [condition.type for condition in told(changed)] == types
