"""HTTP/1.1 on one connection: the least that Atropos' clients need, because the request path is what limits throughput.

It knows two things that a framework hides and that exactly-once needs: whether the last byte of an answer reached the
client's kernel before the connection ended, and whether the client hung up on an answer it had not read.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import httptools
import numpy as np
import orjson

logger = logging.getLogger(__name__)

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_DRAIN_ABOVE = 1 << 20
_LINGER_SECONDS = 5.0
_FIRST_LOOK_SECONDS, _LOOK_SECONDS = 0.001, 0.25
_HEAD_END = b"\r\n\r\n"
_SCRATCH = bytearray(1 << 13)
_SCRATCH_VIEW = memoryview(_SCRATCH)
"""Where heads and small bodies are received, one connection at a time: each is parsed before the next is received.

Small, because of a large body what lands here is copied once more."""


@dataclass(slots=True)
class Request:
    """One request, its body read."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes | memoryview
    keep_alive: bool
    hung_up: Callable[[], bool]
    """Whether the client is gone."""
    chunks: bool = True
    """Whether the client knows answers in chunks (HTTP/1.1)."""


@dataclass(slots=True)
class Response:
    """One answer; `stream` instead of `body` is sent in chunks."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    delivered: Callable[[bool], None] | None = None
    """Called with True when the client has the answer as far as can be known (its kernel has all of a stream, it went
    on, or closed in order), with False when the connection ended before the last byte or was reset afterwards; what is
    called last counts."""


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(status, orjson.dumps(content), headers=headers or {})


def error_response(status: int, message: str, **more: object) -> Response:
    headers = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return json_response({"status": "error", "message": message, **more}, status, headers)


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that is made when something is done: the price of a future, not that of a task."""

    done: asyncio.Future[Any]
    answer: Callable[[], Response]
    """Called then."""


Handler = Callable[[Request], Response | Later | Awaitable[Response]]


class Connection(asyncio.BufferedProtocol):
    """Reads requests, answers them one after another in order.

    Heads go through a parser; a body of known length is received straight into its own buffer.
    """

    def __init__(self, handler: Handler, connections: set[Connection], max_body: int) -> None:
        self._handler = handler
        self._connections = connections
        self._max_body = max_body
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request | Response] = deque()
        self._task: asyncio.Task[None] | None = None
        self._busy = False  # an answer is under way
        self._lost = False
        self._closing = False  # nothing more is read
        self._shutting = False
        self._hung_up = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unconfirmed: Callable[[bool], None] | None = None
        self._begin()

    def _begin(self) -> None:
        """Get ready for the next request."""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._in_body = False
        self._chunks = True
        self._direct: memoryview | None = None

    # -- transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SCRATCH_VIEW if self._direct is None else self._direct[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        if self._direct is not None:
            self._took(nbytes)
            return
        begin = 0
        while begin < nbytes and not self._closing:
            begin = self._received(begin, nbytes)

    def _received(self, begin: int, end: int) -> int:
        """Up to where the scratch buffer was read: a head is read without the body behind it, which is copied once."""
        head = -1 if self._in_body else _SCRATCH.find(_HEAD_END, begin, end)
        stop = end if head < 0 else head + len(_HEAD_END)
        try:
            self._parser.feed_data(_SCRATCH_VIEW[begin:stop])
        except httptools.HttpParserUpgrade:
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, "this server speaks HTTP/1.1 only")
        except httptools.HttpParserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"this is not HTTP: {error}")
        return stop if self._closing else stop + self._receive_directly(_SCRATCH_VIEW[stop:end])

    def _receive_directly(self, begun: memoryview) -> int:
        """When a head is read and its body is large: give it a buffer of its own; how much of it was there already."""
        length = self._headers.get("content-length", "") if self._in_body else ""
        if not length.isdecimal() or int(length) - self._size < len(_SCRATCH) // 2:
            return 0
        self._direct = np.empty(int(length), np.uint8).data  # not filled with zeros first
        before = b"".join(self._body)
        self._direct[: len(before)] = before
        taken = min(len(begun), len(self._direct) - len(before))
        self._direct[len(before) : len(before) + taken] = begun[:taken]
        self._took(taken)
        return taken

    def _took(self, count: int) -> None:
        """So much more of a large body is there."""
        assert self._direct is not None
        self._size += count
        if self._size == len(self._direct):
            self._parser = httptools.HttpRequestParser(self)  # the old one waits for a body that it will not see
            self._take_request(self._direct)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        self._writable.set()
        if self._unconfirmed is not None:
            self._confirm(exc is None and not self._hung_up)

    def eof_received(self) -> None:
        self._hung_up = self._busy or self._transport.get_write_buffer_size() > 0

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _confirm(self, delivered: bool) -> None:
        callback, self._unconfirmed = self._unconfirmed, None
        if callback is not None:
            callback(delivered)

    # -- parser ------------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._method = self._parser.get_method().decode("latin-1")
        self._keep_alive = self._parser.should_keep_alive()
        self._chunks = self._parser.get_http_version() == "1.1"
        length = self._headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_body:
            self._refuse_size()
        elif self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._max_body:
            self._refuse_size()
        else:
            self._body.append(body)

    def _refuse_size(self) -> None:
        if not self._closing:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {self._max_body} bytes")

    def on_message_complete(self) -> None:
        if not self._closing:
            self._take_request(self._body[0] if len(self._body) == 1 else b"".join(self._body))

    def _take_request(self, body: bytes | memoryview) -> None:
        url = self._url.decode("latin-1")
        path, query = url, {}
        if "?" in url or "%" in url or "#" in url:
            parts = urlsplit(url)
            path = unquote(parts.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        request = Request(
            self._method, path, query, self._headers, body, self._keep_alive, lambda: self._lost, self._chunks
        )
        self._begin()
        if self._unconfirmed is not None:
            self._confirm(True)
        self._take(request)

    # -- answering ---------------------------------------------------------------------------------------------------

    def _refuse(self, status: int, message: str) -> None:
        """Answer what could not be read, after what came before it, and close."""
        self._closing = True
        self._take(error_response(status, message))

    def _take(self, item: Request | Response) -> None:
        if not self._busy:
            self._serve(item)
            return
        self._waiting.append(item)
        if len(self._waiting) > 1:
            self._transport.pause_reading()

    def _serve(self, item: Request | Response) -> None:
        try:
            answer = self._handler(item) if isinstance(item, Request) else item
        except Exception as error:
            answer = self._failed(item, error)
        if isinstance(answer, Response) and answer.stream is None:
            self._reply(item, answer)
            return
        self._busy = True
        if isinstance(answer, Later):
            answer.done.add_done_callback(lambda _: self._reply_now(item, answer))
        else:
            self._task = asyncio.create_task(self._run(item, answer))

    def _reply_now(self, item: Request | Response, later: Later) -> None:
        try:
            response = later.answer()
        except Exception as error:
            response = self._failed(item, error)
        self._reply(item, response)
        self._next()

    async def _run(self, item: Request | Response, answer: Response | Awaitable[Response]) -> None:
        try:
            response = answer if isinstance(answer, Response) else await answer
        except Exception as error:
            response = self._failed(item, error)
        if response.stream is None:
            self._reply(item, response)
        else:
            keep = isinstance(item, Request) and item.keep_alive
            await self._send_stream(response, keep, not isinstance(item, Request) or item.chunks)
            await self._arrival()
            self._finish(keep, response)
        self._next()

    def _next(self) -> None:
        """Answer what waited."""
        self._busy, self._task = False, None
        while self._waiting and not self._busy and not self._lost:
            item = self._waiting.popleft()
            self._transport.resume_reading()
            self._serve(item)

    @staticmethod
    def _failed(item: Request | Response, error: Exception) -> Response:
        where = f"{item.method} {item.path}" if isinstance(item, Request) else "an answer"
        logger.error("%s failed", where, exc_info=error)
        return error_response(500, "an error of this server; its log tells more")

    def _reply(self, item: Request | Response, response: Response) -> None:
        keep = isinstance(item, Request) and item.keep_alive
        if not self._lost:
            self._send(response, keep)
        self._finish(keep, response)

    def _head(self, response: Response, keep: bool, length: str) -> bytes:
        reason = _REASONS.get(response.status, "")
        more = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
        close = "" if keep else "Connection: close\r\n"
        return (
            f"HTTP/1.1 {response.status} {reason}\r\nContent-Type: {response.content_type}\r\n{length}{close}{more}\r\n"
        ).encode("latin-1")

    def _send(self, response: Response, keep: bool) -> None:
        self._transport.write(self._head(response, keep, f"Content-Length: {len(response.body)}\r\n") + response.body)

    async def _send_stream(self, response: Response, keep: bool, chunks: bool) -> None:
        assert response.stream is not None
        if self._lost:
            return
        if not chunks:  # HTTP/1.0 knows no chunks
            response.body = b"".join([chunk async for chunk in response.stream])
            self._send(response, keep)
            return
        self._transport.set_write_buffer_limits(_DRAIN_ABOVE)
        self._transport.write(self._head(response, keep, "Transfer-Encoding: chunked\r\n"))
        try:
            async for chunk in response.stream:
                self._transport.writelines((f"{len(chunk):x}\r\n".encode(), chunk, b"\r\n"))
                await self._writable.wait()
                if self._lost:
                    return
        except Exception:
            logger.exception("an answer broke off")
            self._transport.abort()
            return
        self._transport.write(b"0\r\n\r\n")

    async def _arrival(self) -> None:
        """Until the client's kernel has acknowledged every byte, or the connection is lost."""
        pause = _FIRST_LOOK_SECONDS
        while not self._lost and (self._transport.get_write_buffer_size() or self._unacknowledged()):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS)

    def _unacknowledged(self) -> int:
        """Bytes that the kernel still holds for the client, as far as it tells."""
        connected = self._transport.get_extra_info("socket")
        try:
            answer: bytes = fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int(struct.unpack("i", answer)[0])

    def _finish(self, keep: bool, response: Response) -> None:
        """The answer is written; whoever asked is told as soon as it is known whether it arrived."""
        if response.delivered is not None:
            if response.stream is not None or self._lost:
                response.delivered(not self._lost)
            if not self._lost:
                self._unconfirmed = response.delivered
        if self._lost or (keep and not self._shutting):
            return
        if self._closing and self._transport.can_write_eof():
            # The client may still be sending: closing now would reset the connection and take the answer with it.
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.close)
        else:
            self._transport.close()

    def shut(self) -> None:
        """End after the answer that is under way."""
        self._shutting = True
        if not self._busy:
            self._transport.close()
