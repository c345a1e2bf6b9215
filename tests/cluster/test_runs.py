"""Runs on a real node: to the end, through every death, and to a clear failure where going on cannot help."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from peer_processes import free_port
from real_cluster import DEPLOYMENT, SYSTEM, Namespace
from tinker_atropos.run import yaml_text

ROOT = Path(__file__).resolve().parents[2]
[QUICKSTART] = yaml_text.load_all((ROOT / "examples" / "quickstart.yaml").read_text())
GROUPS_PER_STEP = 8
STEPS = 25
OPERATOR_USER = f"system:serviceaccount:{SYSTEM}:{DEPLOYMENT}"


def manifest(name: str, **env: Any) -> dict[str, Any]:
    run = copy.deepcopy(QUICKSTART)
    run["metadata"] = {"name": name}
    run["spec"]["config"]["env"].update(env)
    return run


def status(space: Namespace, name: str) -> dict[str, Any]:
    found = space.get("tar", name)
    return (found or {}).get("status") or {}


def condition(space: Namespace, name: str, kind: str) -> dict[str, Any]:
    return next((entry for entry in status(space, name).get("conditions", ()) if entry["type"] == kind), {})


def at_step(space: Namespace, name: str, step: int, seconds: float = 240) -> None:
    def reached() -> bool:
        now = status(space, name)
        assert now.get("phase") != "Failed", now
        return int(now.get("step") or 0) >= step

    space.eventually(f"step {step} of {name}", reached, seconds)


def complete(space: Namespace, name: str, seconds: float = 400) -> dict[str, Any]:
    def ended() -> bool:
        now = status(space, name)
        assert now.get("phase") != "Failed", now
        return now.get("phase") == "Complete"

    space.eventually(f"{name} Complete", ended, seconds)
    return status(space, name)


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
    import base64

    found = space.get("secret", name)
    assert found is not None
    return base64.b64decode(found["data"][key]).decode()


def test_the_quick_start_to_complete_then_silence(namespace: Namespace) -> None:
    space = namespace
    space.apply(manifest("quickstart"))
    at_step(space, "quickstart", 3)
    line = space.kubectl("get", "tar", "quickstart").splitlines()
    assert line[0].split() == ["NAME", "PHASE", "STEP", "REWARD", "ENVS", "AGE"]
    assert line[1].split()[4] == "1/1"
    end = complete(space, "quickstart")
    assert end["step"] == end["totalSteps"] == 40 and end["progress"] == "40/40"
    assert float(end["reward"]["mean"]) >= 0.9
    assert end["checkpoint"]["path"].startswith("tinker://") and end["checkpoint"]["step"] == 40
    assert end["samplerWeights"].endswith("/sampler_weights/final")
    # A batch that teaches nothing any more is a step too; its groups are dropped with that reason.
    assert 30 * GROUPS_PER_STEP <= end["ledger"]["trained"] <= 40 * GROUPS_PER_STEP
    assert space.kubectl("wait", "--for=condition=Complete", "tar/quickstart", "--timeout=5s")

    key = secret_value(space, "tar-quickstart-token", "local-tinker-api-key")
    with forwarded(space, "tar-quickstart-tinker", 8003) as url:
        sample = (
            "import tinker, sys\n"
            f"client = tinker.ServiceClient(base_url={url!r}, api_key={key!r})\n"
            f"sampling = client.create_sampling_client(model_path={end['samplerWeights']!r}).result()\n"
            "prompt, parameters = tinker.ModelInput.from_ints([5, 6]), tinker.SamplingParams(max_tokens=4)\n"
            "answer = sampling.sample(prompt, 1, parameters).result()\n"
            "print(len(answer.sequences))\n"
            "client.close('success').result()\n"
        )
        done = subprocess.run([sys.executable, "-c", sample], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "1", done.stderr

    # Environments and API server are gone, the local Tinker server with the weights stays.
    space.eventually("the API server gone", lambda: space.get("deployment", "tar-quickstart-api") is None, 60)
    space.eventually("the environments gone", lambda: not pods(space, "quickstart", "environment"), 60)
    assert space.get("deployment", "tar-quickstart-tinker") is not None

    time.sleep(10)
    before, seen = space.cluster.audit_size(), space.json("get", "tar", "quickstart")["metadata"]["resourceVersion"]
    time.sleep(120)
    writes = [
        entry
        for entry in space.cluster.writes_by(OPERATOR_USER, before)
        if entry["verb"] not in ("get", "list", "watch") and entry["objectRef"]["resource"] != "leases"
    ]
    canary = [
        entry
        for entry in writes
        if entry["objectRef"]["resource"] == "configmaps" and "canary" in entry["objectRef"]["name"]
    ]
    assert [entry for entry in writes if entry not in canary] == []
    assert space.json("get", "tar", "quickstart")["metadata"]["resourceVersion"] == seen


def test_a_run_lives_through_every_death(namespace: Namespace) -> None:
    space, name = namespace, "mortal"
    # Few enough steps that no batch is so good that it teaches nothing: each must count as trained.
    space.apply(manifest(name, total_steps=STEPS))

    at_step(space, name, 6)
    [trainer] = pods(space, name, "trainer")
    kill_in_pod(trainer, "trainer")
    at_step(space, name, 10)

    [environment] = pods(space, name, "environment")
    space.kubectl("delete", "pod", environment["metadata"]["name"], "--wait=false")
    at_step(space, name, 14)
    replaced = [pod["metadata"]["name"] for pod in pods(space, name, "environment")]
    assert environment["metadata"]["name"] not in replaced

    [server] = pods(space, name, "api-server")
    before = restarts(space)
    kill_in_pod(server, "trajectories")
    at_step(space, name, 18)
    after = restarts(space)
    moved = {key: count for key, count in after.items() if count != before.get(key)}
    assert moved == {f"{server['metadata']['name']}/trajectories": 1}, "only the killed container restarted"

    before = restarts(space)
    space.cluster.kubectl(
        "-n", SYSTEM, "delete", "pod", "-l", "app.kubernetes.io/component=operator", "--force", "--grace-period=0"
    )
    at_step(space, name, 21)
    assert restarts(space) == before, "a new operator restarts no pod"

    end = complete(space, name)
    assert end["ledger"]["trained"] == STEPS * GROUPS_PER_STEP, "every group of the surviving lineage was trained once"
    first, second = end["attempts"][0], end["attempts"][1]
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert first["reason"] == "ExitStatus137"
    assert second["fromStep"] >= first["step"] - 1, "at most one step was redone"
    assert len(end["attempts"]) == 2, end["attempts"]


def test_the_api_servers_pod_with_a_claim(namespace: Namespace) -> None:
    space, name = namespace, "claimed"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "store"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    run = manifest(name, total_steps=20)
    run["spec"]["apiServer"] = {"store": {"volume": {"persistentVolumeClaim": {"claimName": "store"}}}}
    space.apply(claim, run)
    at_step(space, name, 5)
    [server] = pods(space, name, "api-server")
    [environment] = pods(space, name, "environment")
    space.kubectl("delete", "pod", server["metadata"]["name"], "--wait=false")
    end = complete(space, name)
    assert end["ledger"]["trained"] == 20 * GROUPS_PER_STEP
    assert [entry["epoch"] for entry in end["attempts"]] == [1], "the trainer did not even notice"
    assert environment["metadata"]["name"].startswith(f"tar-{name}-env-")


def test_a_deleted_run_leaves_nothing(namespace: Namespace) -> None:
    space, name = namespace, "deleted"
    space.apply(manifest(name))
    at_step(space, name, 2)
    space.kubectl("delete", "tar", name, "--wait=false")

    def left() -> list[str]:
        listed = space.kubectl("get", "deploy,job,pod,svc,cm,secret,tar", "-o", "name").split()
        return [item for item in listed if f"tar-{name}" in item or item.endswith(f"/{name}")]

    space.eventually("all owned objects gone", lambda: not left(), 30)


@pytest.fixture
def guarded_tinker(namespace: Namespace) -> str:
    """A Tinker server that takes one key only; its address."""
    tag = namespace.cluster.tag
    container = {
        "name": "local-tinker",
        "image": f"localhost/tinker-atropos/local-tinker:{tag}",
        "args": ["local-tinker", "--host=0.0.0.0", "--port=8003", "--data=/tmp/data", "--api-key=tml-right"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "guarded", "labels": {"app": "guarded"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "guarded"},
        "spec": {"selector": {"app": "guarded"}, "ports": [{"port": 8003}]},
    }
    key = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "wrong-key"},
        "stringData": {"api-key": "tml-wrong"},
    }
    namespace.apply(pod, service, key)
    return "http://guarded:8003"


def test_what_cannot_work_says_so(namespace: Namespace, guarded_tinker: str) -> None:
    space = namespace
    image = manifest("no-image")
    image["spec"]["environments"][0]["image"] = "registry.invalid/environment:9"
    image["spec"]["deadlines"] = {"startup": "2m"}
    secret = manifest("no-secret")
    secret["spec"]["tinkerAPI"] = {"keySecretRef": {"name": "absent", "key": "api-key"}}
    key = manifest("wrong-key")
    key["spec"]["tinkerAPI"] = {"keySecretRef": {"name": "wrong-key", "key": "api-key"}, "baseURL": guarded_tinker}
    key["spec"]["config"]["openai"] = [{"model_name": "tinker-atropos/tiny"}]
    typo = manifest("typo")
    typo["spec"]["config"]["tinker"]["learning_rat"] = 0.1
    space.apply(image, secret, key, typo)

    def failed(name: str) -> dict[str, Any] | None:
        found = condition(space, name, "Failed")
        return found if found.get("status") == "True" else None

    space.eventually(
        "the pull error named",
        lambda: (
            "registry.invalid/environment:9" in condition(space, "no-image", "EnvironmentsReady").get("message", "")
        ),
        110,
    )
    refused = space.eventually("the refused key", lambda: failed("wrong-key"), 120)
    assert refused["reason"] == "KeyRefused" and "Secret wrong-key" in refused["message"]
    missing = space.eventually("the missing Secret", lambda: failed("no-secret"), 120)
    assert missing["reason"] == "SecretMissing" and "absent" in missing["message"]
    pulled = space.eventually("the startup deadline", lambda: failed("no-image"), 160)
    assert pulled["reason"] == "StartupDeadlineExceeded" and "registry.invalid/environment:9" in pulled["message"]
    assert {status(space, name)["phase"] for name in ("no-image", "no-secret", "wrong-key")} == {"Failed"}

    stalled = condition(space, "typo", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidConfig")
    assert "did you mean 'learning_rate'?" in stalled["message"]
    assert space.list("deployments", "tinker-atropos.dev/run=typo") == []
