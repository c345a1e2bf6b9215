"""One process: store, exchange, HTTP and gRPC, from start to an orderly end."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from tinker_atropos.protocol import trajectories_pb2_grpc as pb_grpc
from tinker_atropos.protocol.listening import CannotListenError
from tinker_atropos.trajectories.connection import Connection
from tinker_atropos.trajectories.exchange import Exchange
from tinker_atropos.trajectories.export import DirectoryExport, Export, ExportError
from tinker_atropos.trajectories.export_bucket import Bucket, BucketExport
from tinker_atropos.trajectories.ledger import fold
from tinker_atropos.trajectories.metrics import Metrics
from tinker_atropos.trajectories.routes import Routes
from tinker_atropos.trajectories.service import OPTIONS, LeaseInterceptor, Service, TokenInterceptor
from tinker_atropos.trajectories.store import Store, StoreCorruptError, StoreUnavailableError
from tinker_atropos.trajectories.store.embedded import JOURNAL_BYTES, SEGMENT_BYTES, EmbeddedStore

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """How the server was started."""

    host: str
    port: int
    grpc_port: int
    store: str
    token: str
    max_body: int
    max_held_bytes: int = 0
    journal_bytes: int = JOURNAL_BYTES
    export: Path | Bucket | None = None
    """Where the run is exported to when it is over, or when this process ends."""


def open_store(store: str, journal_bytes: int) -> Store:
    """A URL of Redis, else a directory."""
    if store.startswith(("redis://", "rediss://", "unix://")):
        from tinker_atropos.trajectories.store.redis import RedisStore

        return RedisStore(store, fold, journal_bytes=journal_bytes)
    segment_bytes = journal_bytes * SEGMENT_BYTES // JOURNAL_BYTES
    return EmbeddedStore(Path(store), fold, segment_bytes=segment_bytes, journal_bytes=journal_bytes)


def open_export(place: Path | Bucket | None) -> Export | None:
    if place is None:
        return None
    return BucketExport(place) if isinstance(place, Bucket) else DirectoryExport(place)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where it listens."""

    port: int
    grpc_port: int


async def serve_until_signal(options: Options) -> None:
    """Serve until SIGTERM or SIGINT."""
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    await serve(options, ending, lambda _: None)


async def serve(options: Options, ending: asyncio.Event, ready: Callable[[Addresses], None]) -> None:
    """Serve until `ending`; says when and where it is ready. Raises CannotListenError."""
    started = time.monotonic()
    # Bound before the store is opened and before gRPC starts its threads: what cannot be had is said while nothing is
    # there that would have to be taken down again. They listen only when there is something to answer with.
    bound = bind(options.host, options.port, "--port")
    for probe in bind(options.host, options.grpc_port, "--grpc-port"):
        probe.close()
    try:
        await _serve(options, ending, ready, bound, started)
    finally:
        for one in bound:
            one.close()


def bind(host: str, port: int, option: str) -> list[socket.socket]:
    """Sockets bound to each address of the host, not listening yet. Raises CannotListenError naming the option."""
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            own = sockets[0].getsockname()[1] if sockets else port  # of `localhost` both addresses get one port
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind((address[0], own, *address[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                absent = error  # a host's name may have an address of a family that this machine has not
                sockets.remove(one)
                one.close()
        if not sockets and absent is not None:
            raise absent
    except OSError as error:
        for one in sockets:
            one.close()
        raise CannotListenError.of(error, host, port, option) from error
    return sockets


async def _serve(
    options: Options,
    ending: asyncio.Event,
    ready: Callable[[Addresses], None],
    bound: Sequence[socket.socket],
    started: float,
) -> None:
    loop = asyncio.get_running_loop()
    store = open_store(options.store, options.journal_bytes)
    metrics = Metrics()
    store.on_sync = metrics.synced
    lost: list[str] = []

    def give_way(reason: str) -> None:
        lost.append(reason)
        ending.set()

    store.on_lost = give_way
    export = open_export(options.export)
    exchange = await Exchange.open(store, metrics, max_held_bytes=options.max_held_bytes, export=export)
    metrics.watch(exchange.ledger, store)
    routes = Routes(exchange, options.token, options.max_body)
    connections: set[Connection] = set()
    interceptors: list[grpc.aio.ServerInterceptor] = [TokenInterceptor(options.token)] if options.token else []
    interceptors.append(LeaseInterceptor())
    rpc = grpc.aio.server(interceptors=interceptors, options=OPTIONS)
    add_service: Callable[[Service, grpc.aio.Server], None] = pb_grpc.add_TrajectoriesServicer_to_server
    add_service(Service(exchange), rpc)
    https = []
    try:
        address = f"[{options.host}]" if ":" in options.host else options.host
        try:
            grpc_port = rpc.add_insecure_port(f"{address}:{options.grpc_port}")
        except RuntimeError:
            taken = OSError(errno.EADDRINUSE, "taken")
            raise CannotListenError.of(taken, options.host, options.grpc_port, "--grpc-port") from None
        for one in bound:
            try:
                http = await loop.create_server(
                    lambda: Connection(routes, connections, options.max_body), sock=one, backlog=1024
                )
            except OSError as error:
                raise CannotListenError.of(error, options.host, options.port) from error
            https.append(http)
        await rpc.start()
    except BaseException:
        for http in https:
            http.close()
        await rpc.stop(None)
        await exchange.close()
        raise
    port = https[0].sockets[0].getsockname()[1]
    sums = exchange.ledger.sums()
    logger.info(
        "ready on http://%s:%d and grpc %s:%d (store %s: %d groups, %d queued, epoch %d, step %d, opened in %.2f s)",
        address,
        port,
        address,
        grpc_port,
        options.store,
        sums["stored"],
        sums["queued"],
        exchange.ledger.epoch,
        exchange.ledger.step,
        time.monotonic() - started,
        extra={"http": f"{address}:{port}", "grpc": f"{address}:{grpc_port}"},
    )
    ready(Addresses(port, grpc_port))
    checking = asyncio.create_task(export.check()) if export is not None else None
    await ending.wait()
    if checking is not None:
        checking.cancel()
    logger.info("ending")
    for http in https:
        http.close()
    exchange.end_waiting()
    await rpc.stop(GRACE_SECONDS)
    for connection in list(connections):
        connection.shut()
    deadline = loop.time() + GRACE_SECONDS
    while connections and loop.time() < deadline:  # noqa: ASYNC110 - ends by itself
        await asyncio.sleep(0.02)
    if not lost:
        # A run that fails, or is deleted, has no trainer that says it is over.
        try:
            await exchange.export()
        except (ExportError, StoreCorruptError) as error:
            logger.error("%s", error)
    await exchange.close()
    if lost:
        raise StoreUnavailableError(lost[0])
