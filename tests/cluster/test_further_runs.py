"""Runs on a real node, side by side: through every death of their parts, and gone when they are deleted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster_runs import (
    GROUPS_PER_STEP,
    at_step,
    complete,
    environments_ready,
    kill_in_pod,
    manifest,
    pods,
    restarted,
    restarts,
    status,
)
from object_storage import BUCKET, Service, credentials
from peer_processes import free_port
from real_cluster import SYSTEM, Namespace
from stories import story

STEPS = 45
OWNED = ("deployments", "jobs", "pods", "services", "configmaps", "secrets", "tinkeratroposruns")


@story
def test_a_run_lives_through_every_death(space: Namespace) -> None:
    name = "mortal"
    run = manifest(name, total_steps=STEPS)
    # So slow a learner that no batch is so good that it teaches nothing: each must count as trained.
    run["spec"]["config"]["tinker"]["learning_rate"] = 1e-6
    space.apply(run)

    at_step(space, name, 6)
    [trainer] = pods(space, name, "trainer")
    kill_in_pod(trainer, "trainer")
    at_step(space, name, 10)

    [environment] = pods(space, name, "environment")
    space.kubectl("delete", "pod", environment["metadata"]["name"], "--wait=false")
    at_step(space, name, 14)
    environments_ready(space, name)
    replaced = [pod["metadata"]["name"] for pod in pods(space, name, "environment")]
    assert environment["metadata"]["name"] not in replaced

    [server] = pods(space, name, "api-server")
    before = restarts(space)
    kill_in_pod(server, "trajectories")
    space.eventually("a restart", lambda: restarted(before, restarts(space)), 60)
    killed_at = int(status(space, name)["step"])
    at_step(space, name, killed_at + 4)
    moved = restarted(before, restarts(space))
    assert moved == {f"{server['metadata']['name']}/trajectories": 1}, "only the killed container restarted"

    before = restarts(space)
    space.cluster.kubectl(
        "-n", SYSTEM, "delete", "pod", "-l", "app.kubernetes.io/component=operator", "--force", "--grace-period=0"
    )
    at_step(space, name, killed_at + 8)
    assert restarts(space) == before, "a new operator restarts no pod"

    end = complete(space, name)
    assert end["ledger"]["trained"] == STEPS * GROUPS_PER_STEP, "every group of the surviving lineage was trained once"
    first, second = end["attempts"][0], end["attempts"][1]
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert first["reason"] == "ExitStatus137"
    assert second["fromStep"] >= first["step"] - 1, "at most one step was redone"
    assert len(end["attempts"]) == 2, end["attempts"]


@story
def test_the_api_servers_pod_with_a_claim(space: Namespace) -> None:
    name = "claimed"
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


@story
def test_a_deleted_run_leaves_nothing(space: Namespace) -> None:
    name = "deleted"
    space.apply(manifest(name))
    at_step(space, name, 2)
    space.kubectl("delete", "tar", name, "--wait=false")

    def left() -> list[str]:
        names = [item["metadata"]["name"] for plural in OWNED for item in space.list(plural)]
        return [item for item in names if item.startswith(f"tar-{name}") or item == name]

    space.eventually("all owned objects gone", lambda: not left(), 30)


@contextmanager
def redis_on_the_node(space: Namespace, password: str) -> Iterator[str]:
    """A redis-server among the node's own programs, where pods reach it; its address."""
    from singlenode import network
    from singlenode.layout import layout

    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
    [node] = space.cluster.reader.list("nodes")
    host = next(entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP")
    port = free_port()
    prefix = network.inside(layout(space.cluster.state.name))
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        options = ["--bind", host, "--port", str(port), "--dir", folder, "--appendonly", "yes", "--save", ""]
        process = subprocess.Popen(
            [*prefix, "redis-server", *options, "--requirepass", password], stdout=subprocess.DEVNULL
        )
        try:
            yield f"redis://{host}:{port}/0"
        finally:
            process.terminate()
            process.wait(20)


@story
def test_a_redis_store_carries_a_run_to_another_api_server_pod(space: Namespace) -> None:
    """Its emptyDir goes with the pod, the run does not notice; its ledger is left on a claim."""
    name, password = "moved", "not-on-any-command-line"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "archive"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "redis"},
        "stringData": {"password": password},
    }
    with redis_on_the_node(space, password) as url:
        run = manifest(name, total_steps=20)
        export = {"volume": {"persistentVolumeClaim": {"claimName": "archive"}}, "path": "runs"}
        run["spec"]["apiServer"] = {
            "store": {"type": "Redis", "url": url, "secretRef": {"name": "redis"}, "export": export}
        }
        space.apply(claim, secret, run)
        at_step(space, name, 5)
        [server] = pods(space, name, "api-server")
        assert password not in json.dumps(server)
        space.kubectl("delete", "pod", server["metadata"]["name"], "--wait=false")
        at_step(space, name, 10)
        assert [pod["metadata"]["name"] for pod in pods(space, name, "api-server")] != [server["metadata"]["name"]]
        end = complete(space, name)
    assert end["ledger"]["trained"] == 20 * GROUPS_PER_STEP
    assert [entry["epoch"] for entry in end["attempts"]] == [1], "the trainer did not even notice"
    folder = f"runs/{name}-{space.must_get('tinkeratroposruns', name)['metadata']['uid']}"
    assert end["ledgerExport"].endswith(folder)
    volume = space.must_get("persistentvolumeclaims", "archive")["spec"]["volumeName"]
    stored = space.cluster.reader.get("persistentvolumes", volume)
    assert stored is not None
    source = stored["spec"]
    path = Path((source.get("hostPath") or source["local"])["path"]) / folder
    audit = [Path(sys.executable).with_name("tinker-atropos"), "audit", str(path)]
    audited = subprocess.run(audit, capture_output=True, text=True, check=False)
    assert audited.returncode == 0 and "20 steps trained" in audited.stdout, audited.stderr


@story
def test_a_ledger_is_left_in_a_bucket(space: Namespace) -> None:
    """The API server's image can do it, and the Secret's keys reach the trajectory server alone."""
    from singlenode import network
    from singlenode.layout import layout

    name = "archived"
    [node] = space.cluster.reader.list("nodes")
    host = next(entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": credentials()}
    with tempfile.TemporaryDirectory(prefix="storage-") as folder:
        service = Service(Path(folder), host, network.inside(layout(space.cluster.state.name)))
        try:
            run = manifest(name, total_steps=2)
            export = {"bucket": f"s3://{BUCKET}/runs", "endpoint": service.endpoint, "secretRef": {"name": "s3"}}
            run["spec"]["apiServer"] = {"store": {"export": export}}
            space.apply(secret, run)
            end = complete(space, name)
            uid = space.must_get("tinkeratroposruns", name)["metadata"]["uid"]
            assert end["ledgerExport"] == f"s3://{BUCKET}/runs/{name}-{uid}"
            command = [Path(sys.executable).with_name("tinker-atropos"), "audit", end["ledgerExport"]]
            audited = subprocess.run(
                [*command, "--endpoint", service.endpoint],
                env={**os.environ, **credentials()},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            service.stop()
    assert audited.returncode == 0 and "2 steps trained" in audited.stdout, audited.stderr


def test_afterwards_only_the_weights_of_a_complete_run_stay(shared: Namespace, at_rest: object) -> None:
    assert shared.get("deployments", "tar-quickstart-api") is None
    assert pods(shared, "quickstart", "environment") == []
    assert shared.get("deployments", "tar-quickstart-tinker") is not None, "the local Tinker server has the weights"
