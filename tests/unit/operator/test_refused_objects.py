"""What the API server refuses of an object, said with the paths of the run file and in the words of `validate`."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_atropos_operator.apply import refusal
from tinker_atropos_operator.kube import ApiError
from tinker_atropos_operator.specs.children import running_children
from tinker_atropos_operator.specs.overlay import lay_over, place_in

TEMPLATE: dict[str, Any] = {
    "spec": {
        "containers": [
            {
                "name": "environment",
                "env": [{"name": "HOME", "value": "/tmp"}, {"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "initContainers": [{"name": "relay"}],
        "volumes": [{"name": "tmp"}],
    }
}
OVERLAY: dict[str, Any] = {
    "metadata": {"labels": {"a/b": "c"}},
    "spec": {
        "containers": [
            {"name": "data", "image": "x"},
            {
                "name": "environment",
                "volumeMounts": [{"name": "no", "mountPath": "/x"}],
                "env": [{"name": "A", "value": "c"}],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            },
        ],
        "tolerations": [{"key": "a"}, {"key": "b"}],
        "volumes": [{"name": "own"}],
    },
}
PLACES = {
    "the program's container, wherever it stands": (
        "spec.containers[0].volumeMounts[1].name",
        "spec.containers[1].volumeMounts[0].name",
    ),
    "a variable": ("spec.containers[0].env[1].value", "spec.containers[1].env[0].value"),
    "a container of one's own": ("spec.containers[1].image", "spec.containers[0].image"),
    "a list that is taken as a whole": ("spec.tolerations[1].key", "spec.tolerations[1].key"),
    "a volume": ("spec.volumes[1]", "spec.volumes[0]"),
    "a key in brackets": (
        "spec.containers[0].resources.limits[nvidia.com/gpu]",
        "spec.containers[1].resources.limits.nvidia.com/gpu",
    ),
    "what is not the user's": ("spec.initContainers[0].name", "spec.initContainers"),
}


@pytest.mark.parametrize(("path", "expected"), PLACES.values(), ids=PLACES)
def test_where_a_place_of_the_pod_comes_from(path: str, expected: str) -> None:
    assert place_in(OVERLAY, lay_over(TEMPLATE, OVERLAY), path) == expected


def said(build: Any, template: dict[str, Any], error: ApiError) -> str:
    environments = [
        {"name": "good", "command": ["x"]},
        {"name": "digits", "command": ["x"], "podTemplate": template},
    ]
    [child] = [c for c in running_children(build.context(environments=environments), 1) if c.name.endswith("digits")]
    trouble = refusal(build.run(environments=environments), child, error)
    assert trouble.reason == "InvalidPodTemplate"
    return trouble.message


def test_what_validate_knows_is_said_in_its_words(build: Any) -> None:
    error = ApiError(
        500,
        "InternalError",
        "failed to create typed patch object (ns/x; apps/v1, Kind=Deployment): "
        ".spec.template.spec.nodeSelectr: field not declared in schema",
    )
    assert said(build, {"spec": {"nodeSelectr": {"a": "b"}}}, error) == (
        "your config: spec.environments[1].podTemplate.spec.nodeSelectr: unknown key; did you mean 'nodeSelector'?"
    )


OTHERS = {
    "a mount of no volume": (
        ApiError(422, "Invalid", "…", ['spec.template.spec.containers[0].volumeMounts[3].name: Not found: "no"']),
        {"spec": {"containers": [{"name": "environment", "volumeMounts": [{"name": "no", "mountPath": "/x"}]}]}},
        'spec.environments[1].podTemplate.spec.containers[0].volumeMounts[0].name: Not found: "no"',
    ),
    "a field that only a newer table knows": (
        ApiError(
            500,
            "InternalError",
            "failed to create typed patch object (ns/x; apps/v1, Kind=Deployment): errors:\n"
            "  .spec.template.spec.hostUsers: field not declared in schema\n",
        ),
        {"spec": {"hostUsers": False}},
        "spec.environments[1].podTemplate.spec.hostUsers: field not declared in schema",
    ),
    "a label that is none": (
        ApiError(422, "Invalid", "…", ['spec.template.labels: Invalid value: "b c": a valid label must be …']),
        {"metadata": {"labels": {"a": "b c"}}},
        'spec.environments[1].podTemplate.metadata.labels: Invalid value: "b c": a valid label must be …',
    ),
    "no place at all": (
        ApiError(400, "BadRequest", "request is too odd"),
        {"spec": {"hostUsers": False}},
        "spec.environments[1].podTemplate: request is too odd",
    ),
}


@pytest.mark.parametrize(("error", "template", "sentence"), OTHERS.values(), ids=OTHERS)
def test_what_validate_does_not_know_is_said_with_the_run_files_path(
    build: Any, error: ApiError, template: dict[str, Any], sentence: str
) -> None:
    assert said(build, template, error) == f"your config: {sentence}"


def test_a_volume_is_the_users_and_is_no_fault_of_this_project(build: Any) -> None:
    store = {"apiServer": {"store": {"volume": {"persistentVolumeClaim": {"claimNam": "store"}}}}}
    [child] = [
        c for c in running_children(build.context(**store), 1) if c.name == "tar-first-api" and c.kind != "Service"
    ]
    error = ApiError(
        422, "Invalid", "…", ["spec.template.spec.volumes[1].persistentVolumeClaim.claimName: Required value"]
    )
    trouble = refusal(build.run(**store), child, error)
    assert trouble.message == (
        "your config: spec.apiServer.store.volume.persistentVolumeClaim.claimNam: unknown key; "
        "did you mean 'claimName'?"
    )
    plain = [c for c in running_children(build.context(), 1) if c.name == "tar-first-api"]
    assert all(c.overlay_field == "" for c in plain), "nothing of the user's is in it that could be refused"
