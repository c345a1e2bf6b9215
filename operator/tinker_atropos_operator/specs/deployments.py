"""The frame that all Deployments of a run share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinker_atropos_operator.specs import labels
from tinker_atropos_operator.specs.overlay import lay_over
from tinker_atropos_operator.specs.run_objects import Child, Object, RunContext, metadata


def deployment(
    context: RunContext,
    name: str,
    component: str,
    pod: Object,
    *,
    inputs: object,
    replicas: int = 1,
    strategy: str = "Recreate",
    extra_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    overlay: Mapping[str, Any] | None = None,
    overlay_field: str = "",
) -> Child:
    """A Deployment whose pods carry the run's labels. `overlay` is the user's pod template, from `overlay_field`."""
    extra = dict(extra_labels or {})
    template: Object = {
        "metadata": {"labels": {**labels.of_run(context.name, component), **extra}},
        "spec": pod,
    }
    if annotations:
        template["metadata"]["annotations"] = dict(annotations)
    return Child(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(context, name, {**labels.of_run(context.name, component), **extra}, inputs),
            "spec": {
                "replicas": replicas,
                "revisionHistoryLimit": 0,
                "strategy": {"type": strategy},
                "selector": {"matchLabels": {**labels.selector_of(context.name, component), **extra}},
                "template": lay_over(template, overlay or {}),
            },
        },
        overlay_field,
        overlay,
    )
