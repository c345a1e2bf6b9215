"""Servers that the measurements start: ours and upstream's run-api, each on a port and a store of its own."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol import trajectories_pb2_grpc as pb_grpc

RESULTS = Path(__file__).parent / "results"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process, on a core of its own if one is named; `upstream` = atroposlib's run-api."""

    def __init__(self, *, upstream: bool = False, store: str = "", core: int | None = None) -> None:
        self.upstream = upstream
        self.core = core
        self.folder = Path(tempfile.mkdtemp(prefix="trajectories-"))
        self.store = store or str(self.folder / "store")
        self.port, self.grpc_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None

    def start(self) -> float:
        """Seconds until the first answer."""
        if self.upstream:
            code = "from atroposlib.cli.run_api import main; main()"
            command = [sys.executable, "-c", code, "--host", "127.0.0.1", "--port", str(self.port)]
        else:
            command = [sys.executable, "-m", "tinker_atropos.cli.main", "trajectories", "--port", str(self.port)]
            command += ["--grpc-port", str(self.grpc_port), "--store", self.store, "--log-level", "ERROR"]
        if self.core is not None:
            command = ["taskset", "-c", str(self.core), *command]
        started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(OSError):
                self.call("GET", "/")
                return time.monotonic() - started
            if self.process.poll() is not None:
                raise RuntimeError(f"{command} ended with status {self.process.returncode}")
            time.sleep(0.005)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read())

    def read(self, path: str) -> bytes:
        """An answer, not decoded."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=300) as answer:
            return bytes(answer.read())

    @property
    def rpc(self) -> pb_grpc.TrajectoriesStub:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            self._channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options)
            grpc.channel_ready_future(self._channel).result(30)
        return pb_grpc.TrajectoriesStub(self._channel)

    def take_over(self, batch_size: int, **settings: Any) -> int:
        wanted = pb.RunSettings(run_id="benchmark", batch_size=batch_size, **settings)
        return int(self.rpc.Takeover(pb.TakeoverRequest(settings=wanted)).epoch)

    def cpu_seconds(self) -> float:
        """Of all its threads; finer than the clock ticks of /proc/PID/stat."""
        assert self.process is not None
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def resident_bytes(self) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.disconnect()

    def disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def stop(self) -> None:
        self.disconnect()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def provenance() -> dict[str, Any]:
    """Where and on what a result was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=False, capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "processors": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "packages": {name: version(name) for name in ("atroposlib", "grpcio", "uvloop", "pysimdjson", "numpy")},
    }


def save(name: str, content: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"provenance": provenance(), **content}, indent=1) + "\n")
    print(f"written: {path}")
