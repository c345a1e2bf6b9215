"""`tinker-atropos run`: a whole run on this machine, from the same file that a cluster takes."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import sys
from pathlib import Path

import click

from tinker_atropos.protocol.options import CommandLine
from tinker_atropos.run.load import RunFile, load_run_file
from tinker_atropos.run.problems import InvalidRunError, Problem


@click.command(name="run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--environment-command",
    type=CommandLine(),
    default="",
    help="Program of the environment, for a plain env/openai/tinker file.",
)
@click.option(
    "--local-model", help="Use the local Tinker server with this model (tiny, or a folder), for a plain file."
)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of this run; one with an unfinished run goes on.")
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the result."
)
def command(
    file: Path, environment_command: tuple[str, ...], local_model: str | None, data: Path | None, output: str
) -> None:
    """Run FILE, a run file, on this machine: local Tinker server (when the file says so), trajectory server, gateway,
    environments and trainer as processes.

    Exit status 0 only when the final weights are saved; 130 when interrupted. Every process is ended in any case.

    \b
    Examples:
      tinker-atropos run examples/quickstart.yaml
      tinker-atropos run plain.yaml --local-model tiny --environment-command 'python my_env.py'
    """
    from rich.console import Console

    from tinker_atropos.local.display import display
    from tinker_atropos.local.supervise import Outcome, supervise

    run = load_run_file(file, environment_command, local_model)
    key = _api_key(run)
    console = Console(stderr=True)
    for warning in run.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    folder = data or _default_folder(run.name)
    with display(console, run.name, run.spec.config.env.total_steps) as shown:
        shown.message(f"{run.name}: data and logs in {folder}")
        outcome = asyncio.run(supervise(run, folder, key, _working_directory(run, file), shown))
    _conclude(outcome, folder, output, console)
    assert isinstance(outcome, Outcome)
    sys.exit(outcome.status)


def _api_key(run: RunFile) -> str:
    if run.spec.tinker_api.local is not None:
        return "tml-local"
    key = os.environ.get("TINKER_API_KEY")
    if not key:
        raise InvalidRunError(
            [
                Problem(
                    "TINKER_API_KEY",
                    "is not set",
                    "set it, or give tinkerAPI: {local: {model: tiny}} for the local server",
                )
            ]
        )
    return key


def _default_folder(name: str) -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "tinker-atropos" / "runs" / f"{name}-{dt.datetime.now():%Y%m%d-%H%M%S-%f}"


def _working_directory(run: RunFile, file: Path) -> Path:
    """Where the environments' commands find their files: here, else beside the run file or in a folder above it."""
    scripts = [part for entry in run.spec.environments for part in entry.command if part.endswith(".py")]
    for folder in (Path.cwd(), *file.resolve().parents):
        if all((folder / script).exists() for script in scripts):
            return folder
    missing = next(script for script in scripts if not Path(script).exists())
    index = next(i for i, entry in enumerate(run.spec.environments) if missing in entry.command)
    raise InvalidRunError(
        [Problem(f"environments[{index}].command", f"{missing!r} is no file here or beside {file}", "give its path")]
    )


def _conclude(outcome: object, folder: Path, output: str, console: object) -> None:
    from rich.console import Console

    from tinker_atropos.local.supervise import Outcome

    assert isinstance(outcome, Outcome) and isinstance(console, Console)
    report = outcome.report
    if output == "json":
        click.echo(
            json.dumps(
                {
                    "status": outcome.status,
                    "message": outcome.message,
                    "data": str(folder),
                    "report": report.model_dump(by_alias=True, exclude_none=True) if report else None,
                }
            )
        )
        return

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    if outcome.status == 0 and report is not None:
        reward = f", reward {report.reward.mean:.3f}" if report.reward else ""
        say(f"Complete: {report.step} steps{reward}", "green")
        say(f"final weights: {report.sampler_weights}")
        if report.checkpoint:
            say(f"final checkpoint: {report.checkpoint.path}")
        if report.ledger_export:
            say(f"ledger exported to: {report.ledger_export}")
        if report.message:
            say(f"warning: {report.message}", "yellow")
        return
    reason = report.message if report is not None and report.phase == "Failed" and report.message else ""
    say(f"{outcome.message}{': ' + reason if reason else ''}", "red")
    if outcome.failed is not None and not reason:
        say(f"last lines of {outcome.failed.log_file}:")
        for line in outcome.failed.tail():
            say(f"  {line}")
    say(f"logs: {folder / 'logs'}; go on with: --data {folder}")
