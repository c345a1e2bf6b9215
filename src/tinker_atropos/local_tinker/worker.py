"""The one thread that computes: takes jobs in order, and runs samples that wait for the same weights together.

Sampling goes on a stretch of tokens at a time: other jobs come in between, so that a long answer holds nobody up.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tinker_atropos.local_tinker.engine import Engine
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.futures import Outcome, Promise, failed, failed_by
from tinker_atropos.local_tinker.generation import Policy, SampleRequest, SampleResult, SamplingRun

logger = logging.getLogger(__name__)

# Requests of one burst arrive within milliseconds of each other: waiting for company costs less than a run alone.
_LINGER = 0.004
_IDLE = 0.25
_MOST_ROWS = 256
_MOST_RUNS = 4


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


@dataclass
class _Active:
    """A run that is under way and the jobs that still wait for it, by their number in it."""

    run: SamplingRun
    waiting: dict[int, Sampling]


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
        self._active: deque[_Active] = deque()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience: float) -> bool:
        """End after what is computed right now; False if it did not end in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(patience)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """False when the thread has died, which it never should: the server is then of no use."""
        return self._thread.is_alive()

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
            elif isinstance(job, Call):
                self._settle([(job.promise, self._guarded(job.run))] if not job.promise.cancelled else [])
            elif job is not None:
                self._start(self._with_company(job))
            elif not self._active:
                return
            if self._active:
                self._advance(self._active.popleft())

    def _next(self) -> tuple[Job | None, Callable[[], None] | None]:
        """The next job, or nothing while samples are under way; (None, None) without any means: end."""
        with self._changed:
            while not self._stopping:
                if (job := self._takeable()) is not None or self._active:
                    return job, None
                if self._spare and not self._changed.wait_for(lambda: self._jobs or self._stopping, _IDLE):
                    return None, self._spare.popleft()
                if not self._spare:
                    self._changed.wait()
            self._active.clear()
            return None, None

    def _takeable(self) -> Job | None:
        """The first job; beyond the most runs that memory shall hold, the first that is no sample."""
        for position, job in enumerate(self._jobs):
            if isinstance(job, Call) or len(self._active) < _MOST_RUNS:
                del self._jobs[position]
                return job
        return None

    def _with_company(self, first: Sampling) -> list[Sampling]:
        """`first` and what waits for the same weights in a like shape; the order of the others is kept."""
        length = self._engine.buckets.length(len(first.request.prompt))
        taken = [first]
        rows = first.request.samples
        with self._changed:
            if not self._jobs and not self._active:
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

    def _start(self, jobs: list[Sampling]) -> None:
        jobs = [job for job in jobs if not job.promise.cancelled]
        if not jobs:
            return
        try:
            run = self._engine.run(jobs[0].policy(), [job.request for job in jobs])
        except Exception as error:
            self._fail(jobs, error)
        else:
            self._active.append(_Active(run, dict(enumerate(jobs))))

    def _advance(self, active: _Active) -> None:
        """Another stretch of one run; runs take turns, and jobs come in between."""
        try:
            complete = active.run.advance()
        except Exception as error:
            self._fail(list(active.waiting.values()), error)
            return
        outcomes = []
        for index, result in complete:
            job = active.waiting.pop(index)
            outcomes.append((job.promise, self._guarded(functools.partial(job.finish, result))))
        self._settle(outcomes)
        if not active.run.finished:
            self._active.append(active)

    def _fail(self, jobs: list[Sampling], error: Exception) -> None:
        outcome = self._told(error, "sampling")
        self._settle([(job.promise, outcome) for job in jobs])

    def _guarded(self, run: Callable[[], Outcome]) -> Outcome:
        try:
            return run()
        except Exception as error:
            return self._told(error, "a job")

    @staticmethod
    def _told(error: Exception, what: str) -> Outcome:
        """An error as the client gets it; what is not the client's doing is logged in full."""
        if isinstance(error, UserError):
            return failed_by(error)
        logger.error("%s failed", what, exc_info=error)
        return failed(f"{type(error).__name__}: {error}", "server")
