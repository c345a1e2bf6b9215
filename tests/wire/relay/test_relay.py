"""The relay in front of a server that answers, fails, dies and comes back."""

from __future__ import annotations

import gzip
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from peer_processes import free_port, until
from relay_process import Relay, StartRelay
from tinker_atropos.protocol.identity import ENVIRONMENT_HEADER, INSTANCE_HEADER
from tinker_atropos.relay.headers import REQUEST_KEY_HEADER

pytestmark = pytest.mark.wire


class Server:
    """The scripted server as a process."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.journal = folder / "journal"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        script = Path(__file__).with_name("upstream.py")
        self.process = subprocess.Popen([sys.executable, str(script), str(self.port), str(self.journal)])
        until(lambda: httpx.get(f"{self.url}/tokenizer", timeout=2).status_code == 200, "the server answers")

    def reset(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.start()
        self.fail()
        self.journal.unlink(missing_ok=True)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def fail(self, *statuses: int) -> None:
        httpx.post(f"{self.url}/fail", json=statuses)

    def got(self, path: str) -> list[dict[str, Any]]:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [got for got in map(json.loads, lines) if got["path"] == path]


@pytest.fixture(scope="module")
def only_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def server(only_server: Server) -> Server:
    """As new: running, nothing in its journal, nothing to fail."""
    only_server.reset()
    return only_server


@pytest.fixture
def relay(server: Server, only_relay: Relay) -> Relay:
    """In front of a server that runs."""
    return only_relay


@pytest.fixture(scope="module")
def only_relay(only_server: Server, start_relay: StartRelay, tmp_path_factory: pytest.TempPathFactory) -> Relay:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("secret\n")
    return start_relay(only_server.url, only_server.url, "--token-file", str(token))


def test_a_get_with_a_body_arrives_as_it_was_sent(relay: Relay) -> None:
    """Atropos asks for the status of an environment like this, every 0.11 s, on one connection."""
    connection = http.client.HTTPConnection(relay.trajectories.removeprefix("http://"))
    for number in range(20):
        body = json.dumps({"env_id": number})
        connection.request("GET", "/status-env?a=b%2Fc", body, {"Content-Type": "application/json"})
        got = json.loads(connection.getresponse().read())
        assert (got["method"], got["path"], got["body"]) == ("GET", "/status-env?a=b%2Fc", body)


def test_identity_and_token_are_added_and_the_environments_own_are_dropped(relay: Relay) -> None:
    for base in (relay.trajectories, relay.gateway):
        got = httpx.get(f"{base}/x", headers={"Authorization": "Bearer x", INSTANCE_HEADER: "forged"}).json()["headers"]
        assert got["Authorization"] == "Bearer secret"
        assert got[ENVIRONMENT_HEADER] == "digits"
        assert got[INSTANCE_HEADER] == "digits-0"
        assert "forged" not in got.values()


def test_compressed_bodies_pass_untouched(relay: Relay) -> None:
    body = gzip.compress(b'{"tokens": [[1, 2, 3]]}' * 50)
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    got = httpx.post(f"{relay.trajectories}/scored_data", content=body, headers=headers).json()
    assert got["body"].encode("latin1") == body
    assert got["headers"]["Content-Encoding"] == "gzip"
    assert got["headers"]["Content-Type"] == "application/json"
    assert got["headers"]["Content-Length"] == str(len(body))


def test_large_bodies_pass(relay: Relay) -> None:
    body = bytes(range(256)) * 100_000
    got = httpx.post(f"{relay.trajectories}/scored_data", content=body, timeout=60).json()
    assert got["body"].encode("latin1") == body


def test_compressed_answers_pass_untouched(relay: Relay) -> None:
    with httpx.stream("GET", f"{relay.trajectories}/gzip") as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"".join(answer.iter_raw()) == b"\x1f\x8b not really"


def test_streams_are_not_collected(relay: Relay) -> None:
    with httpx.stream("GET", f"{relay.gateway}/stream") as answer:
        arrived = [(time.monotonic(), chunk) for chunk in answer.iter_raw()]
    assert b"".join(chunk for _, chunk in arrived) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert len(arrived) == 3


@pytest.mark.parametrize("method", ["HEAD", "DELETE", "PUT", "PATCH", "OPTIONS"])
def test_other_methods_pass(method: str, relay: Relay, server: Server) -> None:
    assert httpx.request(method, f"{relay.trajectories}/other").status_code == 200
    assert [got["method"] for got in server.got("/other")] == [method]


def test_redirects_are_not_followed(relay: Relay) -> None:
    answer = httpx.get(f"{relay.trajectories}/redirect")
    assert (answer.status_code, answer.headers["Location"]) == (307, "http://elsewhere.invalid/")


@pytest.mark.parametrize("statuses", [(503,), (502, 504, 500), (500,) * 4])
def test_failures_of_a_restart_are_held(statuses: tuple[int, ...], relay: Relay, server: Server) -> None:
    server.fail(*statuses)
    answer = httpx.post(f"{relay.trajectories}/scored_data", content=b"group", timeout=30)
    assert answer.status_code == 200
    got = server.got("/scored_data")
    assert [one["body"] for one in got] == ["group"] * (len(statuses) + 1)
    assert len({one["headers"][REQUEST_KEY_HEADER] for one in got}) == 1, "one request, one key"


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
def test_client_errors_pass_at_once(status: int, relay: Relay, server: Server) -> None:
    server.fail(status)
    answer = httpx.post(f"{relay.trajectories}/scored_data", content=b"group")
    assert answer.status_code == status
    assert len(server.got("/scored_data")) == 1


def test_every_request_has_its_own_key(relay: Relay) -> None:
    keys = [httpx.get(f"{relay.trajectories}/x").json()["headers"][REQUEST_KEY_HEADER] for _ in range(3)]
    assert len(set(keys)) == 3


def test_an_answer_that_breaks_off_is_asked_for_again(relay: Relay) -> None:
    answer = httpx.get(f"{relay.trajectories}/cut")
    assert answer.json() == {"whole": True}


def test_posts_while_the_server_is_dead_are_answered_when_it_is_back(relay: Relay, server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        server.kill()
        waiting = [
            pool.submit(httpx.post, f"{relay.trajectories}/scored_data", content=f"group {number}", timeout=60)
            for number in range(8)
        ]
        time.sleep(1)
        assert not any(one.done() for one in waiting)
        server.start()
        assert [one.result(60).status_code for one in waiting] == [200] * 8
    assert {got["body"] for got in server.got("/scored_data")} == {f"group {number}" for number in range(8)}


def test_a_request_in_the_middle_of_a_kill_is_answered(relay: Relay, server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{relay.gateway}/hang", content=b"x", timeout=60)
        until(lambda: server.got("/hang"), "the server has the request")
        server.kill()
        server.start()
        assert asked.result(60).status_code == 200
    assert [got["body"] for got in server.got("/hang")] == ["x", "x"]


def test_a_client_that_leaves_ends_its_request(relay: Relay, server: Server) -> None:
    server.kill()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{relay.trajectories}/scored_data", content=b"gone", timeout=0.5)
    time.sleep(0.5)
    server.start()
    assert httpx.post(f"{relay.trajectories}/scored_data", content=b"here", timeout=30).status_code == 200
    time.sleep(3)  # longer than the longest pause between two attempts
    assert [got["body"] for got in server.got("/scored_data")] == ["here"]


def test_it_waits_for_the_gateway_before_it_is_ready(tmp_path: Path, start_relay: Relay) -> None:
    server = Server(tmp_path)
    relay = start_relay(server.url, server.url, wait=False)
    until(lambda: httpx.get(f"{relay.health}/healthz").status_code == 503, "the relay listens")
    assert not (relay.tokenizer / "tokenizer.json").exists()
    server.start()
    try:
        until(lambda: httpx.get(f"{relay.health}/healthz").status_code == 200, "the relay is ready")
        assert (relay.tokenizer / "tokenizer.json").read_text() == "{}"
        assert any(record["message"].startswith("ready") for record in relay.program.records())
        server.kill()
        assert httpx.get(f"{relay.health}/healthz").status_code == 200, "an outage must not kill the environment"
    finally:
        server.kill()


def test_it_ends_in_order_with_requests_inside(server: Server, start_relay: StartRelay) -> None:
    relay = start_relay(server.url, server.url)
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.post, f"{relay.trajectories}/scored_data", content=b"x", timeout=60)
        time.sleep(0.5)
        assert relay.program.process is not None
        relay.program.process.terminate()
        assert relay.program.wait(15) == 0
        with pytest.raises(httpx.HTTPError):
            waiting.result(15)
    assert "Traceback" not in relay.program.text()


def test_it_stays_small(server: Server, start_relay: StartRelay) -> None:
    # A relay of its own: what the allocator keeps of other tests' large bodies is not what is measured here.
    relay = start_relay(server.url, server.url)
    with httpx.Client(base_url=relay.trajectories) as client:
        for _ in range(300):
            client.post("/scored_data", content=b"x" * 10_000)
    assert relay.program.process is not None
    status = Path(f"/proc/{relay.program.process.pid}/status")
    if not status.exists():
        pytest.skip("no /proc on this system")
    kib = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    assert kib < 80_000


def test_it_imports_nothing_heavy() -> None:
    heavy = [
        "tinker",
        "grpc",
        "jax",
        "transformers",
        "numpy",
        "pydantic",
        "google.protobuf",
        "kubernetes",
        "atroposlib",
    ]
    code = (
        "import sys, tinker_atropos.relay.command, tinker_atropos.relay.serve\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
