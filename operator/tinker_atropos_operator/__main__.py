"""`tinker-atropos-operator`: from flags and variables to a running operator."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from tinker_atropos.protocol import ports
from tinker_atropos_operator.settings import Image, RunImages, Settings

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_POLICIES = click.Choice(["Always", "IfNotPresent", "Never"])


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


@click.command(name="tinker-atropos-operator", context_settings={"auto_envvar_prefix": "TINKER_ATROPOS_OPERATOR"})
@click.option("--namespace", default=_own_namespace, show_default="the pod's", help="The operator's own namespace.")
@click.option(
    "--identity", default=socket.gethostname, show_default="host name", help="Name of this process in the Lease."
)
@click.option(
    "--watch-namespaces",
    default="",
    metavar="NAMES",
    help="Namespaces whose runs are looked after, separated by commas; all by default.",
)
@click.option(
    "--api-server-image", default=RunImages.api_server.reference, show_default=True, help="Image of API server pods."
)
@click.option(
    "--api-server-pull-policy", type=_POLICIES, default="IfNotPresent", show_default=True, help="When it is pulled."
)
@click.option("--trainer-image", default=RunImages.trainer.reference, show_default=True, help="Image of trainer pods.")
@click.option(
    "--trainer-pull-policy", type=_POLICIES, default="IfNotPresent", show_default=True, help="When it is pulled."
)
@click.option(
    "--environment-image",
    default=RunImages.environment.reference,
    show_default=True,
    help="Image of environments that name none.",
)
@click.option(
    "--environment-pull-policy", type=_POLICIES, default="IfNotPresent", show_default=True, help="When it is pulled."
)
@click.option(
    "--local-tinker-image",
    default=RunImages.local_tinker.reference,
    show_default=True,
    help="Image of local Tinker servers.",
)
@click.option(
    "--local-tinker-pull-policy", type=_POLICIES, default="IfNotPresent", show_default=True, help="When it is pulled."
)
@click.option("--service", default=Settings.service, show_default=True, help="Name of the operator's Service.")
@click.option(
    "--progress-url", default="", help="Base URL at which trainers report progress.  [default: the Service's]"
)
@click.option("--host", default=Settings.host, show_default=True, help="Address to listen on.")
@click.option(
    "--progress-port",
    type=click.IntRange(0, 65535),
    default=ports.OPERATOR_PROGRESS,
    show_default=True,
    help="Progress (HTTPS).",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=ports.OPERATOR_METRICS,
    show_default=True,
    help="Prometheus' page.",
)
@click.option(
    "--probes-port",
    type=click.IntRange(0, 65535),
    default=ports.OPERATOR_PROBES,
    show_default=True,
    help="/healthz and /readyz.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=Settings.workers,
    show_default=True,
    help="Runs worked on at once.",
)
@click.option(
    "--resync-seconds",
    type=click.FloatRange(min=1),
    default=Settings.resync_seconds,
    show_default=True,
    help="All runs are looked at again this often.",
)
@click.option(
    "--status-interval-seconds",
    type=click.FloatRange(min=0),
    default=Settings.status_interval_seconds,
    show_default=True,
    help="Progress alone writes a run's status at most this often.",
)
@click.option(
    "--canary-seconds",
    type=click.FloatRange(min=1),
    default=Settings.canary_seconds,
    show_default=True,
    help="The watches are checked this often.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1),
    default=Settings.lease_seconds,
    show_default=True,
    help="How long the Lease of a leader that died lasts.",
)
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="Take turns by a Lease.")
@click.option(
    "--kubeconfig",
    envvar=["TINKER_ATROPOS_OPERATOR_KUBECONFIG", "KUBECONFIG"],
    help="Credentials outside a cluster.  [default: the pod's]",
)
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def command(
    *,
    namespace: str,
    identity: str,
    watch_namespaces: str,
    api_server_image: str,
    api_server_pull_policy: str,
    trainer_image: str,
    trainer_pull_policy: str,
    environment_image: str,
    environment_pull_policy: str,
    local_tinker_image: str,
    local_tinker_pull_policy: str,
    service: str,
    progress_url: str,
    host: str,
    progress_port: int,
    metrics_port: int,
    probes_port: int,
    workers: int,
    resync_seconds: float,
    status_interval_seconds: float,
    canary_seconds: float,
    lease_seconds: float,
    leader_elect: bool,
    kubeconfig: str | None,
    log_level: str,
) -> None:
    """Look after TinkerAtroposRun objects: make what each run needs, and tell in its status how it goes.

    Every option is also a variable: TINKER_ATROPOS_OPERATOR_ and its name, such as TINKER_ATROPOS_OPERATOR_WORKERS.

    \b
    Example, outside a cluster:
      tinker-atropos-operator --kubeconfig ~/.kube/config --namespace default --progress-url https://192.0.2.1:8443
    """
    settings = Settings(
        namespace=namespace,
        identity=identity,
        watch_namespaces=tuple(name.strip() for name in watch_namespaces.split(",") if name.strip()),
        images=RunImages(
            api_server=Image(api_server_image, api_server_pull_policy),
            trainer=Image(trainer_image, trainer_pull_policy),
            environment=Image(environment_image, environment_pull_policy),
            local_tinker=Image(local_tinker_image, local_tinker_pull_policy),
        ),
        service=service,
        progress_url=progress_url.rstrip("/"),
        host=host,
        progress_port=progress_port,
        metrics_port=metrics_port,
        probes_port=probes_port,
        workers=workers,
        resync_seconds=resync_seconds,
        status_interval_seconds=status_interval_seconds,
        canary_seconds=canary_seconds,
        lease_seconds=lease_seconds,
        leader_elect=leader_elect,
        kubeconfig=kubeconfig,
    )
    sys.exit(_serve(settings, log_level))


def _serve(settings: Settings, log_level: str) -> int:
    import asyncio
    import logging
    import signal

    from kubernetes.aio.config import ConfigException

    from tinker_atropos.protocol import logs
    from tinker_atropos_operator.app import Operator
    from tinker_atropos_operator.kube import ApiError

    logs.configure("operator", log_level)
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event that a handler has seen

    async def serve() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def take_signals() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)

        take_signals()
        try:
            operator = await Operator.create(settings)
        except ConfigException as error:
            raise click.ClickException(f"no cluster: {error}; run it in a pod, or give --kubeconfig") from error
        except ApiError as error:
            raise click.ClickException(f"the API server refuses: {error}") from error
        operator.on_watching = take_signals
        return 0 if await operator.run(stop) else 1

    return asyncio.run(serve())


def main() -> None:
    """Entry point of the package."""
    if os.environ.get("TINKER_ATROPOS_OPERATOR_KUBECONFIG") is None and _NAMESPACE_FILE.exists():
        os.environ.pop("KUBECONFIG", None)  # in a pod the service account speaks
    command.main(prog_name="tinker-atropos-operator")


if __name__ == "__main__":
    main()
