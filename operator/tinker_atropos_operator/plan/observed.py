"""What the operator sees of one run and its objects: plain data, read by every decision and changed by none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinker_atropos_operator.specs import labels

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One TinkerAtroposRun as the API server holds it."""

    body: Object

    @property
    def metadata(self) -> Object:
        value: Object = self.body["metadata"]
        return value

    @property
    def namespace(self) -> str:
        return str(self.metadata["namespace"])

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])

    @property
    def generation(self) -> int:
        return int(self.metadata.get("generation", 0))

    @property
    def resource_version(self) -> str:
        return str(self.metadata["resourceVersion"])

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in self.metadata

    @property
    def spec(self) -> Object:
        value: Object = self.body.get("spec") or {}
        return value

    @property
    def status(self) -> Object:
        value: Object = self.body.get("status") or {}
        return value

    def condition(self, name: str) -> Object | None:
        """A condition of the status as stored."""
        return condition(self.body, name)

    @property
    def finished(self) -> bool:
        """Complete or Failed: nothing may be made for this run any more."""
        return any(is_true(self.body, name) for name in ("Complete", "Failed"))


@dataclass(frozen=True)
class Observed:
    """The objects that a run owns, and pods that belong to those."""

    deployments: Mapping[str, Object] = field(default_factory=dict)
    jobs: Mapping[str, Object] = field(default_factory=dict)
    services: Mapping[str, Object] = field(default_factory=dict)
    config_maps: Mapping[str, Object] = field(default_factory=dict)
    pods: Sequence[Object] = ()

    def of(self, kind: str) -> Mapping[str, Object]:
        """Objects of one kind by name."""
        kinds = {
            "Deployment": self.deployments,
            "Job": self.jobs,
            "Service": self.services,
            "ConfigMap": self.config_maps,
        }
        return kinds.get(kind, {})

    def pods_of(self, component: str, environment: str | None = None) -> list[Object]:
        """Pods of one part of the run, oldest first."""
        found = [
            pod
            for pod in self.pods
            if label(pod, labels.COMPONENT) == component
            and (environment is None or label(pod, labels.ENVIRONMENT) == environment)
        ]
        return sorted(found, key=lambda pod: (str(pod["metadata"].get("creationTimestamp", "")), name_of(pod)))


def name_of(body: Object) -> str:
    return str(body["metadata"]["name"])


def label(body: Object, key: str) -> str | None:
    value = (body["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def annotation(body: Object, key: str) -> str | None:
    value = (body["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)


def controller_uid(body: Object) -> str | None:
    """uid of the object that this one is a part of."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def condition(body: Object, name: str) -> Object | None:
    for entry in (body.get("status") or {}).get("conditions") or ():
        if entry.get("type") == name:
            found: Object = entry
            return found
    return None


def is_true(body: Object, name: str) -> bool:
    found = condition(body, name)
    return found is not None and found.get("status") == "True"


def parse_time(text: str) -> dt.datetime:
    """An RFC 3339 time of the API server."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def format_time(time: dt.datetime) -> str:
    """Whole seconds, as Kubernetes writes times."""
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
