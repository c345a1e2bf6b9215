"""Keeps the cache true: kopf watches, and a list now and then heals what a watch may have missed.

kopf is the watch layer only. Its handlers here do nothing but store and enqueue: handlers of kopf's other kinds write
annotations and finalizers, and its index is quadratic in the number of objects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import kopf
from kubernetes.aio import client

from tinker_atropos_operator.cache import RUN_KIND, Cache, RunKey, owner_key
from tinker_atropos_operator.kube import CONFIG_MAPS, OWNED, PODS, RUNS, ApiError, Kube, Resource
from tinker_atropos_operator.metrics import WATCH_EVENTS
from tinker_atropos_operator.queue import WorkQueue
from tinker_atropos_operator.settings import Settings
from tinker_atropos_operator.specs.labels import SELECTOR

log = logging.getLogger(__name__)

WATCHED: tuple[Resource, ...] = (RUNS, *OWNED, PODS)
MISSING_CRD_PAUSE = 5.0
STOP_SECONDS = 5.0


class _NoDiffBase(kopf.DiffBaseStorage):
    """Remembers nothing of any object: no annotation, and no deep copy of each object at each event."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    def fetch(self, *, body: Any) -> Any:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        return


class _NoProgress(kopf.ProgressStorage):
    """Handlers that only store and enqueue have no progress to keep."""

    def fetch(self, *, key: Any, body: Any) -> Any:
        return None

    def store(self, *, key: Any, record: Any, body: Any, patch: Any) -> None:
        return

    def purge(self, *, key: Any, body: Any, patch: Any) -> None:
        return

    def touch(self, *, body: Any, patch: Any, value: Any) -> None:
        return

    def clear(self, *, essence: Any) -> Any:
        return essence


class Watcher:
    """Lists, then watches, into the cache and the queue."""

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        cache: Cache,
        queue: WorkQueue[RunKey],
        on_config_map: Callable[[str, str, str], None],
    ) -> None:
        """on_config_map: told namespace, name and resource version of each ConfigMap seen, for the canary."""
        self._kube = kube
        self._settings = settings
        self._cache = cache
        self._queue = queue
        self._on_config_map = on_config_map

    @property
    def namespaces(self) -> tuple[str, ...] | None:
        """Where to look; None = everywhere. The operator's own namespace is among them for its canary."""
        if not self._settings.watch_namespaces:
            return None
        return tuple(dict.fromkeys((*self._settings.watch_namespaces, self._settings.namespace)))

    async def list_all(self) -> None:
        """Take over the state of the cluster as it is, and enqueue the runs of which something was news."""
        for resource in WATCHED:
            await self._list(resource)

    async def wait_for_crd(self) -> None:
        """A chart may be installed before its CRD."""
        told = False
        while True:
            try:
                async for _ in self._kube.pages(RUNS, self._scopes()[0]):
                    return
            except ApiError as error:
                if not error.not_found:
                    raise
            if not told:
                log.warning(
                    "the CustomResourceDefinition tinkeratroposruns.tinker-atropos.dev is not "
                    "installed; waiting for it: "
                    "kubectl apply -f crds/tinkeratroposruns.yaml, or set crds.enabled in the chart"
                )
                told = True
            await asyncio.sleep(MISSING_CRD_PAUSE)

    def _scopes(self) -> Sequence[str | None]:
        return self.namespaces or (None,)

    async def _list(self, resource: Resource) -> None:
        since = self._cache.mark()
        listed = []
        selector = None if resource is RUNS else SELECTOR
        for namespace in self._scopes():
            async for page in self._kube.pages(resource, namespace, selector):
                listed += page
        for key in self._cache.replace(resource.kind, listed, since, self.namespaces):
            self._queue.add(key)

    async def watch(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        """Watch until `stop`. Returns or raises when kopf ends by itself.

        kopf's own way to run and stop (`kopf.operator`) cancels every task of the event loop that began after it, ours
        too; so its tasks are waited for and ended here."""
        registry = kopf.OperatorRegistry()
        for resource in WATCHED:
            self._register(registry, resource)
        kopf.on.login(registry=registry)(self._login)
        namespaces = self.namespaces
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=self._kopf_settings(),
            standalone=True,
            clusterwide=namespaces is None,
            namespaces=namespaces or (),
        )
        stopped = asyncio.create_task(stop.wait())
        ready.set()
        try:
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.wait([*tasks, stopped], timeout=STOP_SECONDS)
        for task in done:
            if task is not stopped and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _register(self, registry: kopf.OperatorRegistry, resource: Resource) -> None:
        kind = resource.kind

        async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
            self._seen(kind, type, dict(body))

        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=f"seen-{kind}")(seen)

    def _seen(self, kind: str, event: str | None, body: dict[str, Any]) -> None:
        WATCH_EVENTS.labels(kind).inc()
        metadata = body["metadata"]
        if kind == CONFIG_MAPS.kind:
            self._on_config_map(metadata["namespace"], metadata["name"], metadata["resourceVersion"])
        if event == "DELETED":
            self._cache.remove(kind, body)
        elif not self._cache.upsert(kind, body):
            return
        key = owner_key(kind, body)
        if key is not None and (kind == RUN_KIND or self._cache.run(key) is not None):
            self._queue.add(key)

    def _kopf_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.persistence.diffbase_storage = _NoDiffBase()
        settings.persistence.progress_storage = _NoProgress()
        settings.persistence.finalizer = "tinker-atropos.dev/unused"
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.peering.standalone = True
        settings.queueing.worker_limit = 100
        settings.queueing.idle_timeout = 0.2
        settings.watching.chunk_size = 500
        settings.watching.server_timeout = 300
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 10
        settings.process.ultimate_exiting_timeout = None
        for resource in WATCHED:
            if resource is not RUNS:
                settings.watching.label_selectors[resource.group, resource.version, resource.plural] = SELECTOR
        return settings

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        return await connection_info(self._kube.configuration)


async def connection_info(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """kopf's credentials from the client's, so that there is one source; asked again when they are refused."""
    token = await configuration.get_api_key_with_prefix("BearerToken")
    scheme, _, secret = str(token or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=str(configuration.host),
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or ("Bearer" if secret else None),
        token=secret or None,
    )
