"""A service that speaks S3, as a process, and a door before it that tests can close.

The service is versitygw where it is installed (it checks signatures, and keeps objects as files), else moto's server:
in an environment of its own below the cache folder, since what moto needs may not stand beside what is shipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from peer_processes import free_port, until

KEY, SECRET = "test-key", "test-secret"
BUCKET = "archive"
MOTO = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
Refusal = tuple[int, str]
"""Status and code of an answer in the service's stead."""


def credentials() -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}


def moto_python() -> Path:
    """A Python that has moto; made once. The test is skipped when no package index is there to have it from."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinker-atropos"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / "-".join(entry.partition("==")[2] for entry in ("==moto", *MOTO))
    with (cache / "moto.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            uv = [sys.executable, "-m", "uv", "--quiet"]
            for command in (["venv", str(place)], ["pip", "install", "-p", str(place / "bin" / "python"), *MOTO]):
                made = subprocess.run([*uv, *command], check=False, capture_output=True, text=True)
                if made.returncode != 0:
                    why = (made.stderr.strip().splitlines() or ["no word"])[-1]
                    pytest.skip(f"neither versitygw on PATH nor, from a package index, {MOTO[0]}: {why}")
            (place / "complete").touch()
    return place / "bin" / "python"


class Service:
    """The service itself, with one empty bucket; prefix: of its command, for a service on a node."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        self.port, self._log = free_port(), folder / "service.log"
        self.endpoint = f"http://{host}:{self.port}"
        gateway = shutil.which("versitygw")
        self.checks_signatures = gateway is not None
        variables = dict(os.environ)
        if gateway is not None:
            (folder / "objects" / BUCKET).mkdir(parents=True)
            command = [gateway, "--port", f"{host}:{self.port}", "posix", str(folder / "objects")]
            variables |= {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        else:
            command = [str(moto_python()), "-m", "moto.server", "-H", host, "-p", str(self.port)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*prefix, *command], stdout=log, stderr=log, env=variables, cwd=folder)
        try:
            until(lambda: httpx.get(self.endpoint).status_code < 500, "an answer of the service")
            if gateway is None:
                assert httpx.put(f"{self.endpoint}/{BUCKET}").status_code == 200
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


class Door:
    """An address of the service at which tests say what becomes of each request."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.requests: list[tuple[str, str, int]] = []
        """Method, object and size of all that came, refused ones too."""
        self.judge: Callable[[str, str], Refusal | None] = lambda method, name: None
        """Called before each is passed on; may take its time."""
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()
        self.open()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                door._open.add(self.connection)

            def finish(self) -> None:
                door._open.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                name = self.path.partition("?")[0].rpartition("/")[2]
                door.requests.append((self.command, name, len(body)))
                refusal = door.judge(self.command, name)
                if refusal is not None:
                    status, code = refusal
                    answer = f"<Error><Code>{code}</Code><Message>as the test wants it.</Message></Error>".encode()
                    self._answer(status, [("Content-Type", "application/xml")], answer)
                    return
                connection = http.client.HTTPConnection("127.0.0.1", door.service.port, timeout=60)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for header, value in self.headers.items():
                    connection.putheader(header, value)
                connection.endheaders(body)
                response = connection.getresponse()
                self._answer(response.status, response.getheaders(), response.read())
                connection.close()

            do_PUT = do_POST = do_DELETE = do_GET

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response_only(status)
                for header, value in headers:
                    if header.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(header, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # whoever asked was killed
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        """From now on nothing listens at the address, and nobody is connected any more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def put(self) -> list[str]:
        return [name for method, name, _ in self.requests if method == "PUT"]
