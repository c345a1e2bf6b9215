"""One process: store, exchange, HTTP and gRPC, from start to an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from tinker_atropos.protocol import trajectories_pb2_grpc as pb_grpc
from tinker_atropos.trajectories.connection import Connection
from tinker_atropos.trajectories.exchange import Exchange
from tinker_atropos.trajectories.ledger import fold
from tinker_atropos.trajectories.metrics import Metrics
from tinker_atropos.trajectories.routes import Routes
from tinker_atropos.trajectories.service import OPTIONS, LeaseInterceptor, Service, TokenInterceptor
from tinker_atropos.trajectories.store import Store, StoreUnavailableError
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


def open_store(store: str, journal_bytes: int) -> Store:
    """A URL of Redis, else a directory."""
    if store.startswith(("redis://", "rediss://", "unix://")):
        from tinker_atropos.trajectories.store.redis import RedisStore

        return RedisStore(store, fold, journal_bytes=journal_bytes)
    segment_bytes = journal_bytes * SEGMENT_BYTES // JOURNAL_BYTES
    return EmbeddedStore(Path(store), fold, segment_bytes=segment_bytes, journal_bytes=journal_bytes)


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
    """Serve until `ending`; says when and where it is ready."""
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    store = open_store(options.store, options.journal_bytes)
    metrics = Metrics()
    store.on_sync = metrics.synced
    lost: list[str] = []

    def give_way(reason: str) -> None:
        lost.append(reason)
        ending.set()

    store.on_lost = give_way
    exchange = await Exchange.open(store, metrics, max_held_bytes=options.max_held_bytes)
    metrics.watch(exchange.ledger, store)
    routes = Routes(exchange, options.token, options.max_body)
    connections: set[Connection] = set()
    interceptors: list[grpc.aio.ServerInterceptor] = [TokenInterceptor(options.token)] if options.token else []
    interceptors.append(LeaseInterceptor())
    rpc = grpc.aio.server(interceptors=interceptors, options=OPTIONS)
    add_service: Callable[[Service, grpc.aio.Server], None] = pb_grpc.add_TrajectoriesServicer_to_server
    add_service(Service(exchange), rpc)
    try:
        address = f"[{options.host}]" if ":" in options.host else options.host
        grpc_port = rpc.add_insecure_port(f"{address}:{options.grpc_port}")
    except RuntimeError:
        raise OSError(f"gRPC port {options.grpc_port} is taken") from None
    await rpc.start()
    http = await loop.create_server(
        lambda: Connection(routes, connections, options.max_body), options.host, options.port, backlog=1024
    )
    port = http.sockets[0].getsockname()[1]
    sums = exchange.ledger.sums()
    logger.info(
        "ready on http://%s:%d and grpc %s:%d (store %s: %d groups, %d queued, epoch %d, step %d, opened in %.2f s)",
        options.host,
        port,
        options.host,
        grpc_port,
        options.store,
        sums["stored"],
        sums["queued"],
        exchange.ledger.epoch,
        exchange.ledger.step,
        time.monotonic() - started,
        extra={"http": f"{options.host}:{port}", "grpc": f"{options.host}:{grpc_port}"},
    )
    ready(Addresses(port, grpc_port))
    await ending.wait()
    logger.info("ending")
    http.close()
    exchange.end_waiting()
    await rpc.stop(GRACE_SECONDS)
    for connection in list(connections):
        connection.shut()
    deadline = loop.time() + GRACE_SECONDS
    while connections and loop.time() < deadline:  # noqa: ASYNC110 - ends by itself
        await asyncio.sleep(0.02)
    await exchange.close()
    if lost:
        raise StoreUnavailableError(lost[0])
