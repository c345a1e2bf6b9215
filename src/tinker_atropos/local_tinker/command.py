"""`tinker-atropos local-tinker`: the server as a subcommand."""

from __future__ import annotations

from pathlib import Path

import click

from tinker_atropos.protocol.ports import LOCAL_TINKER_HTTP


@click.command("local-tinker")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=LOCAL_TINKER_HTTP,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port; 0 picks a free one.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for checkpoints, samplers and token counts. A server started on it again has them.",
)
@click.option(
    "--model",
    default="tiny",
    show_default=True,
    help="`tiny` (made once in under a minute and kept in the user's cache), or a Hugging Face Llama folder.",
)
@click.option("--api-key", default="", help="The one key that is accepted, tml-…; without it any key of that form is.")
@click.option("--faults", is_flag=True, help="For tests: injected faults by POST /local/v1/faults.")
@click.option(
    "--shortest-ttl",
    default=3600,
    show_default=True,
    type=click.IntRange(min=0),
    help="Shortest time to live of a checkpoint in seconds; the hosted service takes an hour.",
)
@click.option("--warm-up/--no-warm-up", default=True, show_default=True, help="Compile common programs while idle.")
def command(
    host: str, port: int, data: Path, model: str, api_key: str, faults: bool, shortest_ttl: int, warm_up: bool
) -> None:
    """Serve the Tinker API on this machine's processors with a small model. It really trains.

    Clients set TINKER_BASE_URL to the address that is logged and TINKER_API_KEY to any key of the form tml-….

    \b
    Example:
      tinker-atropos local-tinker --data ./tinker --model tiny
      TINKER_BASE_URL=http://127.0.0.1:8003 TINKER_API_KEY=tml-local python train.py
    """
    import asyncio
    import os

    from tinker_atropos.local_tinker import compilation
    from tinker_atropos.protocol import logs

    if api_key and not api_key.startswith("tml-"):
        raise click.BadParameter("must start with tml- (clients refuse to send any other)", param_hint="--api-key")
    logs.configure("local-tinker")
    compilation.prepare(os.environ)

    from tinker_atropos.local_tinker import tiny_model
    from tinker_atropos.local_tinker.errors import UserError
    from tinker_atropos.local_tinker.server import Server, Settings

    try:
        folder = tiny_model.ensure(tiny_model.cache_directory()) if model == "tiny" else Path(model)
        data.mkdir(parents=True, exist_ok=True)
        compilation.use_cache(compilation.cache_folder(folder, data))
        settings = Settings(host, port, data, folder, api_key, faults, shortest_ttl=shortest_ttl, warm_up=warm_up)
        asyncio.run(Server(settings).run())
    except UserError as error:
        raise click.ClickException(error.message) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or data}: {error.strerror}") from None
