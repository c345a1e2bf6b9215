"""The one thread that computes: takes jobs in order, and runs samples that wait for the same weights together."""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tinker_atropos.local_tinker.engine import Engine, Policy, SampleRequest, SampleResult
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.futures import Outcome, Promise, failed, failed_by

logger = logging.getLogger(__name__)

# Requests of one burst arrive within milliseconds of each other: waiting for company costs less than a run alone.
_LINGER = 0.004
_IDLE = 0.25
_MOST_ROWS = 256


@dataclass(frozen=True)
class Call:
    """A job of its own: a training call, a save, a load."""

    promise: Promise
    run: Callable[[], Outcome]


@dataclass(frozen=True)
class Sampling:
    """A request that may share a run with others of the same weights (equal names, equal weights)."""

    promise: Promise
    weights: str
    policy: Callable[[], Policy]
    request: SampleRequest
    finish: Callable[[SampleResult], Outcome]


Job = Call | Sampling
Settle = Callable[[list[tuple[Promise, Outcome]]], None]


class Worker:
    """Owns the engine. `settle` is called on this thread and must hand outcomes to the event loop."""

    def __init__(self, engine: Engine, settle: Settle) -> None:
        self._engine = engine
        self._settle = settle
        self._jobs: deque[Job] = deque()
        self._spare: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience: float) -> bool:
        """End after the job that runs now; False if it did not end in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(patience)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def submit(self, jobs: Iterable[Job]) -> None:
        with self._changed:
            self._jobs.extend(jobs)
            self._changed.notify_all()

    def when_idle(self, task: Callable[[], None]) -> None:
        """Work that gives way to every job: compiling ahead."""
        with self._changed:
            self._spare.append(task)
            self._changed.notify_all()

    # ------------------------------------------------------------------ thread

    def _loop(self) -> None:
        while True:
            job, task = self._next()
            if task is not None:
                try:
                    task()
                except Exception:
                    logger.exception("warming up failed; programs will be compiled when they are needed")
            elif job is None:
                return
            elif isinstance(job, Call):
                self._settle([(job.promise, self._guarded(job.run))] if not job.promise.cancelled else [])
            else:
                self._sample(self._with_company(job))

    def _next(self) -> tuple[Job | None, Callable[[], None] | None]:
        with self._changed:
            while not self._stopping:
                if self._jobs:
                    return self._jobs.popleft(), None
                if self._spare and not self._changed.wait_for(lambda: self._jobs or self._stopping, _IDLE):
                    return None, self._spare.popleft()
                if not self._spare:
                    self._changed.wait()
            return None, None

    def _with_company(self, first: Sampling) -> list[Sampling]:
        """`first` and what waits for the same weights in a like shape; the order of the others is kept."""
        length = self._engine.buckets.length(len(first.request.prompt))
        taken = [first]
        rows = first.request.samples
        with self._changed:
            if not self._jobs:
                self._changed.wait_for(lambda: self._stopping, _LINGER)
            left: deque[Job] = deque()
            for job in self._jobs:
                if not isinstance(job, Sampling) or job.weights != first.weights or rows >= _MOST_ROWS:
                    left.append(job)
                elif self._engine.buckets.length(len(job.request.prompt)) == length:
                    taken.append(job)
                    rows += job.request.samples
                else:
                    left.append(job)
            self._jobs = left
        return taken

    def _sample(self, jobs: list[Sampling]) -> None:
        jobs = [job for job in jobs if not job.promise.cancelled]
        if not jobs:
            return
        try:
            results = self._engine.sample(jobs[0].policy(), [job.request for job in jobs])
        except UserError as error:
            self._settle([(job.promise, failed_by(error)) for job in jobs])
        except Exception as error:
            logger.exception("sampling failed")
            self._settle([(job.promise, failed(f"{type(error).__name__}: {error}", "server")) for job in jobs])
        else:
            pairs = zip(jobs, results, strict=True)
            self._settle([(job.promise, self._guarded(functools.partial(job.finish, result))) for job, result in pairs])

    @staticmethod
    def _guarded(run: Callable[[], Outcome]) -> Outcome:
        try:
            return run()
        except UserError as error:
            return failed_by(error)
        except Exception as error:
            logger.exception("a job failed")
            return failed(f"{type(error).__name__}: {error}", "server")
