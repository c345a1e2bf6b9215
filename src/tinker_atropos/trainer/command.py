"""`tinker-atropos trainer`: one trainer process of a run, as the Job's pod or as a process of local mode."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import click

from tinker_atropos.protocol.options import HostPort, HttpUrl
from tinker_atropos.protocol.ports import TRAJECTORIES_GRPC


@click.command(name="trainer")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    required=True,
    help="Run file: a TinkerAtroposRun, or plain env/openai/tinker sections.",
)
@click.option(
    "--trajectories",
    default=f"127.0.0.1:{TRAJECTORIES_GRPC}",
    show_default=True,
    type=HostPort(),
    help="host:port of the trajectory server's gRPC.",
)
@click.option(
    "--tinker-base-url",
    envvar=["TINKER_ATROPOS_TRAINER_TINKER_BASE_URL", "TINKER_BASE_URL"],
    type=HttpUrl(),
    help="Tinker API; the hosted one by default.",
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="File with the run's token for the trajectory server."
)
@click.option("--run-uid", help="Identity of the run in the trajectory store; its name by default.")
@click.option(
    "--attempt",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the Job that this process belongs to.",
)
@click.option(
    "--holder", default=socket.gethostname, show_default="host name", help="Name of this process, for people."
)
@click.option("--progress-url", type=HttpUrl(), help="Where progress reports go; none by default.")
@click.option(
    "--progress-ca",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Certificate authority of the progress receiver.",
)
@click.option(
    "--progress-token-file",
    type=click.Path(path_type=Path),
    help="Token for the progress receiver; read for each report.",
)
@click.option(
    "--termination-log", type=click.Path(path_type=Path), help="File for the last report, such as /dev/termination-log."
)
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def command(
    config: Path,
    trajectories: str,
    tinker_base_url: str | None,
    token_file: Path | None,
    run_uid: str | None,
    attempt: int,
    holder: str,
    progress_url: str | None,
    progress_ca: Path | None,
    progress_token_file: Path | None,
    termination_log: Path | None,
    log_level: str,
) -> None:
    """Train the model of a run on the Tinker API.

    The key is taken from TINKER_API_KEY. Exit status: 0 the final weights are saved; 78 the run file cannot work;
    77 the key was refused; 75 a peer did not come in time; 79 a newer trainer holds the run; 80 the saved state is
    gone; 143 stopped by a signal.

    \b
    Example:
      tinker-atropos trainer --config run.yaml --trajectories 127.0.0.1:8002 --tinker-base-url http://127.0.0.1:8003
    """
    import os

    from tinker_atropos.protocol import logs
    from tinker_atropos.protocol.credentials import KEY_VARIABLE
    from tinker_atropos.protocol.ending import end_now
    from tinker_atropos.protocol.token_file import read_token
    from tinker_atropos.run.load import load_run_file
    from tinker_atropos.trainer.process import run_trainer
    from tinker_atropos.trainer.settings import TrainerSettings

    logs.configure("trainer", log_level)
    run = load_run_file(config, environment_command=("environment",))
    settings = TrainerSettings(
        name=run.name,
        run_uid=run_uid or run.name,
        attempt=attempt,
        holder=holder,
        spec=run.spec,
        trajectories=trajectories,
        tinker_base_url=tinker_base_url,
        api_key=os.environ.get(KEY_VARIABLE) or ("tml-local" if run.spec.tinker_api.local else None),
        token=read_token(token_file),
        progress_url=progress_url,
        progress_ca=progress_ca,
        progress_token_file=progress_token_file,
        termination_log=termination_log,
    )

    async def train() -> None:
        # Here: the end of the loop would wait for the SDK's threads, which a service that is away blocks for minutes.
        end_now(await run_trainer(settings))

    asyncio.run(train())
