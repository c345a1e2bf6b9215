"""`tinker-atropos relay`."""

from __future__ import annotations

from pathlib import Path

import click

from tinker_atropos.protocol import ports
from tinker_atropos.protocol.options import HttpUrl


@click.command(name="relay")
@click.option("--trajectories", required=True, type=HttpUrl(), help="Trajectory server, e.g. http://tar-gsm8k:8000.")
@click.option("--gateway", required=True, type=HttpUrl(), help="Gateway, e.g. http://tar-gsm8k:8001.")
@click.option("--environment", required=True, metavar="NAME", help="Name of the environment in the run file.")
@click.option("--instance", required=True, metavar="NAME", help="Name of this one process of it, e.g. the pod's name.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the run's token; without it requests carry none.",
)
@click.option(
    "--tokenizer-dir",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the tokenizer's files are put for the environment.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--trajectories-port",
    default=ports.RELAY_TRAJECTORIES,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port for the trajectory server's routes; 0 = any free one.",
)
@click.option(
    "--gateway-port",
    default=ports.RELAY_GATEWAY,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port for the gateway's routes; 0 = any free one.",
)
@click.option(
    "--health-port",
    default=ports.RELAY_HEALTH,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port for /healthz, which answers 200 once the environment may start; 0 = any free one.",
)
@click.option("--health-host", default=None, help="Address for /healthz.  [default: the same as --host]")
def command(
    *,
    trajectories: str,
    gateway: str,
    environment: str,
    instance: str,
    token_file: Path | None,
    tokenizer_dir: Path,
    host: str,
    trajectories_port: int,
    gateway_port: int,
    health_port: int,
    health_host: str | None,
) -> None:
    """Stand beside one environment process: identity, tokenizer, patience.

    The environment talks to this process on loopback as if it were the servers; requests are held and sent again
    while a server is away, so neither a restart nor a new node reaches the environment.

    \b
    Example:
      tinker-atropos relay --trajectories http://127.0.0.1:8000 --gateway http://127.0.0.1:8001 \\
          --environment gsm8k --instance gsm8k-0 --tokenizer-dir /tmp/tokenizer \\
          --trajectories-port 9000 --gateway-port 9001 --health-port 9009
    """
    import asyncio
    import re

    from tinker_atropos.protocol import logs
    from tinker_atropos.protocol.listening import CannotListenError
    from tinker_atropos.protocol.token_file import read_token
    from tinker_atropos.relay.forward import Identity
    from tinker_atropos.relay.serve import Settings, run

    logs.configure("relay")
    for option, text in (("--environment", environment), ("--instance", instance)):
        if not re.fullmatch(r"[\w.-]+", text):
            raise click.BadParameter(f"{text!r} is no name; use letters, digits, '-', '.' and '_'", param_hint=option)
    try:
        tokenizer_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"--tokenizer-dir {tokenizer_dir}: {error.strerror or error}") from None
    settings = Settings(
        trajectories=trajectories,
        gateway=gateway,
        identity=Identity(environment, instance, read_token(token_file)),
        tokenizer_dir=tokenizer_dir,
        host=host,
        trajectories_port=trajectories_port,
        gateway_port=gateway_port,
        health_port=health_port,
        health_host=health_host or host,
    )
    try:
        asyncio.run(run(settings))
    except CannotListenError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"--tokenizer-dir {tokenizer_dir}: {error.strerror or error}") from None
