"""The subcommand: bad input is one sentence and a status that is not 0."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wire


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tinker_atropos.cli.main", "local-tinker", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "{tmp}", "--api-key", "sk-1"], "must start with tml-"),
        (["--data", "{tmp}", "--model", "{tmp}/none"], "no config.json there"),
        (["--data", "{tmp}/file/data"], "Not a directory"),
        (["--data", "{tmp}", "--port", "{busy}"], "another program listens on 127.0.0.1"),
        (["--port", "0"], "--data"),
    ],
    ids=["key of the wrong form", "no model there", "data cannot be made", "port in use", "no data folder"],
)
def test_bad_input(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = run(*(option.format(tmp=tmp_path, busy=taken.getsockname()[1]) for option in options))
    assert ended.returncode != 0
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_two_servers_on_one_folder(server: object) -> None:
    ended = run("--port", "0", "--data", str(server.data))  # type: ignore[attr-defined]
    assert ended.returncode != 0
    assert "in use by another local-tinker" in ended.stderr


def test_help_is_quick_and_complete() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    for option in ("--host", "--port", "--data", "--model", "--api-key", "--faults", "--shortest-ttl"):
        assert option in ended.stdout
    code = "import sys; from tinker_atropos.local_tinker import command; print('jax' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
        == "False"
    )


def test_the_model_is_made_by_a_module_too(tmp_path: Path) -> None:
    """For images: an existing folder with other things in it is left alone."""
    (tmp_path / "mine").write_text("x")
    command = [sys.executable, "-m", "tinker_atropos.local_tinker.tiny_model", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode != 0
    assert "not empty" in ended.stderr
    assert (tmp_path / "mine").read_text() == "x"
