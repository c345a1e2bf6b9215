"""Sentences of the API server about pods that it does not let be made, as a real one wrote them."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_atropos_operator.plan.refusals import refusal, refused_pods

POD = 'pods "tar-x-api-6589b46695-n6kjv" is forbidden: '
EXCEEDED = (
    "exceeded quota: small, requested: limits.cpu=2,requests.cpu=200m, used: limits.cpu=0,requests.cpu=50m, "
    "limited: limits.cpu=1,requests.cpu=100m"
)
UNSAID = "failed quota: small: must specify limits.cpu for: environment,relay; limits.memory for: relay"
RANGE = "[maximum cpu usage per Container is 1, but limit is 2, minimum memory usage per Container is 1Gi]"

CASES: dict[str, tuple[str, str, tuple[str, ...], list[str]]] = {
    "a quota that is used up": (
        POD + EXCEEDED,
        "the quota small leaves no room",
        ("limits.cpu", "requests.cpu"),
        ["pods of environment a", "requests.cpu: 200m asked, 50m of 100m used", "raise the quota", "podTemplate"],
    ),
    "a quota that wants limits": (
        POD + UNSAID,
        "the quota small wants every container to say",
        ("limits.cpu", "limits.memory"),
        ["pods of environment a", "limits.cpu for: environment,relay", "LimitRange"],
    ),
    "a LimitRange": (POD + RANGE, "pods are refused: " + RANGE, (), [RANGE, "the podTemplate"]),
    "a LimitRange whose default limit is below a request": (
        'Pod "tar-x-tinker-n6kjv" is invalid: spec.containers[0].resources.requests: Invalid value: "512Mi": '
        "must be less than or equal to memory limit of 256Mi",
        'pods are refused: spec.containers[0].resources.requests: Invalid value: "512Mi": '
        "must be less than or equal to memory limit of 256Mi",
        (),
        ["memory limit of 256Mi"],
    ),
    "an Event of a Job": (
        "Error creating: " + POD + EXCEEDED,
        "the quota small leaves no room",
        ("limits.cpu", "requests.cpu"),
        ["50m of 100m used"],
    ),
}


@pytest.mark.parametrize(("text", "cause", "items", "words"), CASES.values(), ids=CASES)
def test_what_is_said(text: str, cause: str, items: tuple[str, ...], words: list[str]) -> None:
    trouble = refusal(text, "environment a", has_template=True)
    assert (trouble.reason, trouble.cause, trouble.items) == ("PodsRefused", cause, items)
    for word in words:
        assert word in trouble.message
    assert "n6kjv" not in trouble.message, "the next try has another name, and the status would change for it"


def test_a_part_without_a_pod_template_is_not_told_of_one() -> None:
    assert "podTemplate" not in refusal(POD + EXCEEDED, "the API server", has_template=False).message


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_deployment_that_could_not_make_pods(build: Any, status: str) -> None:
    failure = {**build.condition("ReplicaFailure", "FailedCreate", POD + EXCEEDED), "status": status}
    found = refused_pods(build.deployment("d", 0, conditions=[failure]), "the API server")
    assert len(found) == (status == "True")
    assert refused_pods(None, "the API server") == []
