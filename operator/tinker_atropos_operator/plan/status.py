"""The status of a run that is not over, and of one that just ended. `phase` follows from the conditions alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinker_atropos_operator.plan.conditions import Condition, Status, merged
from tinker_atropos_operator.plan.environments import EnvironmentState
from tinker_atropos_operator.plan.observed import Run, format_time
from tinker_atropos_operator.plan.pods import Trouble, cut
from tinker_atropos_operator.plan.progress import Heard, number
from tinker_atropos_operator.plan.servers import ServerState
from tinker_atropos_operator.plan.trainer import TrainerState

SILENCE_SECONDS = 120.0
"""Without a report for this long, or ten steps if those take longer, progress is not fresh."""

MAX_SUPPLY_MESSAGE = 1000

_PASSING = frozenset({"Unschedulable"})
"""Troubles that a cluster may end by itself."""

CREATING, STARTING, RECOVERING = "Creating", "Starting", "Recovering"


@dataclass(frozen=True)
class Facts:
    """What the decisions found, for one status."""

    api_server: ServerState
    local_tinker: ServerState | None
    environments: Sequence[EnvironmentState]
    trainer: TrainerState
    begun: bool
    """The trainer has begun its first step."""
    heard: Heard | None
    """The newest word of the trainer, whatever it says."""
    silent_since: dt.datetime | None
    """Since when nothing was heard of a trainer that runs."""
    refused: Trouble | None = None
    """The API server refuses an object of the run."""
    warnings: str = ""


@dataclass(frozen=True)
class Ending:
    """The run is over."""

    complete: bool
    reason: str
    message: str


def missing(facts: Facts) -> str:
    """What the run still waits for, as a sentence, causes first; empty when every part is there."""
    troubles, parts = [], []
    for server in (facts.local_tinker, facts.api_server):
        if server is not None and not server.ready:
            if server.trouble is not None:
                troubles.append(server.trouble.message)
            else:
                parts.append(f"the {server.what} is not ready")
    for state in facts.environments:
        if not state.is_ready:
            if state.trouble is not None:
                troubles.append(state.trouble.message)
            else:
                parts.append(f"{state.ready} of {state.desired} instances of environment {state.name} are ready")
    if facts.trainer.state != "Running":
        (troubles if facts.trainer.trouble is not None else parts).append(facts.trainer.message)
    return "; ".join((*troubles, *parts))


def blocking_trouble(facts: Facts) -> Trouble | None:
    """The trouble that keeps the run from going on until somebody does something."""
    if facts.refused is not None:
        return facts.refused
    servers = [server.trouble for server in (facts.local_tinker, facts.api_server) if server is not None]
    found = [*servers, facts.trainer.trouble]
    working = [environment for environment in facts.environments if environment.ready > 0]
    if not facts.begun or not working:  # later, an environment that still works carries the run
        found += [environment.trouble for environment in facts.environments]
    real = [trouble for trouble in found if trouble is not None and trouble.reason not in _PASSING]
    secret = [trouble for trouble in real if trouble.is_missing_secret]
    return next(iter(secret or real), None)


def conditions_of(
    facts: Facts, now: dt.datetime, seconds_per_step: float, warned: Sequence[Mapping[str, Any]] = ()
) -> list[Condition]:
    """All conditions of a run that is not over. warned: the warnings of its trajectory server, as in the status."""
    waits = missing(facts)
    blocked = blocking_trouble(facts)
    said = facts.heard.report.message if facts.heard is not None else ""
    created = facts.trainer.state != "Absent"
    if blocked is not None:
        ready = Condition("Ready", "False", blocked.reason, blocked.message)
        reconciling = Condition("Reconciling", "False", blocked.reason)
    elif facts.begun and not waits:
        ready = Condition("Ready", "True", "Running", said or "every part of the run works")
        reconciling = Condition("Reconciling", "False", "Running")
    else:
        reason = RECOVERING if facts.begun else STARTING if created else CREATING
        text = waits or said or "every part runs; waiting for the trainer's first step"
        if waits and said and not facts.begun:
            text = f"{waits}; the trainer: {said}"
        ready = Condition("Ready", "False", reason, text)
        reconciling = Condition("Reconciling", "True", reason, text)
    stalled = (
        Condition("Stalled", "True", blocked.reason, blocked.message)
        if blocked
        else Condition("Stalled", "False", "AsExpected", facts.warnings)
    )
    return [
        ready,
        reconciling,
        stalled,
        _server("AtroposAPIReady", facts.api_server, created),
        _environments(facts.environments, created),
        _trainer(facts.trainer),
        _fresh(facts, now, seconds_per_step),
        _supply(facts, warned),
        Condition("Complete", "False", "InProgress"),
        Condition("Failed", "False", "InProgress"),
    ]


def _server(name: str, server: ServerState, created: bool) -> Condition:
    if server.ready:
        return Condition(name, "True", "Ready")
    if server.trouble is not None:
        return Condition(name, "False", server.trouble.reason, server.trouble.message)
    return Condition(name, "False", STARTING if created else CREATING, f"the {server.what} is not ready")


def _environments(states: Sequence[EnvironmentState], created: bool) -> Condition:
    waiting = [state for state in states if not state.is_ready]
    if not waiting:
        return Condition("EnvironmentsReady", "True", "Ready")
    trouble = next((state.trouble for state in waiting if state.trouble is not None), None)
    if trouble is not None:
        return Condition("EnvironmentsReady", "False", trouble.reason, trouble.message)
    text = ", ".join(f"{state.name} {state.ready}/{state.desired}" for state in waiting)
    return Condition("EnvironmentsReady", "False", STARTING if created else CREATING, f"not ready: {text}")


def _trainer(trainer: TrainerState) -> Condition:
    status: Status = "True" if trainer.state == "Running" else "False"
    return Condition("TrainerRunning", status, trainer.reason, trainer.message)


def _fresh(facts: Facts, now: dt.datetime, seconds_per_step: float) -> Condition:
    if facts.trainer.state != "Running" or facts.silent_since is None:
        return Condition("ProgressFresh", "Unknown", "TrainerNotRunning")
    limit = silence_limit(seconds_per_step)
    silent = (now - facts.silent_since).total_seconds()
    if silent >= limit:
        return Condition(
            "ProgressFresh",
            "False",
            "Silent",
            f"no progress report for more than {limit:.0f} s; training may go on all the same: see "
            "the trainer's log, and "
            "whether its pod reaches the operator's Service",
        )
    if facts.heard is None:
        return Condition("ProgressFresh", "Unknown", "NoReportYet")
    return Condition("ProgressFresh", "True", "Reported")


def _supply(facts: Facts, warned: Sequence[Mapping[str, Any]]) -> Condition:
    """Do the environments supply batches as the run asks for them?"""
    if warned:
        text = "; ".join(str(warning["message"]) for warning in warned)
        return Condition("SupplyOk", "False", str(warned[0]["reason"]), cut(text, MAX_SUPPLY_MESSAGE))
    if facts.heard is None or not facts.begun:
        return Condition("SupplyOk", "Unknown", "NoReportYet")
    return Condition("SupplyOk", "True", "AsAsked")


def silence_limit(seconds_per_step: float) -> float:
    return max(SILENCE_SECONDS, 10 * seconds_per_step)


def ended_conditions(ending: Ending) -> list[Condition]:
    """All conditions of a run that is over."""
    over = "Complete" if ending.complete else ending.reason
    if ending.complete:
        head = [
            Condition("Ready", "True", over, ending.message),
            Condition("Reconciling", "False", over),
            Condition("Stalled", "False", over),
            Condition("Complete", "True", ending.reason, ending.message),
            Condition("Failed", "False", over),
        ]
    else:
        head = [
            Condition("Ready", "False", over, ending.message),
            Condition("Reconciling", "False", over),
            Condition("Stalled", "True", over, ending.message),
            Condition("Complete", "False", over),
            Condition("Failed", "True", ending.reason, ending.message),
        ]
    parts = ("AtroposAPIReady", "EnvironmentsReady", "TrainerRunning", "ProgressFresh", "SupplyOk")
    return head + [Condition(name, "False", "RunEnded", "the run is over") for name in parts]


def phase_of(conditions: Sequence[Mapping[str, Any]]) -> str:
    """One word for a list of conditions."""
    by_type = {str(entry["type"]): entry for entry in conditions}

    def holds(name: str) -> bool:
        return name in by_type and by_type[name]["status"] == "True"

    for phase in ("Complete", "Failed", "Stalled"):
        if holds(phase):
            return phase
    if holds("Ready"):
        return "Running"
    reason = str(by_type.get("Reconciling", {}).get("reason", CREATING))
    return {CREATING: "Pending", STARTING: "Starting"}.get(reason, "Running")


def assemble(
    run: Run,
    conditions: Sequence[Condition],
    fields: Mapping[str, Any],
    now: dt.datetime,
) -> tuple[dict[str, Any], list[Condition]]:
    """The whole status from its parts, and the conditions that changed. Fields that are None are left out."""
    entries, changed = merged(run.status.get("conditions") or (), conditions, run.generation, now)
    ready = next(entry for entry in entries if entry["type"] == "Ready")
    status = {
        "phase": phase_of(entries),
        "message": ready["message"],
        "observedGeneration": run.generation,
        **{key: value for key, value in fields.items() if value is not None},
        "conditions": entries,
    }
    return status, changed


def environment_entries(
    states: Sequence[EnvironmentState], heard: Heard | None, old: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """status.environments: instances from the cluster, shares and rewards from the trainer's report."""
    reported = {entry.name: entry for entry in heard.report.environments} if heard is not None else {}
    before = {str(entry["name"]): entry for entry in old}
    entries = []
    for state in states:
        entry: dict[str, Any] = {"name": state.name, "ready": state.ready, "desired": state.desired}
        report = reported.get(state.name)
        for key in ("share", "reward"):
            value = number(getattr(report, key)) if report is not None else before.get(state.name, {}).get(key)
            if value is not None:
                entry[key] = value
        entries.append(entry)
    return entries


def times(run: Run, begun: bool, now: dt.datetime) -> dict[str, str]:
    """When it was accepted and when training began."""
    found = {"startTime": str(run.status.get("startTime") or format_time(now))}
    if run.status.get("runningTime") or begun:
        found["runningTime"] = str(run.status.get("runningTime") or format_time(now))
    return found
