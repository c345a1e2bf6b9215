"""The one decision: given a run, what is there of it, and the time, what should be there and what its status should
say.

Pure: no clock, no network, no memory of its own. Everything else in the operator carries this out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinker_atropos.run import names
from tinker_atropos.run.model import RunSpec
from tinker_atropos_operator.plan.admission import Admission, admit
from tinker_atropos_operator.plan.attempts import attempts, close_last
from tinker_atropos_operator.plan.causes import listed, whole
from tinker_atropos_operator.plan.conditions import Condition
from tinker_atropos_operator.plan.deadlines import Deadline, secret_deadline, startup_deadline
from tinker_atropos_operator.plan.environments import EnvironmentState, environment_states
from tinker_atropos_operator.plan.observed import Object, Observed, Run, condition, label, name_of, parse_time
from tinker_atropos_operator.plan.pods import Trouble
from tinker_atropos_operator.plan.progress import Heard, left_behind, new_warnings, newest, progress_fields
from tinker_atropos_operator.plan.servers import (
    api_server_record,
    api_server_state,
    local_tinker_record,
    local_tinker_state,
    store_lost,
    weights_lost,
)
from tinker_atropos_operator.plan.status import (
    Ending,
    Facts,
    assemble,
    blocking_troubles,
    brief_of,
    conditions_of,
    ended_conditions,
    environment_entries,
    missing,
    silence_limit,
    times,
)
from tinker_atropos_operator.plan.token import LEAST_PAUSE, seconds_to_check
from tinker_atropos_operator.plan.trainer import attempt_of, goes_on, trainer_state
from tinker_atropos_operator.specs import labels
from tinker_atropos_operator.specs.children import running_children
from tinker_atropos_operator.specs.run_objects import Child, Platform, RunContext

LOCAL_TINKER_LOST = "LocalTinkerLost"
BEGUN_PHASES = frozenset({"Training", "Saving", "Complete"})


@dataclass(frozen=True)
class Delete:
    """An object that a finished run does not need any more."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class Situation:
    """Everything that a decision rests on."""

    run: Run
    observed: Observed
    platform: Platform
    now: dt.datetime
    heard: Heard | None = None
    """The newest report that came in over HTTPS."""
    listening_since: dt.datetime | None = None
    """Since when this operator could have heard reports."""
    refused: Trouble | None = None
    """An object that the API server refuses as it is."""
    trainer_refused: str = ""
    """The API server's newest sentence about a pod that the trainer's Job could not make."""
    token_made: dt.datetime | None = None
    """When the run's Secret was last made, or found to be there."""


@dataclass(frozen=True)
class Decision:
    """What to do. Children first, then the status, then deletions."""

    children: Sequence[Child] = ()
    deletions: Sequence[Delete] = ()
    status: dict[str, Any] | None = None
    """None = leave it."""
    changed: Sequence[Condition] = field(default=())
    """Conditions that changed, for Events."""
    warned: Sequence[Object] = field(default=())
    """Warnings that the status does not hold yet (reason, environment, message), for Events."""
    make_token: bool = False
    """Pods wait as they would without the run's Secret: it is made again if it is gone."""
    look_again: float | None = None
    """Seconds after which time alone may change the decision."""


def decide(situation: Situation) -> Decision:
    """The decision for one run."""
    run = situation.run
    if run.deleting:
        return Decision()  # garbage collection takes what it owns
    if run.finished:
        status, told = after_the_end(run)
        return Decision(deletions=remains(run, situation.observed), status=status, warned=told)
    admission = admit(run.spec)
    if admission.spec is None:
        return _rejected(situation, admission)
    return _decide(situation, admission.spec, "; ".join(f"spec.{warning}" for warning in admission.warnings))


def remains(run: Run, observed: Observed) -> list[Delete]:
    """What a finished run leaves that still costs something: environments, the API server, a trainer that goes on.

    The local Tinker server stays, for the final weights live in it; one that lost them has nothing to stay for."""
    failed = condition(run.body, "Failed") or {}
    kept = "" if failed.get("reason") == LOCAL_TINKER_LOST else names.local_tinker(run.name)
    found = [Delete("Deployment", name, _uid(body)) for name, body in observed.deployments.items() if name != kept]
    found += [Delete("Service", name, _uid(body)) for name, body in observed.services.items() if name != kept]
    for name, body in observed.jobs.items():
        if goes_on(body):
            found.append(Delete("Job", name, _uid(body)))
    leaving = {
        _uid(body) for kind in ("Deployment", "Service", "Job") for body in observed.of(kind).values() if _going(body)
    }
    return [delete for delete in found if delete.uid not in leaving]


def _uid(body: Any) -> str:
    return str(body["metadata"]["uid"])


def _going(body: Any) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _rejected(situation: Situation, admission: Admission) -> Decision:
    run, observed = situation.run, situation.observed
    entries = admission.sentences
    if not observed.deployments and not observed.jobs:
        # Most fields cannot change after creation, and nothing is lost yet.
        fix = f"correct the file, then kubectl delete tar {run.name} and apply it again"
        entries = [f"{entries[0]}; {fix}"] if len(entries) == 1 else [*entries, fix]
    message = "; ".join(entries)
    conditions = [
        Condition("Ready", "False", "InvalidConfig", message),
        Condition("Reconciling", "False", "InvalidConfig"),
        Condition("Stalled", "True", "InvalidConfig", message),
        Condition("Complete", "False", "InvalidConfig"),
        Condition("Failed", "False", "InvalidConfig"),
    ]
    fields = {key: value for key, value in run.status.items() if key not in _COMPUTED}
    status, changed = assemble(run, conditions, fields, situation.now, listed(entries))
    return Decision(status=status, changed=changed)


def after_the_end(run: Run) -> tuple[dict[str, Any] | None, list[Object]]:
    """The status of a run that was changed after its end, and what is told of it; none when it was not.

    The end stays as it is, but who waits for the operator to have seen the change must not wait for ever."""
    if int(run.status.get("observedGeneration") or run.generation) == run.generation:
        return None, []
    wanted = ((run.spec.get("config") or {}).get("env") or {}).get("total_steps")
    changed = "total_steps" if wanted not in (None, run.status.get("totalSteps")) else "the spec"
    told = f"the run is over: a change of {changed} has no effect; make a new run"
    message = str(run.status.get("message", "")).partition(f"; {_OVER}")[0]
    conditions = [{**entry, "observedGeneration": run.generation} for entry in run.status.get("conditions") or ()]
    status = {
        **run.status,
        "observedGeneration": run.generation,
        "message": f"{message}; {told}",
        "conditions": conditions,
    }
    return status, [{"reason": "RunIsOver", "message": told}]


_OVER = "the run is over: "


_COMPUTED = frozenset({"phase", "message", "observedGeneration", "conditions"})


def _decide(situation: Situation, spec: RunSpec, warnings: str) -> Decision:
    run, observed, now = situation.run, situation.observed, situation.now
    pods = [name_of(pod) for pod in observed.pods_of(labels.TRAINER)]
    newest_pod = pods[-1] if pods else None
    words = left_behind(observed, run.uid)
    if situation.heard is not None:
        words = sorted([*words, situation.heard], key=lambda heard: heard.at)
    told = newest(run.status, words, newest_pod)
    progress = progress_fields(run.status, told)
    step = int(progress.get("step") or 0)
    attempt = attempt_of(observed, int(run.status.get("trainerAttempt") or 1))
    all_trained = bool(progress.get("samplerWeights")) and step >= spec.config.env.total_steps
    last_word = told.report if told is not None and told.report.phase == "Complete" else None
    if last_word is not None and last_word.attempt != attempt:
        last_word = None  # of an earlier attempt, which had fewer steps to train
    trainer = trainer_state(
        run.name,
        spec,
        observed,
        attempt,
        finished=all_trained or last_word is not None,
        trained_for=last_word.total_steps if last_word is not None else None,
        outgrown=_outgrown(situation, attempt, step, spec.config.env.total_steps),
        now=now,
        refused=situation.trainer_refused,
    )
    if trainer.next_attempt:
        attempt += 1
    lost = store_lost(run, spec, observed)
    token_in = seconds_to_check(observed, situation.token_made, now)
    spoken = situation.heard.report.phase if situation.heard is not None else None
    begun = bool(run.status.get("runningTime")) or step > 0 or spoken in BEGUN_PHASES
    facts = Facts(
        api_server=api_server_state(run.name, observed, now),
        local_tinker=local_tinker_state(run.name, spec, observed, now),
        environments=environment_states(run.name, spec.environments, observed, now),
        trainer=trainer,
        begun=begun,
        heard=situation.heard,
        silent_since=_silent_since(situation, pods),
        refused=situation.refused,
        warnings=warnings,
    )
    history = attempts(run.status, told, observed, now)
    started = times(run, begun, now)
    deadlines = _deadlines(situation, spec, facts, parse_time(started["startTime"]))
    total = spec.config.env.total_steps
    fields: dict[str, Any] = {
        **progress,
        **started,
        "totalSteps": total,
        "progress": f"{step}/{max(step, total)}",
        "attempts": history or None,
        "trainerAttempt": attempt,
        "localTinker": local_tinker_record(run, spec, observed),
        "apiServer": api_server_record(run, spec, observed),
    }
    ending = _ending(situation, spec, facts, deadlines, fields, last_word.message if last_word is not None else "")
    old_environments = run.status.get("environments") or ()
    if ending is not None:
        over = [EnvironmentState(state.name, 0, 0) for state in facts.environments]
        fields["environments"] = environment_entries(over, told, old_environments)
        fields["environmentsReady"] = "0/0"
        fields["completionTime"] = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields["attempts"] = close_last(history, "Completed" if ending.complete else ending.reason, now) or None
        fields.pop("eta", None)
        fields.pop("warnings", None)
        status, changed = assemble(run, ended_conditions(ending), fields, now, ending.brief or ending.message)
        # What is left goes once this is written: whoever reads the status later must find the end in it.
        return Decision(status=status, changed=changed, look_again=0.0)
    ready = sum(state.ready for state in facts.environments)
    fields["environments"] = environment_entries(facts.environments, told, old_environments)
    fields["environmentsReady"] = f"{ready}/{sum(state.desired for state in facts.environments)}"
    seconds_per_step = float(progress.get("secondsPerStep") or 0)
    warned = progress.get("warnings") or ()
    conditions = conditions_of(facts, now, seconds_per_step, warned)
    status, changed = assemble(run, conditions, fields, now, brief_of(facts))
    context = RunContext(run.namespace, run.name, run.uid, spec, run.spec, situation.platform)
    return Decision(
        children=running_children(context, attempt),
        status=status,
        changed=changed,
        warned=[*new_warnings(run.status, warned), *lost],
        make_token=token_in == 0,
        look_again=_look_again(facts, deadlines, now, seconds_per_step, token_in),
        deletions=_replaced(observed, attempt),
    )


def _replaced(observed: Observed, attempt: int) -> list[Delete]:
    """Trainers of earlier attempts that still go on."""
    earlier = {name: job for name, job in observed.jobs.items() if int(label(job, labels.ATTEMPT) or 0) < attempt}
    return [Delete("Job", name, _uid(job)) for name, job in earlier.items() if goes_on(job) and not _going(job)]


def _outgrown(situation: Situation, attempt: int, step: int, total: int) -> bool:
    """Does the trainer go on though the steps asked for are trained? It knows only the total it began with."""
    report = situation.heard.report if situation.heard is not None else None
    if report is None or report.attempt != attempt or report.phase in ("Complete", "Failed"):
        return False
    return report.total_steps > total and step >= total


def _silent_since(situation: Situation, trainer_pods: Sequence[str]) -> dt.datetime | None:
    if situation.heard is not None:
        return situation.heard.at
    if not trainer_pods:
        return None
    newest_pod = situation.observed.pods_of(labels.TRAINER)[-1]
    since = parse_time(str(newest_pod["metadata"]["creationTimestamp"]))
    return since if situation.listening_since is None else max(since, situation.listening_since)


def _deadlines(situation: Situation, spec: RunSpec, facts: Facts, started: dt.datetime) -> list[Deadline]:
    """Moments at which the run fails if nothing changes."""
    if facts.begun:
        return []
    lacking, short = missing(facts), brief_of(facts)
    heard = facts.heard.report if facts.heard is not None else None
    waits = lacking.whole()
    if facts.refused is not None:
        waits = facts.refused.message
    elif not lacking:
        if heard is None:
            return []  # every part runs; that no report comes through is no reason to end the run
        waits = short = heard.message or f"the trainer is in its phase {heard.phase}"
    startup = startup_deadline(started, spec.deadlines.startup, spec.deadlines.startup_seconds, waits, short)
    blocked = blocking_troubles(facts)
    if not blocked or not blocked[0].is_missing_secret:
        return [startup]
    stalled = situation.run.condition("Stalled")
    known = stalled is not None and stalled.get("status") == "True" and stalled.get("reason") == blocked[0].reason
    since = parse_time(str(stalled["lastTransitionTime"])) if known and stalled is not None else situation.now
    return [secret_deadline(since, startup, whole(blocked), short), startup]


def _ending(
    situation: Situation,
    spec: RunSpec,
    facts: Facts,
    deadlines: Sequence[Deadline],
    fields: dict[str, Any],
    last_words: str,
) -> Ending | None:
    if facts.trainer.state == "Succeeded":
        weights = fields.get("samplerWeights")
        text = (
            f"{fields.get('step', 0)} steps trained; the final weights are {weights}" if weights else "training is done"
        )
        return Ending(True, "Trained", f"{text}; {last_words}" if last_words else text)
    lost = weights_lost(situation.run, spec, situation.observed)
    if lost is not None:
        return Ending(False, LOCAL_TINKER_LOST, lost)
    if facts.trainer.state == "Failed":
        return Ending(False, facts.trainer.reason, facts.trainer.message)
    for deadline in deadlines:
        if deadline.passed(situation.now):
            return Ending(False, deadline.reason, deadline.message, deadline.brief)
    return None


def _look_again(
    facts: Facts, deadlines: Sequence[Deadline], now: dt.datetime, seconds_per_step: float, token_in: float | None
) -> float | None:
    moments = [deadline.seconds_left(now) for deadline in deadlines]
    if token_in is not None:
        moments.append(token_in or LEAST_PAUSE)
    if facts.trainer.look_again is not None:
        moments.append(facts.trainer.look_again)
    troubles = [trouble for environment in facts.environments for trouble in environment.troubles]
    for server in (facts.local_tinker, facts.api_server):
        troubles += server.troubles if server is not None else ()
    moments += [(trouble.until - now).total_seconds() for trouble in troubles if trouble.until is not None]
    if facts.silent_since is not None and facts.trainer.state == "Running":
        left = silence_limit(seconds_per_step) - (now - facts.silent_since).total_seconds()
        if left > 0:
            moments.append(left)
    return min(moments) + 0.1 if moments else None


def with_refusal(situation: Situation, refused: Trouble) -> Situation:
    """The same situation, knowing that the API server refuses an object."""
    return replace(situation, refused=refused)
