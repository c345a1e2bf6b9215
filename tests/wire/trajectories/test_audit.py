"""`tinker-atropos audit` on a running server and on the store that it leaves behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tinker_atropos.trajectories.audit import command

pytestmark = pytest.mark.wire


def test_a_run_balances_while_it_runs_and_afterwards(server: Any) -> None:
    epoch = server.take_over(batch_size=8).epoch
    server.post("/scored_data_list", [server.group(number) for number in range(7)])
    for step in (1, 2):
        server.ack(epoch, server.lease(epoch, step))
    server.cover(epoch, 1)
    running = CliRunner().invoke(command, [f"http://127.0.0.1:{server.port}"])
    assert running.exit_code == 0, running.output
    assert "7 groups acknowledged, 2 steps trained" in running.output
    for line in ("unregistered-0: 2 covered", "unregistered-0: 2 trained", "unregistered-0: 3 queued", "balanced"):
        assert line in running.output
    server.stop()
    assert CliRunner().invoke(command, [server.store]).output == running.output


def foreign(answer: tuple[int, bytes]) -> Iterator[str]:
    """A web server that is no trajectory server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer[0])
            self.end_headers()
            self.wfile.write(answer[1])

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, b"no"), "/ledger answers 404"),
        ((302, b""), "/ledger answers 302"),
        ((200, b"<html>"), "/ledger answers something else"),
        ((200, b"[]"), "/ledger answers something else"),
        ((200, b"{}"), "/ledger answers something else"),
    ],
)
def test_a_foreign_server_is_told_apart(answer: tuple[int, bytes], reason: str) -> None:
    for url in foreign(answer):
        result = CliRunner().invoke(command, [url])
        said = f"Error: {url}: what answers there is no trajectory server ({reason}); give the URL of the trajectory "
        assert result.exit_code == 1 and result.output == f"{said}server's HTTP port\n"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9: nothing answers there; is the trajectory server running"),
        ("http://", "is no URL; give one such as http://127.0.0.1:8000"),
        ("localhost:8000", "a server's URL begins with http://: http://localhost:8000"),
        ("http://[::1", "is no URL; give one such as http://127.0.0.1:8000"),
        ("/nowhere", "/nowhere is not there; give a store's directory, or the URL of a running server"),
        ("redis://127.0.0.1:9/0", "the Redis store at 127.0.0.1:9: "),
        ("redis://127.0.0.1:x/0", "redis://127.0.0.1:x/0 is no address; write it like redis://HOST:6379/0?run=NAME"),
        ("redis://[::1", "redis://[::1 is no address; write it like redis://HOST:6379/0?run=NAME"),
    ],
)
def test_what_cannot_be_audited_is_said(target: str, message: str) -> None:
    result = CliRunner().invoke(command, [target])
    assert result.exit_code == 1 and message in result.output
    assert isinstance(result.exception, SystemExit), "no traceback"
    result = CliRunner().invoke(command, [target, "--output", "json"])
    answer = json.loads(result.output)
    assert result.exit_code == 1 and answer["balanced"] is None and answer["error"]


def a_text(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file"


def other_things(folder: Path) -> Path:
    (folder / "segment.txt").write_text("")
    return folder


def a_strange_name(folder: Path) -> Path:
    (folder / "segment-one.log").write_text("")
    return folder


def a_damaged_snapshot(folder: Path) -> Path:
    (folder / "snapshot-00000001.json").write_text("{}")
    return folder


FOLDERS = {
    "an empty folder": (lambda folder: folder, "is no store: it holds no segment-*.log and no snapshot-*.json"),
    "a folder of other things": (other_things, "is no store: it holds no segment-*.log"),
    "a file": (a_text, "is no directory; give a store's directory"),
    "a strange name": (a_strange_name, "cannot be read as a ledger"),
    "a damaged snapshot": (a_damaged_snapshot, "damaged"),
}


@pytest.mark.parametrize(("make", "message"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_is_no_store_is_refused(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    result = CliRunner().invoke(command, [str(make(tmp_path))])
    assert result.exit_code == 1 and message in result.output and "balanced" not in result.output
    assert isinstance(result.exception, SystemExit), "no traceback"


def test_the_data_folder_of_a_run_is_its_stores(server: Any) -> None:
    server.take_over(batch_size=8)
    server.post("/scored_data_list", [server.group(number) for number in range(3)])
    server.stop()
    store = Path(server.store)
    assert store.name == "store"
    expected = CliRunner().invoke(command, [str(store)]).output
    assert "3 groups acknowledged" in expected
    assert CliRunner().invoke(command, [str(store.parent)]).output == expected


def test_the_answer_in_json(server: Any) -> None:
    epoch = server.take_over(batch_size=8).epoch
    server.post("/scored_data_list", [server.group(number) for number in range(5)])
    server.ack(epoch, server.lease(epoch, 1))
    result = CliRunner().invoke(command, [f"http://127.0.0.1:{server.port}", "--output", "json"])
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "balanced": True,
        "stored": 5,
        "steps": 1,
        "states": {"queued": 3, "trained": 2},
        "environments": {"unregistered-0": {"queued": 3, "trained": 2}},
        "dropped": {},
        "faults": [],
    }


def test_a_run_on_a_redis_server(make_server: Any, redis_server: Any) -> None:
    url = f"{redis_server.url}?run=mine"
    server = make_server(store=url)
    server.take_over(batch_size=8)
    server.post("/scored_data_list", [server.group(number) for number in range(3)])
    going_on = CliRunner().invoke(command, [url])
    assert going_on.exit_code == 0 and "3 groups acknowledged" in going_on.output
    server.post("/scored_data", server.group(3))
    assert "4 groups acknowledged" in CliRunner().invoke(command, [url]).output, "the server still owns its run"
    other = CliRunner().invoke(command, [f"{redis_server.url}?run=other"])
    assert other.exit_code == 1 and "holds no run 'other'; it holds mine; name one with ?run=NAME" in other.output


def test_the_token_is_sent(make_server: Any) -> None:
    server = make_server(token="secret")
    url = f"http://127.0.0.1:{server.port}"
    refused = CliRunner().invoke(command, [url])
    assert refused.exit_code == 1 and "it wants the run's token; give it with --token-file or --token" in refused.output
    wrong = CliRunner().invoke(command, [url, "--token", "wrong"])
    assert wrong.exit_code == 1 and "it refuses this token" in wrong.output
    assert CliRunner().invoke(command, [url, "--token", "secret"]).exit_code == 0
