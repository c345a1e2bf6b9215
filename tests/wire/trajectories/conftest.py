"""A real trajectory server as a process, for tests that talk to it, kill it and start it again."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol import trajectories_pb2_grpc as pb_grpc
from tinker_atropos.trajectories.export_bucket import Bucket

REGISTRATION = {
    "wandb_group": "g", "wandb_project": "p", "batch_size": 16, "max_token_len": 4096, "checkpoint_dir": "ckpt",
    "save_checkpoint_interval": 5, "starting_step": 0, "num_steps": 100,
}  # fmt: skip


def free_port() -> int:
    """A port that the kernel gives to no outgoing connection, so that it is still free after a restart."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """One trajectory server on its own store, and its two front ends.

    `start` runs `tinker-atropos trajectories` as a process, which can be killed; `start_here` runs the same server in a
    thread, which starts at once.
    """

    REGISTRATION = REGISTRATION
    pb = pb

    def __init__(
        self,
        folder: Path,
        token: str = "",
        store: str = "",
        max_body_mb: int = 256,
        max_queue_mb: int = 0,
        compact_mb: float = 16.0,
        export: Path | Bucket | None = None,
    ) -> None:
        self.compact_mb, self.export = compact_mb, export
        self.store = store or str(folder / "store")
        self.log = folder / "server.log"
        self.token = token
        self.max_body_mb, self.max_queue_mb = max_body_mb, max_queue_mb
        self.port = self.grpc_port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._here: tuple[threading.Thread, Callable[[], None]] | None = None
        self._channel: grpc.Channel | None = None

    def start(self) -> None:
        self._close()
        if not self.port:
            self.port, self.grpc_port = free_port(), free_port()
        options: dict[str, object] = {
            "--port": self.port,
            "--grpc-port": self.grpc_port,
            "--store": self.store,
            "--max-body-mb": self.max_body_mb,
            "--compact-mb": self.compact_mb,
        }
        if isinstance(self.export, Bucket):
            options["--export"], options["--export-endpoint"] = self.export.url, self.export.endpoint
        elif self.export is not None:
            options["--export"] = self.export
        command = [sys.executable, "-m", "tinker_atropos.cli.main", "trajectories"]
        command += [text for option, value in options.items() for text in (option, str(value))]
        environment = {**os.environ, "TINKER_ATROPOS_TRAJECTORIES_TOKEN": self.token}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)
        deadline = time.monotonic() + 60
        while True:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            with contextlib.suppress(OSError):
                if self.call("GET", "/healthz")[0] == 200:
                    return
            time.sleep(0.02)

    def start_here(self) -> None:
        import uvloop

        from tinker_atropos.trajectories.server import Addresses, Options, serve

        options = Options(
            "127.0.0.1",
            self.port,
            self.grpc_port,
            self.store,
            self.token,
            self.max_body_mb << 20,
            self.max_queue_mb << 20,
            export=self.export,
        )
        started: queue.Queue[Any] = queue.Queue()

        async def run() -> None:
            ending, loop = asyncio.Event(), asyncio.get_running_loop()

            def ready(addresses: Addresses) -> None:
                started.put((addresses, lambda: loop.call_soon_threadsafe(ending.set)))

            await serve(options, ending, ready)

        def guarded() -> None:
            try:
                uvloop.run(run())
            except BaseException as error:
                started.put(error)  # nobody reads it any more after the start; the server's log tells it too

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        answer = started.get(timeout=60)
        if isinstance(answer, BaseException):
            raise answer
        addresses, end = answer
        self.port, self.grpc_port, self._here = addresses.port, addresses.grpc_port, (thread, end)

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        self._close()

    def stop(self) -> int:
        self._close()
        if self._here is not None:
            thread, end = self._here
            with contextlib.suppress(RuntimeError):  # its loop is closed: it ended by itself
                end()
            thread.join(30)
            self._here = None
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(20)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def restart(self) -> None:
        """Kill -9 and start again, or, in a thread, end and start again on the same ports."""
        if self.process is not None:
            self.kill()
            self.start()
        else:
            self.stop()
            self.start_here()

    @property
    def rpc(self) -> pb_grpc.TrajectoriesStub:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            self._channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options)
            grpc.channel_ready_future(self._channel).result(30)
        return pb_grpc.TrajectoriesStub(self._channel)  # type: ignore[no-untyped-call]

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *, raw: bool = False
    ) -> tuple[int, Any]:
        """One request on a connection of its own: status and decoded answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {"Content-Type": "application/json", **(headers or {})}
            if self.token and "Authorization" not in sent:
                sent["Authorization"] = f"Bearer {self.token}"
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            content = answer.read()
            self.answer_headers = dict(answer.getheaders())
            return answer.status, content if raw else json.loads(content)
        finally:
            connection.close()

    def get(self, path: str, body: Any = None) -> Any:
        status, answer = self.call("GET", path, body)
        assert status == 200, (status, answer)
        return answer

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        status, answer = self.call("POST", path, body, headers)
        assert status == 200, (status, answer)
        return answer

    # -- what tests do again and again -------------------------------------------------------------------------------

    def take_over(self, run_id: str = "run", batch_size: int = 16, **settings: Any) -> pb.TakeoverResponse:
        wanted = pb.RunSettings(run_id=run_id, batch_size=batch_size, total_steps=50, **settings)
        return self.rpc.Takeover(pb.TakeoverRequest(settings=wanted, holder="test"))

    def lease(self, epoch: int, step: int, wait: float = 0.0) -> pb.Batch | None:
        answer = self.rpc.Lease(pb.LeaseRequest(epoch=epoch, for_step=step, wait_seconds=wait))
        return answer.batch if answer.HasField("batch") else None

    def ack(self, epoch: int, batch: pb.Batch) -> None:
        self.rpc.Ack(pb.AckRequest(epoch=epoch, lease_id=batch.lease_id, step=batch.for_step))

    def cover(self, epoch: int, step: int) -> None:
        state = pb.State(step=step, checkpoint_path=f"tinker://{step}", rng=b"\x00\xff", cursor="c")
        self.rpc.Cover(pb.CoverRequest(epoch=epoch, state=state))

    def register(self, **changes: Any) -> Any:
        return self.post("/register", {**REGISTRATION, **changes})

    def register_env(
        self, name: str = "e", group_size: int = 4, headers: dict[str, str] | None = None, **more: Any
    ) -> Any:
        body = {"max_token_length": 64, "desired_name": name, "weight": 1.0, "group_size": group_size, **more}
        return self.post("/register-env", body, headers)

    def ledger(self) -> list[Any]:
        entries: list[Any] = []
        after = 0
        while after is not None:
            page = self.get(f"/ledger?after={after}&limit=1000")
            entries += page["entries"]
            after = page["next"]
        return entries

    @staticmethod
    def group(seed: int, sequences: int = 4, length: int = 8, **fields: Any) -> dict[str, Any]:
        """A group whose scores carry its number."""
        rng = random.Random(seed)
        prompt = length // 2
        tokens = [[rng.randrange(1000) for _ in range(length)] for _ in range(sequences)]
        return {
            "tokens": tokens,
            "masks": [[-100] * prompt + row[prompt:] for row in tokens],
            "scores": [float(seed)] * sequences,
            "inference_logprobs": [
                [1.0] * prompt + [-rng.random() for _ in range(length - prompt)] for _ in range(sequences)
            ],
            "env_id": 0,
            **fields,
        }

    @staticmethod
    def numbers(batch: Any) -> list[int]:
        """The numbers that `group` put into the scores of a batch."""
        if isinstance(batch, pb.Batch):
            return [int(item.sequences[0].score) for item in batch.groups]
        return [int(item["scores"][0]) for item in batch["batch"]]

    @staticmethod
    def zipped(content: Any) -> bytes:
        return gzip.compress(json.dumps(content).encode())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server in a thread."""
    server = Server(tmp_path)
    server.start_here()
    yield server
    server.stop()


@pytest.fixture
def make_process_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers as processes, to be killed."""
    made: list[Server] = []

    def make(**options: Any) -> Server:
        made.append(Server(tmp_path, **options))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def process_server(make_process_server: Callable[..., Server]) -> Server:
    return make_process_server()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers with options of their own."""
    made: list[Server] = []

    def make(**options: Any) -> Server:
        folder = tmp_path / f"server-{len(made)}"
        folder.mkdir()
        made.append(Server(folder, **options))
        made[-1].start_here()
        return made[-1]

    yield make
    for server in made:
        server.stop()


class RedisServer:
    """A redis-server of its own, with its append-only file synced always."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while self.cli("PING") != "PONG":
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def cli(self, *arguments: str) -> str:
        command = ["redis-cli", "-p", str(self.port), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture(name="free_port")
def free_port_fixture() -> Callable[[], int]:
    return free_port
