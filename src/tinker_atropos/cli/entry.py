"""Where the installed commands begin. Nothing is imported before it is known what an interruption ends with: whoever
presses Ctrl-C while a program still loads meets the same exit status as later."""

from __future__ import annotations

import sys
from collections.abc import Callable

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""


def main() -> None:
    """`tinker-atropos`."""
    _uninterrupted(_tinker_atropos)


def run_api() -> None:
    """`run-api`: upstream's name for the trajectory server."""
    _uninterrupted(_run_api)


def _uninterrupted(command: Callable[[], None]) -> None:
    try:
        command()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(INTERRUPTED)


def _tinker_atropos() -> None:
    from tinker_atropos.cli.main import main as run

    run()


def _run_api() -> None:
    import os

    import click

    from tinker_atropos.cli import variables
    from tinker_atropos.cli.main import warn
    from tinker_atropos.trajectories.run_api import main as command

    variables.drop_service_links(os.environ, variables.RUN_API)
    for sentence in variables.unread_of(os.environ, variables.RUN_API, "run-api", command):
        warn(sentence)
    try:  # not command.main(), which makes exit status 1 of an interruption
        with command.make_context("run-api", sys.argv[1:]) as context:
            command.invoke(context)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
