"""Real peers of a trainer: the trajectory server and the local Tinker server as processes, and a poster of groups."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from peer_processes import BATCH, GROUP, KEY, Program, Server, free_port, group
from tinker_atropos.run import yaml_text


@pytest.fixture(scope="module")
def tinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A local Tinker server; `variables["URL"]` is its address."""
    folder, port = tmp_path_factory.mktemp("tinker"), free_port()
    url = f"http://127.0.0.1:{port}"
    program = Program(
        ["local-tinker", "--port", str(port), "--data", str(folder / "data"), "--model", "tiny", "--api-key", KEY],
        folder / "log",
        f"{url}/healthz",
        {"URL": url},
    ).start()
    yield program
    program.kill(signal.SIGTERM)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    port, grpc = free_port(), free_port()
    url, store = f"http://127.0.0.1:{port}", tmp_path / "store"
    export = str(tmp_path / "export")
    program = Program(
        ["trajectories", "--port", str(port), "--grpc-port", str(grpc), "--store", str(store), "--export", export],
        tmp_path / "trajectories.log",
        f"{url}/healthz",
    ).start()
    yield Server(program, url, f"127.0.0.1:{grpc}", store)
    program.kill(signal.SIGTERM)


@pytest.fixture
def poster(server: Server) -> Iterator[Callable[[int], None]]:
    """Posts that many groups in the background, again after every refusal, as a patient environment does."""
    stop = threading.Event()
    threads = []

    def post(count: int) -> None:
        def run() -> None:
            for number in range(count):
                while not stop.is_set():
                    try:
                        if httpx.post(f"{server.url}/scored_data", json=group(number), timeout=10).status_code == 200:
                            break
                    except httpx.HTTPError:
                        pass
                    stop.wait(0.1)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        threads.append(thread)

    yield post
    stop.set()
    for thread in threads:
        thread.join(10)


@pytest.fixture
def trainer(server: Server, tinker: Program, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Makes a trainer program for a run of `steps` steps; start it yourself."""
    made: list[Program] = []

    def make(steps: int = 6, name: str = "trainer", options: tuple[str, ...] = (), **tinker_config: object) -> Program:
        spec = {
            "config": {
                "env": {"group_size": GROUP, "batch_size": BATCH, "total_steps": steps},
                "tinker": {"lora_rank": 8, "learning_rate": 1e-3, "loss_fn": "ppo", **tinker_config},
            },
            "tinkerAPI": {"local": {"model": "tiny"}},
            "environments": [{"name": "posted", "command": ["none"]}],
            "checkpoints": {"every": 3},
        }
        document = {
            "apiVersion": "tinker-atropos.dev/v1alpha1",
            "kind": "TinkerAtroposRun",
            "metadata": {"name": "wire"},
            "spec": spec,
        }
        config = tmp_path / f"{name}.yaml"
        config.write_text(yaml_text.dump(document))
        arguments = ["trainer", "--config", str(config), "--trajectories", server.grpc, "--run-uid", "uid-1"]
        arguments += [
            "--tinker-base-url",
            tinker.variables["URL"],
            "--termination-log",
            str(tmp_path / f"{name}.end"),
            *options,
        ]
        program = Program(arguments, tmp_path / f"{name}.log")
        made.append(program)
        return program

    yield make
    for program in made:
        program.kill()
