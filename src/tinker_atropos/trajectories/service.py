"""The gRPC side: the trainer's takeover, leases and acknowledgements, the gateway's policies and records."""

# ruff: noqa: N802 - the methods are named in trajectories.proto

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol import trajectories_pb2_grpc as pb_grpc
from tinker_atropos.protocol.identity import bearer
from tinker_atropos.protocol.versions import DIGEST_SIZE
from tinker_atropos.trajectories import batches
from tinker_atropos.trajectories.exchange import LEASE_SECONDS, MAX_WAIT_SECONDS, Exchange
from tinker_atropos.trajectories.export import ExportError
from tinker_atropos.trajectories.ledger import Batch, LedgerError, UnknownEpochError, UnknownLeaseError
from tinker_atropos.trajectories.lineage import Version
from tinker_atropos.trajectories.pacing import SAMPLING_SECONDS
from tinker_atropos.trajectories.post_messages import read_message
from tinker_atropos.trajectories.posts import InvalidPostError
from tinker_atropos.trajectories.settings import InvalidSettingsError, Settings
from tinker_atropos.trajectories.store import StoreCorruptError, StoreUnavailableError
from tinker_atropos.trajectories.wire import length_delimited

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)
"""Batches are large; the gateway's stream is quiet for long, so both ends ping."""


POSTS_UNDER_WAY = 64
"""Of one stream; more wait in its flow control."""


class Service(pb_grpc.TrajectoriesServicer):
    """The Trajectories service on one exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def Takeover(self, request: pb.TakeoverRequest, context: Context) -> pb.TakeoverResponse:
        fallback = request.fallback if request.HasField("fallback") else None

        async def answer() -> pb.TakeoverResponse:
            settings = Settings.from_message(request.settings)
            fresh = await self._exchange.take_over(settings, request.holder, fallback, request.after_epoch)
            ledger = self._exchange.ledger
            replayed = sum(batch.replay for batch in ledger.batches.values())
            return pb.TakeoverResponse(
                epoch=ledger.epoch,
                state=ledger.state,
                replayed_batches=replayed,
                store_was_empty=fresh,
                policy=ledger.policy,
            )

        return await _answer(context, answer)

    async def Lease(self, request: pb.LeaseRequest, context: Context) -> bytes:
        """A serialized LeaseResponse (see `LeaseInterceptor`)."""
        seconds = request.lease_seconds or LEASE_SECONDS

        async def answer() -> bytes:
            _require(request.for_step >= 1, f"for_step is {request.for_step}; the first step is 1")
            _require(
                0 <= request.wait_seconds <= MAX_WAIT_SECONDS,
                f"wait_seconds is {request.wait_seconds}; give 0 to {MAX_WAIT_SECONDS:g}",
            )
            batch = await self._exchange.lease(request.epoch, request.for_step, request.wait_seconds, seconds)
            if batch is None:
                waiting_for = self._exchange.waiting_for()
                return pb.LeaseResponse(waiting_for=waiting_for, warnings=self._warnings()).SerializeToString()
            return await self._serialized(batch, seconds)

        return await _answer(context, answer)

    async def _serialized(self, batch: Batch, lease_seconds: float) -> bytes:
        """A LeaseResponse, one group at a time: everybody else is served in between."""
        ledger = self._exchange.ledger
        head = pb.Batch(
            lease_id=batch.lease_id,
            for_step=batch.step,
            lease_seconds=lease_seconds,
            replay=batch.replay,
            queued_groups=ledger.queue.groups,
        )
        parts = [head.SerializeToString()]
        for group in [ledger.groups[number] for number in batch.groups]:
            (payload,) = await self._exchange.payloads((group,))
            staleness = ledger.lineage.staleness(group.oldest, batch.step) if group.oldest else -1
            data = batches.to_message(group, payload, staleness).SerializeToString()
            parts += (length_delimited(pb.Batch.GROUPS_FIELD_NUMBER, len(data)), data)
        size = sum(len(part) for part in parts)
        warnings = pb.LeaseResponse(warnings=self._warnings()).SerializeToString()
        return b"".join([length_delimited(pb.LeaseResponse.BATCH_FIELD_NUMBER, size), *parts, warnings])

    def _warnings(self) -> list[pb.SupplyWarning]:
        return [
            pb.SupplyWarning(reason=found.reason, environment=found.environment, message=found.message)
            for found in self._exchange.starvation.warnings
        ]

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewResponse:
        seconds = request.lease_seconds or LEASE_SECONDS

        async def answer() -> pb.RenewResponse:
            await self._exchange.renew(request.epoch, request.lease_id, seconds)
            return pb.RenewResponse(lease_seconds=seconds)

        return await _answer(context, answer)

    async def Ack(self, request: pb.AckRequest, context: Context) -> pb.AckResponse:
        async def answer() -> pb.AckResponse:
            dropped = {group.id: group.reason or "dropped" for group in request.dropped}
            await self._exchange.acknowledge(request.epoch, request.lease_id, request.step, request.no_signal, dropped)
            return pb.AckResponse(ledger=self._sums())

        return await _answer(context, answer)

    async def Nack(self, request: pb.NackRequest, context: Context) -> pb.NackResponse:
        async def answer() -> pb.NackResponse:
            await self._exchange.give_back(request.epoch, request.lease_id, request.reason)
            return pb.NackResponse()

        return await _answer(context, answer)

    async def Cover(self, request: pb.CoverRequest, context: Context) -> pb.CoverResponse:
        async def answer() -> pb.CoverResponse:
            _require(bool(request.state.checkpoint_path), "state.checkpoint_path is empty")
            await self._exchange.cover(request.epoch, request.state)
            return pb.CoverResponse(ledger=self._sums())

        return await _answer(context, answer)

    async def Finish(self, request: pb.FinishRequest, context: Context) -> pb.FinishResponse:
        async def answer() -> pb.FinishResponse:
            try:
                exported_to = await self._exchange.finish(request.epoch)
            except ExportError as error:
                return pb.FinishResponse(ledger=self._sums(), problem=str(error))
            return pb.FinishResponse(ledger=self._sums(), exported_to=exported_to)

        return await _answer(context, answer)

    def _sums(self) -> pb.LedgerSums:
        return pb.LedgerSums(**self._exchange.ledger.sums())

    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:
        async def answer() -> pb.PublishResponse:
            await self._exchange.publish(request.epoch, request.policy)
            return pb.PublishResponse()

        return await _answer(context, answer)

    async def WatchPolicy(self, request: pb.WatchPolicyRequest, context: Context) -> AsyncIterator[pb.Policy]:
        async for policy in self._exchange.policies():
            yield policy

    async def Record(self, request: pb.RecordRequest, context: Context) -> pb.RecordResponse:
        async def answer() -> pb.RecordResponse:
            for index, digest in enumerate(request.digests):
                _require(
                    len(digest) == DIGEST_SIZE, f"digests[{index}] has {len(digest)} bytes; a digest has {DIGEST_SIZE}"
                )
            _require(request.vocabulary_size >= 0, f"vocabulary_size is {request.vocabulary_size}; 0 = not known")
            self._exchange.vocabulary_size = request.vocabulary_size or self._exchange.vocabulary_size
            version = Version(request.version.epoch, request.version.step)
            await self._exchange.record(request.instance, version, request.digests)
            return pb.RecordResponse()

        return await _answer(context, answer)

    async def Capacity(
        self, requests: AsyncIterator[pb.CapacityRequest], context: Context
    ) -> AsyncIterator[pb.CapacityGrant]:
        stream, granted = self._exchange.open_capacity()

        async def listen() -> None:
            async for request in requests:
                self._exchange.told_of_rollout(stream, request)
            granted.put_nowait("")

        listening = asyncio.create_task(listen())
        try:
            while rollout := await granted.get():
                yield pb.CapacityGrant(rollout=rollout, seconds=SAMPLING_SECONDS)
        finally:
            listening.cancel()
            self._exchange.close_capacity(stream)

    async def Post(self, requests: AsyncIterator[pb.PostRequest], context: Context) -> AsyncIterator[pb.PostResponse]:
        answers: asyncio.Queue[pb.PostResponse | None] = asyncio.Queue()
        room = asyncio.Semaphore(POSTS_UNDER_WAY)
        under_way: set[asyncio.Task[None]] = set()

        async def store(request: pb.PostRequest) -> None:
            answers.put_nowait(await self._store(request))
            room.release()

        async def listen() -> None:
            async for request in requests:
                await room.acquire()
                task = asyncio.create_task(store(request))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.gather(*under_way)
            answers.put_nowait(None)

        listening = asyncio.create_task(listen())
        try:
            while (answer := await answers.get()) is not None:
                yield answer
        finally:
            listening.cancel()

    async def _store(self, request: pb.PostRequest) -> pb.PostResponse:
        try:
            post = read_message(request.group, self._exchange.limits())
            stored = await self._exchange.post(post, request.environment, request.instance, request.post_id)
        except InvalidPostError as error:
            self._exchange.refused(error, None, request.environment, request.instance)
            return pb.PostResponse(number=request.number, error=str(error))
        except StoreUnavailableError as error:
            return pb.PostResponse(number=request.number, error=str(error), retry=True)
        return pb.PostResponse(number=request.number, duplicate=stored.duplicate)


class _InvalidRequestError(ValueError):
    """A field of the request is wrong; the message names it."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise _InvalidRequestError(message)


async def _answer(context: Context, answer: Callable[[], Awaitable[T]]) -> T:
    """Run a call and say its failures as the status codes that trajectories.proto promises."""
    try:
        return await answer()
    except (_InvalidRequestError, InvalidSettingsError) as error:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, error)
    except UnknownEpochError as error:
        await _abort(context, grpc.StatusCode.ABORTED, error)
    except UnknownLeaseError as error:
        await _abort(context, grpc.StatusCode.NOT_FOUND, error)
    except LedgerError as error:
        await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, error)
    except StoreUnavailableError as error:
        await _abort(context, grpc.StatusCode.UNAVAILABLE, error)
    except StoreCorruptError as error:
        await _abort(context, grpc.StatusCode.DATA_LOSS, error)


async def _abort(context: Context, code: grpc.StatusCode, error: Exception) -> NoReturn:
    await context.abort(code, str(error))
    raise AssertionError("abort raises")


class LeaseInterceptor(grpc.aio.ServerInterceptor):
    """Lets Lease answer with bytes: a batch of ten megabytes is not put together and serialized in one go."""

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not str(handler_call_details.method).endswith("/Lease"):
            return handler
        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, handler.request_deserializer, bytes)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call without the run's token."""

    def __init__(self, token: str) -> None:
        self._expected = bearer(token).encode()

        async def refuse(_: Any, context: Context) -> None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the run's token is missing or wrong (metadata authorization: Bearer …)",
            )

        self._refusal: Any = grpc.unary_unary_rpc_method_handler(refuse)

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        for key, value in handler_call_details.invocation_metadata or ():
            given = value.encode() if isinstance(value, str) else value
            if key == "authorization" and hmac.compare_digest(given, self._expected):
                return await continuation(handler_call_details)
        return self._refusal
