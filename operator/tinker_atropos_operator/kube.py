"""Raw requests to the Kubernetes API over `kubernetes.aio`: plain data in and out, every error told apart by what to
do about it.

The client library's typed models are not used: they drop fields that they do not know."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from tinker_atropos_operator.metrics import API_DURATION, API_REQUESTS

Object = dict[str, Any]
APPLY = "application/apply-patch+yaml"
PERMANENT_500 = ("failed to create typed patch object", "failed to convert new object")
"""Schema errors of a server-side apply come as status 500; trying again cannot help."""
TIMEOUT_SECONDS = 30.0
PAGE = 500
MAX_ERROR = 700


@dataclass(frozen=True)
class Resource:
    """A kind of object and where the API has it."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def prefix(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        parts = [self.prefix]
        if namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


RUNS = Resource("tinker-atropos.dev", "v1alpha1", "tinkeratroposruns", "TinkerAtroposRun")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
JOBS = Resource("batch", "v1", "jobs", "Job")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

OWNED = (DEPLOYMENTS, JOBS, SERVICES, CONFIG_MAPS)
"""Kinds that are made for runs and watched."""
BY_KIND = {resource.kind: resource for resource in (*OWNED, SECRETS)}


class ApiError(Exception):
    """The API server said no, or nothing."""

    def __init__(self, status: int, reason: str, message: str, causes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def namespace_ends(self) -> bool:
        """A refusal that ends by itself: the namespace is going away."""
        return self.status == 403 and "being terminated" in self.message

    @property
    def permanent(self) -> bool:
        """The same request will be refused again until somebody changes something."""
        if self.status == 500:
            return self.message.startswith(PERMANENT_500)
        return self.status in (400, 403, 413, 422)


class Kube:
    """The API server, as one user."""

    def __init__(self, configuration: client.Configuration) -> None:
        self.configuration = configuration
        self.may_write: Callable[[], bool] = lambda: True
        """A leader that was stopped for a while wakes up as none: it must not write before it knows."""
        self._client = client.ApiClient(configuration)

    @classmethod
    async def connect(cls, kubeconfig: str | None) -> Kube:
        """By a kubeconfig file, or from inside a pod."""
        configuration = client.Configuration()
        if kubeconfig:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
        return cls(configuration)

    async def close(self) -> None:
        await self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        content_type: str | None = None,
        accept: str = "application/json",
        resource: str = "",
    ) -> Object:
        """One request; the decoded answer. Raises ApiError."""
        if method != "GET" and not self.may_write():
            raise ApiError(0, "NotLeading", "the Lease may have gone to another process")
        headers = {"Accept": accept}
        if content_type is not None:
            headers["Content-Type"] = content_type
        serialized = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        began = time.monotonic()
        status = 0
        try:
            response = await self._client.call_api(*serialized, _request_timeout=TIMEOUT_SECONDS)
            status = int(response.status)
            data = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiError(
                0, "Unreachable", f"the API server does not answer: {error or type(error).__name__}"
            ) from error
        finally:
            API_REQUESTS.labels(method, resource, str(status)).inc()
            API_DURATION.labels(method).observe(time.monotonic() - began)
        if status >= 400:
            raise _error(status, data)
        decoded = json.loads(data) if data else {}
        assert isinstance(decoded, dict)
        return decoded

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return await self.request("GET", resource.path(namespace, name), resource=resource.plural)

    async def pages(
        self, resource: Resource, namespace: str | None, selector: str | None = None
    ) -> AsyncIterator[list[Object]]:
        """All objects of a kind, a page at a time."""
        query = {"limit": str(PAGE)}
        if selector:
            query["labelSelector"] = selector
        while True:
            answer = await self.request("GET", resource.path(namespace), query=query, resource=resource.plural)
            items = answer.get("items") or []
            for item in items:
                item.setdefault("kind", resource.kind)
            yield items
            following = (answer.get("metadata") or {}).get("continue")
            if not following:
                return
            query["continue"] = following

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        return await self.request("POST", resource.path(namespace), body=body, resource=resource.plural)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        return await self.request("PUT", resource.path(namespace, name), body=body, resource=resource.plural)

    async def apply(
        self,
        resource: Resource,
        body: Object,
        manager: str,
        *,
        force: bool = True,
        dry_run: bool = False,
        subresource: str | None = None,
    ) -> Object:
        """Server-side apply: the fields given are this manager's from now on, all others stay as they are."""
        metadata = body["metadata"]
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        return await self.request(
            "PATCH",
            resource.path(metadata["namespace"], metadata["name"], subresource),
            body=body,
            query=query,
            content_type=APPLY,
            resource=resource.plural,
        )

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Delete exactly that object and, in the background, what belongs to it. (A plain delete of a Job leaves its
        pods.)"""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self.request("DELETE", resource.path(namespace, name), body=body, resource=resource.plural)


def _error(status: int, data: bytes) -> ApiError:
    try:
        answer = json.loads(data)
    except ValueError:
        return ApiError(status, "", data[:MAX_ERROR].decode(errors="replace"))
    details = answer.get("details") or {}
    causes = [
        f"{cause['field']}: {cause.get('message', '')}" if cause.get("field") else str(cause.get("message", ""))
        for cause in details.get("causes") or ()
    ]
    message = str(answer.get("message", ""))
    return ApiError(status, str(answer.get("reason", "")), message[:MAX_ERROR], [cause[:MAX_ERROR] for cause in causes])
