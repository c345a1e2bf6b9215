"""What a change of a run's spec does: while it runs, when nothing was made yet, and when the run is over."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos_operator.plan.observed import Observed
from tinker_atropos_operator.plan.progress import Heard
from tinker_atropos_operator.plan.run import Decision, decide

BEGUN = {"runningTime": "2026-01-02T03:03:00Z", "startTime": "2026-01-02T03:02:00Z"}


def steps(total: int) -> dict[str, Any]:
    return {"config": {"env": {"group_size": 4, "batch_size": 8, "total_steps": total}}}


def condition(decision: Decision, kind: str) -> dict[str, Any]:
    assert decision.status is not None
    return next(entry for entry in decision.status["conditions"] if entry["type"] == kind)


def over(build: Any, kind: str, **status: Any) -> dict[str, Any]:
    return {
        "phase": kind,
        "message": "it is over so",
        "observedGeneration": 1,
        "step": 5,
        "totalSteps": 5,
        "conditions": [{**build.condition(kind, "Because"), "observedGeneration": 1}],
        **status,
    }


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
@pytest.mark.parametrize(
    ("changes", "what"), [(steps(9), "total_steps"), (steps(5), "the spec")], ids=["total_steps", "something else"]
)
def test_a_run_that_is_over_follows_the_generation_and_says_that_the_change_has_no_effect(
    build: Any, kind: str, changes: dict[str, Any], what: str
) -> None:
    before = over(build, kind)
    decision = decide(build.situation(build.run(before, generation=3, **changes)))
    assert not decision.children and decision.status is not None
    told = f"the run is over: a change of {what} has no effect; make a new run"
    assert decision.status == {
        **before,
        "observedGeneration": 3,
        "message": f"it is over so; {told}",
        "conditions": [{**before["conditions"][0], "observedGeneration": 3}],
    }
    assert list(decision.warned) == [{"reason": "RunIsOver", "message": told}] and not decision.changed
    again = decide(build.situation(build.run(decision.status, generation=3, **changes)))
    assert again.status is None and not again.warned, "nothing is written while nothing changes"
    twice = decide(build.situation(build.run(decision.status, generation=4, **changes)))
    assert twice.status == {
        **decision.status,
        "observedGeneration": 4,
        "conditions": [{**before["conditions"][0], "observedGeneration": 4}],
    }


def test_a_stalled_run_follows_the_generation(build: Any) -> None:
    wrong = {"config": {"tinker": {"lora_rnk": 2}}}
    first = decide(build.situation(build.run(**wrong)))
    assert first.status is not None and first.status["observedGeneration"] == 1
    second = decide(build.situation(build.run(first.status, generation=2, **wrong)))
    assert second.status is not None and second.status["observedGeneration"] == 2
    assert {entry["observedGeneration"] for entry in second.status["conditions"]} == {2}
    assert second.status["phase"] == "Stalled"


def test_a_spec_that_was_wrong_from_the_start_says_how_to_come_to_another_one(build: Any) -> None:
    fix = "correct the file, then kubectl delete tar first and apply it again"
    one = decide(build.situation(build.run(config={"tinker": {"lora_rnk": 2}})))
    assert one.status is not None and one.status["message"].endswith(f"did you mean 'lora_rank'?; {fix}")
    assert condition(one, "Stalled")["message"] == one.status["message"]
    two = decide(build.situation(build.run(config={"tinker": {"lora_rnk": 2, "lr": 1}})))
    assert condition(two, "Stalled")["message"].endswith(f"; {fix}")
    made = decide(build.situation(build.run(config={"tinker": {"lora_rnk": 2}}), build.everything()))
    assert "kubectl delete" not in condition(made, "Stalled")["message"], "it would lose what was trained"


def trains(build: Any, step: int, total: int, *, attempt: int = 1, phase: str = "Training") -> Heard:
    report = ProgressReport(run_uid=build.uid, epoch=1, attempt=attempt, phase=phase, step=step, total_steps=total)
    return Heard(report, "trainer-a", build.now - dt.timedelta(seconds=1))


LOWERED: dict[str, tuple[int, int, int, str, bool]] = {
    "below what is trained": (15, 50, 2, "15/15", True),
    "to what is trained": (15, 50, 15, "15/15", True),
    "above what is trained": (15, 50, 20, "15/20", False),
    "not at all": (15, 50, 50, "15/50", False),
    "raised": (15, 50, 60, "15/60", False),
}


@pytest.mark.parametrize(("step", "known", "total", "progress", "ends"), LOWERED.values(), ids=LOWERED)
def test_lowered_steps_end_the_run_when_that_many_are_trained(
    build: Any, step: int, known: int, total: int, progress: str, ends: bool
) -> None:
    run = build.run({**BEGUN, "step": step, "epoch": 1}, **steps(total))
    decision = decide(build.situation(run, build.everything(), heard=trains(build, step, known)))
    assert decision.status is not None and decision.status["progress"] == progress
    assert decision.status["phase"] == "Running" and decision.status["totalSteps"] == total
    jobs = [child.name for child in decision.children if child.kind == "Job"]
    assert jobs == [f"tar-first-trainer-{2 if ends else 1}"]
    gone = [(deletion.kind, deletion.name) for deletion in decision.deletions]
    assert gone == ([("Job", "tar-first-trainer-1")] if ends else [])
    assert (condition(decision, "TrainerRunning")["reason"] == "FewerSteps") == ends
    if ends:
        assert decision.status["message"] == (
            f"total_steps was lowered to {total}, and that many are trained; the next attempt saves the final weights"
        )


def test_the_attempt_that_ends_a_shortened_run_is_not_followed_by_another(build: Any) -> None:
    run = build.run({**BEGUN, "step": 15, "epoch": 1, "trainerAttempt": 2}, **steps(2))
    jobs = {f"tar-first-trainer-{attempt}": build.job(attempt) for attempt in (1, 2)}
    observed = Observed(build.everything().deployments, jobs)
    decision = decide(build.situation(run, observed, heard=trains(build, 15, 50)))
    assert decision.status is not None and decision.status["trainerAttempt"] == 2
    assert [deletion.name for deletion in decision.deletions] == ["tar-first-trainer-1"], "if it is still there"
    decision = decide(build.situation(run, observed, heard=trains(build, 15, 2, attempt=2)))
    assert decision.status is not None and decision.status["trainerAttempt"] == 2


def test_a_trainer_that_saves_the_final_weights_is_left_to_it(build: Any) -> None:
    run = build.run({**BEGUN, "step": 15, "epoch": 1}, **steps(2))
    decision = decide(build.situation(run, build.everything(), heard=trains(build, 15, 15, phase="Complete")))
    assert not decision.deletions and decision.status is not None and decision.status["trainerAttempt"] == 1


def instances(*replicas: int) -> dict[str, Any]:
    return {
        "environments": [{"name": f"e{n}", "command": ["x"], "replicas": count} for n, count in enumerate(replicas)]
    }


def test_a_run_without_any_instance_says_why_nothing_follows(build: Any) -> None:
    status = {**BEGUN, "step": 2, "epoch": 1}
    observed = Observed(
        {name: build.deployment(name) for name in ("tar-first-api", "tar-first-env-e0")},
        build.everything().jobs,
        pods=build.everything().pods,
    )
    heard = trains(build, 2, 5)
    said = "every environment has replicas 0; raise environments[].replicas to go on"
    decision = decide(build.situation(build.run(status, **instances(0, 0)), observed, heard=heard))
    assert decision.status is not None and decision.status["message"] == said
    assert decision.status["phase"] == "Running"
    for kind in ("Ready", "EnvironmentsReady"):
        found = condition(decision, kind)
        assert (found["status"], found["reason"], found["message"]) == ("False", "NoInstances", said)
    decision = decide(build.situation(build.run(status, **instances(1, 0)), observed, heard=heard))
    assert condition(decision, "EnvironmentsReady")["status"] == "True"
