"""`tinker-atropos audit` on a running server and on the store that it leaves behind."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("target", "message"), [("http://127.0.0.1:9", "does not give its ledger"), ("/nowhere", "is no store directory")]
)
def test_what_cannot_be_audited_is_said(target: str, message: str) -> None:
    result = CliRunner().invoke(command, [target])
    assert result.exit_code == 1 and message in result.output


def test_the_token_is_sent(make_server: Any) -> None:
    server = make_server(token="secret")
    url = f"http://127.0.0.1:{server.port}"
    assert CliRunner().invoke(command, [url]).exit_code == 1
    assert CliRunner().invoke(command, [url, "--token", "secret"]).exit_code == 0
