"""Probes that mean something: alive is who works, not who merely answers. And the page for Prometheus.

A web server in the process answers long after the watches have died. So once in a while the leader touches an object
of its own and expects to see that on its watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tinker_atropos_operator.kube import CONFIG_MAPS, ApiError, Kube
from tinker_atropos_operator.metrics import LOOP_LAG, REGISTRY
from tinker_atropos_operator.settings import Settings
from tinker_atropos_operator.specs.labels import APP_NAME, MANAGED_BY, MANAGER

log = logging.getLogger(__name__)

MAX_LAG = 10.0
MAX_WORK = 300.0
CANARY_LATE = 30.0
CANARY_MISSES = 2
"""The watch may be reconnecting once; twice in a row it is dead."""


class Canary:
    """Touches a ConfigMap and waits for the news of it."""

    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._kube = kube
        self._settings = settings
        self._seen = ""
        self._news = asyncio.Event()
        self.misses = 0
        self.returns = 0
        """How often the watch has brought it."""

    def seen(self, namespace: str, name: str, version: str) -> None:
        """A watch event of a ConfigMap came in; it may be quicker than the answer to the write."""
        if (namespace, name) == (self._settings.namespace, self._settings.canary):
            self._seen = version
            self._news.set()

    async def sing(self) -> None:
        """Touch it again and again, for ever."""
        count = 0
        while True:
            await asyncio.sleep(self._settings.canary_seconds)
            count += 1
            await self._once(count)

    async def _once(self, count: int) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._settings.canary,
                "namespace": self._settings.namespace,
                "labels": {MANAGED_BY: MANAGER, APP_NAME: "tinker-atropos-operator"},
            },
            "data": {"count": f"{self._settings.identity} {count}"},
        }
        try:
            live = await self._kube.apply(CONFIG_MAPS, body, MANAGER)
        except ApiError as error:
            log.warning("the canary was not written: %s", error)
            return  # that the API server is away is no fault of the watches
        try:
            await asyncio.wait_for(self._until_seen(str(live["metadata"]["resourceVersion"])), CANARY_LATE)
            self.misses = 0
            self.returns += 1
        except TimeoutError:
            self.misses += 1
            log.warning("the watch did not bring the canary within %.0f s (%d in a row)", CANARY_LATE, self.misses)

    async def _until_seen(self, version: str) -> None:
        while self._seen != version:
            self._news.clear()
            await self._news.wait()


class Health:
    """What the probes are answered from."""

    def __init__(self, oldest_work: Callable[[], float]) -> None:
        self._oldest_work = oldest_work
        self.canary: Canary | None = None
        self.ready: Callable[[], str | None] = lambda: "starting"
        """Why it is not ready; None when it is."""
        self._lag = 0.0

    async def measure_lag(self) -> None:
        """Watch the event loop for ever: one blocking call makes everything late."""
        period = 1.0
        while True:
            began = time.monotonic()
            await asyncio.sleep(period)
            self._lag = max(0.0, time.monotonic() - began - period)
            LOOP_LAG.set(self._lag)

    def why_dead(self) -> str | None:
        if self._lag > MAX_LAG:
            return f"the event loop was {self._lag:.0f} s late"
        if self._oldest_work() > MAX_WORK:
            return f"a reconciliation takes {self._oldest_work():.0f} s already"
        if self.canary is not None and self.canary.misses >= CANARY_MISSES:
            return "the watches deliver nothing"
        return None

    async def start(self, host: str, port: int) -> tuple[web.AppRunner, int]:
        """Serve /healthz (alive) and /readyz."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        return await _serve(app, host, port)

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self.why_dead())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self.ready())


async def start_metrics(host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serve /metrics."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return await _serve(app, host, port)


async def _serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, int(runner.addresses[0][1])


def _answer(problem: str | None) -> web.Response:
    if problem is None:
        return web.json_response({"status": "ok"})
    return web.json_response({"status": "failing", "reason": problem}, status=503)
