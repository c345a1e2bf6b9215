"""The relay as a process: two ports in front of two servers, one for its own health."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tinker_atropos.protocol.listening import CannotListenError
from tinker_atropos.relay import tokenizer
from tinker_atropos.relay.forward import Forwarder, Identity, client_session

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What the command line says. Ports may be 0: any free one, named in the log line."""

    trajectories: str
    gateway: str
    identity: Identity
    tokenizer_dir: Path
    host: str
    trajectories_port: int
    gateway_port: int
    health_port: int
    health_host: str
    """A kubelet's probe comes from outside the pod's loopback."""


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    ready = asyncio.Event()
    runners: list[web.ServerRunner] = []
    async with client_session() as session:
        try:
            ports = []
            for server, port, option in (
                (settings.trajectories, settings.trajectories_port, "--trajectories-port"),
                (settings.gateway, settings.gateway_port, "--gateway-port"),
            ):
                forwarder = Forwarder(session, server, settings.identity)
                runner, bound = await _listen(forwarder, settings.host, port, option, "--host")
                runners.append(runner)
                ports.append(bound)
            runner, health_port = await _listen(
                _health(ready), settings.health_host, settings.health_port, "--health-port", "--health-host"
            )
            runners.append(runner)

            fetching = asyncio.create_task(
                tokenizer.fetch(settings.gateway, settings.tokenizer_dir, settings.identity.token)
            )
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if fetching.done():
                fetching.result()
                ready.set()
                _log.info(
                    "ready: trajectories on %s:%d, gateway on %s:%d, health on %s:%d",
                    settings.host,
                    ports[0],
                    settings.host,
                    ports[1],
                    settings.health_host,
                    health_port,
                    extra={"trajectories_port": ports[0], "gateway_port": ports[1], "health_port": health_port},
                )
                await stopping
            else:
                fetching.cancel()
            _log.info("stopping")
        finally:
            await asyncio.gather(*(runner.cleanup() for runner in runners))


async def _listen(
    handler: _Handler, host: str, port: int, option: str, host_option: str
) -> tuple[web.ServerRunner, int]:
    server = web.Server(
        handler,
        handler_cancellation=True,  # an environment that went away is not waited for
        auto_decompress=False,
        access_log=None,
        keepalive_timeout=300,
    )
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise CannotListenError.of(error, host, port, option, host_option) from error
    return runner, runner.addresses[0][1]


def _health(ready: asyncio.Event) -> _Handler:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in ("/healthz", "/readyz"):
            return web.json_response({"error": f"no such path {request.path}; there is /healthz"}, status=404)
        if ready.is_set():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "waiting", "for": "the tokenizer from the gateway"}, status=503)

    return handler
