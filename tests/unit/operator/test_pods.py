"""What is wrong with a pod, in words that name the cause and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_atropos_operator.plan.pods import MAX_MESSAGE, Trouble, all_troubles, troubles_of

CASES: dict[str, tuple[str, str, str, str, list[str]]] = {
    "an image that is not there": (
        "environment",
        "ErrImagePull",
        "not found",
        "ImagePullFailed",
        ["your environment", "image:1", "not found", "environments[].image"],
    ),
    "an image name that is none": ("environment", "InvalidImageName", "bad", "ImagePullFailed", ["bad"]),
    "an image of ours": (
        "api-server",
        "ImagePullBackOff",
        "back-off",
        "ImagePullFailed",
        ["this project", "runImages"],
    ),
    "an image that must be there already": ("trainer", "ErrImageNeverPull", "x", "ImagePullFailed", ["the trainer"]),
    "a Secret that is not there": (
        "trainer",
        "CreateContainerConfigError",
        'secret "tinker" not found',
        "SecretMissing",
        ["Secret tinker", "kubectl create secret generic tinker"],
    ),
    "a key that is not in the Secret": (
        "api-server",
        "CreateContainerConfigError",
        "couldn't find key api-key in Secret ns/tinker",
        "SecretMissing",
        ["Secret tinker", "no key api-key", "keySecretRef"],
    ),
    "another thing that is not there": (
        "environment",
        "CreateContainerConfigError",
        'configmap "x" not found',
        "ConfigurationMissing",
        ['configmap "x" not found'],
    ),
    "a program that is not in the image": (
        "environment",
        "RunContainerError",
        'exec: "pyton": not found',
        "ContainerCannotStart",
        ["pyton", "command"],
    ),
}


def trouble_of(pod: Any) -> Trouble | None:
    """The only trouble of a pod."""
    found = troubles_of(pod)
    assert len(found) <= 1
    return found[0] if found else None


def container_of(component: str) -> str:
    return {"api-server": "gateway"}.get(component, component)


@pytest.mark.parametrize(("component", "reason", "said", "expected", "words"), CASES.values(), ids=CASES.keys())
def test_a_container_that_waits(
    build: Any, component: str, reason: str, said: str, expected: str, words: list[str]
) -> None:
    waiting = build.waiting(container_of(component), reason, said)
    trouble = trouble_of(build.pod(component, phase="Pending", environment="digits", statuses=[waiting]))
    assert trouble is not None and trouble.reason == expected
    for word in words:
        assert word in trouble.message


@pytest.mark.parametrize(
    ("variable", "key", "field"),
    [
        ("TINKER_API_KEY", "k", "tinkerAPI.keySecretRef"),
        ("TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD", "password", "apiServer.store.secretRef"),
        ("HF_TOKEN", "token", "the podTemplate"),
    ],
)
def test_a_missing_secret_is_made_with_the_key_that_is_asked_for(
    build: Any, variable: str, key: str, field: str
) -> None:
    waiting = build.waiting("gateway", "CreateContainerConfigError", 'secret "absent" not found')
    pod = build.pod("api-server", phase="Pending", statuses=[waiting])
    reference = {"name": variable, "valueFrom": {"secretKeyRef": {"name": "absent", "key": key}}}
    pod["spec"]["containers"] = [{"name": "gateway", "env": [{"name": "A", "value": "b"}, reference]}]
    pod["metadata"]["namespace"] = "team"
    trouble = trouble_of(pod)
    assert trouble is not None
    assert f"generic absent --namespace team --from-literal={key}=…" in trouble.message
    assert f"Secret absent of {field}" in trouble.message


def test_a_missing_secret_of_a_bucket_is_made_with_the_variables_of_one(build: Any) -> None:
    waiting = build.waiting("trajectories", "CreateContainerConfigError", 'secret "s3" not found')
    pod = build.pod("api-server", phase="Pending", statuses=[waiting])
    pod["spec"]["containers"] = [{"name": "trajectories", "envFrom": [{"secretRef": {"name": "s3"}}]}]
    trouble = trouble_of(pod)
    assert trouble is not None and trouble.reason == "SecretMissing"
    assert "Secret s3 of apiServer.store.export.secretRef" in trouble.message
    assert "--from-literal=AWS_ACCESS_KEY_ID=…" in trouble.message


def test_a_crash_loop_tells_the_last_words_and_where_to_read_more(build: Any) -> None:
    last = {"exitCode": 1, "message": "a long story\n\nValueError: no such data set\n"}
    waiting = build.waiting("environment", "CrashLoopBackOff", "back-off 40s", last)
    trouble = trouble_of(build.pod("environment", "env-a", environment="digits", statuses=[waiting]))
    assert trouble is not None and trouble.reason == "CrashLoop"
    for word in ("your environment", "3 times", "exit status 1", "ValueError: no such data set", "kubectl logs env-a"):
        assert word in trouble.message


def test_out_of_memory_is_named(build: Any) -> None:
    waiting = build.waiting("gateway", "CrashLoopBackOff", "", {"exitCode": 137, "reason": "OOMKilled"})
    trouble = trouble_of(build.pod("api-server", statuses=[waiting]))
    assert trouble is not None and "out of memory" in trouble.message and "this project" in trouble.message


@pytest.mark.parametrize(
    ("component", "said", "words"),
    [
        ("api-server", '0/1 nodes: persistentvolumeclaim "store" not found', ["claim store", "create it in namespace"]),
        ("environment", "0/1 nodes: Insufficient cpu", ["no place", "Insufficient cpu", "capacity, or", "podTemplate"]),
        ("local-tinker", "0/1 nodes: Insufficient cpu", ["no place", "add capacity"]),
    ],
    ids=["a claim that is not there", "an environment for which none has room", "a server for which none has room"],
)
def test_a_pod_that_no_node_takes(build: Any, component: str, said: str, words: list[str]) -> None:
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    trouble = trouble_of(build.pod(component, phase="Pending", environment="e", conditions=[unschedulable]))
    assert trouble is not None and trouble.reason == "Unschedulable"
    for word in words:
        assert word in trouble.message
    assert "podTemplate" not in trouble.message or component == "environment"


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", ""])
def test_waiting_for_a_moment_is_no_trouble(build: Any, reason: str) -> None:
    assert trouble_of(build.pod("trainer", phase="Pending", statuses=[build.waiting("trainer", reason)])) is None


def test_a_pod_that_is_leaving_or_has_succeeded_has_no_trouble(build: Any) -> None:
    waiting = build.waiting("trainer", "ErrImagePull", "x")
    assert trouble_of(build.pod("trainer", phase="Succeeded", statuses=[waiting])) is None
    leaving = build.pod("trainer", statuses=[waiting])
    leaving["metadata"]["deletionTimestamp"] = build.ago(1)
    assert trouble_of(leaving) is None


def test_the_relay_is_looked_at_too(build: Any) -> None:
    pod = build.pod("environment", environment="digits", phase="Pending")
    pod["status"]["initContainerStatuses"] = [build.waiting("relay", "ErrImagePull", "x")]
    trouble = trouble_of(pod)
    assert trouble is not None and "this project" in trouble.message


def test_every_trouble_of_a_part_is_told_and_a_missing_secret_first(build: Any) -> None:
    crash = build.waiting("gateway", "CrashLoopBackOff", "", {"exitCode": 1})
    secret = build.waiting("gateway", "CreateContainerConfigError", 'secret "a" not found')
    pull = build.waiting("trajectories", "ErrImagePull", "x")
    pods = [
        build.pod("api-server", "a", statuses=[crash]),
        build.pod("api-server", "b", statuses=[secret, pull]),
        build.pod("api-server", "c", statuses=[secret]),
    ]
    assert [trouble.reason for trouble in all_troubles(pods)] == ["SecretMissing", "ImagePullFailed", "CrashLoop"]


def test_foreign_text_is_cut(build: Any) -> None:
    waiting = build.waiting("trainer", "CreateContainerError", "x" * 5000)
    trouble = trouble_of(build.pod("trainer", statuses=[waiting]))
    assert trouble is not None and len(trouble.message) < MAX_MESSAGE + 300
