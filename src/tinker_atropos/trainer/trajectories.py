"""The trainer's side of trajectories.proto: patience with a server that is away, clear ends where that cannot help."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.identity import bearer
from tinker_atropos.protocol.trajectories_pb2_grpc import TrajectoriesStub
from tinker_atropos.trainer.failures import ConfigError, FencedError, StoreDamagedError, StoreLostError

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

CALL_SECONDS = 30.0
FINISH_SECONDS = 300.0
LEASE_WAIT_SECONDS = 20.0
LEASE_SECONDS = 900.0
MAX_MESSAGE = 1 << 30  # bytes; a batch of 512 × 2048 tokens is about 15 MB

_AWAY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
)


class TrajectoryClient:
    """Calls of one trainer. A call waits as long as the server is away; `on_wait` hears about it."""

    def __init__(self, address: str, token: str | None, on_wait: Callable[[str], None]) -> None:
        self._address = address
        self._metadata = (("authorization", bearer(token)),) if token else ()
        self._on_wait = on_wait
        self._channel: grpc.aio.Channel | None = None
        self._unanswered: set[str] = set()

    @property
    def away(self) -> bool:
        """Whether a call waits for a server that does not answer."""
        return bool(self._unanswered)

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(
            self._address,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE),
                ("grpc.max_send_message_length", MAX_MESSAGE),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.max_reconnect_backoff_ms", 2_000),
                ("grpc.initial_reconnect_backoff_ms", 200),
            ],
        )
        self._stub = TrajectoriesStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def _call(self, what: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            return await self._patiently(what, call)
        finally:
            self._unanswered.discard(what)

    async def _patiently(self, what: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        delay = 0.2
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details() or ""
                if code is grpc.StatusCode.FAILED_PRECONDITION:
                    raise FencedError(f"{what} was refused: {details}") from error
                if code is grpc.StatusCode.ABORTED:
                    raise StoreLostError(details) from error
                if code is grpc.StatusCode.UNAUTHENTICATED:
                    raise ConfigError(
                        f"the trajectory server refused the run's token ({details}); give both the same token file"
                    ) from error
                if code is grpc.StatusCode.DATA_LOSS:
                    raise StoreDamagedError(
                        f"the trajectory server's store is damaged: {details}; restore what it names from a copy, or "
                        "start a new run: this one's checkpoints are not concerned"
                    ) from error
                if code not in _AWAY:
                    raise ConfigError(
                        f"{what} was refused by the trajectory server: {details} ({code.name})"
                    ) from error
                log.info(
                    "trajectory server at %s does not answer %s (%s), trying again", self._address, what, code.name
                )
                self._unanswered.add(what)
                self._on_wait(f"waiting for the trajectory server at {self._address}")
            await asyncio.sleep(delay)
            delay = min(delay * 2, 3.0)

    async def takeover(self, request: pb.TakeoverRequest) -> pb.TakeoverResponse:
        return await self._call(
            "Takeover", lambda: self._stub.Takeover(request, timeout=CALL_SECONDS, metadata=self._metadata)
        )

    async def lease(self, epoch: int, step: int) -> pb.LeaseResponse:
        """One wait for the batch of `step`; a response without a batch says what is waited for."""
        request = pb.LeaseRequest(
            epoch=epoch, for_step=step, wait_seconds=LEASE_WAIT_SECONDS, lease_seconds=LEASE_SECONDS
        )
        timeout = LEASE_WAIT_SECONDS + CALL_SECONDS
        return await self._call("Lease", lambda: self._stub.Lease(request, timeout=timeout, metadata=self._metadata))

    async def renew(self, epoch: int, lease_id: str) -> None:
        request = pb.RenewRequest(epoch=epoch, lease_id=lease_id, lease_seconds=LEASE_SECONDS)
        await self._call("Renew", lambda: self._stub.Renew(request, timeout=CALL_SECONDS, metadata=self._metadata))

    async def ack(self, request: pb.AckRequest) -> pb.LedgerSums:
        answer = await self._call("Ack", lambda: self._stub.Ack(request, timeout=CALL_SECONDS, metadata=self._metadata))
        sums: pb.LedgerSums = answer.ledger
        return sums

    async def cover(self, epoch: int, state: pb.State) -> pb.LedgerSums:
        request = pb.CoverRequest(epoch=epoch, state=state)
        answer = await self._call(
            "Cover", lambda: self._stub.Cover(request, timeout=CALL_SECONDS, metadata=self._metadata)
        )
        sums: pb.LedgerSums = answer.ledger
        return sums

    async def finish(self, epoch: int) -> pb.FinishResponse:
        """The run is over; the answer says where its ledger was exported to."""
        request = pb.FinishRequest(epoch=epoch)

        async def call() -> pb.FinishResponse:
            try:
                answer: pb.FinishResponse = await self._stub.Finish(
                    request, timeout=FINISH_SECONDS, metadata=self._metadata
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return pb.FinishResponse()  # a server of an earlier version, which exports nothing
                raise
            return answer

        return await self._call("Finish", call)

    async def publish(self, epoch: int, policy: pb.Policy) -> None:
        request = pb.PublishRequest(epoch=epoch, policy=policy)
        await self._call("Publish", lambda: self._stub.Publish(request, timeout=CALL_SECONDS, metadata=self._metadata))
