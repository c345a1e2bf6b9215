"""What is decided for a run, given what is there of it and the time."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from tinker_atropos.protocol.exit_codes import CONFIG_ERROR, FENCED, KEY_REFUSED, STARTUP_TIMEOUT, STATE_LOST
from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos_operator.plan.observed import Observed
from tinker_atropos_operator.plan.pods import Trouble
from tinker_atropos_operator.plan.progress import Heard
from tinker_atropos_operator.plan.run import Decision, decide

DEADLINE_PASSED = 601.0
"""Seconds after which the default startup deadline is over."""


def report(build: Any, pod: str = "trainer-a", *, ago: float = 1, **fields: Any) -> Heard:
    values = {"run_uid": build.uid, "epoch": 1, "attempt": 1, "phase": "Training", "total_steps": 5, **fields}
    return Heard(ProgressReport(**values), pod, build.now - dt.timedelta(seconds=ago))


def word(build: Any, **fields: Any) -> str:
    values = {"runUid": build.uid, "epoch": 1, "attempt": 1, "phase": "Complete", "step": 5, "totalSteps": 5, **fields}
    return json.dumps(values)


def condition(decision: Decision, kind: str) -> dict[str, Any]:
    assert decision.status is not None
    return next(entry for entry in decision.status["conditions"] if entry["type"] == kind)


def phase(decision: Decision) -> str:
    assert decision.status is not None
    return str(decision.status["phase"])


def test_a_new_run_gets_its_objects_and_says_pending(build: Any) -> None:
    decision = decide(build.situation(build.run()))
    assert len(decision.children) == 6 and not decision.deletions
    assert phase(decision) == "Pending"
    assert decision.status is not None
    assert decision.status["progress"] == "0/5" and decision.status["environmentsReady"] == "0/2"
    assert decision.status["startTime"] == build.ago(0)
    assert decision.look_again == pytest.approx(600.1)


def test_a_run_that_is_being_deleted_is_left_to_garbage_collection(build: Any) -> None:
    assert decide(build.situation(build.run(deleting=True))) == Decision()


def test_a_run_that_cannot_be_makes_nothing_and_says_why(build: Any) -> None:
    decision = decide(build.situation(build.run(config={"tinker": {"lr": 1, "lora_rnk": 2}})))
    assert not decision.children and phase(decision) == "Stalled"
    message = condition(decision, "Stalled")["message"]
    assert "spec.config.tinker.lora_rnk" in message and "lora_rank" in message and "spec.config.tinker.lr" in message
    assert condition(decision, "Stalled")["reason"] == "InvalidConfig"


def test_a_near_miss_in_env_is_a_warning_only(build: Any) -> None:
    env = {"group_size": 4, "batch_size": 8, "total_step": 9}
    decision = decide(build.situation(build.run(config={"env": env})))
    assert decision.children
    assert "total_step" in condition(decision, "Stalled")["message"]
    assert condition(decision, "Stalled")["status"] == "False"


def test_every_part_works_and_the_trainer_trains(build: Any) -> None:
    run = build.run({"startTime": build.ago(50)})
    decision = decide(build.situation(run, build.everything(), heard=report(build, step=2, seconds_per_step=2.0)))
    assert phase(decision) == "Running"
    assert condition(decision, "Ready")["status"] == "True"
    assert decision.status is not None
    assert decision.status["step"] == 2 and decision.status["progress"] == "2/5"
    assert decision.status["runningTime"] == build.ago(0)
    assert decision.status["eta"] == build.ago(1 - 6)
    assert decision.status["environmentsReady"] == "2/2"


def test_every_part_works_but_no_report_comes_through(build: Any) -> None:
    run = build.run({"startTime": build.ago(DEADLINE_PASSED)})
    decision = decide(build.situation(run, build.everything(), listening_since=build.now - dt.timedelta(seconds=500)))
    assert phase(decision) == "Starting", "training may go on all the same: the run is not ended"
    assert condition(decision, "ProgressFresh")["status"] == "Unknown"


def test_a_trainer_that_falls_silent_shows(build: Any) -> None:
    run = build.run({"startTime": build.ago(900), "runningTime": build.ago(800), "step": 2, "epoch": 1})
    heard = report(build, step=2, ago=121)
    decision = decide(build.situation(run, build.everything(), heard=heard))
    assert condition(decision, "ProgressFresh")["reason"] == "Silent"
    slow = build.run({**run.status, "secondsPerStep": 60})
    decision = decide(build.situation(slow, build.everything(), heard=heard))
    assert condition(decision, "ProgressFresh")["status"] == "True", "ten steps may pass"
    assert decision.look_again == pytest.approx(600 - 121 + 0.1)


def test_what_went_wrong_with_the_export_is_in_the_last_message(build: Any) -> None:
    problem = "cannot write the export /var/lib/tinker-atropos-export/x: No space left on device"
    run = build.run({"startTime": build.ago(50), "epoch": 1, "step": 4})
    observed = build.everything(trainer="Succeeded")
    observed.jobs["tar-first-trainer-1"]["status"]["conditions"].append(build.condition("Complete"))
    last: dict[str, Any] = {"step": 5, "phase": "Complete", "sampler_weights": "tinker://final"}
    decision = decide(build.situation(run, observed, heard=report(build, **last, message=problem)))
    message = "5 steps trained; the final weights are tinker://final"
    assert condition(decision, "Complete")["message"] == f"{message}; {problem}"
    decision = decide(build.situation(run, observed, heard=report(build, **last, ledger_export="/x/first-uid")))
    assert condition(decision, "Complete")["message"] == message
    assert decision.status is not None and decision.status["ledgerExport"] == "/x/first-uid"


SHORT = {
    "reason": "CannotSupplyShare",
    "environment": "code",
    "message": "environment code cannot supply its share: 10.0% of the last 50 batches instead of 50.0%",
}
PACKING = {"reason": "GroupsDoNotPack", "environment": "", "message": "no choice of the queued groups sums to 8"}
REFUSED = {"reason": "PostsRefused", "environment": "code", "message": "9 posts of environment code were refused"}
WARNED = {
    "nothing known yet": ([], None, ("True", "AsAsked"), []),
    "nothing": ([], [], ("True", "AsAsked"), []),
    "a first one": ([], [SHORT], ("False", "CannotSupplyShare"), [SHORT]),
    "the same with other numbers": (
        [SHORT],
        [{**SHORT, "message": "environment code cannot supply its share: 12.0%"}],
        ("False", "CannotSupplyShare"),
        [],
    ),
    "of another environment": (
        [SHORT],
        [SHORT, {**SHORT, "environment": "chat"}],
        ("False", "CannotSupplyShare"),
        [{**SHORT, "environment": "chat"}],
    ),
    "another kind instead": ([SHORT], [PACKING], ("False", "GroupsDoNotPack"), [PACKING]),
    "refused posts": ([], [REFUSED], ("False", "PostsRefused"), [REFUSED]),
    "over": ([SHORT], [], ("True", "AsAsked"), []),
    "a new trainer that has not leased yet": ([SHORT], None, ("False", "CannotSupplyShare"), []),
}


@pytest.mark.parametrize(("before", "told", "expected", "new"), WARNED.values(), ids=WARNED)
def test_what_the_trajectory_server_warns_of(
    build: Any, before: list[Any], told: list[Any] | None, expected: tuple[str, str], new: list[Any]
) -> None:
    status = {"startTime": build.ago(50), "runningTime": build.ago(40), "epoch": 1, "step": 2}
    run = build.run({**status, **({"warnings": before} if before else {})})
    decision = decide(build.situation(run, build.everything(), heard=report(build, step=2, warnings=told)))
    supply = condition(decision, "SupplyOk")
    assert (supply["status"], supply["reason"]) == expected
    assert list(decision.warned) == new
    assert decision.status is not None
    wanted = before if told is None else told
    assert decision.status.get("warnings", []) == wanted
    assert supply["message"] == "; ".join(entry["message"] for entry in wanted)
    assert phase(decision) == "Running", "a warning is no failure"


def test_a_warning_before_the_first_step_stands_in_the_status(build: Any) -> None:
    run = build.run({"startTime": build.ago(50)})
    heard = report(build, step=0, phase="Waiting", warnings=[REFUSED])
    decision = decide(build.situation(run, build.everything(), heard=heard))
    supply = condition(decision, "SupplyOk")
    assert (supply["status"], supply["reason"], supply["message"]) == ("False", "PostsRefused", REFUSED["message"])
    assert decision.status is not None
    assert decision.status["warnings"] == [REFUSED] == list(decision.warned)


def test_nothing_changes_when_nothing_has_changed(build: Any) -> None:
    run = build.run({"startTime": build.ago(50)})
    observed, heard = (
        build.everything(),
        report(build, step=2, seconds_per_step=2.0, message="training", warnings=[SHORT]),
    )
    first = decide(build.situation(run, observed, heard=heard))
    assert first.status is not None
    later = build.situation(build.run(first.status), observed, heard=heard)
    second = decide(type(later)(**{**vars(later), "now": build.now + dt.timedelta(seconds=7)}))
    assert second.status == first.status
    assert list(second.changed) == [] and list(second.warned) == []


def test_a_condition_keeps_its_time_until_its_status_changes(build: Any) -> None:
    first = decide(build.situation(build.run({"startTime": build.ago(50)}), build.everything(trainer="Pending")))
    assert first.status is not None
    old = [{**entry, "lastTransitionTime": build.ago(40)} for entry in first.status["conditions"]]
    run = build.run({**first.status, "conditions": old}, generation=2)
    second = decide(build.situation(run, build.everything()))
    assert condition(second, "AtroposAPIReady")["lastTransitionTime"] == build.ago(40)
    assert condition(second, "AtroposAPIReady")["observedGeneration"] == 2
    assert condition(second, "TrainerRunning")["lastTransitionTime"] == build.ago(0)
    assert [entry.type for entry in second.changed if entry.status == "True"] == ["TrainerRunning"]


def finished(build: Any, **status: Any) -> Any:
    conditions = [build.condition("Complete", "Trained")]
    return build.run({"conditions": conditions, "step": 5, **status})


def test_a_finished_run_makes_nothing_and_clears_away(build: Any) -> None:
    observed = build.everything()
    observed.jobs["tar-first-trainer-1"]["status"]["conditions"].append(build.condition("Complete"))
    observed.deployments["tar-first-tinker"] = build.deployment("tar-first-tinker")
    observed.services["tar-first-tinker"] = {"metadata": {"name": "tar-first-tinker", "uid": "x"}}
    decision = decide(build.situation(finished(build), observed, heard=report(build, step=9)))
    assert not decision.children and decision.status is None
    assert sorted((delete.kind, delete.name) for delete in decision.deletions) == [
        ("Deployment", "tar-first-api"),
        ("Deployment", "tar-first-env-digits"),
        ("Service", "tar-first-api"),
    ]


def test_a_finished_run_stops_a_trainer_that_goes_on(build: Any) -> None:
    decision = decide(build.situation(finished(build), build.everything()))
    assert ("Job", "tar-first-trainer-1") in {(delete.kind, delete.name) for delete in decision.deletions}


def test_what_is_going_already_is_not_deleted_again(build: Any) -> None:
    observed = build.everything()
    observed.deployments["tar-first-api"]["metadata"]["deletionTimestamp"] = build.ago(1)
    decision = decide(build.situation(finished(build), observed))
    assert "tar-first-api" not in {delete.name for delete in decision.deletions if delete.kind == "Deployment"}


def ended(
    build: Any, *, code: int = 0, message: str = "", status: dict[str, Any] | None = None, job: Any = None
) -> Decision:
    pod = build.pod(
        "trainer", "trainer-a", phase="Failed" if code else "Succeeded", statuses=[build.terminated(code, message)]
    )
    observed = build.everything()
    observed = Observed(observed.deployments, {"tar-first-trainer-1": job}, observed.services, {}, [pod])
    return decide(build.situation(build.run({"startTime": build.ago(50), **(status or {})}), observed))


def test_the_last_word_completes_the_run(build: Any) -> None:
    job = build.job(1, build.condition("Complete"))
    decision = ended(build, message=word(build, samplerWeights="tinker://x/final"), job=job)
    assert phase(decision) == "Complete" and not decision.children and not decision.deletions
    assert decision.look_again == 0, "then what is left is cleared away, though nothing else happens"
    assert decision.status is not None
    assert decision.status["samplerWeights"] == "tinker://x/final"
    assert decision.status["completionTime"] == build.ago(0)
    assert decision.status["environmentsReady"] == "0/0"
    assert "tinker://x/final" in decision.status["message"]


def test_final_weights_in_the_status_complete_it_too(build: Any) -> None:
    job = build.job(1, build.condition("Complete"))
    decision = ended(build, job=job, status={"samplerWeights": "tinker://x/final", "step": 5, "epoch": 1})
    assert phase(decision) == "Complete"


def test_a_job_that_ended_in_order_without_a_last_word_completes_nothing(build: Any) -> None:
    decision = ended(build, job=build.job(1, build.condition("Complete", seconds_ago=5)))
    assert phase(decision) != "Complete"
    assert condition(decision, "TrainerRunning")["reason"] == "WaitingForReport"
    assert decision.look_again == pytest.approx(10.1)
    decision = ended(build, job=build.job(1, build.condition("Complete", seconds_ago=20)))
    assert decision.status is not None and decision.status["trainerAttempt"] == 2
    assert "Job/tar-first-trainer-2" in {f"{child.kind}/{child.name}" for child in decision.children}


def test_steps_added_while_it_runs_are_trained_by_a_next_attempt(build: Any) -> None:
    job = build.job(1, build.condition("Complete"))
    pod = build.pod(
        "trainer",
        "trainer-a",
        phase="Succeeded",
        statuses=[build.terminated(0, word(build, samplerWeights="tinker://x/final"))],
    )
    observed = Observed(build.everything().deployments, {"tar-first-trainer-1": job}, {}, {}, [pod])
    longer = {"config": {"env": {"group_size": 4, "batch_size": 8, "total_steps": 9}}}
    decision = decide(build.situation(build.run({"startTime": build.ago(50)}, **longer), observed))
    assert decision.status is not None and decision.status["trainerAttempt"] == 2
    assert decision.status["progress"] == "5/9" and phase(decision) == "Running"
    assert condition(decision, "TrainerRunning")["reason"] == "MoreSteps"
    second = build.job(2)
    observed = Observed(observed.deployments, {**observed.jobs, "tar-first-trainer-2": second}, {}, {}, [pod])
    decision = decide(build.situation(build.run(decision.status, **longer), observed))
    assert condition(decision, "TrainerRunning")["reason"] == "PodPending", "the first attempt's end is not its own"
    shorter = {"config": {"env": {"group_size": 4, "batch_size": 8, "total_steps": 3}}}
    observed = Observed(observed.deployments, {"tar-first-trainer-1": job}, {}, {}, [pod])
    assert phase(decide(build.situation(build.run({"startTime": build.ago(50)}, **shorter), observed))) == "Complete"


def test_between_its_last_word_and_its_end_the_trainer_is_not_missed(build: Any) -> None:
    pod = build.pod("trainer", "trainer-a", phase="Succeeded", statuses=[build.terminated(0, word(build))])
    everything = build.everything()
    observed = Observed(everything.deployments, everything.jobs, everything.services, {}, [pod])
    status = {"startTime": build.ago(50), "runningTime": build.ago(40), "samplerWeights": "x", "step": 5, "epoch": 1}
    decision = decide(build.situation(build.run(status), observed))
    assert condition(decision, "Ready")["status"] == "True"
    assert condition(decision, "TrainerRunning")["reason"] == "Finishing"


FAILURES = {
    "a refused key": (KEY_REFUSED, "KeyRefused", ["your config", "Secret tinker", "valid key"]),
    "a config that cannot work": (CONFIG_ERROR, "InvalidConfig", ["your config", "new run"]),
    "a state that is gone": (STATE_LOST, "StateLost", ["service is broken", "new run"]),
    "peers that did not come": (STARTUP_TIMEOUT, "StartupTimeout", ["deadlines.startup"]),
    "another trainer": (FENCED, "Fenced", ["another trainer"]),
    "a crash": (1, "TrainerFailed", ["7 times", "exit status 1"]),
    "a kill": (137, "TrainerFailed", ["exit status 137"]),
}


@pytest.mark.parametrize(("code", "reason", "words"), FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("pods_are_there", [True, False], ids=["with its pod", "its pod is gone"])
def test_why_a_trainer_failed(build: Any, code: int, reason: str, words: list[str], pods_are_there: bool) -> None:
    text = f"Container trainer for pod ns/x failed with exit code {code} matching FailJob rule at index 1"
    job = build.job(1, build.condition("Failed", "PodFailurePolicy", text))
    if pods_are_there:
        decision = ended(build, code=code, message=word(build, phase="Failed", message="because"), job=job)
    else:
        observed = build.everything()
        observed = Observed(observed.deployments, {"tar-first-trainer-1": job}, observed.services)
        decision = decide(build.situation(build.run({"startTime": build.ago(50)}), observed))
    assert phase(decision) == "Failed" and not decision.children
    failed = condition(decision, "Failed")
    assert failed["reason"] == reason
    if pods_are_there:
        assert "because" in failed["message"]
        for expected in words:
            assert expected in failed["message"]
    assert condition(decision, "Ready")["status"] == "False"
    assert condition(decision, "Stalled")["status"] == "True"


ANSWERS = {
    "of the SDK": (
        "the Tinker API refused the key (Error code: 401 - {'detail': 'Invalid API key', 'x': {'detail': 'again'}}); "
        "put a valid one into TINKER_API_KEY or into the Secret of tinkerAPI.keySecretRef",
        ": Error code: 401: Invalid API key",
    ),
    "without a word": ("the Tinker API refused the key (Error code: 403 - {}); put a valid one", ": Error code: 403"),
    "of somebody else": ("401 from the Tinker API", ": 401 from the Tinker API"),
    "none": ("", ""),
}


@pytest.mark.parametrize(("said", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_a_refused_key_is_told_in_one_sentence(build: Any, said: str, answer: str) -> None:
    job = build.job(1, build.condition("Failed", "PodFailurePolicy", "exit code 77"))
    decision = ended(build, code=KEY_REFUSED, message=word(build, phase="Failed", message=said), job=job)
    assert condition(decision, "Failed")["message"] == (
        f"your config: the Tinker API refused the key in Secret tinker (key api-key){answer}; put a valid key there "
        "and create the run again"
    )


def test_log_lines_stand_in_for_a_trainers_last_word(build: Any) -> None:
    job = build.job(1, build.condition("Failed", "BackoffLimitExceeded"))
    decision = ended(build, code=1, message="Traceback\n  line\nMemoryError: no more\n", job=job)
    assert "MemoryError: no more" in condition(decision, "Failed")["message"]


def starting(build: Any, seconds: float, observed: Observed, **more: Any) -> Decision:
    status = more.pop("status", {})
    return decide(build.situation(build.run({"startTime": build.ago(seconds), **status}), observed, **more))


def test_the_startup_deadline_names_what_was_missing(build: Any) -> None:
    waiting = build.waiting("environment", "ImagePullBackOff", 'Back-off pulling image "nowhere"')
    pod = build.pod("environment", "env-a", phase="Pending", environment="digits", statuses=[waiting])
    observed = build.everything(pod, ready=0)
    early = starting(build, 599, observed)
    assert phase(early) == "Stalled" and early.look_again == pytest.approx(1.1)
    late = starting(build, DEADLINE_PASSED, observed)
    assert phase(late) == "Failed"
    failed = condition(late, "Failed")
    assert failed["reason"] == "StartupDeadlineExceeded"
    assert 'Back-off pulling image "nowhere"' in failed["message"] and "deadlines.startup 10m" in failed["message"]


def test_a_trainer_that_waits_for_its_first_batch_is_not_starting_for_ever(build: Any) -> None:
    heard = report(build, phase="Waiting", message="waiting for the first batch: 0 of 2 groups")
    decision = starting(build, DEADLINE_PASSED, build.everything(), heard=heard)
    assert phase(decision) == "Failed" and "0 of 2 groups" in condition(decision, "Failed")["message"]


def test_a_first_step_that_takes_long_is_no_failure(build: Any) -> None:
    heard = report(build, phase="Training", message="the first step")
    assert phase(starting(build, DEADLINE_PASSED, build.everything(), heard=heard)) == "Running"


def test_after_the_start_no_startup_deadline_ends_a_run(build: Any) -> None:
    observed = Observed(jobs={"tar-first-trainer-1": build.job()})
    decision = starting(build, DEADLINE_PASSED, observed, status={"runningTime": build.ago(500), "step": 3, "epoch": 1})
    assert phase(decision) == "Running" and condition(decision, "Reconciling")["reason"] == "Recovering"


def test_a_missing_secret_stalls_and_fails_soon(build: Any) -> None:
    waiting = build.waiting("trainer", "CreateContainerConfigError", 'secret "tinker" not found')
    observed = Observed(
        jobs={"tar-first-trainer-1": build.job()},
        pods=[build.pod("trainer", "trainer-a", phase="Pending", statuses=[waiting])],
    )
    first = starting(build, 5, observed)
    assert phase(first) == "Stalled" and condition(first, "Stalled")["reason"] == "SecretMissing"
    assert "Secret tinker" in condition(first, "Stalled")["message"]
    assert first.look_again == pytest.approx(60.1)
    assert first.status is not None
    old = [{**entry, "lastTransitionTime": build.ago(61)} for entry in first.status["conditions"]]
    second = starting(build, 66, observed, status={**first.status, "conditions": old, "startTime": build.ago(66)})
    assert phase(second) == "Failed" and condition(second, "Failed")["reason"] == "SecretMissing"


def test_one_environment_in_trouble_does_not_stall_a_run_that_another_carries(build: Any) -> None:
    both = [
        {"name": "good", "command": ["x"]},
        {"name": "bad", "command": ["x"]},
    ]
    crash = build.waiting("environment", "CrashLoopBackOff", "", {"exitCode": 1, "message": "KeyError: 'x'"})
    observed = Observed(
        deployments={
            "tar-first-api": build.deployment("tar-first-api"),
            "tar-first-env-good": build.deployment("tar-first-env-good"),
            "tar-first-env-bad": build.deployment("tar-first-env-bad", 0),
        },
        jobs={"tar-first-trainer-1": build.job()},
        pods=[
            build.pod("trainer", "trainer-a"),
            build.pod("environment", "bad-a", environment="bad", statuses=[crash]),
        ],
    )
    run = build.run({"startTime": build.ago(50), "runningTime": build.ago(40)}, environments=both)
    decision = decide(build.situation(run, observed, heard=report(build, step=1)))
    assert phase(decision) == "Running" and condition(decision, "Stalled")["status"] == "False"
    problem = condition(decision, "EnvironmentsReady")
    assert problem["reason"] == "CrashLoop" and "KeyError: 'x'" in problem["message"]
    observed.deployments["tar-first-env-good"]["status"]["readyReplicas"] = 0
    decision = decide(build.situation(run, observed, heard=report(build, step=1)))
    assert phase(decision) == "Stalled"


def test_a_refused_object_stalls_the_run(build: Any) -> None:
    refused = Trouble("InvalidPodTemplate", "your config: the podTemplate …", "")
    decision = decide(build.situation(build.run(), refused=refused))
    assert phase(decision) == "Stalled" and condition(decision, "Stalled")["reason"] == "InvalidPodTemplate"


def test_the_message_is_one_line_of_what_the_conditions_say_in_full(build: Any) -> None:
    environments = [{"name": f"e{n}", "command": ["x"]} for n in range(3)]
    run = build.run({"startTime": build.ago(50)}, environments=environments)
    quota = "exceeded quota: small, requested: requests.cpu=60m, used: requests.cpu=9, limited: requests.cpu=9"
    refused = build.condition("ReplicaFailure", "FailedCreate", f'pods "x-{{}}" is forbidden: {quota}')
    names = ["tar-first-api", *(f"tar-first-env-e{n}" for n in range(2))]
    observed = Observed(
        deployments={name: build.deployment(name, 0, conditions=[refused]) for name in names},
        jobs={"tar-first-trainer-1": build.job()},
    )
    decision = decide(build.situation(run, observed, trainer_refused=f'pods "y" is forbidden: {quota}'))
    assert decision.status is not None
    assert decision.status["message"] == (
        "the API server, the trainer, environment e0 and environment e1: the quota small leaves no room "
        "(requests.cpu); raise the quota or free some of it; not ready: environment e2 0/1"
    )
    stalled = condition(decision, "Stalled")["message"]
    for part in ("the API server", "environment e0", "environment e1", "the trainer"):
        assert f"pods of {part} (requests.cpu: 60m asked, 9 of 9 used)" in stalled
    assert decision.look_again == pytest.approx(10.1), "nothing that is watched changes when the quota does"


def test_parts_that_wait_without_a_cause_are_listed(build: Any) -> None:
    observed = Observed(jobs={"tar-first-trainer-1": build.job()})
    decision = decide(build.situation(build.run({"startTime": build.ago(5)}), observed))
    assert decision.status is not None
    said = "not ready: the API server, environment digits 0/2; waiting for a trainer pod"
    assert decision.status["message"] == condition(decision, "Ready")["message"] == said


LOCAL = {"tinkerAPI": {"local": {"model": "tiny"}}}
CLAIM = {"apiServer": {"store": {"volume": {"persistentVolumeClaim": {"claimName": "x"}}}}}


@pytest.mark.parametrize(
    ("changes", "pods", "step", "lost"),
    [
        (LOCAL, ["server-a"], 3, False),
        (LOCAL, ["server-b"], 3, True),
        (LOCAL, [], 3, False),
        (LOCAL, ["server-b"], 0, False),
        ({**LOCAL, **CLAIM}, ["server-b"], 3, False),
        ({}, ["server-b"], 3, False),
    ],
    ids=[
        "the pod is there",
        "another pod in its place",
        "no pod at the moment",
        "nothing was trained yet",
        "its volume survives it",
        "a run on the hosted API",
    ],
)
def test_the_weights_of_a_local_server_die_with_its_pod(
    build: Any, changes: dict[str, Any], pods: list[str], step: int, lost: bool
) -> None:
    observed = build.everything(*[build.pod("local-tinker", name) for name in pods])
    status = {"startTime": build.ago(50), "runningTime": build.ago(40), "step": step, "epoch": 1}
    status["localTinker"] = {"pod": "server-a", "uid": "uid-server-a"}
    decision = decide(build.situation(build.run(status, **changes), observed))
    assert (phase(decision) == "Failed") == lost
    if lost:
        assert condition(decision, "Failed")["reason"] == "LocalTinkerLost"
        assert "server-a" in condition(decision, "Failed")["message"]


def test_a_local_server_that_lost_the_weights_does_not_stay_and_any_other_does(build: Any) -> None:
    name = "tar-first-tinker"
    for reason, goes in (("LocalTinkerLost", True), ("TrainerFailed", False)):
        observed = build.everything()
        observed.deployments[name] = build.deployment(name)
        observed.services[name] = {"metadata": {"name": name, "uid": "x"}}
        run = build.run({"conditions": [build.condition("Failed", reason)]}, **LOCAL)
        gone = [deletion.kind for deletion in decide(build.situation(run, observed)).deletions if deletion.name == name]
        assert gone == (["Deployment", "Service"] if goes else [])


REDIS = {"apiServer": {"store": {"type": "Redis", "url": "redis://x:6379/0"}}}
STORES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str], str | None, list[str]]] = {
    "seen for the first time": ({}, {}, ["api-a"], "api-a", []),
    "the pod is there": ({}, {"pod": "api-a", "uid": "uid-api-a"}, ["api-a"], "api-a", []),
    "no pod at the moment": ({}, {"pod": "api-a", "uid": "uid-api-a"}, [], "api-a", []),
    "another pod in its place": ({}, {"pod": "api-a", "uid": "uid-api-a"}, ["api-b"], "api-b", ["StoreLost"]),
    "its volume survives it": (CLAIM, {}, ["api-b"], None, []),
    "a store elsewhere": (REDIS, {}, ["api-b"], None, []),
}


@pytest.mark.parametrize(("changes", "recorded", "pods", "holder", "told"), STORES.values(), ids=STORES)
def test_a_queue_that_went_with_its_pod_is_told_once(
    build: Any, changes: Any, recorded: Any, pods: list[str], holder: str | None, told: list[str]
) -> None:
    status = {"startTime": build.ago(50), "runningTime": build.ago(40), "step": 4, "epoch": 1}
    status["checkpoint"] = {"path": "tinker://x", "step": 3, "time": ""}
    run = build.run({**status, **({"apiServer": recorded} if recorded else {})}, **changes)
    observed = build.everything(*[build.pod("api-server", name) for name in pods])
    decision = decide(build.situation(run, observed))
    assert [entry["reason"] for entry in decision.warned] == told
    for entry in decision.warned:
        assert entry["message"].startswith(
            "the API server's pod api-a is gone, and with its emptyDir the queue and the ledger; the run goes on from "
            "step 3; in a new run"
        )
    assert decision.status is not None
    assert (decision.status.get("apiServer") or {}).get("pod") == holder
    again = decide(build.situation(build.run(decision.status, **changes), observed))
    assert not again.warned and again.status == decision.status


def test_a_crashing_environment_stays_stalled_between_two_crashes(build: Any) -> None:
    last = {"exitCode": 1, "message": "KeyError: 'x'", "startedAt": build.ago(30), "finishedAt": build.ago(25)}
    entry = build.waiting("environment", "", "", last)
    entry["state"] = {"running": {"startedAt": build.ago(10)}}
    ready = [build.condition("Ready")]
    pod = build.pod("environment", "env-a", environment="digits", statuses=[entry], conditions=ready)
    run = build.run({"startTime": build.ago(50), "runningTime": build.ago(40), "step": 1, "epoch": 1})
    decision = decide(build.situation(run, build.everything(pod, ready=1), heard=report(build, step=1)))
    assert phase(decision) == "Stalled" and "KeyError: 'x'" in condition(decision, "Stalled")["message"]
    assert decision.status is not None and decision.status["environmentsReady"] == "0/2"
    assert decision.look_again == pytest.approx(50.1), "then it has run for a minute"
    entry["state"]["running"]["startedAt"] = build.ago(61)
    decision = decide(build.situation(run, build.everything(pod, ready=1), heard=report(build, step=1)))
    assert phase(decision) == "Running" and decision.status is not None
    assert decision.status["environmentsReady"] == "1/2"


def test_the_history_names_each_process_that_held_the_run(build: Any) -> None:
    run = build.run({"startTime": build.ago(90)})
    observed = build.everything()
    first = decide(build.situation(run, observed, heard=report(build, step=2)))
    assert first.status is not None
    assert [(e["epoch"], e["pod"], e["fromStep"], e["step"]) for e in first.status["attempts"]] == [
        (1, "trainer-a", 2, 2)
    ]
    second = decide(build.situation(build.run(first.status), observed, heard=report(build, step=4)))
    assert second.status is not None
    assert [(e["epoch"], e["step"]) for e in second.status["attempts"]] == [(1, 4)]
    dead = build.pod("trainer", "trainer-a", phase="Failed", age=60, statuses=[build.terminated(137)])
    young = build.pod("trainer", "trainer-b", age=10)
    after = Observed(observed.deployments, observed.jobs, observed.services, {}, [dead, young])
    heard = report(build, "trainer-b", epoch=2, step=3)
    third = decide(build.situation(build.run(second.status), after, heard=heard))
    assert third.status is not None
    assert [(e["epoch"], e["step"], e.get("reason")) for e in third.status["attempts"]] == [
        (1, 4, "ExitStatus137"),
        (2, 3, None),
    ]
    assert third.status["step"] == 3, "the surviving lineage goes on from there"
