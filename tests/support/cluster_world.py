"""A namespace of a real API server for tests: runs are made in it; no kubelet runs, so pods are played by hand."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tinker_atropos.protocol import progress
from tinker_atropos_operator import kube as api
from tinker_atropos_operator.kube import ApiError, Kube

Object = dict[str, Any]

QUICKSTART: Object = {
    "config": {"env": {"group_size": 4, "batch_size": 8, "total_steps": 5, "max_token_length": 8}},
    "tinkerAPI": {"local": {"model": "tiny"}},
    "environments": [{"name": "digits", "command": ["python", "digits.py"]}],
}


def stamp(time_: dt.datetime | None = None) -> str:
    return (time_ or dt.datetime.now(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def eventually(what: str, check: Callable[[], Awaitable[Any]], seconds: float = 60.0, pause: float = 0.1) -> Any:
    """Ask until the answer is true; the answer. Fails naming what was waited for and what was seen last."""
    until = time.monotonic() + seconds
    while True:
        seen = await check()
        if seen:
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"never came: {what}")
        await asyncio.sleep(pause)


class World:
    """One namespace, as its administrator."""

    def __init__(self, kube: Kube, namespace: str, audit_log: Path) -> None:
        self.kube = kube
        self.namespace = namespace
        self.audit_log = audit_log

    # -- runs --------------------------------------------------------------------------------------------------------

    def manifest(self, name: str, spec: Object | None = None, **changes: Any) -> Object:
        body = copy.deepcopy(QUICKSTART if spec is None else spec)
        body.update(changes)
        return {
            "apiVersion": "tinker-atropos.dev/v1alpha1",
            "kind": "TinkerAtroposRun",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": body,
        }

    async def create_run(self, name: str, spec: Object | None = None, **changes: Any) -> Object:
        return await self.kube.create(api.RUNS, self.namespace, self.manifest(name, spec, **changes))

    async def run(self, name: str) -> Object:
        return await self.kube.get(api.RUNS, self.namespace, name)

    async def patch_run(self, name: str, spec: Object) -> Object:
        return await self.kube.request(
            "PATCH",
            api.RUNS.path(self.namespace, name),
            body={"spec": spec},
            content_type="application/merge-patch+json",
        )

    async def status_when(
        self, name: str, what: str, check: Callable[[Object], object], seconds: float = 30.0
    ) -> Object:
        """The run's status once it fulfils the check."""
        last: Object = {}

        async def look() -> Object | None:
            nonlocal last
            last = (await self.run(name)).get("status") or {}
            return last if last and check(last) else None

        try:
            found: Object = await eventually(what, look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; the status is {json.dumps(last, indent=1)}") from None
        return found

    async def phase(self, name: str, phase: str, seconds: float = 30.0) -> Object:
        return await self.status_when(name, f"phase {phase}", lambda status: status.get("phase") == phase, seconds)

    async def quota(self, name: str, hard: Object) -> None:
        """Give the namespace a ResourceQuota, and wait until it counts: the API server refuses pods before that."""
        path = f"/api/v1/namespaces/{self.namespace}/resourcequotas"
        await self.kube.request(
            "POST", path, body={"kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard}}
        )

        async def counted() -> bool:
            return (await self.kube.request("GET", f"{path}/{name}")).get("status", {}).get("hard") == hard

        await eventually(f"a quota {name} that counts", counted)

    async def limit_range(self, *, default: Object, request: Object) -> None:
        """Give the namespace a LimitRange: limits and requests of containers that have none."""
        limits = {"type": "Container", "default": default, "defaultRequest": request}
        body = {"kind": "LimitRange", "metadata": {"name": "defaults"}, "spec": {"limits": [limits]}}
        await self.kube.request("POST", f"/api/v1/namespaces/{self.namespace}/limitranges", body=body)

    # -- objects -----------------------------------------------------------------------------------------------------

    async def list(self, resource: api.Resource, selector: str | None = None) -> list[Object]:
        return [item async for page in self.kube.pages(resource, self.namespace, selector) for item in page]

    async def owned(self, run: str) -> dict[tuple[str, str], Object]:
        """Everything that carries the run's label, pods included."""
        found = {}
        for resource in (*api.OWNED, api.SECRETS, api.PODS):
            for item in await self.list(resource, f"tinker-atropos.dev/run={run}"):
                found[resource.kind, item["metadata"]["name"]] = item
        return found

    async def wait_for_children(self, run: str, count: int) -> dict[tuple[str, str], Object]:
        async def look() -> dict[tuple[str, str], Object] | None:
            found = {key: body for key, body in (await self.owned(run)).items() if key[0] != "Pod"}
            return found if len(found) >= count else None

        found: dict[tuple[str, str], Object] = await eventually(f"{count} objects of {run}", look)
        return found

    # -- pods, played by hand ----------------------------------------------------------------------------------------

    async def pods(self, run: str, component: str) -> list[Object]:
        selector = f"tinker-atropos.dev/run={run},app.kubernetes.io/component={component}"
        found = await self.list(api.PODS, selector)
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    async def pod(self, run: str, component: str, *, but: set[str] | None = None) -> Object:
        """The newest living pod of a part of the run, once there is one."""

        async def look() -> Object | None:
            living = [
                pod
                for pod in await self.pods(run, component)
                if "deletionTimestamp" not in pod["metadata"]
                and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
                and pod["metadata"]["name"] not in (but or set())
            ]
            return living[-1] if living else None

        found: Object = await eventually(f"a pod of {component}", look)
        return found

    async def set_pod(self, pod: Object, status: Object) -> Object:
        name = pod["metadata"]["name"]
        return await self.kube.request(
            "PATCH",
            api.PODS.path(self.namespace, name, "status"),
            body={"status": status},
            content_type="application/merge-patch+json",
        )

    async def make_ready(self, run: str, component: str) -> Object:
        """Play the kubelet: the pod runs and is ready."""
        pod = await self.pod(run, component)
        names = [entry["name"] for entry in pod["spec"]["containers"]]
        now = stamp()
        await self.set_pod(
            pod,
            {
                "phase": "Running",
                "startTime": now,
                "conditions": [
                    {"type": kind, "status": "True", "lastTransitionTime": now}
                    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
                ],
                "containerStatuses": [
                    {
                        "name": name,
                        "ready": True,
                        "started": True,
                        "restartCount": 0,
                        "image": "image",
                        "imageID": "",
                        "state": {"running": {"startedAt": now}},
                    }
                    for name in names
                ],
            },
        )
        return pod

    async def set_waiting(self, pod: Object, container: str, reason: str, message: str) -> None:
        """Play the kubelet: a container cannot start."""
        await self.set_pod(
            pod,
            {
                "phase": "Pending",
                "containerStatuses": [
                    {
                        "name": container,
                        "ready": False,
                        "restartCount": 0,
                        "image": "image",
                        "imageID": "",
                        "state": {"waiting": {"reason": reason, "message": message}},
                    }
                ],
            },
        )

    async def finish(
        self, pod: Object, exit_code: int, message: str = "", conditions: list[Object] | None = None
    ) -> None:
        """Play the kubelet: the pod's one container has ended."""
        now = stamp()
        await self.set_pod(
            pod,
            {
                "phase": "Failed" if exit_code else "Succeeded",
                "conditions": [
                    {"type": "Ready", "status": "False", "lastTransitionTime": now},
                    *(conditions or []),
                ],
                "containerStatuses": [
                    {
                        "name": pod["spec"]["containers"][0]["name"],
                        "ready": False,
                        "restartCount": 0,
                        "image": "image",
                        "imageID": "",
                        "state": {
                            "terminated": {
                                "exitCode": exit_code,
                                "reason": "Error" if exit_code else "Completed",
                                "message": message,
                                "startedAt": now,
                                "finishedAt": now,
                            }
                        },
                    }
                ],
            },
        )

    async def start_everything(
        self, run: str, parts: tuple[str, ...] = ("local-tinker", "api-server", "environment")
    ) -> Object:
        """Every pod of the run works; the trainer's pod."""
        for part in parts:
            await self.make_ready(run, part)
        return await self.make_ready(run, "trainer")

    # -- tokens ------------------------------------------------------------------------------------------------------

    async def token(self, pod: Object | None, audience: str, account: str = "default") -> str:
        """A token as the kubelet would project it into the pod."""
        body: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": 3600},
        }
        if pod is not None:
            body["spec"]["boundObjectRef"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            }
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        answer = await eventually("the default service account", lambda: self._try_post(path, body))
        return str(answer["status"]["token"])

    async def _try_post(self, path: str, body: Object) -> Object | None:
        try:
            return await self.kube.request("POST", path, body=body)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def audience(self, run: Object) -> str:
        return progress.audience(self.namespace, run["metadata"]["name"], run["metadata"]["uid"])

    # -- what the API server saw -------------------------------------------------------------------------------------

    def writes(self, user: str, since: dt.datetime) -> list[str]:
        """Write requests of a user since a moment: verb and path of each."""
        found = []
        for line in self.audit_log.read_text().splitlines():
            entry = json.loads(line)
            when = dt.datetime.fromisoformat(entry["requestReceivedTimestamp"].replace("Z", "+00:00"))
            if when >= since and entry["user"].get("username") == user:
                found.append(f"{entry['verb']} {entry['requestURI'].split('?')[0]}")
        return found
