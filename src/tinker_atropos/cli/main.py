"""The `tinker-atropos` command: one subcommand for each program, the same in images, local mode and by hand.

Subcommands are imported only when they are asked for, so `--help` needs none of their dependencies.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from tinker_atropos.cli.entry import INTERRUPTED
from tinker_atropos.run.problems import InvalidRunError

SUBCOMMANDS: Mapping[str, tuple[str, str, str]] = {
    # name: module, extra that brings its dependencies, one line for --help
    "run": ("tinker_atropos.local.command", "local", "Run a run file on this machine, without a cluster."),
    "validate": ("tinker_atropos.cli.validate", "", "Check a run file; says every problem and its fix."),
    "trajectories": (
        "tinker_atropos.trajectories.command",
        "trajectories",
        "Serve Atropos' API: rollouts in, batches out.",
    ),
    "gateway": ("tinker_atropos.gateway.command", "gateway", "Serve OpenAI's and sglang's API on Tinker sampling."),
    "relay": ("tinker_atropos.relay.command", "relay", "Stand beside an environment: identity, tokenizer, patience."),
    "trainer": ("tinker_atropos.trainer.command", "trainer", "Train a run's model on the Tinker API."),
    "audit": (
        "tinker_atropos.trajectories.audit",
        "trajectories",
        "Balance a run's ledger: what became of each group.",
    ),
    "local-tinker": ("tinker_atropos.local_tinker.command", "local-tinker", "Serve the Tinker API on this CPU."),
    "completion": ("tinker_atropos.cli.completion", "", "Print the shell completion script."),
}


class _Programs(click.Group):
    """A group whose members are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module, extra, _ = SUBCOMMANDS[cmd_name]
        try:
            command = importlib.import_module(module).command
        except ModuleNotFoundError as error:
            if not extra or (error.name or "").startswith("tinker_atropos"):
                raise
            raise click.ClickException(_needs(cmd_name, error)) from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from tinker_atropos.cli import variables

        variables.drop_service_links(os.environ)
        try:
            name, command, rest = super().resolve_command(ctx, args)
            if name is not None and command is not None and not ctx.resilient_parsing:
                for sentence in variables.unread(os.environ, name, command, SUBCOMMANDS):
                    warn(sentence)
            return name, command, rest
        except click.UsageError as error:
            from tinker_atropos.run.problems import nearest

            meant = nearest(args[0], SUBCOMMANDS) if args else None
            if meant is None:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {meant!r}?", ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would make exit status 1 of it
            sys.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in SUBCOMMANDS.items()])


@click.group(
    cls=_Programs,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "TINKER_ATROPOS",
        "max_content_width": 110,
    },
)
@click.version_option(package_name="tinker-atropos")
def cli() -> None:
    """Reinforcement learning of language models on the Tinker API with Atropos environments.

    \b
    Examples:
      tinker-atropos run examples/quickstart.yaml      a whole run on this machine
      tinker-atropos validate run.yaml                 what is wrong with a run file
      tinker-atropos trainer --help                    options of one program

    Every option can also be given as an environment variable: TINKER_ATROPOS_<SUBCOMMAND>_<OPTION>, for instance
    TINKER_ATROPOS_GATEWAY_PORT=8001.
    """


def warn(sentence: str) -> None:
    """A warning on the standard error output."""
    click.secho("warning: ", fg="yellow", nl=False, err=True)
    click.echo(sentence, err=True)


def _needs(subcommand: str, error: ModuleNotFoundError) -> str:
    package = (error.name or "?").partition(".")[0]
    extra = SUBCOMMANDS[subcommand][1]
    return f"{subcommand} needs the package {package}; install it with: pip install 'tinker-atropos[{extra}]'"


def main() -> None:
    """Entry point; a bad run file ends with its problems, one a line, and status 78."""
    from tinker_atropos.protocol.exit_codes import CONFIG_ERROR

    try:
        Path.cwd()
    except FileNotFoundError:
        click.echo("Error: the current folder is not there any more; change to one that is", err=True)
        sys.exit(1)
    try:
        cli()
    except InvalidRunError as error:
        for problem in error.problems:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(str(problem), err=True)
        sys.exit(CONFIG_ERROR)
    except ModuleNotFoundError as error:  # programs import what they need when they run
        subcommand = next((argument for argument in sys.argv[1:] if argument in SUBCOMMANDS), "")
        if not subcommand or not SUBCOMMANDS[subcommand][1] or (error.name or "").startswith("tinker_atropos"):
            raise
        click.echo(f"Error: {_needs(subcommand, error)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
