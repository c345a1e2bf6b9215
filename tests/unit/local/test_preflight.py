"""What is noticed before any process is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tinker_atropos.local.preflight import problems, search_path, working_directory
from tinker_atropos.run.load import RunFile, convert


def run(command: list[str], model: str = "tiny", replicas: int = 1, plain: bool = False) -> RunFile:
    if plain:
        return convert({"env": {}}, "run", command, model)
    spec: dict[str, Any] = {
        "tinkerAPI": {"local": {"model": model}},
        "environments": [{"name": "a", "command": command, "replicas": replicas}],
    }
    head = {"apiVersion": "tinker-atropos.dev/v1alpha1", "kind": "TinkerAtroposRun", "metadata": {"name": "r"}}
    return convert({**head, "spec": spec}, "run")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Where the command is given, and the run file elsewhere."""
    here, there = tmp_path / "here", tmp_path / "project" / "runs"
    here.mkdir()
    there.mkdir(parents=True)
    (there / "run.yaml").write_text("")
    (here / "here.py").write_text("")
    (there.parent / "environments").mkdir()
    (there.parent / "environments" / "digits.py").write_text("")
    (here / "plain.sh").write_text("#!/bin/sh\n")
    (here / "good.sh").write_text("#!/bin/sh\n")
    (here / "good.sh").chmod(0o755)
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text("{}")
    return here, there / "run.yaml"


FIELD = "spec.environments[0].command: "
COMMANDS: dict[str, tuple[list[str], str | None]] = {
    "python and a script here": (["python", "here.py"], None),
    "a script in a folder above the run file": (["python", "environments/digits.py"], None),
    "a module, which only python can tell": (["python", "-m", "mine"], None),
    "an executable by its path": (["./good.sh"], None),
    "a program of the system": (["sh", "-c", "true"], None),
    "a misspelt program": (
        ["pyhton", "here.py"],
        FIELD + "the program 'pyhton' is not found in PATH; did you mean 'python'?",
    ),
    "no program": (["nosuch"], FIELD + "the program 'nosuch' is not found in PATH; install it, or give its path"),
    "a script as program": (
        ["here.py"],
        FIELD + "the program 'here.py' is not found in PATH; write [python, here.py, …]",
    ),
    "an executable without ./": (["good.sh"], FIELD + "the program 'good.sh' is not found in PATH; write ./good.sh"),
    "a path that is not there": (["./bin/x"], FIELD + "'./bin/x' is no file here or beside"),
    "a file that cannot be executed": (["./plain.sh"], FIELD + "'./plain.sh' cannot be executed; make it so: chmod +x"),
    "a script that cannot be executed": (
        ["./here.py"],
        FIELD + "'./here.py' cannot be executed; write [python, ./here.py",
    ),
    "a folder": (["./model"], FIELD + "'./model' cannot be executed"),
    "a script that is not there": (["python", "gone.py"], FIELD + "'gone.py' is no file here or beside"),
}


@pytest.mark.parametrize(("command", "message"), COMMANDS.values(), ids=COMMANDS)
def test_commands(folders: tuple[Path, Path], command: list[str], message: str | None) -> None:
    here, file = folders
    found = [str(problem) for problem in problems(run(command), file, here)]
    if message is None:
        assert found == []
    else:
        assert len(found) == 1 and found[0].startswith(message)


def test_the_option_is_named_for_a_plain_file(folders: tuple[Path, Path]) -> None:
    here, file = folders
    [problem] = problems(run(["nosuch"], plain=True), file, here)
    assert problem.field == "--environment-command"


def test_environments_without_instances_are_not_looked_at(folders: tuple[Path, Path]) -> None:
    here, file = folders
    two = run(["sh"])
    spec = {
        **two.source,
        "environments": [*two.source["environments"], {"name": "b", "command": ["no"], "replicas": 0}],
    }
    head = {"apiVersion": "tinker-atropos.dev/v1alpha1", "kind": "TinkerAtroposRun", "metadata": {"name": "r"}}
    assert problems(convert({**head, "spec": spec}, "run"), file, here) == []


def test_a_run_without_any_instance_is_refused(folders: tuple[Path, Path]) -> None:
    here, file = folders
    [problem] = problems(run(["nosuch"], replicas=0), file, here)
    assert str(problem).startswith("spec.environments: have no instances (replicas: 0)")


@pytest.mark.parametrize(("model", "good"), [("tiny", True), ("./model", True), ("./gone", False), ("./", False)])
def test_a_local_model_is_there(folders: tuple[Path, Path], model: str, good: bool) -> None:
    here, file = folders
    found = problems(run(["sh"], model), file, here)
    assert (found == []) is good
    assert good or found[0].field == "spec.tinkerAPI.local.model"


def test_scripts_are_found_beside_the_run_file_and_above(folders: tuple[Path, Path]) -> None:
    here, file = folders
    assert working_directory(run(["python", "here.py"]), file, here) == here
    assert working_directory(run(["python", "environments/digits.py"]), file, here) == file.parent.parent


def test_python_is_the_one_that_runs_this() -> None:
    assert (Path(search_path().split(os.pathsep)[0]) / "python").exists()
