"""What the cluster tests say of runs: a manifest, its progress, its pods, and how one of them is killed."""

from __future__ import annotations

import base64
import copy
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peer_processes import free_port
from real_cluster import Namespace
from tinker_atropos.run import yaml_text

ROOT = Path(__file__).resolve().parents[2]
[QUICKSTART] = yaml_text.load_all((ROOT / "examples" / "quickstart.yaml").read_text())
GROUPS_PER_STEP = 8


def manifest(name: str, **env: Any) -> dict[str, Any]:
    run = copy.deepcopy(QUICKSTART)
    run["metadata"] = {"name": name}
    run["spec"]["config"]["env"].update(env)
    return run


def status(space: Namespace, name: str) -> dict[str, Any]:
    found = space.get("tinkeratroposruns", name)
    return (found or {}).get("status") or {}


def condition(space: Namespace, name: str, kind: str) -> dict[str, Any]:
    return next((entry for entry in status(space, name).get("conditions", ()) if entry["type"] == kind), {})


def is_over(run: dict[str, Any]) -> bool:
    """Whether the operator has nothing more to do for it until somebody changes it."""
    now = run.get("status") or {}
    stalled = any(entry["type"] == "Stalled" and entry["status"] == "True" for entry in now.get("conditions", ()))
    return stalled or now.get("phase") in ("Complete", "Failed")


def versions(space: Namespace) -> dict[str, str]:
    """Resource version of every run; a run that nobody wrote keeps its own."""
    return {run["metadata"]["name"]: run["metadata"]["resourceVersion"] for run in space.list("tinkeratroposruns")}


def at_step(space: Namespace, name: str, step: int, seconds: float = 400) -> None:
    def reached() -> bool:
        now = status(space, name)
        assert now.get("phase") != "Failed", now
        return int(now.get("step") or 0) >= step

    space.eventually(f"step {step} of {name}", reached, seconds)


def complete(space: Namespace, name: str, seconds: float = 600) -> dict[str, Any]:
    def ended() -> bool:
        now = status(space, name)
        assert now.get("phase") != "Failed", now
        return now.get("phase") == "Complete"

    space.eventually(f"{name} Complete", ended, seconds)
    return status(space, name)


def environments_ready(space: Namespace, name: str) -> None:
    space.eventually(
        f"the environments of {name}", lambda: condition(space, name, "EnvironmentsReady").get("status") == "True", 240
    )


def pods(space: Namespace, name: str, component: str) -> list[dict[str, Any]]:
    """Pods of one part of a run that are not being deleted."""
    found = space.list("pods", f"tinker-atropos.dev/run={name},app.kubernetes.io/component={component}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def restarts(space: Namespace) -> dict[str, int]:
    """Restart count of every container of the pods that stay, by pod and container."""
    counts = {}
    for pod in space.list("pods"):
        if "deletionTimestamp" in pod["metadata"]:
            continue  # it may be gone at any moment
        pod_status = pod["status"]
        for entry in [*pod_status.get("containerStatuses", ()), *pod_status.get("initContainerStatuses", ())]:
            counts[f"{pod['metadata']['name']}/{entry['name']}"] = entry["restartCount"]
    return counts


def restarted(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """By how much each container's restart count grew. A pod that is new has a container at 0."""
    return {key: count - before.get(key, 0) for key, count in after.items() if count > before.get(key, 0)}


def kill_in_pod(pod: dict[str, Any], word: str) -> None:
    """SIGKILL a program of a pod from outside, as the kernel would when memory is short."""
    uid = pod["metadata"]["uid"]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
            if word.encode() in line and uid in (entry / "cgroup").read_text():
                os.kill(int(entry.name), signal.SIGKILL)
                return
        except OSError:
            continue
    raise AssertionError(f"no {word} process of pod {pod['metadata']['name']} was found")


@contextmanager
def forwarded(space: Namespace, service: str, port: int) -> Iterator[str]:
    """Address of a Service on this machine."""
    own = free_port()
    command = [space.cluster.kubectl_program, "--kubeconfig", space.cluster.kubeconfig, "-n", space.name]
    process = subprocess.Popen(
        [*command, "port-forward", f"service/{service}", f"{own}:{port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None and b"Forwarding" in process.stdout.readline()
        yield f"http://127.0.0.1:{own}"
    finally:
        process.terminate()
        process.wait(10)


def secret_value(space: Namespace, name: str, key: str) -> str:
    return base64.b64decode(space.must_get("secrets", name)["data"][key]).decode()
