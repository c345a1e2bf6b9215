"""Where the installed commands begin: an interruption while a program loads, and `run-api`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_atropos.cli.main import SUBCOMMANDS

ROOT = Path(__file__).parents[3]

INTERRUPTED_WHILE = """
import importlib.abc, os, signal, sys

class Interrupts(importlib.abc.MetaPathFinder):
    # The first import of that module is when the user presses Ctrl-C.
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupts())
sys.argv = {arguments!r}
from tinker_atropos.cli.entry import {function}
{function}()
"""


def interrupted(module: str, function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = INTERRUPTED_WHILE.format(module=module, function=function, arguments=[function, *arguments])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_ctrl_c_while_a_subcommand_loads(name: str) -> None:
    done = interrupted(SUBCOMMANDS[name][0], "main", name, "--help")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr and "Aborted" not in done.stderr


LATER = {
    "the command line itself": ("click", "main", ["run", "x.yaml"]),
    "what `run` needs once its file is read": (
        "tinker_atropos.local.supervise",
        "main",
        ["run", str(ROOT / "examples" / "quickstart.yaml")],
    ),
    "run-api": ("tinker_atropos.trajectories.run_api", "run_api", []),
    "the server of run-api": ("tinker_atropos.trajectories.command", "run_api", []),
}


@pytest.mark.parametrize(("module", "function", "arguments"), LATER.values(), ids=LATER)
def test_ctrl_c_while_something_else_loads(module: str, function: str, arguments: list[str]) -> None:
    done = interrupted(module, function, *arguments)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr and "Aborted" not in done.stderr


def call_run_api(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    code = "from tinker_atropos.cli.entry import run_api; run_api()"
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def test_run_api_explains_itself_and_warns_of_a_misspelt_variable() -> None:
    done = call_run_api("--help", RUN_API_PROT="1", RUN_API_PORT="tcp://10.0.0.7:8000")
    assert done.returncode == 0 and "Example" in done.stdout
    assert done.stderr == "warning: the variable RUN_API_PROT is read by nothing; did you mean RUN_API_PORT?\n"


def test_run_api_refuses_a_bad_option() -> None:
    done = call_run_api("--port", "many")
    assert done.returncode == 2 and "--port" in done.stderr


def test_run_api_reads_its_variables() -> None:
    done = call_run_api(RUN_API_PORT="many")
    assert done.returncode == 2 and "'many' is not a valid integer" in done.stderr
