"""`tinker-atropos gateway`."""

from __future__ import annotations

from pathlib import Path

import click

from tinker_atropos.protocol import ports
from tinker_atropos.protocol.exit_codes import CONFIG_ERROR, KEY_REFUSED
from tinker_atropos.protocol.options import FiniteRange, HostPort, HttpUrl


@click.command(name="gateway")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 in a pod.")
@click.option(
    "--port",
    default=ports.GATEWAY_HTTP,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 = any free one, named in the log.",
)
@click.option(
    "--trajectories",
    default=f"127.0.0.1:{ports.TRAJECTORIES_GRPC}",
    show_default=True,
    type=HostPort(),
    metavar="HOST:PORT",
    help="The trajectory server's gRPC address: policies come from there, versions go there.",
)
@click.option(
    "--tinker-base-url",
    envvar=["TINKER_ATROPOS_GATEWAY_TINKER_BASE_URL", "TINKER_BASE_URL"],
    type=HttpUrl(),
    metavar="URL",
    help="Tinker API to sample from.  [default: TINKER_BASE_URL, else the hosted service]",
)
@click.option(
    "--tokenizer",
    metavar="NAME|DIR",
    help="Tokenizer: a directory, or a name for the local Tinker server or the hub.  [default: the base model]",
)
@click.option("--base-model", required=True, metavar="NAME", help="Base model of the run, e.g. Qwen/Qwen3-8B.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the run's token: asked of every request and sent to the trajectory server.",
)
@click.option(
    "--patience",
    default=86_400.0,
    show_default=True,
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="How long a request is held while the Tinker API fails, before it is answered with 503.",
)
@click.option(
    "--pacing/--no-pacing",
    default=True,
    show_default=True,
    help="Hold new rollouts of environments until the trajectory server expects to get them trained in time.",
)
def command(
    *,
    host: str,
    port: int,
    trajectories: str,
    tinker_base_url: str | None,
    tokenizer: str | None,
    base_model: str,
    token_file: Path | None,
    patience: float,
    pacing: bool,
) -> None:
    """Serve OpenAI's and sglang's API on Tinker sampling.

    Answers always come from the newest published policy; which one is recorded before the answer leaves. Requests wait
    while there is no policy yet or a peer is away, and new rollouts of environments until they can be trained in time.
    The key comes from TINKER_API_KEY, or from where else the Tinker SDK finds one. Exit status: 0 ended by a signal;
    78 no key, or no such tokenizer; 77 a key that is none; 1 it cannot listen; 2 an option is wrong.

    \b
    Example:
      TINKER_API_KEY=tml-local tinker-atropos gateway --base-model tinker-atropos/tiny \\
          --tinker-base-url http://127.0.0.1:8003 --trajectories 127.0.0.1:8002
    """
    import asyncio
    import logging
    import os

    from tinker_atropos.gateway.serve import Settings, run
    from tinker_atropos.gateway.tokenizer_files import TokenizerError
    from tinker_atropos.protocol import logs
    from tinker_atropos.protocol.credentials import KEY_VARIABLE, malformed_key, missing_key
    from tinker_atropos.protocol.ending import end_now
    from tinker_atropos.protocol.listening import CannotListenError
    from tinker_atropos.protocol.token_file import read_token

    logs.configure("gateway")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would tell that there is no torch; none is needed
    if not base_model.strip():
        raise click.BadParameter("is empty; name the run's base model", param_hint="--base-model")
    for sentence, kind in ((missing_key(), CONFIG_ERROR), (malformed_key(), KEY_REFUSED)):
        if sentence:
            click.echo(f"Error: {sentence}", err=True)
            raise SystemExit(kind)
    settings = Settings(
        host=host,
        port=port,
        trajectories=trajectories,
        tinker_base_url=tinker_base_url or None,
        tinker_api_key=os.environ.get(KEY_VARIABLE) or None,
        tokenizer=tokenizer or base_model,
        base_model=base_model,
        token=read_token(token_file),
        patience=patience,
        pacing=pacing,
    )

    async def serve() -> None:
        status = 0
        try:
            await run(settings)
        except TokenizerError as error:
            click.echo(f"Error: {error}", err=True)
            status = CONFIG_ERROR
        except CannotListenError as error:
            click.echo(f"Error: {error}", err=True)
            status = 1
        except Exception:
            logging.getLogger(__name__).exception("unexpected error; this is a fault of tinker-atropos")
            status = 1
        end_now(status)  # here: the end of the loop would wait for the SDK's thread, which may be blocked for minutes

    asyncio.run(serve())
