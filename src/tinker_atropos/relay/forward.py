"""One request of an environment, carried to its server: sent again until there is an answer worth giving.

Bodies cross unparsed and still compressed; small answers are read whole first, so that a server that dies in the
middle of one costs the environment nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from aiohttp.client_reqrep import ClientResponse
from multidict import CIMultiDict
from yarl import URL

from tinker_atropos.relay import headers, patience

_READ_WHOLE = 64 * 2**20
"""Bytes: answers up to this size are held here until complete."""

_UNHAPPY_AFTER = 5.0
"""Seconds of holding before the log says so; a restart is shorter."""

_LOG_EVERY = 30.0

_log = logging.getLogger(__name__)


class _BrokenOffError(Exception):
    """A streamed answer ended in its middle."""


@dataclass(frozen=True)
class Identity:
    """Who stands behind this relay."""

    environment: str
    instance: str
    token: str | None


def client_session() -> aiohttp.ClientSession:
    """The pool of connections to the servers: no limit, no time limit, dead peers noticed by the kernel."""
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=5, keepalive_timeout=30, socket_factory=_watched_socket)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A node that vanishes sends no goodbye; without this a held request would wait for it for ever."""
    family, kind, proto = address[:3]
    sock = socket.socket(family=family, type=kind, proto=proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        option = getattr(socket, name, None)  # not on every system
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock


class Forwarder:
    """Handler for everything that arrives on one port of the relay."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        server: str,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._session = session
        self._server = server.rstrip("/")
        self._identity = identity
        self._clock = clock
        self._uniform = uniform
        self._said = -_LOG_EVERY
        self._last_status: tuple[CIMultiDict[str], bytes] | None = None

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read() if request.body_exists else None
        url = URL(f"{self._server}{request.raw_path}", encoded=True)
        sent = headers.to_server(
            request.headers.items(),
            environment=self._identity.environment,
            instance=self._identity.instance,
            token=self._identity.token,
            request_key=uuid.uuid4().hex,
        )
        began = self._clock()
        failures = 0
        while True:
            attempt, reason = patience.Attempt(None), ""
            try:
                async with self._session.request(
                    request.method, url, data=body, headers=sent, allow_redirects=False
                ) as answer:
                    attempt = patience.Attempt(answer.status, patience.retry_after(answer.headers.get("Retry-After")))
                    if not patience.asks_again(attempt, self._clock() - began):
                        return await self._answer(request, answer)
                    reason = f"status {answer.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                attempt, reason = patience.Attempt(None), f"{type(error).__name__}: {error}"
            failures += 1
            if (known := self._known_status(request, self._clock() - began)) is not None:
                return known
            self._say(request, reason, self._clock() - began)
            await asyncio.sleep(patience.delay(attempt, failures, self._uniform))

    async def _answer(self, request: web.BaseRequest, answer: ClientResponse) -> web.StreamResponse:
        passed = headers.to_environment(answer.headers.items())
        if request.method == "HEAD":
            return web.Response(status=answer.status, reason=answer.reason, headers=passed)
        length = answer.content_length
        if length is not None and length <= _READ_WHOLE:
            passed.popall("Content-Length", None)
            body = await answer.read()
            if answer.status == 200 and _polls_status(request):
                self._last_status = (passed, body)
            return web.Response(status=answer.status, reason=answer.reason, headers=passed, body=body)
        streamed = web.StreamResponse(status=answer.status, reason=answer.reason, headers=passed)
        await streamed.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                await streamed.write(chunk)
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as error:
            # A part of it is out already: closing the connection is the only honest way to say that it broke.
            raise _BrokenOffError(str(error)) from error
        await streamed.write_eof()
        return streamed

    def _known_status(self, request: web.BaseRequest, held: float) -> web.Response | None:
        """The last answer to a status poll, once the environment would give up otherwise. It tells nothing that could
        have changed while the server is away."""
        if held < patience.STATUS_PATIENCE or self._last_status is None or not _polls_status(request):
            return None
        known, body = self._last_status
        return web.Response(headers=known, body=body)

    def _say(self, request: web.BaseRequest, reason: str, held: float) -> None:
        now = self._clock()
        if held < _UNHAPPY_AFTER or now - self._said < _LOG_EVERY:
            return
        self._said = now
        _log.warning(
            "holding requests: %s does not answer (%s); %s %s waits for %.0f s",
            self._server,
            reason,
            request.method,
            request.path,
            held,
        )


def _polls_status(request: web.BaseRequest) -> bool:
    return request.method == "GET" and request.path == "/status-env"
