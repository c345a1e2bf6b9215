"""HTTP on one connection: however requests are cut into pieces, each body arrives whole and in its turn."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tinker_atropos.trajectories.connection import Connection, Later, Request, Response

LARGE = 100_000


class Transport:
    """What a connection needs of a transport; keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.paused = False
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def ask(body: bytes, chunked: bool = False) -> bytes:
    head = b"POST /%d HTTP/1.1\r\nHost: x\r\n" % len(body)
    if chunked:
        half = len(body) // 2
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def feed(connection: Connection, transport: Transport, data: bytes, largest: int, rng: random.Random) -> None:
    """As an event loop does: never more than the buffer holds, nothing while reading is paused."""
    while data:
        while transport.paused:
            await asyncio.sleep(0)
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data), rng.randint(1, largest))
        buffer[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]
        if rng.random() < 0.2:
            await asyncio.sleep(0)


@pytest.mark.parametrize("largest", [7, 300, 40_000, 1 << 20])
@pytest.mark.parametrize("answers", ["at once", "later", "by a task"])
async def test_bodies_arrive_whole_and_in_order(largest: int, answers: str) -> None:
    rng = random.Random(largest)
    seen: list[bytes] = []

    def handle(request: Request) -> Any:
        body = bytes(request.body)
        assert request.path == f"/{len(body)}"
        response = Response(body=b"<%d>" % len(body))

        def answer() -> Response:
            seen.append(body)
            return response

        if answers == "at once":
            return answer()
        if answers == "later":
            done = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(done.set_result, None)
            return Later(done, answer)

        async def slowly() -> Response:
            await asyncio.sleep(0)
            return answer()

        return slowly()

    sizes = [0, 3, LARGE, 1, 32_000, LARGE, LARGE + 1, 0, 65_536, 40]
    if largest == 7:
        sizes = [0, 3, 40_000, 1, 0]
    bodies = [b"\r\n\r\n" * (size // 8) + rng.randbytes(size - size // 8 * 4) for size in sizes]
    connection, transport = Connection(handle, set(), 1 << 20), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    text = b"".join(ask(body, chunked=rng.random() < 0.2) for body in bodies)
    await feed(connection, transport, text, largest, rng)
    while len(seen) < len(bodies):
        await asyncio.sleep(0)
    assert seen == bodies
    assert transport.written.count(b"HTTP/1.1 200 OK") == len(bodies)
    assert [part.split(b">")[0] for part in transport.written.split(b"\r\n\r\n<")[1:]] == [
        b"%d" % len(b) for b in bodies
    ]
    assert not transport.closed


@pytest.mark.parametrize("answers", ["at once", "later", "by a task"])
async def test_a_handler_that_fails_is_answered_and_the_next_one_served(answers: str) -> None:
    def fail() -> Response:
        raise RuntimeError("broken")

    def handle(request: Request) -> Any:
        if request.path == "/1":
            return Response(body=b"next")
        if answers == "at once":
            return fail()
        if answers == "later":
            done = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(done.set_result, None)
            return Later(done, fail)

        async def slowly() -> Response:
            return fail()

        return slowly()

    connection, transport = Connection(handle, set(), 1 << 20), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    await feed(connection, transport, ask(b"") + ask(b"x"), 1000, random.Random(0))
    while not transport.written.endswith(b"next"):
        await asyncio.sleep(0)
    assert transport.written.startswith(b"HTTP/1.1 500 ")
    assert b"broken" not in transport.written
