"""The trainer's Job. Its pod needs no volume of its own: the state it goes on from is with the trajectory server."""

from __future__ import annotations

from tinker_atropos.protocol import progress
from tinker_atropos.protocol.exit_codes import FATAL
from tinker_atropos.run import names
from tinker_atropos_operator.specs import configuration, endpoints, labels, pods
from tinker_atropos_operator.specs.overlay import lay_over
from tinker_atropos_operator.specs.run_objects import Child, Object, RunContext, metadata

CONTAINER = "trainer"
TOKEN_SECONDS = 3600
_PROGRESS_DIR = "/var/run/secrets/tinker-atropos/progress"


def trainer(context: RunContext, attempt: int) -> Child:
    """Job of one attempt."""
    spec = context.spec
    secret = names.token_secret(context.name)
    path = progress.PATH.format(namespace=context.namespace, name=context.name)
    program = pods.container(
        CONTAINER,
        context.platform.settings.images.trainer,
        command=[pods.PROGRAM, "trainer"],
        args=[
            f"--config={pods.CONFIG_DIR}/{configuration.RUN_FILE}",
            f"--trajectories={endpoints.trajectories_grpc(context.name)}",
            f"--token-file={pods.TOKEN_FILE}",
            f"--run-uid={context.uid}",
            f"--attempt={attempt}",
            "--holder=$(POD_NAME)",
            f"--progress-url={context.platform.settings.progress_base_url}{path}",
            f"--progress-ca={pods.CONFIG_DIR}/{configuration.CA_FILE}",
            f"--progress-token-file={_PROGRESS_DIR}/token",
            "--termination-log=/dev/termination-log",
        ],
        env=[
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            *pods.tinker_credentials(context, secret, endpoints.local_tinker(context.name)),
        ],
        mounts=[
            {"name": "configuration", "mountPath": pods.CONFIG_DIR, "readOnly": True},
            {"name": "progress-token", "mountPath": _PROGRESS_DIR, "readOnly": True},
            pods.TOKEN_MOUNT,
        ],
    )
    pod = pods.pod_spec(
        [program],
        [
            {
                "name": "configuration",
                "configMap": {
                    "name": names.config_map(context.name),
                    "items": [{"key": key, "path": key} for key in (configuration.RUN_FILE, configuration.CA_FILE)],
                },
            },
            pods.token_volume(secret),
            {
                "name": "progress-token",
                "projected": {
                    "sources": [
                        {
                            "serviceAccountToken": {
                                "audience": progress.audience(context.namespace, context.name, context.uid),
                                "expirationSeconds": TOKEN_SECONDS,
                                "path": "token",
                            }
                        }
                    ]
                },
            },
        ],
        grace_seconds=30,
        restart_policy="Never",
    )
    extra = {labels.ATTEMPT: str(attempt)}
    template: Object = {
        "metadata": {"labels": {**labels.of_run(context.name, labels.TRAINER), **extra}},
        "spec": pod,
    }
    return Child(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(
                context,
                names.trainer(context.name, attempt),
                {**labels.of_run(context.name, labels.TRAINER), **extra},
                # A Job's template cannot change: what a user may change meanwhile must not be in here.
                [attempt],
            ),
            "spec": {
                "backoffLimit": spec.trainer.backoff_limit,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {
                    "rules": [
                        # A pod that was evicted or preempted did nothing wrong.
                        {
                            "action": "Ignore",
                            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                        },
                        {
                            "action": "FailJob",
                            "onExitCodes": {
                                "containerName": CONTAINER,
                                "operator": "In",
                                "values": sorted(FATAL),
                            },
                        },
                    ]
                },
                "template": lay_over(template, spec.trainer.pod_template),
            },
        },
        "trainer.podTemplate" if spec.trainer.pod_template else "",
        spec.trainer.pod_template,
    )
