"""What can be known to fail before any process is started: programs, scripts and models that are not there."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tinker_atropos.run.load import RunFile
from tinker_atropos.run.model import LOCAL_MODELS
from tinker_atropos.run.problems import Problem, nearest

COMMON_PROGRAMS = ("python", "python3", "uv", "bash", "sh", "env", "node")
"""What an environment's command usually begins with, to say what a misspelt one meant."""


def search_path() -> str:
    """PATH of the run's programs: this interpreter's folder first, so that `python` is the one that has atroposlib."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def problems(run: RunFile, run_file: Path, here: Path) -> list[Problem]:
    """Everything that this machine lacks for the run. here: the folder in which the command was given."""
    found = [
        problem
        for index, environment in enumerate(run.spec.environments)
        if environment.replicas
        for problem in _of_command(run, index, environment.command, run_file, here)
    ]
    if not any(environment.replicas for environment in run.spec.environments):
        text = "have no instances (replicas: 0), so there would be nothing to train on"
        found.append(Problem("spec.environments", text, "give one of them replicas: 1"))
    local = run.spec.tinker_api.local
    if local is not None and local.model not in LOCAL_MODELS and not (here / local.model / "config.json").is_file():
        field = "--local-model" if run.is_plain else "spec.tinkerAPI.local.model"
        text = f"{local.model!r} is no folder with a model (config.json, model.safetensors, tokenizer.json)"
        found.append(Problem(field, text, f"give such a folder, or {' or '.join(LOCAL_MODELS)}"))
    return found


def working_directory(run: RunFile, run_file: Path, here: Path) -> Path:
    """Where the environments' commands find their files: here, else beside the run file or in a folder above it."""
    scripts = [part for entry in run.spec.environments if entry.replicas for part in _files(entry.command)]
    for folder in (here, *run_file.resolve().parents):
        if all((folder / script).exists() for script in scripts):
            return folder
    return here


def _of_command(run: RunFile, index: int, command: tuple[str, ...], run_file: Path, here: Path) -> list[Problem]:
    field = "--environment-command" if run.is_plain else f"spec.environments[{index}].command"
    directory = working_directory(run, run_file, here)
    program = command[0]
    if "/" in program:
        path = directory / program
        if not path.exists():
            return [Problem(field, f"{program!r} is no file here or beside {run_file}", "give its path")]
        if path.is_dir() or not os.access(path, os.X_OK):
            fix = f"write [python, {program}, …]" if program.endswith(".py") else f"make it so: chmod +x {program}"
            return [Problem(field, f"{program!r} cannot be executed", fix)]
    elif shutil.which(program, path=search_path()) is None:
        meant = nearest(program, COMMON_PROGRAMS)
        fix = f"did you mean {meant!r}?" if meant else "install it, or give its path"
        if (directory / program).is_file():
            fix = f"write [python, {program}, …]" if program.endswith(".py") else f"write ./{program}"
        return [Problem(field, f"the program {program!r} is not found in PATH", fix)]
    return [
        Problem(field, f"{script!r} is no file here or beside {run_file}", "give its path")
        for script in _files(command)
        if not (directory / script).exists()
    ]


def _files(command: tuple[str, ...]) -> list[str]:
    """Arguments that are Python files by their name; all others are the program's own business."""
    return [part for part in command[1:] if part.endswith(".py") and not part.startswith("-")]
