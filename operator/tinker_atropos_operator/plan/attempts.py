"""The history of trainer processes that held the run: which pod from which step to which, and why it ended."""

from __future__ import annotations

import datetime as dt
from typing import Any

from tinker_atropos_operator.plan.observed import Object, Observed, format_time, is_true, name_of
from tinker_atropos_operator.plan.progress import Heard
from tinker_atropos_operator.plan.trainer import terminated
from tinker_atropos_operator.specs import labels

KEPT = 20


def attempts(status: Object, heard: Heard | None, observed: Observed, now: dt.datetime) -> list[dict[str, Any]]:
    """The history with what the newest report adds; the last entry is the process that holds the run now."""
    history = [dict(entry) for entry in status.get("attempts") or ()]
    if heard is None or heard.report.epoch == 0:
        return history
    report = heard.report
    last = history[-1] if history else None
    if last is not None and (last.get("epoch"), last.get("pod")) == (report.epoch, heard.pod):
        last["step"] = report.step
        return history
    if last is not None and "endTime" not in last:
        last["endTime"] = format_time(now)
        last["reason"] = _reason(str(last.get("pod", "")), heard.pod, observed)
    history.append(
        {
            "attempt": max(1, report.attempt),
            "epoch": report.epoch,
            "pod": heard.pod,
            "startTime": format_time(heard.at),
            "fromStep": report.step,
            "step": report.step,
        }
    )
    return history[-KEPT:]


def close_last(history: list[dict[str, Any]], reason: str, now: dt.datetime) -> list[dict[str, Any]]:
    """The history of a run that is over."""
    if history and "endTime" not in history[-1]:
        history[-1] = {**history[-1], "endTime": format_time(now), "reason": reason}
    return history


def _reason(old: str, new: str, observed: Observed) -> str:
    if old == new:
        return "TookOverAgain"
    pod = next((pod for pod in observed.pods_of(labels.TRAINER) if name_of(pod) == old), None)
    if pod is None:
        return "PodGone"
    if is_true(pod, "DisruptionTarget"):
        return "Disrupted"
    ended = terminated(pod)
    if ended is not None:
        return str(ended["reason"]) if ended.get("reason") == "OOMKilled" else f"ExitStatus{ended.get('exitCode')}"
    return "PodDeleted" if "deletionTimestamp" in pod["metadata"] else "Replaced"
