"""What is said of a pod template before a cluster sees it."""

from __future__ import annotations

from typing import Any

import pytest

from pod_templates import REFUSED, resources
from tinker_atropos.run.pod_template import spec_problems


def of_environment(template: dict[str, Any]) -> list[str]:
    environments = [{"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"], "podTemplate": template}]
    return [str(problem) for problem in spec_problems({"environments": environments})]


@pytest.mark.parametrize(("template", "said"), REFUSED.values(), ids=REFUSED)
def test_one_problem_with_its_place_in_the_run_file(template: dict[str, Any], said: str) -> None:
    assert of_environment(template) == [f"environments[1].podTemplate.{said}"]


GOOD = {
    "limits alone": resources(limits={"cpu": "2", "memory": "4Gi"}),
    "the same as the request": resources(requests={"memory": "1Gi"}, limits={"memory": "1024Mi"}),
    "a device": resources(limits={"nvidia.com/gpu": 1}),
    "a device asked for as well": resources(requests={"nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": 1}),
    "large pages": resources(limits={"hugepages-2Mi": "4Mi", "memory": "1Gi"}),
    "a key left empty": resources(limits=None, requests={"cpu": None}),
}


@pytest.mark.parametrize("template", GOOD.values(), ids=GOOD)
def test_nothing_is_wrong(template: dict[str, Any]) -> None:
    assert of_environment(template) == []


def test_thousandths_of_a_byte_are_a_slip() -> None:
    assert of_environment(resources(limits={"memory": "512m"})) == [
        "environments[1].podTemplate.spec.containers[0].resources.limits.memory: '512m' is 0.512 bytes; "
        "did you mean 512Mi?"
    ]


def test_a_limit_below_what_the_program_asks_for_by_itself() -> None:
    containers = [{"name": "trainer", "resources": {"limits": {"memory": "128Mi", "cpu": "2"}}}]
    [problem] = spec_problems({"trainer": {"podTemplate": {"spec": {"containers": containers}}}})
    assert str(problem) == (
        "trainer.podTemplate.spec.containers[0].resources.limits.memory: '128Mi' is below the request '256Mi' of "
        "trainer; give a request as well; raise it, or lower the request"
    )


VOLUMES = {
    "of the store": {"store": {"volume": {"emptyDir": {"sizeLimit": "10GB"}}}},
    "of the export": {"store": {"export": {"volume": {"nfs": {"server": "a"}}}}},
}


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (VOLUMES["of the store"], "volume.emptyDir.sizeLimit: '10GB' is no quantity; did you mean 10Gi?"),
        (VOLUMES["of the export"], "export.volume.nfs.path: is missing; give it a value"),
    ],
    ids=VOLUMES,
)
def test_a_volume(server: dict[str, Any], said: str) -> None:
    [problem] = spec_problems({"apiServer": server})
    assert str(problem) == f"apiServer.store.{said}"
