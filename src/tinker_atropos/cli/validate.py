"""`tinker-atropos validate`: says what is wrong with a run file before anything is created."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from tinker_atropos.protocol.exit_codes import CONFIG_ERROR
from tinker_atropos.protocol.options import CommandLine
from tinker_atropos.run.load import load_run_file
from tinker_atropos.run.problems import InvalidRunError


@click.command(name="validate")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--environment-command",
    type=CommandLine(),
    default="",
    help="Program of the environment, for a plain tinker-atropos file.",
)
@click.option("--local-model", help="Model of the local Tinker server (tiny, or a folder), for a plain file.")
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer."
)
def command(file: Path, environment_command: tuple[str, ...], local_model: str | None, output: str) -> None:
    """Check FILE, a run file, as the API server and the operator would. No cluster is asked.

    Exit status 0 when it can be used; 78, and one line for each problem with its fix, when it cannot. With
    --output json the answer is {"name", "valid", "problems": [{"field", "message", "fix"}], "warnings": [the same]}.

    \b
    Example:
      tinker-atropos validate examples/quickstart.yaml
    """
    try:
        run = load_run_file(file, environment_command, local_model)
    except InvalidRunError as error:
        if output == "text":
            raise
        problems = [dataclasses.asdict(problem) for problem in error.problems]
        click.echo(json.dumps({"name": None, "valid": False, "problems": problems, "warnings": []}))
        sys.exit(CONFIG_ERROR)
    if output == "json":
        warnings = [dataclasses.asdict(warning) for warning in run.warnings]
        answer = {"name": run.name, "valid": True, "problems": [], "warnings": warnings}
        click.echo(json.dumps(answer))
        return
    for warning in run.warnings:
        click.secho("warning: ", fg="yellow", nl=False, err=True)
        click.echo(str(warning), err=True)
    steps, size = run.spec.config.env.total_steps, run.spec.config.env.batch_size
    click.echo(f"{run.name}: valid; {steps} steps of {size} sequences, base model {run.spec.base_model}")
