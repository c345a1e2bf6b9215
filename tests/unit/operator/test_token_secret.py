"""When the run's Secret, which is never read, is made again in case it is gone."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tinker_atropos_operator.plan.observed import Observed
from tinker_atropos_operator.plan.run import decide
from tinker_atropos_operator.plan.token import seconds_to_check


def pod(
    build: Any, waited: float, *, phase: str = "Pending", reason: str = "ContainerCreating", **conditions: str
) -> Any:
    """A pod that a node got `waited` seconds ago."""
    entries = [
        {"type": kind, "status": status, "lastTransitionTime": build.ago(waited)}
        for kind, status in {"PodScheduled": "True", **conditions}.items()
    ]
    statuses = [build.waiting("trainer", reason)] if phase == "Pending" else []
    return build.pod("trainer", phase=phase, statuses=statuses, conditions=entries)


CASES: dict[str, tuple[tuple[float, dict[str, str]], float | None, float | None]] = {
    "a pod that a node has just got": ((1, {}), None, 2),
    "a pod whose volumes do not come": ((3, {}), None, 0),
    "the Secret was made before that pod": ((4, {}), 20, 0),
    "it was made again a moment ago": ((6, {}), 2, 3),
    "it was made again, and the pod still waits": ((9, {}), 5, 0),
    "a pod that waits for long is looked at less often": ((1000, {}), 100, 350),
    "a pod that no node has": ((60, {"PodScheduled": "False"}), None, None),
    "a pod that waits for its image": ((60, {"PodReadyToStartContainers": "True"}), None, None),
    "a variable cannot be made from the Secret": (
        (60, {"PodReadyToStartContainers": "True", "reason": "CreateContainerConfigError"}),
        None,
        0,
    ),
    "a pod that runs": ((60, {"phase": "Running"}), None, None),
}


@pytest.mark.parametrize(("waits", "made_ago", "seconds"), CASES.values(), ids=CASES)
def test_when(build: Any, waits: tuple[float, Any], made_ago: float | None, seconds: float | None) -> None:
    last = None if made_ago is None else build.now - dt.timedelta(seconds=made_ago)
    assert seconds_to_check(Observed(pods=[pod(build, waits[0], **waits[1])]), last, build.now) == seconds


def test_a_decision_says_so_and_when_to_look_again(build: Any) -> None:
    run = build.run({"startTime": build.ago(50), "runningTime": build.ago(40), "step": 2, "epoch": 1})
    waiting = Observed(build.everything().deployments, {"tar-first-trainer-1": build.job()}, pods=[pod(build, 3)])
    decision = decide(build.situation(run, waiting))
    assert decision.make_token and decision.look_again == pytest.approx(5.1)
    decision = decide(build.situation(run, waiting, token_made=build.now))
    assert not decision.make_token and decision.look_again == pytest.approx(5.1)
    assert not decide(build.situation(run, build.everything())).make_token
