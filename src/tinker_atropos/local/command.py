"""`tinker-atropos run`: a whole run on this machine, from the same file that a cluster takes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from tinker_atropos.local import preflight
from tinker_atropos.protocol.credentials import KEY_VARIABLE, NO_KEY_NEEDED, malformed_key, missing_key
from tinker_atropos.protocol.exit_codes import CONFIG_ERROR, KEY_REFUSED
from tinker_atropos.protocol.options import CommandLine
from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos.run.load import RunFile, load_run_file
from tinker_atropos.run.model import LOCAL_MODELS
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
    environments and trainer as processes. Every process is ended in any case.

    A folder given with --data keeps the run: the same command goes on with an unfinished one, and says so of a finished
    one without doing anything.

    Exit status: 0 the final weights are saved; 1 a part of the run failed; 2 an option is wrong; 75 a part was not
    ready within deadlines.startup; 77 the Tinker API refused the key; 78 the run file cannot be used; 79 another
    trainer holds the run; 80 its saved state is gone; 130 interrupted. Never a status of an environment's own.

    \b
    Examples:
      tinker-atropos run examples/quickstart.yaml
      tinker-atropos run plain.yaml --local-model tiny --environment-command 'python my_env.py'
    """
    try:
        run, key = _checked(file, environment_command, local_model)
        refused = malformed_key() if run.spec.tinker_api.local is None else None
        if refused is None:
            # Absolute: the environments' processes have another working directory.
            _run(run, file, key, (data or _default_folder(run.name)).absolute(), output)
        elif output == "json":
            _answer(KEY_REFUSED, refused, data, None)
        else:
            click.echo(f"Error: {refused}", err=True)
        sys.exit(KEY_REFUSED)
    except InvalidRunError as error:
        if output == "text":
            raise
        problems = [dataclasses.asdict(problem) for problem in error.problems]
        _answer(CONFIG_ERROR, str(error), data, None, problems=problems)
        sys.exit(CONFIG_ERROR)


def _run(run: RunFile, file: Path, key: str | None, folder: Path, output: str) -> NoReturn:
    from rich.console import Console

    from tinker_atropos.local.display import display
    from tinker_atropos.local.folder import RunFolder
    from tinker_atropos.local.supervise import Outcome, supervise

    console = Console(stderr=True)
    for warning in run.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    with RunFolder.take(folder, run, file) as taken:
        finished = taken.finished(run.spec.config.env.total_steps)
        if finished is not None:
            outcome = Outcome(0, "already complete", finished)
        else:
            with display(console, run.name, run.spec.config.env.total_steps) as shown:
                shown.message(f"{run.name}: data and logs in {folder}")
                directory = preflight.working_directory(run, file, Path.cwd())
                outcome = asyncio.run(supervise(run, taken, key, directory, shown))
            if outcome.status == 0 and outcome.report is not None:
                with contextlib.suppress(
                    OSError
                ):  # only a next `run` would ask for it, and would train the last step again
                    taken.finish(outcome.report)
    _conclude(outcome, folder, output, console)
    sys.exit(outcome.status)


def _checked(file: Path, environment_command: tuple[str, ...], local_model: str | None) -> tuple[RunFile, str | None]:
    """The run and its key, once nothing stands in its way. Raises InvalidRunError."""
    if local_model is not None and local_model not in LOCAL_MODELS and Path(local_model).is_dir():
        local_model = str(Path(local_model).resolve())
    run = load_run_file(file, environment_command, local_model)
    problems = preflight.problems(run, file, Path.cwd())
    key: str | None = None
    api = run.spec.tinker_api
    if api.local is not None:
        key = "tml-local"
    elif api.base_url is not None and api.key_secret_ref is None and not os.environ.get(KEY_VARIABLE):
        key = NO_KEY_NEEDED
    elif missing := missing_key():
        text = missing.removeprefix(KEY_VARIABLE).strip()
        problems.append(Problem(KEY_VARIABLE, text, "tinkerAPI: {local: {model: tiny}} needs none"))
    if problems:
        raise InvalidRunError(problems)
    return run, key or os.environ.get(KEY_VARIABLE)


def _default_folder(name: str) -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "tinker-atropos" / "runs" / f"{name}-{dt.datetime.now():%Y%m%d-%H%M%S-%f}"


def _conclude(outcome: object, folder: Path, output: str, console: object) -> None:
    from rich.console import Console

    from tinker_atropos.local.supervise import Outcome

    assert isinstance(outcome, Outcome) and isinstance(console, Console)
    report = outcome.report
    if output == "json":
        _answer(outcome.status, outcome.message, folder, report)
        return

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    if outcome.status == 0 and report is not None:
        reward = f", reward {report.reward.mean:.3f}" if report.reward else ""
        already = "Already complete" if outcome.message == "already complete" else "Complete"
        say(f"{already}: {report.step} steps{reward}", "green")
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
        for line in outcome.failed.tail() or ["(it wrote nothing)"]:
            say(f"  {line}")
    say(f"logs: {folder / 'logs'}; go on with: --data {folder}")


def _answer(status: int, message: str, data: Path | None, report: ProgressReport | None, **more: object) -> None:
    """The result in JSON."""
    found = report.model_dump(by_alias=True, exclude_none=True) if report else None
    answer = {"status": status, "message": message, "data": str(data) if data else None, "report": found, **more}
    click.echo(json.dumps(answer))
