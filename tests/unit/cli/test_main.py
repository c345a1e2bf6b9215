"""The command line as people meet it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_atropos.cli.main import SUBCOMMANDS

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinker_atropos.cli.main", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_explains_itself(name: str) -> None:
    result = call(name, "--help")
    assert result.returncode == 0, result.stderr
    assert "Example" in result.stdout and "Usage:" in result.stdout


def test_a_misspelt_subcommand_names_the_nearest() -> None:
    result = call("gatway")
    assert result.returncode == 2 and "Did you mean 'gateway'?" in result.stderr


def test_validate_accepts_the_quick_start() -> None:
    result = call("validate", str(QUICKSTART), "--output", "json")
    assert json.loads(result.stdout) == {"name": "quickstart", "valid": True, "warnings": []}


def test_a_bad_run_file_is_named_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        QUICKSTART.read_text().replace("learning_rate", "learning_rat").replace("batch_size: 128", "batch_size: 100")
    )
    result = call("run", str(path))
    assert result.returncode == 78
    assert "did you mean 'learning_rate'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_completion_script() -> None:
    assert "_TINKER_ATROPOS_COMPLETE" in call("completion", "bash").stdout


def test_going_on_with_a_changed_run_file_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "run.yaml").write_text(QUICKSTART.read_text().replace("lora_rank: 8", "lora_rank: 4"))
    result = call("run", str(QUICKSTART), "--data", str(data))
    assert result.returncode == 78
    assert "holds a run of another run file" in result.stderr and "spec.config" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_data_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("run", str(QUICKSTART), "--data", str(tmp_path / "file"))
    assert result.returncode == 78 and "error: --data" in result.stderr and "Traceback" not in result.stderr


def test_a_log_level_that_is_none() -> None:
    result = call("trainer", "--config", str(QUICKSTART), "--log-level", "LOUD")
    assert result.returncode == 1 and "'LOUD' is no level" in result.stderr and "Traceback" not in result.stderr
