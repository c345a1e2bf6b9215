"""What `validate` says of pod templates is what a real API server would: one table of quantities and of templates."""

from __future__ import annotations

from typing import Any

import pytest

from cluster_world import World
from pod_templates import QUANTITIES, REFUSED
from tinker_atropos_operator import kube as api
from tinker_atropos_operator.kube import ApiError


async def dry_run(world: World, template: dict[str, Any]) -> ApiError | None:
    """Apply a Deployment with that template laid over a program's, without making it; what the API server refuses."""
    [overlay] = template["spec"].get("containers", [{}])
    spec = {**template["spec"], "containers": [{"image": "a:1", **overlay, "name": "environment"}]}
    labels = {"app": "tried"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "tried", "namespace": world.namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    try:
        await world.kube.apply(api.DEPLOYMENTS, body, "test", dry_run=True)
    except ApiError as error:
        return error
    return None


@pytest.mark.parametrize(("value", "good"), QUANTITIES.values(), ids=QUANTITIES)
async def test_a_quantity(world: World, value: Any, good: bool) -> None:
    template = {"spec": {"containers": [{"name": "environment", "resources": {"requests": {"cpu": value}}}]}}
    refused = await dry_run(world, template)
    assert (refused is None) is good, refused


@pytest.mark.parametrize("template", [template for template, _ in REFUSED.values()], ids=REFUSED)
async def test_a_template_that_is_refused(world: World, template: dict[str, Any]) -> None:
    refused = await dry_run(world, template)
    assert refused is not None and refused.permanent
