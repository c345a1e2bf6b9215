"""`run-api`: upstream's command and flags for this server, so that scripts written for atroposlib go on working."""

from __future__ import annotations

import click


@click.command("run-api", context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "RUN_API"})
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on (upstream's default was 0.0.0.0)."
)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="HTTP port.")
@click.option("--reload", is_flag=True, help="Accepted and ignored: upstream's switch for its own development.")
@click.option(
    "--store", default="run-api-store", show_default=True, help="Directory that keeps queue and registration."
)
@click.pass_context
def main(context: click.Context, host: str, port: int, reload: bool, store: str) -> None:
    """Serve Atropos' API, as atroposlib's run-api does, and keep what was posted over restarts.

    \b
    Example:
      run-api --port 8000
    """
    from tinker_atropos.trajectories.command import command

    if reload:
        click.echo("run-api: --reload has no meaning here and is ignored", err=True)
    context.invoke(command, host=host, port=port, grpc_port=0, store=store)
