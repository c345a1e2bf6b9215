"""The API server's Deployment: trajectory server and gateway in one pod, apart from the trainer.

Apart, so that sampling and queueing go on while a trainer restarts; together, because environments meet both as one
address."""

from __future__ import annotations

from tinker_atropos.protocol import ports
from tinker_atropos.run import names
from tinker_atropos.run.model import Export, Store
from tinker_atropos_operator.specs import endpoints, labels, pods
from tinker_atropos_operator.specs.deployments import deployment
from tinker_atropos_operator.specs.run_objects import Child, Object, RunContext

STORE_LOGIN_VARIABLE = "TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD"

STORE_FIELD = "apiServer.store"
DEFAULT_VOLUME = Store().volume

STORE_DIR = "/var/lib/tinker-atropos"
EXPORT_DIR = "/var/lib/tinker-atropos-export"
EXPORT_GRACE_SECONDS = 120
"""A run that fails is exported while its API server ends."""


def api_server(context: RunContext) -> Child:
    """Deployment of the API server's pod."""
    spec, images = context.spec, context.platform.settings.images
    token = names.token_secret(context.name)
    export = spec.api_server.store.export
    trajectories = pods.container(
        "trajectories",
        images.api_server,
        command=[pods.PROGRAM, "trajectories"],
        args=[
            "--host=0.0.0.0",
            f"--port={ports.TRAJECTORIES_HTTP}",
            f"--grpc-port={ports.TRAJECTORIES_GRPC}",
            f"--store={_store(context)}",
            f"--token-file={pods.TOKEN_FILE}",
            *(_export(context, export) if export else []),
        ],
        env=_store_password(spec.api_server.store),
        mounts=[
            {"name": "store", "mountPath": STORE_DIR, "subPath": "trajectories"},
            pods.TOKEN_MOUNT,
            *([{"name": "export", "mountPath": EXPORT_DIR}] if export and export.volume else []),
        ],
        ports={"trajectories": ports.TRAJECTORIES_HTTP, "grpc": ports.TRAJECTORIES_GRPC},
    )
    if export is not None and export.secret_ref is not None:
        trajectories["envFrom"] = [{"secretRef": {"name": export.secret_ref.name}}]
    _probe(trajectories, ports.TRAJECTORIES_HTTP)
    tokenizer = spec.base_model if spec.tinker_api.local is not None else spec.config.env.tokenizer_name
    gateway = pods.container(
        "gateway",
        images.api_server,
        command=[pods.PROGRAM, "gateway"],
        args=[
            "--host=0.0.0.0",
            f"--port={ports.GATEWAY_HTTP}",
            f"--trajectories=127.0.0.1:{ports.TRAJECTORIES_GRPC}",
            f"--tokenizer={tokenizer}",
            f"--base-model={spec.base_model}",
            f"--token-file={pods.TOKEN_FILE}",
        ],
        env=pods.tinker_credentials(context, token, endpoints.local_tinker(context.name)),
        mounts=[pods.TOKEN_MOUNT],
        ports={"gateway": ports.GATEWAY_HTTP},
    )
    _probe(gateway, ports.GATEWAY_HTTP)
    pod = pods.pod_spec(
        [trajectories, gateway],
        [
            {"name": "store", **spec.api_server.store.volume},
            pods.token_volume(token),
            *([{"name": "export", **export.volume}] if export and export.volume else []),
        ],
        grace_seconds=EXPORT_GRACE_SECONDS if export else 30,
    )
    return deployment(
        context,
        names.api_server(context.name),
        labels.API_SERVER,
        pod,
        inputs=[context.source.get("tinkerAPI"), context.source.get("apiServer"), tokenizer, spec.base_model],
        overlay_field=STORE_FIELD if spec.api_server.store.volume != DEFAULT_VOLUME or export is not None else "",
    )


def _export(context: RunContext, export: Export) -> list[str]:
    """Where the trajectory server leaves the run: its own folder on the volume, or its own place in the bucket."""
    own = f"{context.name}-{context.uid}"
    if export.bucket is None:
        return [f"--export={'/'.join(part for part in (EXPORT_DIR, export.path, own) if part)}"]
    given = {"endpoint": export.endpoint, "region": export.region}
    options = [f"--export-{name}={value}" for name, value in given.items() if value is not None]
    return [f"--export={export.bucket_of(own)}", *options]


def _store(context: RunContext) -> str:
    """Where the trajectory server keeps the run: a folder, or a Redis server on which runs are told apart by uid."""
    store = context.spec.api_server.store
    return f"{STORE_DIR}/store" if store.url is None else f"{store.url}?run={context.uid}"


def _store_password(store: Store) -> list[Object]:
    if store.secret_ref is None:
        return []
    name = STORE_LOGIN_VARIABLE
    return [pods.from_secret(name, store.secret_ref.name, store.secret_ref.key)]


def _probe(container: Object, port: int) -> None:
    """Ready when it says so; killed only when it does not even answer for a minute, or for five after its start."""
    container["startupProbe"] = pods.http_probe("/healthz", port, period=2, failures=150)
    container["readinessProbe"] = pods.http_probe("/readyz", port, period=5, failures=3)
    container["livenessProbe"] = pods.http_probe("/healthz", port, period=10, failures=6)
