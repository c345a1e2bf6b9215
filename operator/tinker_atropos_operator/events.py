"""Kubernetes Events of a run: one for each transition that people care for, written after the status was."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinker_atropos_operator.kube import EVENTS, RUNS, ApiError, Kube
from tinker_atropos_operator.plan.conditions import Condition
from tinker_atropos_operator.plan.observed import Run
from tinker_atropos_operator.specs.labels import MANAGER

log = logging.getLogger(__name__)

MAX_NOTE = 1000
TOLD = frozenset({"AtroposAPIReady", "EnvironmentsReady", "TrainerRunning", "Complete", "Failed", "Stalled"})
"""Conditions whose turning true is told; Ready and Reconciling only repeat these."""
WARNINGS = frozenset({"Failed", "Stalled"})


def told(changed: Sequence[Condition]) -> list[Condition]:
    """The transitions worth an Event."""
    over = any(condition.type == "Failed" and condition.status == "True" for condition in changed)
    return [
        condition
        for condition in changed
        if condition.type in TOLD and condition.status == "True" and not (over and condition.type == "Stalled")
    ]


class EventRecorder:
    """Writes Events; a lost one harms nothing."""

    def __init__(self, kube: Kube, instance: str, now: Callable[[], dt.datetime]) -> None:
        self._kube = kube
        self._instance = instance
        self._now = now

    async def record(self, run: Run, changed: Sequence[Condition], warned: Sequence[Mapping[str, Any]] = ()) -> None:
        """changed: conditions; warned: new warnings of the run's trajectory server."""
        for condition in told(changed):
            warning = condition.type in WARNINGS
            note = condition.message or f"{condition.type}: {condition.reason}"
            await self._write(run, warning, condition.reason if warning else condition.type, condition.type, note)
        for entry in warned:
            reason = str(entry["reason"])
            await self._write(run, True, reason, str(entry.get("environment", "")), str(entry["message"]))

    async def _write(self, run: Run, warning: bool, reason: str, subject: str, note: str) -> None:
        try:
            await self._kube.create(EVENTS, run.namespace, self._event(run, warning, reason, subject, note))
        except ApiError as error:
            log.debug("Event not written: %s", error)

    def _event(self, run: Run, warning: bool, reason: str, subject: str, note: str) -> dict[str, object]:
        now = self._now()
        stamp = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
        digest = hashlib.sha256(f"{run.uid}/{subject}/{reason}/{stamp}".encode()).hexdigest()[:16]
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{run.name}.{digest}", "namespace": run.namespace},
            "eventTime": stamp,
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "action": "Reconcile",
            "note": note[:MAX_NOTE],
            "regarding": {
                "apiVersion": f"{RUNS.group}/{RUNS.version}",
                "kind": RUNS.kind,
                "namespace": run.namespace,
                "name": run.name,
                "uid": run.uid,
            },
            "reportingController": f"tinker-atropos.dev/{MANAGER}",
            "reportingInstance": self._instance[:128],
        }
