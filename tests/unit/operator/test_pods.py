"""What is wrong with a pod, in words that name the cause and what to do."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tinker_atropos_operator.plan.pods import MAX_MESSAGE, Trouble, all_troubles, last_lines, tail, troubles_of

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

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


def trouble_of(pod: Any, now: Any = NOW) -> Trouble | None:
    """The only trouble of a pod."""
    found = troubles_of(pod, now)
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


def crashing(build: Any, *, restarts: int = 3, lasted: float = 5, running: float | None = None, **state: Any) -> Any:
    """A pod whose container has ended several times; running: for how many seconds it does again."""
    ended = {
        "exitCode": 1,
        "message": "ValueError: no such data set",
        "startedAt": build.ago(100 + lasted),
        "finishedAt": build.ago(100),
    }
    entry = build.waiting("environment", "", "", ended)
    entry.update(restartCount=restarts, state=state)
    if running is not None:
        entry["state"] = {"running": {"startedAt": build.ago(running)}}
    return build.pod("environment", "env-a", environment="digits", statuses=[entry])


UNPROVEN: dict[str, tuple[dict[str, Any], float | None]] = {
    "started again a moment ago": ({"running": 5}, 55),
    "about to be started": ({"waiting": {"reason": ""}}, 60),
    "ended again a moment ago": (
        {"terminated": {"exitCode": 1, "startedAt": "2026-01-02T03:04:00Z", "finishedAt": "2026-01-02T03:04:04Z"}},
        60,
    ),
    "runs for a minute": ({"running": 60}, None),
    "started again for the first time": ({"running": 5, "restarts": 1}, None),
    "had worked for an hour": ({"running": 5, "lasted": 3600}, None),
}


@pytest.mark.parametrize(("state", "seconds"), UNPROVEN.values(), ids=UNPROVEN)
def test_the_cause_of_a_crash_stays_until_the_container_has_run_for_a_while(
    build: Any, state: dict[str, Any], seconds: float | None
) -> None:
    trouble = trouble_of(crashing(build, **state))
    assert (trouble is not None) == (seconds is not None)
    if trouble is not None and seconds is not None:
        assert trouble.reason == "CrashLoop" and "ValueError: no such data set" in trouble.message
        assert trouble.until == NOW + dt.timedelta(seconds=seconds)


def test_an_init_container_that_is_done_is_no_trouble_however_often_it_began(build: Any) -> None:
    pod = build.pod("environment", environment="digits")
    ended = {"exitCode": 0, "startedAt": build.ago(12), "finishedAt": build.ago(10)}
    entry = {"name": "mine", "restartCount": 4, "state": {"terminated": ended}, "lastState": {"terminated": ended}}
    pod["status"]["initContainerStatuses"] = [entry]
    assert trouble_of(pod) is None


OFTEN = {
    "an environment, once": (
        ("environment", "environment", 1),
        "your environment: the environment digits ended once, with exit status 1",
        "ended once, with exit status 1",
    ),
    "an environment, twice": (
        ("environment", "environment", 2),
        "your environment: the environment digits ended twice, last with exit status 1",
        "ended twice, last with exit status 1",
    ),
    "its relay": (
        ("environment", "relay", 4),
        "this project: relay of environment digits ended 4 times, last with exit status 1",
        "relay ended 4 times, last with exit status 1",
    ),
    "one of two programs of a pod": (
        ("api-server", "gateway", 3),
        "this project: gateway of the API server ended 3 times, last with exit status 1",
        "gateway ended 3 times, last with exit status 1",
    ),
    "the local Tinker server": (
        ("local-tinker", "local-tinker", 3),
        "this project: the local Tinker server ended 3 times, last with exit status 1",
        "ended 3 times, last with exit status 1",
    ),
}


@pytest.mark.parametrize(("crash", "whole", "cause"), OFTEN.values(), ids=OFTEN)
def test_how_often_it_ended(build: Any, crash: tuple[str, str, int], whole: str, cause: str) -> None:
    component, container, restarts = crash
    entry = {**build.waiting(container, "CrashLoopBackOff", "", {"exitCode": 1}), "restartCount": restarts}
    trouble = trouble_of(build.pod(component, "p", environment="digits", statuses=[entry]))
    assert trouble is not None
    assert trouble.message == f"{whole}; see kubectl logs p -c {container} --previous"
    assert trouble.cause == cause


def test_a_long_last_line_is_whole_in_the_condition_and_cut_at_a_word_in_the_column(build: Any) -> None:
    line = "RuntimeError: " + " ".join(f"word{number}" for number in range(60))
    last = {"exitCode": 1, "message": f"Traceback (most recent call last):\n  File x\n{line}\n"}
    trouble = trouble_of(
        build.pod(
            "environment", environment="digits", statuses=[build.waiting("environment", "CrashLoopBackOff", "", last)]
        )
    )
    assert trouble is not None and f"saying: {line}; see" in trouble.message
    said = trouble.cause.partition("exit status 1: ")[2]
    assert said.startswith("…word") and said.endswith("word59") and len(said) <= 80


TAILS = {
    "short": ("as it is", 20, "as it is"),
    "cut within a word": ("one two three", 8, "…three"),
    "one long word": ("abcdefghij", 5, "…ghij"),
}


@pytest.mark.parametrize(("text", "limit", "end"), TAILS.values(), ids=TAILS)
def test_the_end_of_a_text(text: str, limit: int, end: str) -> None:
    assert tail(text, limit) == end


def test_the_last_lines_are_whole_lines() -> None:
    assert last_lines("first line\n\nsecond  line\nthe last\n", 25) == "second line / the last"
    assert last_lines("  \n") == ""


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


def test_the_schedulers_sentence_ends_where_it_says_nothing_more(build: Any) -> None:
    said = (
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are "
        "available: 1 No preemption victims found for incoming pod."
    )
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    trouble = trouble_of(build.pod("local-tinker", phase="Pending", conditions=[unschedulable]))
    assert trouble is not None and trouble.cause == "no node has room: 0/1 nodes are available: 1 Insufficient cpu"
    assert "1 Insufficient cpu, preemption: 0/1" in trouble.message
    assert trouble.message.endswith("victims found for incoming pod; add capacity")


def test_the_runs_own_secret_is_nobodys_to_create(build: Any) -> None:
    waiting = build.waiting("local-tinker", "CreateContainerConfigError", 'secret "tar-first-token" not found')
    assert trouble_of(build.pod("local-tinker", phase="Pending", statuses=[waiting])) is None


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
    assert [trouble.reason for trouble in all_troubles(pods, NOW)] == ["SecretMissing", "ImagePullFailed", "CrashLoop"]


def test_foreign_text_is_cut(build: Any) -> None:
    waiting = build.waiting("trainer", "CreateContainerError", "x" * 5000)
    trouble = trouble_of(build.pod("trainer", statuses=[waiting]))
    assert trouble is not None and len(trouble.message) < MAX_MESSAGE + 300
