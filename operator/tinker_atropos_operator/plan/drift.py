"""Which of a run's objects must be applied: those that are missing, those whose inputs changed, those that somebody
else changed.

An object whose inputs are the same is left alone even when a newer operator would build it differently: an upgrade of
the operator must not restart running pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinker_atropos_operator.plan.observed import Object, Observed, annotation
from tinker_atropos_operator.specs import labels
from tinker_atropos_operator.specs.run_objects import Child


@dataclass(frozen=True)
class Applied:
    """What the operator remembers of an object that it applied."""

    inputs: str
    uid: str
    generation: int
    """Spec generation after the apply; another one means that somebody else changed the spec."""


Key = tuple[str, str]
"""Kind and name."""


def due(children: Sequence[Child], observed: Observed, memory: Mapping[Key, Applied]) -> list[Child]:
    """The children to apply now, in their order."""
    return [child for child in children if _is_due(child, observed, memory.get((child.kind, child.name)))]


def exists(child: Child, observed: Observed, memory: Mapping[Key, Applied]) -> bool:
    """Has the object been there already? (Secrets are never read: what is made after one is the sign of it.)"""
    if child.kind == "Secret":
        return (child.kind, child.name) in memory or bool(observed.deployments)
    return child.name in observed.of(child.kind)


def _is_due(child: Child, observed: Observed, applied: Applied | None) -> bool:
    if child.kind == "Secret":
        return applied is None or applied.inputs != child.inputs
    live = observed.of(child.kind).get(child.name)
    if live is None:
        return True
    if "deletionTimestamp" in live["metadata"]:
        return False  # made again when it is gone
    if child.kind == "Job":
        return False  # its template cannot change, and what may change of it is the Job controller's
    if annotation(live, labels.INPUTS) != child.inputs:
        return True
    if child.kind == "Deployment" and _replicas(live) != _replicas(child.object):
        return True
    if child.kind == "ConfigMap" and live.get("data") != child.object["data"]:
        return (
            applied is not None
        )  # edited by somebody; after an operator's start it may only be an older way of building
    if applied is None or applied.uid != live["metadata"]["uid"]:
        return False
    return _generation(live) != applied.generation


def _replicas(body: Object) -> int:
    value = (body.get("spec") or {}).get("replicas")
    return 1 if value is None else int(value)


def _generation(body: Object) -> int:
    return int(body["metadata"].get("generation") or 0)
