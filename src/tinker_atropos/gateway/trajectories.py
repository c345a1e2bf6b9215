"""The gateway's side of the trajectory server: new policies, which policy sampled what, which rollouts may start.

Streams are read and written call by call. gRPC's own iterators run in tasks and generators of their own, which it
leaves behind when a stream breaks: asyncio then tells of them as faults of this program.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from tinker_atropos.gateway.generation import Version
from tinker_atropos.gateway.pacing import NoPacingError, StreamLostError
from tinker_atropos.gateway.policies import Policy
from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.identity import AUTHORIZATION_HEADER, bearer
from tinker_atropos.protocol.trajectories_pb2_grpc import TrajectoriesStub

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0
_LOG_EVERY = 15.0
_RECORD_SECONDS = 30.0
_NEWEST_SECONDS = 2.0
_MOST_DIGESTS = 8192  # of one call; keeps it far below gRPC's message limit

_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)

_log = logging.getLogger(__name__)


class RecordRefusedError(Exception):
    """The trajectory server will never take this record."""


@dataclass
class _Waiting:
    """Digests of one (instance, version) that wait for the next call."""

    digests: list[bytes] = field(default_factory=list)
    futures: list[asyncio.Future[None]] = field(default_factory=list)


class Trajectories:
    """A client of the trajectory server that outlives its restarts."""

    vocabulary_size = 0
    """Told with each record: the server refuses groups with token ids beyond it. 0 = not known yet."""

    def __init__(self, target: str, token: str | None) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        self._stub = TrajectoriesStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = ((AUTHORIZATION_HEADER.lower(), bearer(token)),) if token is not None else ()
        self._target = target
        self._waiting: dict[tuple[str, Version], _Waiting] = {}
        self._senders: dict[tuple[str, Version], asyncio.Task[None]] = {}

    async def close(self) -> None:
        for task in self._senders.values():
            task.cancel()
        await self._channel.close()

    async def watch(self, offer: Callable[[Policy], None]) -> None:
        """Offer every policy that is published. Ends only by cancellation."""
        loop = asyncio.get_running_loop()
        pause, said = _FIRST_DELAY, loop.time()
        while True:
            reason = "the stream ended"
            try:
                call = self._stub.WatchPolicy(pb.WatchPolicyRequest(), metadata=self._metadata)
                while (policy := await call.read()) is not grpc.aio.EOF:
                    pause = _FIRST_DELAY
                    offer(_policy(policy))
            except grpc.aio.AioRpcError as error:
                _heed_cancellation()
                reason = f"{error.code().name}: {error.details()}"
            if loop.time() - said >= _LOG_EVERY:
                said = loop.time()
                _log.warning(
                    "the trajectory server %s does not tell of policies (%s); trying again", self._target, reason
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_DELAY)

    async def newest(self, offer: Callable[[Policy], None]) -> None:
        """Offer the policy that is the newest at this moment; returns without one when there is none or no server."""
        try:
            call = self._stub.WatchPolicy(pb.WatchPolicyRequest(), metadata=self._metadata, timeout=_NEWEST_SECONDS)
            if (policy := await call.read()) is not grpc.aio.EOF:
                offer(_policy(policy))
            call.cancel()
        except grpc.aio.AioRpcError as error:
            _heed_cancellation()
            _log.debug("cannot learn the newest policy: %s", error.details())

    async def capacity(
        self, requests: AsyncGenerator[pb.CapacityRequest, None]
    ) -> AsyncGenerator[pb.CapacityGrant, None]:
        """A Capacity stream: yields grants until it breaks, and raises then."""
        call = self._stub.Capacity(metadata=self._metadata)
        sender = asyncio.create_task(_send_all(call, requests))
        try:
            while (grant := await call.read()) is not grpc.aio.EOF:
                yield grant
        except grpc.aio.AioRpcError as error:
            _heed_cancellation()
            reason = f"{error.code().name}: {error.details()}"
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NoPacingError(reason) from error
            raise StreamLostError(reason) from error
        finally:
            sender.cancel()
            call.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def record(self, instance: str, version: Version, digests: list[bytes]) -> None:
        """Returns when the digests are durable. Records that wait at the same time travel in one call."""
        key = (instance, version)
        waiting = self._waiting.setdefault(key, _Waiting())
        waiting.digests.extend(digests)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.futures.append(future)
        if key not in self._senders:
            self._senders[key] = asyncio.create_task(self._send(key))
        await future

    async def _send(self, key: tuple[str, Version]) -> None:
        try:
            while (waiting := self._waiting.pop(key, None)) is not None:
                try:
                    for start in range(0, len(waiting.digests), _MOST_DIGESTS):
                        await self._send_one(key, waiting.digests[start : start + _MOST_DIGESTS])
                except Exception as error:  # whatever it is: who waits must hear of it
                    for future in waiting.futures:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for future in waiting.futures:
                        if not future.done():
                            future.set_result(None)
        finally:
            del self._senders[key]

    async def _send_one(self, key: tuple[str, Version], digests: list[bytes]) -> None:
        instance, version = key
        request = pb.RecordRequest(
            instance=instance,
            version=pb.PolicyVersion(epoch=version.epoch, step=version.step),
            digests=digests,
            vocabulary_size=self.vocabulary_size,
        )
        loop = asyncio.get_running_loop()
        pause, said = _FIRST_DELAY, loop.time()
        while True:
            try:
                await self._stub.Record(request, metadata=self._metadata, timeout=_RECORD_SECONDS)
            except grpc.aio.AioRpcError as error:
                _heed_cancellation()
                if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
                    raise RecordRefusedError(f"{error.code().name}: {error.details()}") from error
                if loop.time() - said >= _LOG_EVERY:
                    said = loop.time()
                    _log.warning("holding answers: the trajectory server does not take versions (%s)", error.details())
            else:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_DELAY)


def _heed_cancellation() -> None:
    """Raise the cancellation that gRPC swallowed: a call that fails while it is cancelled raises its failure only."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _send_all(call: Any, requests: AsyncGenerator[pb.CapacityRequest, None]) -> None:
    """Send until the call ends; why it ended is for its reader to hear."""
    async with aclosing(requests):
        async for request in requests:
            try:
                await call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return


def _policy(message: pb.Policy) -> Policy:
    return Policy(Version(message.version.epoch, message.version.step), message.sampler_path, message.base_model)
