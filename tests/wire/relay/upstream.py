"""A server behind the relay that tells what it got and misbehaves on request. Run as: upstream.py PORT JOURNAL.

Every request is written to the journal before it is answered, as a trajectory server stores before it acknowledges.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tarfile
from pathlib import Path

from aiohttp import web


def tokenizer() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("tokenizer.json")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"{}"))
    return buffer.getvalue()


class Upstream:
    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.failures: list[int] = []

    def once(self, what: str) -> bool:
        """True the first time, also over restarts."""
        marker = self.journal.with_suffix(f".{what}")
        first = not marker.exists()
        marker.touch()
        return first

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        if request.path == "/fail":  # the next requests get these statuses
            self.failures = json.loads(body)
            return web.json_response({})
        if request.path == "/tokenizer":
            return web.Response(body=tokenizer(), content_type="application/x-tar")
        got = {
            "method": request.method,
            "path": request.raw_path,
            "headers": dict(request.headers),
            "body": body.decode("latin1"),
        }
        with self.journal.open("a") as file:
            file.write(json.dumps(got) + "\n")
        if self.failures:
            status = self.failures.pop(0)
            return web.json_response({"detail": "failing"}, status=status, headers={"Retry-After": "0"})
        if request.path == "/hang" and self.once("hang"):
            await asyncio.sleep(600)
        if request.path == "/stream":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number in range(3):
                await response.write(f"data: {number}\n\n".encode())
                await asyncio.sleep(0.3)
            return response
        if request.path == "/cut":  # the connection breaks in the middle of an answer, once
            if self.once("cut"):
                assert request.transport is not None
                request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
                await asyncio.sleep(0.05)
                request.transport.abort()
            return web.json_response({"whole": True})
        if request.path == "/redirect":
            return web.Response(status=307, headers={"Location": "http://elsewhere.invalid/"})
        if request.path == "/gzip":
            return web.Response(body=b"\x1f\x8b not really", headers={"Content-Encoding": "gzip"})
        return web.json_response(got)


async def main() -> None:
    port, journal = int(sys.argv[1]), Path(sys.argv[2])
    runner = web.ServerRunner(web.Server(Upstream(journal).handle, auto_decompress=False))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
