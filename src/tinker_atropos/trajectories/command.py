"""`tinker-atropos trajectories`: the Atropos-compatible API server of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinker_atropos.protocol.options import FiniteRange
from tinker_atropos.protocol.ports import TRAJECTORIES_GRPC

if TYPE_CHECKING:
    from tinker_atropos.trajectories.export_bucket import Bucket


@click.command("trajectories")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, for HTTP and gRPC.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="HTTP port of Atropos' API; 0 = any free one.",
)
@click.option(
    "--grpc-port",
    default=TRAJECTORIES_GRPC,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="gRPC port for trainer and gateway; 0 = any free one.",
)
@click.option(
    "--store",
    required=True,
    help="Directory that holds the run's groups and ledger (made when it is not there), or redis://HOST:PORT/DB?run=NAME.",
)
@click.option(
    "--store-password", help="Password of a Redis store; better given as TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the run's token; every route but health then needs it as bearer.",
)
@click.option(
    "--token", help="The run's token itself; better given as TINKER_ATROPOS_TRAJECTORIES_TOKEN or --token-file."
)
@click.option(
    "--max-body-mb",
    default=256,
    show_default=True,
    type=click.IntRange(1),
    help="Largest post in MB, also after decompression.",
)
@click.option(
    "--max-queue-mb",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Posts are held back while so many MB of groups wait; 0 = only the disk limits.",
)
@click.option(
    "--compact-mb",
    default=16.0,
    show_default=True,
    type=FiniteRange(0.01),
    help="The store's journal is folded into a snapshot after so many MB.",
)
@click.option(
    "--export",
    help="Directory, or s3://BUCKET/PREFIX, that the run's ledger is exported to when the run is over or the server "
    "ends; see `audit`. A bucket's credentials are taken from the usual AWS_* variables.",
)
@click.option("--export-endpoint", help="URL of the service that has the bucket, when it is not Amazon's.")
@click.option("--export-region", help="Region of the bucket.")
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def command(
    host: str,
    port: int,
    grpc_port: int,
    store: str,
    store_password: str | None,
    token_file: Path | None,
    token: str | None,
    max_body_mb: int,
    max_queue_mb: int,
    compact_mb: float,
    export: str | None,
    export_endpoint: str | None,
    export_region: str | None,
    log_level: str,
) -> None:
    """Serve Atropos' API: environments post scored groups, trainers get batches; nothing acknowledged is ever lost.

    \b
    Example:
      tinker-atropos trajectories --port 8000 --grpc-port 8002 --store ./run-store
      curl http://127.0.0.1:8000/status
    """
    import uvloop

    from tinker_atropos.protocol import logs
    from tinker_atropos.protocol.listening import CannotListenError
    from tinker_atropos.protocol.token_file import read_token
    from tinker_atropos.trajectories import pauses
    from tinker_atropos.trajectories.server import Options, serve_until_signal
    from tinker_atropos.trajectories.store import StoreCorruptError, StoreUnavailableError
    from tinker_atropos.trajectories.store.address import with_password

    logs.configure("trajectories", log_level)
    scheme, separator, _ = store.partition("://")
    if not store or (separator and scheme not in ("redis", "rediss", "unix")):
        text = f"{store!r} is no place for a store; give a directory, or redis://HOST:PORT/DB?run=NAME"
        raise click.BadParameter(text, param_hint="--store")
    place = _export_place(export, export_endpoint, export_region)
    if token_file is not None:
        token = read_token(token_file)
    try:
        pauses.keep_short()
        uvloop.run(
            serve_until_signal(
                Options(
                    host,
                    port,
                    grpc_port,
                    with_password(store, store_password),
                    token or "",
                    max_body_mb << 20,
                    max_queue_mb << 20,
                    int(compact_mb * 2**20),
                    place,
                )
            )
        )
    except (CannotListenError, StoreUnavailableError, StoreCorruptError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"--store {error.filename or store}: {error.strerror or error}") from None


def _export_place(export: str | None, endpoint: str | None, region: str | None) -> Path | Bucket | None:
    """What is wrong with it is said now, not when the run is over."""
    from tinker_atropos.trajectories.export_bucket import SCHEME, Bucket, BucketError

    if export is not None and "://" in export:
        try:
            bucket = Bucket(export, endpoint, region)
            bucket.check()
        except BucketError as error:
            raise click.BadParameter(str(error), param_hint="--export") from None
        return bucket
    if endpoint or region:
        given = "--export-endpoint" if endpoint else "--export-region"
        raise click.BadParameter(f"is only for a bucket; give --export {SCHEME}BUCKET/PREFIX", param_hint=given)
    if not export:
        return None
    if Path(export).is_file():
        raise click.BadParameter(f"{export!r} is a file; give a directory", param_hint="--export")
    return Path(export)
