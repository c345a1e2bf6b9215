"""Holds new rollouts until what they sample can be trained in time, as the trajectory server grants it.

A request of an environment is one rollout of as many sequences as it asks for. It waits for a grant; one whose prompt
extends something that was sampled before is the next turn of a rollout and goes on at once, because a group that waits
for its own turns would hold the room that they wait for. Not paced, because no group will come of them: requests
without an environment's name (people, other clients) and greedy ones (evaluations, judges).

The stream to the server may break at any time. Who waits goes on waiting and asks again on the next stream; what was
granted goes on, and the next stream hears of it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass

import numpy as np

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.generation import Generated
from tinker_atropos.gateway.metrics import Metrics
from tinker_atropos.gateway.prefixes import Prefixes
from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.versions import prompt_digest

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0
_LOG_EVERY = 15.0
_WORD_SECONDS = 200.0
"""What samples for longer than this is spoken of again, until a grant says how long a credit lasts."""
_WORDS_PER_CREDIT = 3

_log = logging.getLogger(__name__)

Told = pb.CapacityRequest
Open = Callable[[AsyncGenerator[pb.CapacityRequest, None]], AsyncGenerator[pb.CapacityGrant, None]]
"""A new stream to the server; raises StreamLostError or NoPacingError."""


class StreamLostError(Exception):
    """The stream to the server broke; another may come up."""


class NoPacingError(Exception):
    """The server knows no pacing."""


@dataclass(frozen=True)
class Caller:
    """Who asks, by the headers of its relay; "" = no environment."""

    environment: str = ""
    instance: str = ""


@dataclass(eq=False)
class Rollout:
    """What one request began and later ones may go on with."""

    name: str
    caller: Caller
    sequences: int
    prompt: bytes = b""
    """Digest of the prompt that it began with: the requests of one prompt make one group."""
    running: int = 0
    """Requests that sample for it now."""
    spoken: float = 0.0


class Turn:
    """One request's part in its rollouts."""

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        """It began after a grant: only the newest weights may sample it, the grant was given for those."""
        self.results: Sequence[Generated] = ()


class Pacing:
    """The gateway's side of the Capacity stream."""

    def __init__(
        self,
        open_stream: Open,
        refresh: Callable[[], Awaitable[None]],
        metrics: Metrics,
        *,
        on: bool = True,
        clock: Callable[[], float] = time.monotonic,
        prefix: str = "",
    ) -> None:
        """refresh: learn the newest policy. on: False lets everybody in. prefix: of the rollouts' names."""
        self._open = open_stream
        self._refresh = refresh
        self._metrics = metrics
        self._clock = clock
        self._names = (f"{prefix}{number}" for number in itertools.count(1))
        self._prefixes: Prefixes[Rollout] = Prefixes()
        self._waiting: dict[str, tuple[Rollout, asyncio.Future[None]]] = {}
        self._running: dict[str, Rollout] = {}
        self._outgoing: asyncio.Queue[pb.CapacityRequest] | None = None
        self._granted: asyncio.Queue[str] = asyncio.Queue()
        self._word_seconds = _WORD_SECONDS
        self._off = not on

    # -- requests ------------------------------------------------------------------------------------------------------

    def turn(
        self, caller: Caller, prompts: Sequence[list[int]], samples: int, *, greedy: bool
    ) -> AbstractAsyncContextManager[Turn]:
        """Around the sampling of one request: waits at the door, and tells the server what became of it."""
        if self._off or not caller.environment or greedy:
            return _unpaced()
        return self._turn(caller, prompts, samples)

    @asynccontextmanager
    async def _turn(self, caller: Caller, prompts: Sequence[list[int]], samples: int) -> AsyncIterator[Turn]:
        found = [self._extended(caller, prompt) for prompt in prompts]
        known = list(dict.fromkeys(rollout for rollout in found if rollout is not None))
        if known:
            rollouts = known
            for rollout in rollouts:
                self._begin(rollout, samples)
            self._metrics.rollouts.labels("continued").inc()
        else:
            digest = prompt_digest(np.asarray(prompts[0], np.int32)) if prompts else b""
            rollouts = [Rollout(next(self._names), caller, len(prompts) * samples, digest)]
            await self._permission(rollouts[0])
        turn = Turn(fresh=not known)
        failed = False
        try:
            yield turn
        except RequestError:
            # Of a later turn: what was sampled before is still there, and may be posted as it is.
            failed = turn.fresh
            raise
        except BaseException:
            failed = True
            raise
        finally:
            for rollout in rollouts:
                self._end(rollout, failed)
        for result, extended in zip(turn.results, found, strict=False):
            completions = [completion.tokens for completion in result.completions]
            self._prefixes.remember(_scope(caller), result.prompt, completions, extended or rollouts[0])

    def _extended(self, caller: Caller, prompt: Sequence[int]) -> Rollout | None:
        owners = self._prefixes.extended(_scope(caller), prompt)
        idle = (rollout for rollout in owners if not rollout.running)
        return next(idle, owners[-1] if owners else None)

    async def _permission(self, rollout: Rollout) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[rollout.name] = rollout, future
        self._say(rollout, Told.WANT)
        began = self._clock()
        try:
            with self._metrics.held.labels("capacity").track_inprogress():
                await future
        except asyncio.CancelledError:
            # Granted or not, nothing was sampled.
            self._waiting.pop(rollout.name, None)
            self._running.pop(rollout.name, None)
            self._say(rollout, Told.ABANDONED)
            self._metrics.rollouts.labels("abandoned").inc()
            raise
        self._metrics.capacity_seconds.observe(self._clock() - began)

    def _begin(self, rollout: Rollout, sequences: int) -> None:
        rollout.running += 1
        if rollout.running == 1:
            self._running[rollout.name] = rollout
            self._say(rollout, Told.CONTINUED, sequences)

    def _end(self, rollout: Rollout, failed: bool) -> None:
        rollout.running -= 1
        if not rollout.running:
            self._running.pop(rollout.name, None)
            self._say(rollout, Told.ABANDONED if failed else Told.SAMPLED)
            if failed:
                self._metrics.rollouts.labels("abandoned").inc()

    # -- the server ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a stream to the server open. Ends by cancellation, or when there is no pacing."""
        if self._off:
            return
        others = [asyncio.create_task(self._release()), asyncio.create_task(self._keep())]
        pause, said = _FIRST_DELAY, self._clock()
        try:
            while True:
                opened = self._clock()
                try:
                    await self._listen()
                    reason = "the stream ended"
                except StreamLostError as error:
                    reason = str(error)
                if self._clock() - opened > _LONGEST_DELAY:
                    pause, said = _FIRST_DELAY, self._clock()
                if self._clock() - said >= _LOG_EVERY:
                    said = self._clock()
                    _log.warning(
                        "the trajectory server grants no rollouts (%s); %d wait; trying again",
                        reason,
                        len(self._waiting),
                    )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_DELAY)
        except NoPacingError:
            _log.info("the trajectory server knows no pacing: every rollout starts at once")
            self._off = True
            for name in list(self._waiting):
                self._admit(name)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _listen(self) -> None:
        outgoing: asyncio.Queue[pb.CapacityRequest] = asyncio.Queue()

        async def requests() -> AsyncGenerator[pb.CapacityRequest, None]:
            while True:
                yield await outgoing.get()

        self._outgoing = outgoing
        for rollout in self._running.values():
            self._say(rollout, Told.CONTINUED)
        for rollout, _ in self._waiting.values():
            self._say(rollout, Told.WANT)
        try:
            async with aclosing(self._open(requests())) as grants:
                async for grant in grants:
                    if grant.seconds > 0:
                        self._word_seconds = grant.seconds / _WORDS_PER_CREDIT
                    self._granted.put_nowait(grant.rollout)
        finally:
            self._outgoing = None

    async def _release(self) -> None:
        """Let in who was granted, after a look at the newest policy: a grant counts on it and may overtake it."""
        while True:
            names = [await self._granted.get()]
            while not self._granted.empty():
                names.append(self._granted.get_nowait())
            await self._refresh()
            for name in names:
                if name in self._waiting:
                    self._metrics.rollouts.labels("granted").inc()
                    self._admit(name)
                elif name not in self._running:  # granted by the stream before as well, and over since
                    self._tell(Told(rollout=name, kind=Told.ABANDONED))

    def _admit(self, name: str) -> None:
        rollout, future = self._waiting.pop(name)
        if not future.done():  # else it is leaving, and takes its name back itself
            rollout.running = 1
            self._running[name] = rollout
            future.set_result(None)

    async def _keep(self) -> None:
        """Credits expire: what samples for long is spoken of again."""
        while True:
            await asyncio.sleep(self._word_seconds / 4)
            now = self._clock()
            for rollout in self._running.values():
                if now - rollout.spoken >= self._word_seconds:
                    self._say(rollout, Told.CONTINUED)

    def _say(self, rollout: Rollout, kind: Told.Kind, sequences: int | None = None) -> None:
        """Nothing is said while there is no stream: the next one begins with what counts by then."""
        rollout.spoken = self._clock()
        self._tell(
            Told(
                rollout=rollout.name,
                kind=kind,
                environment=rollout.caller.environment,
                instance=rollout.caller.instance,
                sequences=rollout.sequences if sequences is None else sequences,
                prompt=rollout.prompt,
            )
        )

    def _tell(self, message: pb.CapacityRequest) -> None:
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)


def _scope(caller: Caller) -> tuple[str, str]:
    return caller.environment, caller.instance


@asynccontextmanager
async def _unpaced() -> AsyncIterator[Turn]:
    yield Turn(fresh=False)
