"""The progress receiver: trainers report by HTTPS, and learn what the status knows of their run.

A report is believed only from a pod of the run's own trainer Job: the token's audience names the run object (uid
included) and the token is bound to a pod, which must belong to that Job. Losing a report never harms training."""

from __future__ import annotations

import datetime as dt
import ssl
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from tinker_atropos.protocol.progress import (
    MAX_BODY,
    PATH,
    CheckpointReport,
    ProgressAnswer,
    ProgressReport,
    audience,
)
from tinker_atropos_operator.cache import Cache, RunKey
from tinker_atropos_operator.kube import PODS, ApiError, Kube
from tinker_atropos_operator.metrics import PROGRESS_REPORTS
from tinker_atropos_operator.plan.observed import Object, Run, controller_uid, name_of
from tinker_atropos_operator.plan.progress import Heard, supersedes
from tinker_atropos_operator.queue import WorkQueue
from tinker_atropos_operator.reconcile import Reports
from tinker_atropos_operator.specs import labels
from tinker_atropos_operator.tokens import PodIdentity, TokenRefusedError, TokenVerifier

RATE, BURST = 1.0, 10.0
"""Reports of one run per second, and at once: one busy run must not delay the others."""


class Bucket:
    """A token bucket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._level = BURST
        self._at = clock()

    def take(self) -> bool:
        now = self._clock()
        self._level = min(BURST, self._level + (now - self._at) * RATE)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True


class ProgressReceiver:
    """Takes reports while this process leads; answers 503 otherwise, so that the client tries another replica."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        queue: WorkQueue[RunKey],
        reports: Reports,
        verifier: TokenVerifier,
        leading: Callable[[], bool],
        now: Callable[[], dt.datetime],
        status_interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._queue = queue
        self._reports = reports
        self._verifier = verifier
        self._leading = leading
        self._now = now
        self._status_interval = status_interval
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._enqueued: dict[str, float] = {}

    def application(self) -> web.Application:
        """The routes, for aiohttp."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post(PATH, self._counted(self.receive))
        return app

    async def start(self, host: str, port: int, context: ssl.SSLContext) -> tuple[web.AppRunner, int]:
        """Listen; the runner to clean up and the port."""
        runner = web.AppRunner(self.application(), access_log=None, handle_signals=False)
        await runner.setup()
        site = web.TCPSite(runner, host, port, ssl_context=context)
        await site.start()
        return runner, int(runner.addresses[0][1])

    def forget(self, uid: str) -> None:
        """The run is gone."""
        self._buckets.pop(uid, None)
        self._enqueued.pop(uid, None)

    async def receive(self, request: web.Request) -> web.Response:
        """One report."""
        if not self._leading():
            return _refusal(503, "this replica does not lead; try again on a new connection", retry_after=1)
        key = (request.match_info["namespace"], request.match_info["name"])
        run = self._cache.run(key)
        if run is None or run.deleting:
            return _refusal(404, f"there is no run {key[0]}/{key[1]}")
        try:
            pod = await self._pod_of(request, run)
        except TokenRefusedError as refused:
            return _refusal(refused.status, str(refused))
        if not self._buckets.setdefault(run.uid, Bucket(self._clock)).take():
            return _refusal(429, f"more than {RATE:.0f} report per second; the newest is enough", retry_after=2)
        try:
            report = ProgressReport.model_validate_json(await request.read())
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, f"a report has at most {MAX_BODY} bytes")
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "body"
            return _refusal(422, f"{place}: {first['msg']}")
        if report.run_uid != run.uid:
            return _refusal(403, "the report is about another run object")
        answer = self._answer(run)
        if not run.finished:
            self._keep(run, Heard(report, name_of(pod), self._now()))
        return web.json_response(text=answer.model_dump_json(by_alias=True, exclude_none=True))

    async def _pod_of(self, request: web.Request, run: Run) -> Object:
        """The trainer's pod that sends the request. Raises TokenRefusedError."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise TokenRefusedError(401, "send the pod's projected token as Authorization: Bearer")
        identity = await self._verifier.verify(token.strip(), audience(run.namespace, run.name, run.uid))
        pod = await self._find(run, identity)
        if pod is None:
            raise TokenRefusedError(403, f"the pod {identity.name} does not belong to this run's trainer Job")
        return pod

    async def _find(self, run: Run, identity: PodIdentity) -> Object | None:
        if identity.namespace != run.namespace:
            return None
        pod = self._cache.trainer_pod(run, identity.uid)
        if pod is not None:
            return pod
        # A report can be quicker than the watch, and a trainer's first one matters: the answer may hold its checkpoint.
        try:
            live = await self._kube.get(PODS, run.namespace, identity.name)
        except ApiError:
            return None
        jobs = {str(job["metadata"]["uid"]) for job in self._cache.observed(run).jobs.values()}
        belongs = live["metadata"]["uid"] == identity.uid and controller_uid(live) in jobs
        return live if belongs else None

    def _keep(self, run: Run, heard: Heard) -> None:
        old = self._reports.newest.get(run.uid)
        pods = self._cache.observed(run).pods_of(labels.TRAINER)
        newest_pod = name_of(pods[-1]) if pods else heard.pod
        if not supersedes(heard, old, newest_pod):
            return
        self._reports.newest[run.uid] = heard
        key = (run.namespace, run.name)
        final = heard.report.phase in ("Complete", "Failed")
        if old is None or old.pod != heard.pod or final:
            self._queue.add(key)
            self._enqueued[run.uid] = self._clock()
            return
        # Progress alone is written now and then; the newest report stands for those between.
        at = max(self._clock(), self._enqueued.get(run.uid, float("-inf")) + self._status_interval)
        self._queue.add_after(key, at - self._clock())
        self._enqueued[run.uid] = at

    def _answer(self, run: Run) -> ProgressAnswer:
        """What was known of the run before this report; not all of it need be in the status yet."""
        stored = run.status.get("checkpoint")
        epoch = int(run.status.get("epoch") or 0)
        checkpoint = None
        if stored:
            checkpoint = CheckpointReport(
                path=str(stored["path"]), step=int(stored["step"]), time=str(stored.get("time", ""))
            )
        last = self._reports.newest.get(run.uid)
        if last is not None and last.report.epoch >= epoch:
            epoch = last.report.epoch
            checkpoint = last.report.checkpoint or checkpoint
        return ProgressAnswer(checkpoint=checkpoint, epoch=epoch, stop=run.finished)

    def _counted(
        self, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def counted(request: web.Request) -> web.Response:
            response = await handler(request)
            PROGRESS_REPORTS.labels(str(response.status)).inc()
            return response

        return counted


def _refusal(status: int, message: str, retry_after: int | None = None) -> web.Response:
    response = web.json_response({"error": message}, status=status)
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if status == 503:
        response.force_close()
    return response
