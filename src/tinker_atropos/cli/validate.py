"""`tinker-atropos validate`: says what is wrong with a run file before anything is created."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tinker_atropos.run.load import load_run_file


@click.command(name="validate")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--environment-command", default="", help="Program of the environment, for a plain tinker-atropos file.")
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer."
)
def command(file: Path, environment_command: str, output: str) -> None:
    """Check FILE, a run file. Exit status 78 and one line for each problem when it cannot be used.

    \b
    Example:
      tinker-atropos validate examples/quickstart.yaml
    """
    run = load_run_file(file, environment_command.split())
    if output == "json":
        click.echo(
            json.dumps({"name": run.name, "valid": True, "warnings": [str(warning) for warning in run.warnings]})
        )
        return
    for warning in run.warnings:
        click.secho("warning: ", fg="yellow", nl=False, err=True)
        click.echo(str(warning), err=True)
    steps, size = run.spec.config.env.total_steps, run.spec.config.env.batch_size
    click.echo(f"{run.name}: valid; {steps} steps of {size} sequences, base model {run.spec.base_model}")
