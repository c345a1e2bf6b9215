"""A run's ledger is exported when its trainer says that it is over, or when the server ends; audit reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tinker_atropos.trajectories.audit import command

pytestmark = pytest.mark.wire


def train(server: Any, steps: int) -> int:
    epoch: int = server.take_over(batch_size=8).epoch
    server.post("/scored_data_list", [server.group(number) for number in range(2 * steps + 1)])
    for step in range(1, steps + 1):
        server.ack(epoch, server.lease(epoch, step))
    server.cover(epoch, steps)
    return epoch


def finish(server: Any, epoch: int) -> Any:
    return server.rpc.Finish(server.pb.FinishRequest(epoch=epoch))


def audited(directory: Path) -> str:
    result = CliRunner().invoke(command, [str(directory)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("kind", ["embedded", "redis"])
def test_a_finished_run_is_exported_whatever_its_store(
    kind: str, make_server: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("redis_server").url if kind == "redis" else ""
    server = make_server(store=store, export=tmp_path / "archive" / "run")
    epoch = train(server, 3)
    answer = finish(server, epoch)
    assert (answer.exported_to, answer.problem) == (str(tmp_path / "archive" / "run"), "")
    assert answer.ledger.covered == 6
    assert audited(tmp_path / "archive" / "run") == audited_running(server)
    assert finish(server, epoch) == answer, "said again it changes nothing"
    again = make_server(store=str(tmp_path / "archive" / "run"))
    assert again.get("/status")["ledger"] == server.get("/status")["ledger"]
    assert again.get("/latest_example")["scores"] == server.get("/latest_example")["scores"], "its payload is there"


def audited_running(server: Any) -> str:
    return CliRunner().invoke(command, [f"http://127.0.0.1:{server.port}"]).output


def test_a_run_that_nobody_finishes_is_exported_when_its_server_ends(make_process_server: Any, tmp_path: Path) -> None:
    server = make_process_server(export=tmp_path / "run")
    train(server, 2)
    assert not (tmp_path / "run").exists()
    assert server.stop() == 0
    assert "5 groups acknowledged, 2 steps trained" in audited(tmp_path / "run")


def test_what_came_after_the_end_is_exported_too(make_server: Any, tmp_path: Path) -> None:
    server = make_server(export=tmp_path / "run")
    finish(server, train(server, 1))
    server.post("/scored_data", server.group(99))
    server.stop()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ledger"]["stored"] == 4


def test_a_place_that_cannot_be_written_is_said_and_the_server_goes_on(make_server: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = make_server(export=tmp_path / "file" / "run")
    epoch = train(server, 1)
    answer = finish(server, epoch)
    assert answer.exported_to == ""
    assert answer.problem == f"cannot write the export {tmp_path}/file/run: Not a directory"
    assert server.get("/status")["current_step"] == 1
    assert server.stop() == 0


def test_without_an_export_the_end_is_only_acknowledged(server: Any) -> None:
    answer = finish(server, train(server, 1))
    assert (answer.exported_to, answer.problem, answer.ledger.covered) == ("", "", 2)
