"""One run from what is there to what should be: look, decide, apply, write the status, tell what changed."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tinker_atropos_operator.apply import Applier, RefusedError
from tinker_atropos_operator.cache import Cache, RunKey
from tinker_atropos_operator.events import EventRecorder
from tinker_atropos_operator.kube import ApiError
from tinker_atropos_operator.metrics import RECONCILE_DURATION, RECONCILES
from tinker_atropos_operator.plan.observed import Observed, Run
from tinker_atropos_operator.plan.progress import Heard
from tinker_atropos_operator.plan.run import Decision, Situation, decide, with_refusal
from tinker_atropos_operator.plan.trainer import attempt_of, podless_job
from tinker_atropos_operator.queue import WorkQueue
from tinker_atropos_operator.specs.run_objects import Platform

log = logging.getLogger(__name__)


@dataclass
class Reports:
    """The newest progress report of each run, by the run's uid; kept in memory only, for the status holds what
    matters."""

    newest: dict[str, Heard] = field(default_factory=dict)
    listening_since: dt.datetime | None = None

    def forget(self, uid: str) -> None:
        self.newest.pop(uid, None)


class Reconciler:
    """Works on the runs that the queue hands out."""

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue[RunKey],
        applier: Applier,
        recorder: EventRecorder,
        reports: Reports,
        platform: Platform,
        now: Callable[[], dt.datetime],
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._applier = applier
        self._recorder = recorder
        self._reports = reports
        self.platform = platform
        self._now = now
        self._uids: dict[RunKey, str] = {}
        self.on_forget: Callable[[str], None] = lambda uid: None
        """Told the uid of a run that is gone."""

    async def work(self) -> None:
        """One worker; ends when the queue is closed."""
        while (key := await self._queue.take()) is not None:
            try:
                with RECONCILE_DURATION.time():
                    await self._attempt(key)
            finally:
                self._queue.done(key)

    async def _attempt(self, key: RunKey) -> None:
        where = {"namespace": key[0], "run": key[1]}
        try:
            look_again = await self.reconcile(key)
        except ApiError as error:
            if error.conflict or error.not_found or error.namespace_ends:
                # Somebody else was quicker, or the run is gone: what the watch brings next decides.
                RECONCILES.labels("conflict").inc()
                log.debug("put off: %s", error, extra=where)
            else:
                RECONCILES.labels("error").inc()
                log.warning("cannot reconcile, trying again: %s", error, extra={**where, "status": error.status})
            self._queue.retry(key)
            return
        except Exception:
            RECONCILES.labels("error").inc()
            log.exception("unexpected error in a reconciliation, trying again", extra=where)
            self._queue.retry(key)
            return
        RECONCILES.labels("done").inc()
        if look_again is not None:
            self._queue.add_after(key, look_again)

    async def reconcile(self, key: RunKey) -> float | None:
        """Reconcile one run; seconds after which to look again though nothing changed."""
        run = self._cache.run(key)
        known = self._uids.get(key)
        if known is not None and (run is None or run.uid != known):
            self._forget(key, known)
        if run is None:
            self._queue.forget_failures(key)
            return None
        self._uids[key] = run.uid
        observed = self._cache.observed(run)
        situation = Situation(
            run=run,
            observed=observed,
            platform=self.platform,
            now=self._now(),
            heard=self._reports.newest.get(run.uid),
            listening_since=self._reports.listening_since,
            trainer_refused=await self._trainer_refused(run, observed),
            token_made=self._applier.token_made(run),
        )
        decision = decide(situation)
        if decision.make_token:
            self._applier.recheck(run)
        refused: RefusedError | None = None
        try:
            await self._applier.apply(run, decision.children, situation.observed, situation.now)
        except RefusedError as error:
            refused = error
            decision = decide(with_refusal(situation, error.trouble))
        await self._record(run, decision)
        await self._applier.delete(run, decision.deletions)
        if refused is not None and not run.deleting:
            log.info("refused: %s", refused, extra={"namespace": key[0], "run": key[1]})
            self._queue.retry(key)
        else:
            self._queue.forget_failures(key)
        return decision.look_again

    async def _trainer_refused(self, run: Run, observed: Observed) -> str:
        if run.deleting or run.finished:
            return ""
        attempt = attempt_of(observed, int(run.status.get("trainerAttempt") or 1))
        job = podless_job(run.name, observed, attempt)
        return "" if job is None else await self._applier.why_no_pod(job, self._now())

    async def _record(self, run: Run, decision: Decision) -> None:
        if decision.status is None:
            return
        if await self._applier.write_status(run, decision.status):
            if decision.changed:
                log.info(
                    "%s: %s",
                    decision.status["phase"],
                    decision.status["message"],
                    extra={
                        "namespace": run.namespace,
                        "run": run.name,
                        "changed": {entry.type: f"{entry.status}/{entry.reason}" for entry in decision.changed},
                    },
                )
            await self._recorder.record(run, decision.changed, decision.warned)

    def _forget(self, key: RunKey, uid: str) -> None:
        self._uids.pop(key, None)
        self._applier.forget(uid)
        self._reports.forget(uid)
        self.on_forget(uid)
