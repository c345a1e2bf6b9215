"""What the relay does in an outage that is longer than an environment's own patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tinker_atropos.relay import patience
from tinker_atropos.relay.forward import Forwarder, Identity, client_session


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Answers a status that counts up, until it is away."""

    def __init__(self) -> None:
        self.away = False
        self.asked = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        if self.away:
            return web.Response(status=503)
        return web.json_response({"current_step": self.asked})


async def listen(handler: object) -> tuple[web.ServerRunner, str]:
    runner = web.ServerRunner(web.Server(handler, handler_cancellation=True))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def world() -> AsyncIterator[tuple[Server, Clock, str]]:
    server, clock = Server(), Clock()
    behind, url = await listen(server)
    async with client_session() as session:
        front, relay = await listen(
            Forwarder(session, url, Identity("e", "e-0", None), clock=clock, uniform=lambda: 0.0)
        )
        yield server, clock, relay
        await front.cleanup()
    await behind.cleanup()


World = tuple[Server, Clock, str]


async def ask(method: str, url: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.request(method, url, data=b"{}") as answer:
        assert answer.status == 200
        return await answer.read()


async def held(server: Server, task: asyncio.Task[bytes], times: int) -> None:
    """Until the server was asked so many times more, and still nothing was answered."""
    goal = server.asked + times
    async with asyncio.timeout(10):
        while server.asked < goal:
            await asyncio.sleep(0.01)
    assert not task.done()


async def test_a_status_poll_gets_the_last_answer_before_the_environment_gives_up(world: World) -> None:
    server, clock, relay = world
    last = await ask("GET", f"{relay}/status-env")
    server.away = True
    polling = asyncio.create_task(ask("GET", f"{relay}/status-env"))
    await held(server, polling, 3)
    clock.now += patience.STATUS_PATIENCE
    async with asyncio.timeout(10):
        assert await polling == last


@pytest.mark.parametrize(("method", "path"), [("POST", "/scored_data"), ("GET", "/info"), ("POST", "/status-env")])
async def test_everything_else_is_held_as_long_as_it_takes(method: str, path: str, world: World) -> None:
    server, clock, relay = world
    await ask(method, f"{relay}{path}")
    server.away = True
    asking = asyncio.create_task(ask(method, f"{relay}{path}"))
    await held(server, asking, 2)
    clock.now += 100 * patience.STATUS_PATIENCE
    await held(server, asking, 2)
    server.away = False
    async with asyncio.timeout(10):
        await asking


async def test_a_first_status_poll_has_nothing_to_fall_back_on(world: World) -> None:
    server, clock, relay = world
    server.away = True
    polling = asyncio.create_task(ask("GET", f"{relay}/status-env"))
    await held(server, polling, 1)
    clock.now += 2 * patience.STATUS_PATIENCE
    await held(server, polling, 2)
    polling.cancel()
