"""The run's own Tinker server. It stays until the run is deleted, for the final weights live in it."""

from __future__ import annotations

from tinker_atropos.protocol import ports
from tinker_atropos.run import names
from tinker_atropos_operator.specs import labels, pods
from tinker_atropos_operator.specs.api_server import DEFAULT_VOLUME, STORE_FIELD
from tinker_atropos_operator.specs.deployments import deployment
from tinker_atropos_operator.specs.run_objects import Child, RunContext

DATA_DIR = "/var/lib/tinker-atropos"
BUILT_IN = "tiny"
"""The model that is in the image; the image says where."""


def local_tinker(context: RunContext) -> Child:
    """Deployment of the local Tinker server."""
    local = context.spec.tinker_api.local
    assert local is not None
    secret = names.token_secret(context.name)
    args = ["--host=0.0.0.0", f"--port={ports.LOCAL_TINKER_HTTP}", f"--data={DATA_DIR}/data"]
    if local.model != BUILT_IN:
        args.append(f"--model={local.model}")
    server = pods.container(
        "local-tinker",
        context.platform.settings.images.local_tinker,
        command=[pods.PROGRAM, "local-tinker"],
        args=args,
        env=[pods.from_secret("TINKER_ATROPOS_LOCAL_TINKER_API_KEY", secret, pods.LOCAL_TINKER_KEY)],
        mounts=[{"name": "data", "mountPath": DATA_DIR, "subPath": "local-tinker"}],
        ports={"http": ports.LOCAL_TINKER_HTTP},
    )
    server["readinessProbe"] = pods.http_probe("/healthz", ports.LOCAL_TINKER_HTTP, period=5, failures=6, timeout=10)
    volume = context.spec.api_server.store.volume
    return deployment(
        context,
        names.local_tinker(context.name),
        labels.LOCAL_TINKER,
        pods.pod_spec([server], [{"name": "data", **volume}], grace_seconds=30),
        inputs=[local.model, volume],
        overlay_field=STORE_FIELD if volume != DEFAULT_VOLUME else "",
    )
