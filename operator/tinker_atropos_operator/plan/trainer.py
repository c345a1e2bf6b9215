"""How it stands with the trainer: which attempt, and whether it works, has succeeded or cannot go on.

A Job that is Complete is not yet a run that is: a pod that ended in order for another reason than the end of training
also makes its Job Complete. Only the trainer's own last word, that the final weights are saved, completes a run."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tinker_atropos.protocol.exit_codes import CONFIG_ERROR, FENCED, KEY_REFUSED, STARTUP_TIMEOUT, STATE_LOST
from tinker_atropos.run import names
from tinker_atropos.run.model import RunSpec
from tinker_atropos_operator.plan.causes import whole
from tinker_atropos_operator.plan.observed import (
    Object,
    Observed,
    condition,
    controller_uid,
    is_true,
    label,
    name_of,
    parse_time,
)
from tinker_atropos_operator.plan.pods import Trouble, all_troubles, cut, exit_text, last_lines
from tinker_atropos_operator.plan.progress import termination_report
from tinker_atropos_operator.plan.refusals import refusal
from tinker_atropos_operator.specs import labels

State = Literal["Absent", "Pending", "Running", "Succeeded", "Failed"]

LAST_WORD_SECONDS = 15.0
"""How long after its Job's end a trainer's last report may take to be seen."""

LOOK_FOR_POD_SECONDS = 10.0
"""How often it is asked why a Job has no pod."""

_QUOTED = re.compile(r"refused the key \((?P<answer>.*)\); put")
_DETAIL = re.compile(r"""['"](?:detail|message|error)['"]: *(?P<quote>['"])(?P<text>.+?)(?P=quote)""")
_BODY = re.compile(r"(\s*[-:])?\s*[{\[].*")
_EXIT_CODE = re.compile(r"failed with exit code (\d+)")


@dataclass(frozen=True)
class TrainerState:
    """The trainer as it stands."""

    state: State
    attempt: int
    reason: str = ""
    message: str = ""
    troubles: Sequence[Trouble] = ()
    next_attempt: bool = False
    """This attempt ended without finishing the run and without a reason to give up."""
    look_again: float | None = None
    """Seconds after which to decide again."""


def trainer_state(
    run: str,
    spec: RunSpec,
    observed: Observed,
    attempt: int,
    *,
    finished: bool,
    trained_for: int | None,
    now: dt.datetime,
    outgrown: bool = False,
    refused: str = "",
) -> TrainerState:
    """finished: the trainer has said that the final weights are saved; trained_for: of how many steps it knew then.
    outgrown: it goes on though total_steps are trained.
    refused: the API server's sentence about a pod that its Job could not make."""
    job = observed.jobs.get(names.trainer(run, attempt))
    if job is None:
        return TrainerState("Absent", attempt, "NotCreated", "the trainer's Job is not made yet")
    pods = trainer_pods(observed, job)
    if is_true(job, "Failed") or is_true(job, "FailureTarget"):
        reason, message = _failure(spec, job, pods)
        return TrainerState("Failed", attempt, reason, message)
    if is_true(job, "Complete"):
        return _after_complete(spec, job, attempt, finished=finished, trained_for=trained_for, now=now)
    if outgrown and not finished:
        message = (
            f"total_steps was lowered to {spec.config.env.total_steps}, and that many are trained; the next attempt "
            "saves the final weights"
        )
        return TrainerState("Pending", attempt, "FewerSteps", message, next_attempt=True)
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    failures = int((job.get("status") or {}).get("failed") or 0)
    earlier = f", {failures} earlier ones failed" if failures else ""
    if running:
        return TrainerState("Running", attempt, "PodRunning", f"pod {name_of(running[-1])} trains{earlier}")
    if finished:
        return TrainerState("Running", attempt, "Finishing", "the final weights are saved; the trainer's pod ends")
    troubles = all_troubles(pods, now)
    if not pods and refused:
        troubles.append(refusal(refused, "the trainer", has_template=True))
    if troubles:
        again = LOOK_FOR_POD_SECONDS if not pods else None
        return TrainerState("Pending", attempt, troubles[0].reason, whole(troubles), troubles, look_again=again)
    last = _last_failed(pods)
    said = f"; the last one ended with {_end_of(last)}" if last is not None else ""
    # What keeps a Job from making a pod changes nothing that is watched.
    again = LOOK_FOR_POD_SECONDS if not pods else None
    message = f"waiting for a trainer pod{earlier}{said}"
    return TrainerState("Pending", attempt, "PodPending", message, look_again=again)


def podless_job(run: str, observed: Observed, attempt: int) -> Object | None:
    """The Job of an attempt when it should have a pod and none is there."""
    job = observed.jobs.get(names.trainer(run, attempt))
    return None if job is None or not goes_on(job) or trainer_pods(observed, job) else job


def goes_on(job: Object) -> bool:
    """Neither succeeded nor failed nor about to."""
    return not any(is_true(job, name) for name in ("Failed", "FailureTarget", "Complete"))


def trainer_pods(observed: Observed, job: Object) -> list[Object]:
    """Pods of one attempt, oldest first."""
    uid = str(job["metadata"]["uid"])
    return [pod for pod in observed.pods_of(labels.TRAINER) if controller_uid(pod) == uid]


def terminated(pod: Object) -> Object | None:
    """How the trainer's container of a pod ended."""
    for entry in (pod.get("status") or {}).get("containerStatuses") or ():
        if entry.get("name") == labels.TRAINER:
            found: Object | None = (entry.get("state") or {}).get("terminated")
            return found
    return None


def _after_complete(
    spec: RunSpec, job: Object, attempt: int, *, finished: bool, trained_for: int | None, now: dt.datetime
) -> TrainerState:
    if finished and trained_for is not None and trained_for < spec.config.env.total_steps:
        message = f"total_steps was raised to {spec.config.env.total_steps}; the next attempt trains the rest"
        return TrainerState("Pending", attempt, "MoreSteps", message, next_attempt=True)
    if finished:
        return TrainerState("Succeeded", attempt, "Finished", "the trainer has saved the final weights")
    ended = condition(job, "Complete")
    since = (now - parse_time(str((ended or {})["lastTransitionTime"]))).total_seconds()
    if since < LAST_WORD_SECONDS:
        return TrainerState(
            "Pending",
            attempt,
            "WaitingForReport",
            "the trainer has ended; waiting for its last report",
            look_again=LAST_WORD_SECONDS - since,
        )
    message = f"the trainer of attempt {attempt} ended without having saved the final weights"
    if attempt > spec.trainer.backoff_limit:
        return TrainerState(
            "Failed",
            attempt,
            "TrainerEndedEarly",
            f"this project: {message}, and trainer.backoffLimit {spec.trainer.backoff_limit} allows "
            "no further attempt; "
            f"see kubectl logs job/{name_of(job)}",
        )
    return TrainerState(
        "Pending", attempt, "TrainerEndedEarly", f"{message}; another one takes over", next_attempt=True
    )


def _failure(spec: RunSpec, job: Object, pods: list[Object]) -> tuple[str, str]:
    """Reason and message of a failed Job: whose fault, what happened, what to do."""
    failed = condition(job, "Failed") or condition(job, "FailureTarget") or {}
    last = _last_failed(pods)
    ended = terminated(last) if last is not None else None
    code = int(ended["exitCode"]) if ended is not None and "exitCode" in ended else None
    if code is None:
        named = _EXIT_CODE.search(str(failed.get("message", "")))
        code = int(named[1]) if named else None
    said = _said(last)
    words = f": {said}" if said else ""
    logs = f"see kubectl logs job/{name_of(job)}"
    key = spec.tinker_api.key_secret_ref
    if code == KEY_REFUSED:
        where = f"the key in Secret {key.name} (key {key.key})" if key else "the key"
        answer = f": {_answer(said)}" if said else ""
        return (
            "KeyRefused",
            f"your config: the Tinker API refused {where}{answer}; put a valid key there and create the run again",
        )
    if code == CONFIG_ERROR:
        return "InvalidConfig", f"your config: the trainer cannot work with it{words}; correct it in a new run"
    if code == STATE_LOST:
        return (
            "StateLost",
            f"the service is broken: the saved state that the run must go on from is gone{words}; start a new run",
        )
    if code == STARTUP_TIMEOUT:
        return (
            "StartupTimeout",
            f"the trainer's peers did not come within deadlines.startup {spec.deadlines.startup}{words}; {logs}",
        )
    if code == FENCED:
        return "Fenced", f"this project: another trainer holds the run{words}; {logs}"
    if failed.get("reason") == "DeadlineExceeded":
        return "DeadlineExceeded", f"your config: the trainer's Job reached its own deadline; {logs}"
    how = _end_of(last) if last is not None else cut(str(failed.get("message", "an unknown end")))
    tries = spec.trainer.backoff_limit + 1
    return (
        "TrainerFailed",
        f"the trainer failed {tries} time{'s' if tries > 1 else ''}, last with {how}{words}; {logs}, "
        "then start a new run",
    )


def _answer(said: str) -> str:
    """The Tinker API's answer out of a trainer's sentence about it, without the JSON around its words."""
    quoted = _QUOTED.search(said)
    text = quoted["answer"] if quoted else said
    detail = _DETAIL.search(text)
    return _BODY.sub(f": {detail['text']}" if detail else "", text, count=1)


def _last_failed(pods: list[Object]) -> Object | None:
    failed = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Failed"]
    return failed[-1] if failed else None


def _end_of(pod: Object) -> str:
    ended = terminated(pod)
    if ended is not None:
        return exit_text(ended)
    status = pod.get("status") or {}
    return str(status.get("reason") or status.get("message") or "an unknown end")


def _said(pod: Object | None) -> str:
    """The trainer's own sentence from its termination message, or its last lines."""
    ended = terminated(pod) if pod is not None else None
    if pod is None or ended is None:
        return ""
    report = termination_report(pod)
    if report is not None:
        return cut(report.message)
    return last_lines(str(ended.get("message", "")))


def attempt_of(observed: Observed, recorded: int) -> int:
    """Newest attempt: as recorded in the status, or a higher one whose Job is there already."""
    numbers = [int(label(job, labels.ATTEMPT) or 0) for job in observed.jobs.values()]
    return max([recorded, 1, *numbers])
