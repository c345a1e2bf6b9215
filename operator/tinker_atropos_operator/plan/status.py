"""The status of a run that is not over, and of one that just ended. `phase` follows from the conditions alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinker_atropos_operator.plan.causes import brief, listed, whole
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
    brief: str = ""
    """The message in one line; empty = as it is."""


@dataclass(frozen=True)
class Missing:
    """What a run still waits for."""

    troubles: Sequence[Trouble]
    parts: Sequence[str]
    """Parts that are not ready yet without anything being wrong."""
    trainer: str = ""
    """The same for the trainer, as a sentence."""

    def __bool__(self) -> bool:
        return bool(self.troubles or self.parts or self.trainer)

    def whole(self) -> str:
        """As a sentence, causes first."""
        return "; ".join(text for text in (whole(self.troubles), self._parts(), self.trainer) if text)

    def brief(self, said: str) -> str:
        """As one line; said: by the trainer."""
        return brief(self.troubles, [text for text in (self._parts(), said or self.trainer) if text])

    def _parts(self) -> str:
        return f"not ready: {', '.join(self.parts)}" if self.parts else ""


def no_instances(states: Sequence[EnvironmentState]) -> list[Trouble]:
    """Nobody makes groups, as the run file asks for: no step can follow, and nothing else would say why."""
    if any(state.desired for state in states):
        return []
    cause, fix = "every environment has replicas 0", "raise environments[].replicas to go on"
    return [Trouble("NoInstances", f"{cause}; {fix}", "", "", cause, fix)]


def missing(facts: Facts) -> Missing:
    """What the run still waits for; nothing when every part is there."""
    troubles = no_instances(facts.environments)
    parts = []
    waits = ""
    for server in (facts.local_tinker, facts.api_server):
        if server is not None and not server.ready:
            troubles += server.troubles
            if not server.troubles:
                parts.append(f"the {server.what}")
    for state in facts.environments:
        if not state.is_ready:
            troubles += state.troubles
            if not state.troubles:
                parts.append(f"environment {state.name} {state.ready}/{state.desired}")
    if facts.trainer.state != "Running":
        troubles += facts.trainer.troubles
        if not facts.trainer.troubles:
            waits = facts.trainer.message
    return Missing(troubles, parts, waits)


def blocking_troubles(facts: Facts) -> list[Trouble]:
    """The troubles that keep the run from going on until somebody does something; a refused object
    first, then a missing Secret, which ends a run soon."""
    found = [] if facts.refused is None else [facts.refused]
    for server in (facts.local_tinker, facts.api_server):
        found += server.troubles if server is not None else ()
    found += facts.trainer.troubles
    working = [environment for environment in facts.environments if environment.ready > 0]
    if not facts.begun or not working:  # later, an environment that still works carries the run
        for environment in facts.environments:
            found += environment.troubles
    real = [trouble for trouble in found if trouble.reason not in _PASSING]
    return sorted(real, key=lambda trouble: (trouble is not facts.refused, not trouble.is_missing_secret))


def conditions_of(
    facts: Facts, now: dt.datetime, seconds_per_step: float, warned: Sequence[Mapping[str, Any]] = ()
) -> list[Condition]:
    """All conditions of a run that is not over. warned: the warnings of its trajectory server, as in the status."""
    waits = missing(facts)
    blocked = blocking_troubles(facts)
    said = facts.heard.report.message if facts.heard is not None else ""
    created = facts.trainer.state != "Absent"
    if blocked:
        ready = Condition("Ready", "False", blocked[0].reason, whole(blocked))
        reconciling = Condition("Reconciling", "False", blocked[0].reason)
    elif facts.begun and not waits:
        ready = Condition("Ready", "True", "Running", said or "every part of the run works")
        reconciling = Condition("Reconciling", "False", "Running")
    else:
        reason = RECOVERING if facts.begun else STARTING if created else CREATING
        idle = no_instances(facts.environments)
        text = waits.whole() or said or "every part runs; waiting for the trainer's first step"
        if waits and said and not facts.begun:
            text = f"{text}; the trainer: {said}"
        ready = Condition("Ready", "False", idle[0].reason if idle else reason, text)
        reconciling = Condition("Reconciling", "True", reason, text)
    stalled = (
        Condition("Stalled", "True", blocked[0].reason, whole(blocked))
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


def brief_of(facts: Facts) -> str:
    """status.message of a run that is not over; empty = what the condition Ready says."""
    waits, blocked = missing(facts), blocking_troubles(facts)
    if not blocked and not waits:
        return ""
    said = facts.heard.report.message if facts.heard is not None and not facts.begun else ""
    others = [trouble for trouble in waits.troubles if trouble not in blocked]
    return Missing([*blocked, *others], waits.parts, waits.trainer).brief(f"the trainer: {said}" if said else "")


def _server(name: str, server: ServerState, created: bool) -> Condition:
    if server.ready:
        return Condition(name, "True", "Ready")
    if server.troubles:
        return Condition(name, "False", server.troubles[0].reason, whole(server.troubles))
    return Condition(name, "False", STARTING if created else CREATING, f"the {server.what} is not ready")


def _environments(states: Sequence[EnvironmentState], created: bool) -> Condition:
    waiting = [state for state in states if not state.is_ready]
    none = no_instances(states)
    if none:
        return Condition("EnvironmentsReady", "False", none[0].reason, none[0].message)
    if not waiting:
        return Condition("EnvironmentsReady", "True", "Ready")
    troubles = [trouble for state in waiting for trouble in state.troubles]
    if troubles:
        return Condition("EnvironmentsReady", "False", troubles[0].reason, whole(troubles))
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
    message: str = "",
) -> tuple[dict[str, Any], list[Condition]]:
    """The whole status from its parts, and the conditions that changed. Fields that are None are left out.
    message: one line for people; empty = what the condition Ready says."""
    entries, changed = merged(run.status.get("conditions") or (), conditions, run.generation, now)
    ready = next(entry for entry in entries if entry["type"] == "Ready")
    status = {
        "phase": phase_of(entries),
        "message": message or listed([ready["message"]]),
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
