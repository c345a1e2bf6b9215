"""Puts the operator together and runs it: the only module that knows all others."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime as dt
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web

from tinker_atropos_operator import authority, metrics
from tinker_atropos_operator.apply import Applier
from tinker_atropos_operator.cache import Cache, RunKey
from tinker_atropos_operator.election import Election
from tinker_atropos_operator.events import EventRecorder
from tinker_atropos_operator.kube import ApiError, Kube
from tinker_atropos_operator.plan.observed import is_true
from tinker_atropos_operator.probes import Canary, Health, start_metrics
from tinker_atropos_operator.progress import ProgressReceiver
from tinker_atropos_operator.queue import WorkQueue
from tinker_atropos_operator.reconcile import Reconciler, Reports
from tinker_atropos_operator.rivals import Rivals
from tinker_atropos_operator.settings import Settings
from tinker_atropos_operator.specs.run_objects import Platform
from tinker_atropos_operator.tokens import TokenVerifier
from tinker_atropos_operator.watch import Watcher

log = logging.getLogger(__name__)

FIRST_RESYNC = 20.0
"""Soon after the start a list is compared with what the watches said: something may have gone between the two."""
RETRY_PAUSE = 2.0
STOP_SECONDS = 8.0


def utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings, kube: Kube, keys: authority.Authority) -> None:
        self.settings = settings
        self.on_watching: Callable[[], object] = lambda: None
        """Called when the watches run: kopf takes the process' signal handlers when it starts."""
        self._kube = kube
        self._keys = keys
        self.cache = Cache()
        self.queue: WorkQueue[RunKey] = WorkQueue()
        self.reports = Reports()
        self.applier = Applier(kube, self.cache)
        self.platform = Platform(settings, keys.ca_certificate, keys.token_key)
        self.reconciler = Reconciler(
            self.cache,
            self.queue,
            self.applier,
            EventRecorder(kube, settings.identity, utc_now),
            self.reports,
            self.platform,
            utc_now,
        )
        self.canary = Canary(kube, settings)
        self.watcher = Watcher(kube, settings, self.cache, self.queue, self.canary.seen)
        self._rivals = Rivals(kube, settings)
        self.receiver = ProgressReceiver(
            kube,
            self.cache,
            self.queue,
            self.reports,
            TokenVerifier(kube),
            lambda: self.leading,
            utc_now,
            settings.status_interval_seconds,
        )
        self.reconciler.on_forget = self.receiver.forget
        self.health = Health(self.queue.oldest_work)
        self.health.ready = self._why_not_ready
        self.leading = False
        """This process holds the Lease and its cache is true."""
        self._electing = True
        self.progress_port = 0

    @classmethod
    async def create(cls, settings: Settings) -> Operator:
        """Connect, and get or make the operator's keys."""
        kube = await Kube.connect(settings.kubeconfig)
        while True:
            try:
                return cls(settings, kube, await authority.load(kube, settings, utc_now()))
            except ApiError as error:
                if error.permanent:
                    await kube.close()
                    raise
                log.warning("waiting for the API server: %s", error)
                await asyncio.sleep(RETRY_PAUSE)

    async def run(self, stop: asyncio.Event) -> bool:
        """Serve and, when it is this process' turn, reconcile. True when it ended because it was told to."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._kube.close)
            await self._start_servers(stack)
            async with _Background() as background:
                background.start("lag", self.health.measure_lag())
                background.start("stop", stop.wait())
                election = self._election(stack)
                if election is not None:
                    turn = background.start("election", election.acquire())
                    await background.first_ended()
                    if not turn.done():
                        return stop.is_set()
                    background.forget(turn)
                    stack.push_async_callback(election.release)
                    self._kube.may_write = election.valid
                    background.start("lease", election.hold())
                metrics.LEADER.set(1)
                self._electing = False
                try:
                    return await self._lead(background, stop)
                finally:
                    self.leading = False
                    metrics.LEADER.set(0)
                    self.queue.close()

    def _election(self, stack: contextlib.AsyncExitStack) -> Election | None:
        settings = self.settings
        if not settings.leader_elect:
            return None
        # A client of its own: renewing must not wait for other requests, and must be allowed always.
        kube = Kube(self._kube.configuration)
        stack.push_async_callback(kube.close)
        return Election(kube, settings.namespace, settings.lease, settings.identity, settings.lease_seconds, utc_now)

    async def _start_servers(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        context = self._keys.server_context(authority.server_names(settings), utc_now())
        runner, self.progress_port = await self.receiver.start(settings.host, settings.progress_port, context)
        stack.push_async_callback(runner.cleanup)
        for start, port in ((self.health.start, settings.probes_port), (start_metrics, settings.metrics_port)):
            other: web.AppRunner
            other, _ = await start(settings.host, port)
            stack.push_async_callback(other.cleanup)

    async def _lead(self, background: _Background, stop: asyncio.Event) -> bool:
        sync = background.start("first list", self._first_list())
        await background.first_ended()
        if not sync.done() or sync.cancelled():
            return stop.is_set()
        sync.result()
        background.forget(sync)
        watching = asyncio.Event()
        stop_watching = asyncio.Event()
        background.start("watches", self.watcher.watch(stop_watching, watching), on_stop=stop_watching.set)
        started = background.start("start of the watches", watching.wait())
        await background.first_ended()
        if not started.done() or started.cancelled():
            return stop.is_set()
        background.forget(started)
        self.on_watching()
        for _ in range(self.settings.workers):
            background.start("worker", self.reconciler.work())
        self.health.canary = self.canary
        background.start("canary", self.canary.sing())
        background.start("resync", self._resync())
        self.reports.listening_since = utc_now()
        self.leading = True
        log.info(
            "ready: looking after runs in %s; progress on port %d",
            ", ".join(self.watcher.namespaces or ()) or "all namespaces",
            self.progress_port,
        )
        ended = await background.first_ended()
        if stop.is_set():
            log.info("stopping")
            return True
        log.error("%s ended; this process ends too, to be started anew", ended)
        return False

    async def _first_list(self) -> None:
        while True:
            try:
                await self.watcher.wait_for_crd()
                await self.watcher.list_all()
                return
            except ApiError as error:
                log.warning("cannot list: %s", error)
                await asyncio.sleep(RETRY_PAUSE)

    async def _resync(self) -> None:
        pause, first = FIRST_RESYNC, True
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load, hides nothing
            pause = self.settings.resync_seconds
            try:
                await self.watcher.list_all()
            except ApiError as error:
                log.warning("cannot list: %s", error)
                continue
            await self._rivals.look(self.watcher.namespaces)
            phases = collections.Counter(str(run.status.get("phase", "Pending")) for run in self.cache.runs())
            for phase in ("Pending", "Starting", "Running", "Stalled", "Complete", "Failed"):
                metrics.RUNS.labels(phase).set(phases.get(phase, 0))
            for run in self.cache.runs():
                if not first and not run.finished and not is_true(run.body, "Ready"):
                    self.applier.recheck(run)
                self.queue.add((run.namespace, run.name))
            first = False

    def _why_not_ready(self) -> str | None:
        if self._electing or self.leading:
            return None  # a replica that stands by is ready to take over
        return "the first list is not done"


class _Background:
    """Tasks that run beside each other; the end of any is news, and all end together."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._on_stop: list[Callable[[], object]] = []

    async def __aenter__(self) -> _Background:
        return self

    def start(
        self, name: str, work: Coroutine[Any, Any, Any] | Awaitable[Any], on_stop: Callable[[], object] | None = None
    ) -> asyncio.Task[Any]:
        """Run it. on_stop: asks it to end in order instead of being cancelled at once."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks[task] = name
        if on_stop is not None:
            self._on_stop.append(on_stop)
        return task

    def forget(self, task: asyncio.Task[Any]) -> None:
        """The task's end was expected."""
        self._tasks.pop(task, None)

    async def first_ended(self) -> str:
        """Wait until any task ends; its name. Its error, if it has one, is logged."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled() and task.exception() is not None:
                log.error("%s failed", self._tasks[task], exc_info=task.exception())
        return ", ".join(sorted({self._tasks[task] for task in done}))

    async def __aexit__(self, *_: object) -> None:
        for ask in self._on_stop:
            ask()
        if self._on_stop:
            await asyncio.sleep(0)
        for task, name in self._tasks.items():
            if name != "watches":
                task.cancel()
        pending = [task for task in self._tasks if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=STOP_SECONDS)
        for task in pending:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
