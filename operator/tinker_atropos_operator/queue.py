"""The work queue: each run is with one worker at a time, a change during its work brings it back once, errors put it
off.

The rules are those of client-go's queue, which every controller relies on."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from tinker_atropos_operator.metrics import QUEUE_DEPTH, QUEUE_LATENCY, QUEUE_RETRIES

Key = TypeVar("Key")

FIRST_DELAY = 0.5
LONGEST_DELAY = 300.0


class WorkQueue(Generic[Key]):
    """Keys to work on."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._waiting: OrderedDict[Key, float] = OrderedDict()
        self._processing: dict[Key, float] = {}
        self._again: set[Key] = set()
        self._delayed: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._order = itertools.count()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, key: Key) -> None:
        """Work on the key soon; adding it twice is adding it once."""
        if key in self._processing:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = self._clock()
            self._changed.set()
        QUEUE_DEPTH.set(len(self._waiting))

    def add_after(self, key: Key, seconds: float) -> None:
        """Work on the key in that many seconds, or earlier when it was to be earlier."""
        if seconds <= 0:
            self.add(key)
            return
        at = self._clock() + seconds
        if self._due.get(key, float("inf")) <= at:
            return
        self._due[key] = at
        heapq.heappush(self._delayed, (at, next(self._order), key))
        self._changed.set()

    def retry(self, key: Key) -> float:
        """Put the key off after an error, longer each time; the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures, 20)) * (0.75 + self._jitter() / 2)
        QUEUE_RETRIES.inc()
        self.add_after(key, delay)
        return delay

    def forget_failures(self, key: Key) -> None:
        """The key's work succeeded, or there is none any more."""
        self._failures.pop(key, None)

    async def take(self) -> Key | None:
        """The next key; None when the queue is closed. `done` must follow."""
        while not self._closed:
            self._ripen()
            if self._waiting:
                key, added = self._waiting.popitem(last=False)
                self._processing[key] = self._clock()
                QUEUE_LATENCY.observe(max(0.0, self._clock() - added))
                QUEUE_DEPTH.set(len(self._waiting))
                return key
            self._changed.clear()
            timeout = max(0.0, self._delayed[0][0] - self._clock()) if self._delayed else None
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                continue
        return None

    def done(self, key: Key) -> None:
        """The worker is through with the key; what came meanwhile makes it wait again."""
        self._processing.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Let every worker that waits go home."""
        self._closed = True
        self._changed.set()

    def oldest_work(self) -> float:
        """Seconds that the longest-running piece of work takes already."""
        return max((self._clock() - since for since in self._processing.values()), default=0.0)

    def __len__(self) -> int:
        return len(self._waiting)

    def _ripen(self) -> None:
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            at, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == at:  # else it was moved to an earlier time
                del self._due[key]
                self.add(key)
