"""An environment's Deployment: the user's program with its relay beside it.

The relay is a native sidecar (an init container that keeps running): it has the tokenizer before the program starts,
and it alone holds the run's token."""

from __future__ import annotations

from tinker_atropos.protocol import ports
from tinker_atropos.run import names
from tinker_atropos.run.model import Environment
from tinker_atropos_operator.settings import Image
from tinker_atropos_operator.specs import configuration, endpoints, labels, pods
from tinker_atropos_operator.specs.deployments import deployment
from tinker_atropos_operator.specs.run_objects import Child, Object, RunContext, digest_of

CONFIG_FILE = f"{pods.CONFIG_DIR}/environment.yaml"
PATIENCE = 1_000_000
"""Looks at a relay that has not started yet, before it is killed."""
_TOKENIZER: Object = {"name": "tokenizer", "mountPath": configuration.TOKENIZER_DIR}


def environment(context: RunContext, entry: Environment) -> Child:
    """Deployment of one environment; each replica is an instance of it."""
    images, index = context.platform.settings.images, context.spec.environments.index(entry)
    image = images.environment if entry.image is None else Image(entry.image, images.environment.pull_policy)
    program = pods.container(
        "environment",
        image,
        command=entry.command,
        args=["serve", "--config", CONFIG_FILE],
        env=[
            # W&B would wait for a project, and the tokenizer's threads for a core.
            pods.variable("WANDB_MODE", "disabled"),
            pods.variable("TOKENIZERS_PARALLELISM", "false"),
            pods.variable("PYTHONUNBUFFERED", "1"),
        ],
        mounts=[
            {"name": "configuration", "mountPath": pods.CONFIG_DIR, "readOnly": True},
            {**_TOKENIZER, "readOnly": True},
        ],
    )
    pod = pods.pod_spec(
        [program],
        [
            {
                "name": "configuration",
                "configMap": {
                    "name": names.config_map(context.name),
                    "items": [{"key": configuration.environment_file(entry), "path": "environment.yaml"}],
                },
            },
            pods.token_volume(names.token_secret(context.name)),
            {"name": "tokenizer", "emptyDir": {}},
        ],
        # Python as process 1 ignores SIGTERM, and the relay has acknowledged nothing that could still be lost.
        grace_seconds=5,
        init_containers=[_relay(context, entry)],
    )
    config = configuration.configuration_of(context, entry)
    # Shares of a batch are the trajectory server's business: a new weight is no reason to restart the environment.
    digested = {**config, "env": {key: value for key, value in config["env"].items() if key != "inference_weight"}}
    return deployment(
        context,
        names.environment(context.name, entry.name),
        labels.ENVIRONMENT_COMPONENT,
        pod,
        inputs=[entry.image, entry.command, entry.pod_template, digested],
        replicas=entry.replicas,
        strategy="RollingUpdate",
        extra_labels={labels.ENVIRONMENT: entry.name},
        annotations={labels.CONFIG: digest_of(digested)},
        overlay=entry.pod_template,
        overlay_field=f"environments[{index}].podTemplate" if entry.pod_template else "",
    )


def _relay(context: RunContext, entry: Environment) -> Object:
    built = pods.container(
        "relay",
        context.platform.settings.images.api_server,
        command=[pods.PROGRAM, "relay"],
        args=[
            f"--trajectories={endpoints.trajectories_http(context.name)}",
            f"--gateway={endpoints.gateway(context.name)}",
            f"--environment={entry.name}",
            "--instance=$(POD_NAME)",
            f"--token-file={pods.TOKEN_FILE}",
            f"--tokenizer-dir={configuration.TOKENIZER_DIR}",
            f"--trajectories-port={ports.RELAY_TRAJECTORIES}",
            f"--gateway-port={ports.RELAY_GATEWAY}",
            f"--health-port={ports.RELAY_HEALTH}",
            "--health-host=0.0.0.0",
        ],
        env=[{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        mounts=[pods.TOKEN_MOUNT, _TOKENIZER],
        ports={"health": ports.RELAY_HEALTH},
    )
    built["restartPolicy"] = "Always"
    # It waits for the gateway as long as the run may take to start, and the run's own deadline ends that: killing it
    # would gain nothing, and a number that follows the deadline would replace every pod when that changes.
    built["startupProbe"] = pods.http_probe("/healthz", ports.RELAY_HEALTH, period=2, failures=PATIENCE)
    return built
