"""Which objects are applied again, and which are left alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tinker_atropos_operator.plan.drift import Applied, due, exists
from tinker_atropos_operator.plan.observed import Observed
from tinker_atropos_operator.specs.children import running_children

PLACES = {"Deployment": "deployments", "Job": "jobs", "Service": "services", "ConfigMap": "config_maps"}


def live(build: Any, **changes: Any) -> tuple[Observed, dict[tuple[str, str], Applied]]:
    """What the API server and the memory hold after everything was applied."""
    kinds: dict[str, dict[str, Any]] = {place: {} for place in PLACES.values()}
    memory = {}
    for child in running_children(build.context(**changes), 1):
        body = copy.deepcopy(child.object)
        body["metadata"].update(uid=f"uid-{child.name}", generation=1)
        if child.kind in PLACES:
            kinds[PLACES[child.kind]][child.name] = body
        memory[child.kind, child.name] = Applied(child.inputs, f"uid-{child.name}", 1)
    return Observed(**kinds), memory


def names(build: Any, observed: Observed, memory: dict[Any, Applied], **changes: Any) -> list[str]:
    wanted = running_children(build.context(**changes), 1)
    return [f"{child.kind}/{child.name}" for child in due(wanted, observed, memory)]


def test_everything_is_due_at_first(build: Any) -> None:
    assert len(names(build, Observed(), {})) == 6


def test_nothing_is_due_afterwards(build: Any) -> None:
    assert names(build, *live(build)) == []


def test_after_an_operators_start_only_the_secret_is_due_which_is_never_read(build: Any) -> None:
    observed, _ = live(build)
    assert names(build, observed, {}) == ["Secret/tar-first-token"]


def test_a_secret_is_there_already_when_something_made_after_it_is(build: Any) -> None:
    observed, _ = live(build)
    secret = next(child for child in running_children(build.context(), 1) if child.kind == "Secret")
    assert exists(secret, observed, {})
    observed.deployments.clear()
    assert not exists(secret, observed, {})


def test_a_secret_is_due_when_it_would_be_another_one(build: Any) -> None:
    observed, memory = live(build)
    memory["Secret", "tar-first-token"] = Applied("", "uid", 0)
    assert names(build, observed, memory) == ["Secret/tar-first-token"]


def test_an_operator_that_builds_differently_leaves_running_pods_alone(build: Any) -> None:
    observed, memory = live(build)
    observed.deployments["tar-first-api"]["spec"]["template"]["spec"]["containers"][0]["image"] = "older"
    observed.config_maps["tar-first-config"]["data"]["run.yaml"] = "older"
    assert names(build, observed, {key: value for key, value in memory.items() if key[0] == "Secret"}) == []


def test_a_new_deadline_changes_no_object_but_the_run_file(build: Any) -> None:
    observed, memory = live(build)
    later = {"deadlines": {"startup": "2h"}}
    assert names(build, observed, memory, **later) == ["ConfigMap/tar-first-config"]
    templates = [
        [
            child.object["spec"]["template"]
            for child in running_children(context, 1)
            if "template" in child.object.get("spec", {})
        ]
        for context in (build.context(), build.context(**later))
    ]
    assert templates[0] == templates[1]


@pytest.mark.parametrize("name", ["tar-first-api", "tar-first-env-digits"])
def test_what_is_gone_is_due(build: Any, name: str) -> None:
    observed, memory = live(build)
    del observed.deployments[name]
    assert names(build, observed, memory) == [f"Deployment/{name}"]


def test_what_is_going_is_not_due_until_it_is_gone(build: Any) -> None:
    observed, memory = live(build)
    observed.deployments["tar-first-api"]["metadata"]["deletionTimestamp"] = build.ago(1)
    assert names(build, observed, memory) == []


def test_a_spec_that_somebody_changed_is_due(build: Any) -> None:
    observed, memory = live(build)
    observed.deployments["tar-first-api"]["metadata"]["generation"] = 2
    assert names(build, observed, memory) == ["Deployment/tar-first-api"]


def test_replicas_that_somebody_changed_while_no_operator_ran_are_due(build: Any) -> None:
    observed, memory = live(build)
    observed.deployments["tar-first-env-digits"]["spec"]["replicas"] = 7
    secrets = {key: value for key, value in memory.items() if key[0] == "Secret"}
    assert names(build, observed, secrets) == ["Deployment/tar-first-env-digits"]


def test_a_config_map_that_somebody_edited_is_due(build: Any) -> None:
    observed, memory = live(build)
    observed.config_maps["tar-first-config"]["data"]["run.yaml"] = "edited"
    assert names(build, observed, memory) == ["ConfigMap/tar-first-config"]


def test_what_the_user_changed_is_due_and_nothing_else(build: Any) -> None:
    observed, memory = live(build)
    scaled = [{"name": "digits", "command": ["python", "digits.py"], "replicas": 5}]
    assert names(build, observed, memory, environments=scaled) == [
        "ConfigMap/tar-first-config",
        "Deployment/tar-first-env-digits",
    ]


def test_a_job_is_never_applied_twice(build: Any) -> None:
    observed, memory = live(build)
    observed.jobs["tar-first-trainer-1"]["metadata"].update(generation=5, annotations={})
    assert names(build, observed, memory) == []
