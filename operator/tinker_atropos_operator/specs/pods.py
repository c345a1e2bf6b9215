"""Pieces that all pods of a run share. Each pod passes the `restricted` pod security level as built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinker_atropos.protocol.credentials import KEY_VARIABLE, NO_KEY_NEEDED
from tinker_atropos.run.pod_requests import REQUESTS
from tinker_atropos_operator.settings import Image
from tinker_atropos_operator.specs.run_objects import Object, RunContext

USER = 65532
"""The user of this project's images; a fixed number, so that the kubelet can check that it is not root."""

CONFIG_DIR = "/etc/tinker-atropos"
TOKEN_DIR = "/var/run/secrets/tinker-atropos/run"  # noqa: S105 - a path
TOKEN_FILE = f"{TOKEN_DIR}/token"
TOKEN_KEY = "token"  # noqa: S105 - a key's name
LOCAL_TINKER_KEY = "local-tinker-api-key"
PROGRAM = "tinker-atropos"

_TMP_MOUNT: Object = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - an emptyDir of the pod


def pod_spec(
    containers: Sequence[Object],
    volumes: Sequence[Object],
    *,
    grace_seconds: int,
    restart_policy: str = "Always",
    init_containers: Sequence[Object] = (),
) -> Object:
    """A pod that runs as nobody in particular and knows nothing of the cluster."""
    spec: Object = {
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": grace_seconds,
        "automountServiceAccountToken": False,
        # A Service of the same namespace must not put variables into the pod that programs read as options.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": list(containers),
        "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
    }
    if init_containers:
        spec["initContainers"] = list(init_containers)
    return spec


def container(
    name: str,
    image: Image,
    *,
    command: Sequence[str],
    args: Sequence[str] = (),
    env: Sequence[Object] = (),
    mounts: Sequence[Object] = (),
    ports: Mapping[str, int] | None = None,
) -> Object:
    """A container with a read-only root and a /tmp of its pod."""
    built: Object = {
        "name": name,
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "command": list(command),
        "env": [variable("HOME", "/tmp"), variable("TMPDIR", "/tmp"), *env],  # noqa: S108
        "volumeMounts": [_TMP_MOUNT, *mounts],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The last lines of a program that died without a word reach the run's status this way.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if args:
        built["args"] = list(args)
    if ports:
        built["ports"] = [
            {"name": port_name, "containerPort": number, "protocol": "TCP"} for port_name, number in ports.items()
        ]
    if name in REQUESTS:
        built["resources"] = {"requests": dict(REQUESTS[name])}
    return built


def variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def from_secret(name: str, secret: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def http_probe(path: str, port: int, *, period: int, failures: int, timeout: int = 5) -> Object:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def token_volume(secret: str) -> Object:
    """The run's token as a file, and nothing else of its Secret."""
    return {
        "name": "run-token",
        "secret": {
            "secretName": secret,
            "defaultMode": 0o440,
            "items": [{"key": TOKEN_KEY, "path": "token"}],
        },
    }


TOKEN_MOUNT: Object = {"name": "run-token", "mountPath": TOKEN_DIR, "readOnly": True}


def tinker_credentials(context: RunContext, token_secret: str, local_url: str) -> list[Object]:
    """Variables by which the Tinker SDK finds its endpoint and key."""
    api = context.spec.tinker_api
    if api.local is not None:
        return [
            from_secret(KEY_VARIABLE, token_secret, LOCAL_TINKER_KEY),
            variable("TINKER_BASE_URL", local_url),
        ]
    variables = []
    if api.key_secret_ref is not None:
        variables.append(from_secret(KEY_VARIABLE, api.key_secret_ref.name, api.key_secret_ref.key))
    else:
        # The SDK refuses to start without a key; a server that asks for none never looks at it.
        variables.append(variable(KEY_VARIABLE, NO_KEY_NEEDED))
    if api.base_url is not None:
        variables.append(variable("TINKER_BASE_URL", api.base_url))
    return variables
