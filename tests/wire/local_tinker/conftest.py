"""Starts real `tinker-atropos local-tinker` processes and gives tests the unmodified SDK, pointed at them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

KEY = "tml-local"

os.environ["TINKER_TELEMETRY"] = "0"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalTinker:
    """One server process on a port of its own; it can be killed and started again on the same data."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._options = options
        self._log = data.with_name(data.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tinker_atropos.cli.main", "local-tinker", "--port", str(self.port)]
        command += ["--data", str(self.data), *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.log()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the server was not ready in time:\n{self.log()}")

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(30)

    def fault(self, **fault: Any) -> None:
        assert httpx.post(f"{self.url}/local/v1/faults", json=fault).status_code == 204

    def faults_left(self) -> list[dict[str, Any]]:
        left: list[dict[str, Any]] = httpx.get(f"{self.url}/local/v1/faults").json()
        return left

    def clear_faults(self) -> None:
        httpx.delete(f"{self.url}/local/v1/faults")

    def usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = httpx.get(f"{self.url}/local/v1/usage").json()
        return usage

    def post(self, route: str, body: Any, key: str = KEY) -> httpx.Response:
        return httpx.post(f"{self.url}/api/v1{route}", content=json.dumps(body), headers={"X-API-Key": key}, timeout=40)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTinker]:
    """The server that most tests share; a test that kills or fills it makes one of its own."""
    instance = LocalTinker(tmp_path_factory.mktemp("tinker") / "data", "--faults", "--shortest-ttl", "1")
    instance.start()
    yield instance
    instance.terminate()


@pytest.fixture
def client(server: LocalTinker) -> Iterator[Any]:
    """A service client of the real SDK."""
    server.clear_faults()
    with service_client(server) as opened:
        yield opened


@contextlib.contextmanager
def service_client(server: LocalTinker, key: str = KEY) -> Iterator[Any]:
    import tinker

    opened = tinker.ServiceClient(base_url=server.url, api_key=key)
    try:
        yield opened
    finally:
        with contextlib.suppress(Exception):
            opened.close("success").result(timeout=10)


@pytest.fixture(scope="session")
def tokenizer(server: LocalTinker, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The served tokenizer, loaded as every other program loads it."""
    import io
    import tarfile

    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    with tarfile.open(fileobj=io.BytesIO(httpx.get(f"{server.url}/local/v1/tokenizer").content)) as archive:
        archive.extractall(folder, filter="data")
    return AutoTokenizer.from_pretrained(str(folder))
