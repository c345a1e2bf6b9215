"""A run whose trajectories are in Redis: its API server may move, and its ledger is left where the run says."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster_runs import GROUPS_PER_STEP, at_step, complete, manifest, pods
from peer_processes import free_port
from real_cluster import Namespace
from tinker_atropos.trajectories.audit import command as audit


@contextmanager
def redis_on_the_node(space: Namespace, folder: Path, password: str) -> Iterator[str]:
    """A redis-server among the node's own programs, where pods reach it; its address."""
    from singlenode import network
    from singlenode.layout import layout

    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
    [node] = space.cluster.json("get", "nodes")["items"]
    host = next(entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP")
    port = free_port()
    options = ["--bind", host, "--port", str(port), "--dir", str(folder), "--appendonly", "yes", "--save", ""]
    prefix = network.inside(layout(space.cluster.state.name))
    process = subprocess.Popen(
        [*prefix, "redis-server", *options, "--requirepass", password], stdout=subprocess.DEVNULL
    )
    try:
        yield f"redis://{host}:{port}/0"
    finally:
        process.terminate()
        process.wait(20)


def test_a_redis_store_carries_a_run_to_another_api_server_pod(namespace: Namespace, tmp_path: Path) -> None:
    """Its emptyDir goes with the pod, the run does not notice; its ledger is left on a claim."""
    space, name, password = namespace, "moved", "not-on-any-command-line"
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
    with redis_on_the_node(space, tmp_path, password) as url:
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
    folder = f"runs/{name}-{space.json('get', 'tar', name)['metadata']['uid']}"
    assert end["ledgerExport"].endswith(folder)
    volume = space.json("get", "pvc", "archive")["spec"]["volumeName"]
    source = space.cluster.json("get", "pv", volume)["spec"]
    path = Path((source.get("hostPath") or source["local"])["path"]) / folder
    audited = CliRunner().invoke(audit, [str(path)])
    assert audited.exit_code == 0 and "20 steps trained" in audited.output, audited.output
