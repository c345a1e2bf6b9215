"""Conditions as a list that changes only where something changed: lastTransitionTime moves with the status alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tinker_atropos_operator.plan.observed import Object, format_time

Status = Literal["True", "False", "Unknown"]

ORDER = (
    "Ready",
    "Reconciling",
    "Stalled",
    "AtroposAPIReady",
    "EnvironmentsReady",
    "TrainerRunning",
    "ProgressFresh",
    "SupplyOk",
    "Complete",
    "Failed",
)


@dataclass(frozen=True)
class Condition:
    """One condition as it should be."""

    type: str
    status: Status
    reason: str
    message: str = ""


def merged(
    old: Sequence[Object], new: Sequence[Condition], generation: int, now: dt.datetime
) -> tuple[list[dict[str, Any]], list[Condition]]:
    """The new list, and those conditions whose status or reason changed."""
    before = {str(entry["type"]): entry for entry in old}
    changed = []
    entries = []
    for condition in sorted(new, key=lambda entry: ORDER.index(entry.type)):
        previous = before.get(condition.type)
        same_status = previous is not None and previous.get("status") == condition.status
        if previous is None or not same_status or previous.get("reason") != condition.reason:
            changed.append(condition)
        entries.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": (
                    str(previous["lastTransitionTime"]) if previous is not None and same_status else format_time(now)
                ),
            }
        )
    return entries, changed
