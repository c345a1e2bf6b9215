"""Promises: every costly call answers with a request id at once, and its outcome is fetched by long poll.

Request ids follow from what is asked (model and sequence number), so a request that is sent again gets the promise it
already has and is not carried out twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tinker_atropos.local_tinker.errors import UserError

T = TypeVar("T")

KEEP_FETCHED = 120.0
KEEP_UNFETCHED = 3600.0


@dataclass(frozen=True)
class Outcome:
    """What a promise came to: a JSON body, an encoded protobuf, or an error with its category."""

    json: dict[str, Any] | None = None
    proto: bytes | None = None


def failed(message: str, category: str) -> Outcome:
    """An error as the SDK reads it: `user` (yours to fix), `server` (broken here)."""
    return Outcome(json={"error": message, "category": category})


def failed_by(error: UserError) -> Outcome:
    return failed(error.message, "user")


@dataclass
class Promise:
    """One request's outcome to be. Settled and awaited on the event loop only."""

    request_id: str
    created: float
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Outcome | None = None
    can_be_cancelled: bool = False
    cancelled: bool = False
    settled_at: float | None = None
    fetched_at: float | None = None

    def settle(self, outcome: Outcome, now: float) -> None:
        """First outcome wins: a cancelled request may still finish."""
        if self.outcome is None:
            self.outcome, self.settled_at = outcome, now
            self.settled.set()


class Promises:
    """All promises by request id, forgotten some time after they were fetched."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._promises: dict[str, Promise] = {}

    def __len__(self) -> int:
        return len(self._promises)

    def open(self, request_id: str) -> tuple[Promise, bool]:
        """The promise of a request, and whether it is new."""
        if (known := self._promises.get(request_id)) is not None:
            return known, False
        promise = self._promises[request_id] = Promise(request_id, self._clock())
        return promise, True

    def find(self, request_id: str) -> Promise | None:
        return self._promises.get(request_id)

    def settle(self, promise: Promise, outcome: Outcome) -> None:
        promise.settle(outcome, self._clock())

    def forget(self, promise: Promise) -> None:
        """Take back a promise whose request was refused: corrected and sent again, it is a new one."""
        self._promises.pop(promise.request_id, None)

    def fetched(self, promise: Promise) -> None:
        promise.fetched_at = self._clock()

    def forget_old(self) -> None:
        """Drop what was fetched a while ago, and what nobody came for."""
        now = self._clock()
        for request_id, promise in list(self._promises.items()):
            if promise.settled_at is None:
                continue
            fetched = promise.fetched_at is not None and now - promise.fetched_at > KEEP_FETCHED
            if fetched or now - promise.settled_at > KEEP_UNFETCHED:
                del self._promises[request_id]


class SequenceGate(Generic[T]):
    """Lets the calls of one model through in the order of their sequence numbers, whatever order they arrive in.

    The SDK sends the first chunk of a batch last, so later ones are held back.
    """

    def __init__(self, first: int = 1) -> None:
        self.next = first
        self._held: dict[int, T] = {}

    @property
    def held(self) -> int:
        return len(self._held)

    def offer(self, number: int, item: T) -> list[T]:
        """Hold `item`; return all that may go now, in order. What has passed already is not taken again."""
        if number < self.next or number in self._held:
            return []
        self._held[number] = item
        ready: list[T] = []
        while self.next in self._held:
            ready.append(self._held.pop(self.next))
            self.next += 1
        return ready
