"""Runs on a real node: through every death of their parts, and gone when they are deleted."""

from __future__ import annotations

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
from real_cluster import SYSTEM, Namespace

STEPS = 45


def test_a_run_lives_through_every_death(namespace: Namespace) -> None:
    space, name = namespace, "mortal"
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
