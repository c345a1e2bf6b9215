"""What the trainer told about its progress, merged into what the status says already.

Reports come by HTTPS and, as the last resort, in the termination message of the trainer's pod. Older ones are
dropped: a lower epoch, or a lower step within an epoch. A trajectory store that was lost starts its epochs anew; then
a younger pod, or a later report of the same pod, speaks for the run all the same."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tinker_atropos.protocol.progress import CheckpointReport, ProgressReport
from tinker_atropos_operator.plan.observed import Object, Observed, format_time, name_of, parse_time
from tinker_atropos_operator.specs import labels


@dataclass(frozen=True)
class Heard:
    """A report, whose it is, and when it was heard."""

    report: ProgressReport
    pod: str
    at: dt.datetime


PROGRESS_FIELDS = (
    "step",
    "epoch",
    "reward",
    "loss",
    "secondsPerStep",
    "eta",
    "staleness",
    "checkpoint",
    "namedCheckpoint",
    "samplerWeights",
    "tokens",
    "ledger",
    "ledgerExport",
    "warnings",
    "lastProgressTime",
)
"""Fields of the status that only reports change."""


KEPT_WARNINGS = 20


def counts(candidate: Heard, status: Object, newest_pod: str | None) -> bool:
    """Does the report tell at least as much as the status does?

    Before its takeover a trainer has no epoch and knows nothing yet."""
    report = candidate.report
    epoch, step = int(status.get("epoch") or 0), int(status.get("step") or 0)
    if report.epoch == 0:
        return False
    if (report.epoch, report.step) >= (epoch, step):
        return True
    holders = list(status.get("attempts") or [])
    same_process = bool(holders) and holders[-1].get("pod") == candidate.pod and report.epoch == epoch
    return candidate.pod == newest_pod and not same_process and candidate.at >= _last_time(status)


def supersedes(new: Heard, old: Heard | None, newest_pod: str | None) -> bool:
    """Does a report that has just come in take the place of the one kept so far?"""
    if old is None:
        return True
    if new.pod != old.pod:
        return new.pod == newest_pod
    return new.report.epoch != old.report.epoch or new.report.step >= old.report.step


def _last_time(status: Object) -> dt.datetime:
    last = status.get("lastProgressTime")
    return parse_time(str(last)) if last else dt.datetime.min.replace(tzinfo=dt.UTC)


def termination_report(pod: Object) -> ProgressReport | None:
    """The report that a trainer left behind in its pod."""
    for entry in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (entry.get("state") or {}).get("terminated")
        if entry.get("name") == labels.TRAINER and ended is not None:
            try:
                return ProgressReport.model_validate_json(str(ended.get("message") or ""))
            except ValidationError:
                return None
    return None


def left_behind(observed: Observed, run_uid: str) -> list[Heard]:
    """Reports in the trainer pods' termination messages, oldest pod first."""
    found = []
    for pod in observed.pods_of(labels.TRAINER):
        report = termination_report(pod)
        if report is not None and report.run_uid == run_uid:
            found.append(Heard(report, name_of(pod), _end_time(pod)))
    return found


def newest(status: Object, heard: Iterable[Heard], newest_pod: str | None) -> Heard | None:
    """The report that tells more than the status does; None when none does. `heard` is in order of time."""
    best: Heard | None = None
    for candidate in heard:
        if not counts(candidate, status, newest_pod):
            continue
        if (
            best is None
            or candidate.pod != best.pod
            or (candidate.report.epoch, candidate.report.step) >= (best.report.epoch, best.report.step)
        ):
            best = candidate
    return best


def progress_fields(status: Object, heard: Heard | None) -> dict[str, Any]:
    """The progress part of the new status."""
    old = {key: status[key] for key in PROGRESS_FIELDS if key in status}
    if heard is None:
        return old
    report = heard.report
    new: dict[str, Any] = {**old, "step": report.step, "epoch": report.epoch}
    if report.reward is not None:
        rewards = {key: number(value) for key, value in report.reward.model_dump().items()}
        new["reward"] = {key: value for key, value in rewards.items() if value is not None}
    for key, value in (
        ("loss", report.loss),
        ("secondsPerStep", report.seconds_per_step),
        ("staleness", report.staleness),
    ):
        if value is not None:
            new[key] = number(value)
    if report.checkpoint is not None and _not_older(report, report.checkpoint, status.get("checkpoint"), status):
        new["checkpoint"] = report.checkpoint.model_dump()
    if report.named_checkpoint is not None:
        new["namedCheckpoint"] = report.named_checkpoint.model_dump()
    if report.sampler_weights:
        new["samplerWeights"] = report.sampler_weights
    if report.tokens.sampled or report.tokens.trained:
        new["tokens"] = report.tokens.model_dump()
    if report.ledger is not None:
        new["ledger"] = report.ledger.model_dump()
    if report.ledger_export:
        new["ledgerExport"] = report.ledger_export
    if report.warnings is not None:
        new["warnings"] = [warning.model_dump() for warning in report.warnings[:KEPT_WARNINGS]] or None
    new = {key: value for key, value in new.items() if value is not None}
    if {**new, "lastProgressTime": None} != {**old, "lastProgressTime": None}:
        new["lastProgressTime"] = format_time(heard.at)
        left = report.total_steps - report.step
        if report.seconds_per_step and math.isfinite(report.seconds_per_step) and left > 0:
            new["eta"] = format_time(heard.at + dt.timedelta(seconds=left * report.seconds_per_step))
        elif left <= 0:
            new.pop("eta", None)
    return new


def new_warnings(status: Object, warned: Iterable[Object]) -> list[Object]:
    """Those that the status does not name yet: other numbers in a sentence make no new problem."""
    known = {(warning.get("reason"), warning.get("environment")) for warning in status.get("warnings") or ()}
    return [warning for warning in warned if (warning.get("reason"), warning.get("environment")) not in known]


def number(value: float) -> float | None:
    """A number that JSON has, short enough to read; NaN and infinities are none."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _not_older(report: ProgressReport, new: CheckpointReport, old: Object | None, status: Object) -> bool:
    """Within an epoch the checkpoint only goes forward; a new epoch may go on from an earlier one."""
    return old is None or report.epoch > int(status.get("epoch") or 0) or new.step >= int(old.get("step") or 0)


def _end_time(pod: Object) -> dt.datetime:
    for entry in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (entry.get("state") or {}).get("terminated") or {}
        if entry.get("name") == labels.TRAINER and ended.get("finishedAt"):
            return parse_time(str(ended["finishedAt"]))
    return parse_time(str(pod["metadata"]["creationTimestamp"]))
