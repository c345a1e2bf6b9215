"""Objects as the API server would hold them, for tables of cases."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from tinker_atropos.run.parse import parse_spec
from tinker_atropos_operator.plan.observed import Observed, Run, format_time
from tinker_atropos_operator.plan.run import Situation
from tinker_atropos_operator.settings import Settings
from tinker_atropos_operator.specs.run_objects import Platform, RunContext

Object = dict[str, Any]
NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
UID = "11111111-2222-3333-4444-555555555555"

SPEC: Object = {
    "config": {"env": {"group_size": 4, "batch_size": 8, "total_steps": 5}},
    "tinkerAPI": {"keySecretRef": {"name": "tinker", "key": "api-key"}},
    "environments": [{"name": "digits", "command": ["python", "digits.py"], "replicas": 2}],
}


class Build:
    """Makes objects; everything it makes belongs to the run `first`."""

    now = NOW
    uid = UID

    def __init__(self) -> None:
        self.platform = Platform(Settings("tinker-system", "test"), "CA", b"key")

    def ago(self, seconds: float) -> str:
        return format_time(NOW - dt.timedelta(seconds=seconds))

    def spec(self, **changes: Any) -> Object:
        return {**copy.deepcopy(SPEC), **changes}

    def context(self, **changes: Any) -> RunContext:
        source = self.spec(**changes)
        parsed, _ = parse_spec(source)
        return RunContext("ns", "first", UID, parsed, source, self.platform)

    def run(self, status: Object | None = None, *, generation: int = 1, deleting: bool = False, **changes: Any) -> Run:
        metadata: Object = {
            "name": "first",
            "namespace": "ns",
            "uid": UID,
            "generation": generation,
            "resourceVersion": "10",
            "creationTimestamp": self.ago(100),
        }
        if deleting:
            metadata["deletionTimestamp"] = self.ago(1)
        return Run({"metadata": metadata, "spec": self.spec(**changes), "status": status or {}})

    def deployment(self, name: str, ready: int = 1, **status: Any) -> Object:
        return {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
            "spec": {"replicas": 1},
            "status": {"readyReplicas": ready, **status},
        }

    def job(self, attempt: int = 1, *conditions: Object, **status: Any) -> Object:
        return {
            "metadata": {
                "name": f"tar-first-trainer-{attempt}",
                "namespace": "ns",
                "uid": f"uid-job-{attempt}",
                "labels": {"tinker-atropos.dev/attempt": str(attempt)},
            },
            "status": {"conditions": list(conditions), **status},
        }

    def condition(self, kind: str, reason: str = "", message: str = "", *, seconds_ago: float = 60) -> Object:
        return {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": self.ago(seconds_ago),
        }

    def pod(
        self,
        component: str,
        name: str = "pod",
        *,
        phase: str = "Running",
        age: float = 60,
        environment: str | None = None,
        job: str = "uid-job-1",
        statuses: list[Object] | None = None,
        conditions: list[Object] | None = None,
    ) -> Object:
        labels = {"tinker-atropos.dev/run": "first", "app.kubernetes.io/component": component}
        if environment is not None:
            labels["tinker-atropos.dev/environment"] = environment
        metadata: Object = {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "labels": labels,
            "creationTimestamp": self.ago(age),
        }
        if component == "trainer":
            metadata["ownerReferences"] = [{"uid": job, "controller": True}]
        return {
            "metadata": metadata,
            "spec": {"containers": [{"name": component, "image": "image:1"}]},
            "status": {"phase": phase, "containerStatuses": statuses or [], "conditions": conditions or []},
        }

    def terminated(self, code: int, message: str = "", container: str = "trainer", reason: str = "Error") -> Object:
        return {
            "name": container,
            "state": {
                "terminated": {
                    "exitCode": code,
                    "reason": reason,
                    "message": message,
                    "finishedAt": self.ago(30),
                }
            },
        }

    def waiting(self, container: str, reason: str, message: str = "", last: Object | None = None) -> Object:
        entry: Object = {
            "name": container,
            "restartCount": 3,
            "state": {"waiting": {"reason": reason, "message": message}},
        }
        if last is not None:
            entry["lastState"] = {"terminated": last}
        return entry

    def everything(self, *more: Object, ready: int = 2, trainer: str = "Running") -> Observed:
        """A run of which every part works."""
        deployments = [self.deployment("tar-first-api"), self.deployment("tar-first-env-digits", ready)]
        return Observed(
            deployments={entry["metadata"]["name"]: entry for entry in deployments},
            jobs={"tar-first-trainer-1": self.job()},
            services={"tar-first-api": {"metadata": {"name": "tar-first-api", "uid": "uid-svc"}}},
            pods=[self.pod("trainer", "trainer-a", phase=trainer), *more],
        )

    def situation(self, run: Run, observed: Observed | None = None, **more: Any) -> Situation:
        return Situation(run, observed or Observed(), self.platform, NOW, **more)


@pytest.fixture
def build() -> Build:
    return Build()


@pytest.fixture
def names_of() -> Callable[[Any], list[str]]:
    return lambda children: [f"{child.kind}/{child.name}" for child in children]
