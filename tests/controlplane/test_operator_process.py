"""The operator as a process: takes turns, ends in order, waits for its CRD, keeps to its namespaces, idles silently."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster_world import World, eventually
from tinker_atropos_operator import kube as api
from tinker_atropos_operator.kube import ApiError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tinker-atropos"
ACCOUNT = "system:serviceaccount:tinker-system:tinker-atropos-operator"
SYSTEM = "tinker-system"

Spawn = Callable[..., asyncio.subprocess.Process]


class Programs:
    """Operator processes of a test; none outlives it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._running: list[asyncio.subprocess.Process] = []

    async def start(self, identity: str, *arguments: str) -> asyncio.subprocess.Process:
        with (self._folder / f"{identity}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tinker_atropos_operator",
                f"--kubeconfig={self._kubeconfig}",
                f"--namespace={SYSTEM}",
                f"--identity={identity}",
                "--host=127.0.0.1",
                "--progress-port=0",
                "--metrics-port=0",
                "--probes-port=0",
                "--progress-url=https://127.0.0.1",
                "--lease-seconds=6",
                *arguments,
                stderr=log,
            )
        self._running.append(process)
        return process

    def log(self, identity: str) -> str:
        return (self._folder / f"{identity}.log").read_text()

    async def said(self, identity: str, words: str, seconds: float = 40) -> None:
        async def look() -> bool:
            return words in self.log(identity)

        try:
            await eventually(f"{words!r} in the log of {identity}", look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it says: {self.log(identity)[-2000:]}") from None

    async def end(self) -> None:
        for process in self._running:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                await process.wait()


@pytest.fixture
async def programs(operator_kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Programs]:
    running = Programs(operator_kubeconfig, tmp_path)
    yield running
    await running.end()


async def lease_holder(world: World) -> str:
    try:
        lease = await world.kube.get(api.LEASES, SYSTEM, "tinker-atropos-operator")
    except ApiError:
        return ""
    return str(lease["spec"].get("holderIdentity") or "")


async def test_it_ends_in_order_and_gives_its_turn_away_at_once(world: World, programs: Programs) -> None:
    first = await programs.start("first")
    await programs.said("first", "ready: looking after runs")
    second = await programs.start("second")
    await programs.said("second", "standing by: first leads")
    first.terminate()
    assert await asyncio.wait_for(first.wait(), 15) == 0
    await programs.said("second", "ready: looking after runs", 15)
    assert second.returncode is None
    await world.create_run("handed")
    await world.wait_for_children("handed", 8)


async def test_a_leader_that_is_killed_is_followed_and_no_pod_restarts(world: World, programs: Programs) -> None:
    first = await programs.start("first")
    await programs.said("first", "ready: looking after runs")
    await world.create_run("kept")
    await world.start_everything("kept")
    await world.status_when("kept", "all parts", lambda s: s["environmentsReady"] == "1/1")
    await asyncio.sleep(1)
    before = {key: body["metadata"]["resourceVersion"] for key, body in (await world.owned("kept")).items()}
    first.kill()
    await first.wait()
    await programs.start("second")
    await programs.said("second", "ready: looking after runs", 30)
    await asyncio.sleep(1)
    after = {key: body["metadata"]["resourceVersion"] for key, body in (await world.owned("kept")).items()}
    assert after == before
    await world.patch_run("kept", {"config": {"env": {"total_steps": 77}}})
    await world.status_when("kept", "0/77", lambda s: s["progress"] == "0/77")


async def test_a_leader_that_sleeps_past_its_lease_wakes_up_as_none(world: World, programs: Programs) -> None:
    first = await programs.start("first")
    await programs.said("first", "ready: looking after runs")
    await programs.start("second")
    await programs.said("second", "standing by: first leads")
    first.send_signal(signal.SIGSTOP)
    await programs.said("second", "ready: looking after runs", 30)
    await world.create_run("woken")
    await world.wait_for_children("woken", 8)
    first.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(first.wait(), 20) == 1
    assert await lease_holder(world) == "second"
    assert "to be started anew" in programs.log("first")


async def test_nothing_is_written_but_the_lease_while_nothing_happens(world: World, operator: Any) -> None:
    await world.create_run("calm")
    await world.start_everything("calm")
    await world.status_when("calm", "all parts", lambda s: s["environmentsReady"] == "1/1")

    async def calm() -> bool:
        since = dt.datetime.now(dt.UTC)
        await asyncio.sleep(12)
        return set(world.writes(ACCOUNT, since)) <= {
            f"update /apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/tinker-atropos-operator"
        }

    # Runs of earlier tests may still be on their way out of their namespaces.
    await eventually("twelve seconds without a write", calm, 60)


async def test_probes_and_metrics(world: World, operator: Any) -> None:
    from tinker_atropos_operator import probes

    await world.create_run("measured")
    await world.wait_for_children("measured", 8)
    health, port = await operator.operator.health.start("127.0.0.1", 0)
    metrics, metrics_port = await probes.start_metrics("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/healthz")).json() == {"status": "ok"}
            assert (await client.get(f"http://127.0.0.1:{port}/readyz")).json() == {"status": "ok"}
            page = (await client.get(f"http://127.0.0.1:{metrics_port}/metrics")).text
    finally:
        await health.cleanup()
        await metrics.cleanup()
    for line in (
        "tinker_atropos_operator_is_leader 1.0",
        'tinker_atropos_operator_reconcile_total{result="done"}',
        'tinker_atropos_operator_k8s_requests_total{code="201",resource="deployments",verb="PATCH"}',
        'tinker_atropos_operator_cache_objects{kind="Deployment"}',
    ):
        assert line in page
    assert "measured" not in page, "no label has a run's name: their number has no limit"


async def test_the_canary_comes_back_by_the_watch(world: World, start_operator: Any) -> None:
    running = await start_operator(canary_seconds=0.5)

    async def sang() -> bool:
        return running.operator.canary.returns >= 2

    await eventually("the canary", sang, 15)
    assert running.operator.canary.misses == 0
    assert running.operator.health.why_dead() is None


async def test_with_named_namespaces_it_needs_and_looks_at_only_those(
    world: World, helm: Callable[..., str], kubectl: Any, cluster: Any, tmp_path: Path, start_operator: Any
) -> None:
    watched = world.namespace
    system = f"{watched}-ops"
    values = ["--set", f"watchNamespaces={{{watched}}}", "--set", "crds.enabled=false", "--set", "replicaCount=0"]
    values += ["--set", "rbac.aggregateRoles=false", "--create-namespace"]
    helm("install", "narrow-tinker-atropos", str(CHART), "--namespace", system, *values)
    try:
        token = kubectl("create", "token", "narrow-tinker-atropos-operator", "--namespace", system)
        assert token.returncode == 0, token.stderr
        config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
        config["users"][0]["user"] = {"token": token.stdout.strip()}
        path = tmp_path / "narrow"
        path.write_text(yaml.safe_dump(config))
        await start_operator(
            namespace=system,
            service="narrow-tinker-atropos-operator",
            watch_namespaces=(watched,),
            kubeconfig=str(path),
            canary_seconds=1.0,
        )
        elsewhere = kubectl(
            "create",
            "-n",
            "default",
            "-f",
            "-",
            text=yaml.safe_dump({**world.manifest("far"), "metadata": {"name": "far"}}),
        )
        assert elsewhere.returncode == 0, elsewhere.stderr
        await world.create_run("near")
        await world.wait_for_children("near", 8)
        await world.start_everything("near")
        await world.status_when("near", "all parts", lambda s: s["environmentsReady"] == "1/1")
        assert kubectl("get", "tar", "far", "-n", "default", "-o", "jsonpath={.status}").stdout == ""
    finally:
        kubectl("delete", "tar", "far", "-n", "default", "--ignore-not-found")
        helm("uninstall", "narrow-tinker-atropos", "--namespace", system)
        kubectl("delete", "namespace", system, "--wait=false")


def test_it_waits_for_its_crd_and_goes_on_when_it_comes(tmp_path: Path) -> None:
    """On a control plane of its own: no other test should be without its CRD."""
    from singlenode import cluster as devcluster
    from singlenode.layout import ClusterError

    name = f"nocrd{os.getpid() % 100000}"
    try:
        bare = devcluster.up(name, devcluster.CONTROL_PLANE)
    except ClusterError as error:
        pytest.skip(f"no control plane on this machine: {error}")
    try:
        asyncio.run(_without_crd(Path(bare.kubeconfig), bare.program("kubectl"), tmp_path))
    finally:
        devcluster.down(name)


async def _without_crd(kubeconfig: Path, kubectl: str, folder: Path) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [kubectl, "--kubeconfig", str(kubeconfig), *arguments], capture_output=True, text=True, check=True
        ).stdout

    run("create", "namespace", SYSTEM)
    programs = Programs(kubeconfig, folder)
    try:
        await programs.start("early")
        await programs.said("early", "is not installed; waiting for it")
        run("apply", "-f", str(ROOT / "crds" / "tinkeratroposruns.yaml"))
        await programs.said("early", "ready: looking after runs", 30)
        run("apply", "-f", str(ROOT / "examples" / "quickstart.yaml"))

        async def made() -> bool:
            return "tar-quickstart-trainer-1" in run("get", "jobs", "-o", "name")

        await eventually("the run's objects", made)
    finally:
        await programs.end()


async def test_another_operator_for_the_same_runs_is_named_in_the_log(
    world: World, programs: Programs, helm: Callable[..., str]
) -> None:
    """The chart, rendered without a cluster as GitOps does, cannot refuse."""
    text = helm("template", "second", str(CHART), "--namespace", world.namespace)
    deployment = next(body for body in yaml.safe_load_all(text) if body and body["kind"] == "Deployment")
    await world.kube.request("POST", api.DEPLOYMENTS.path(world.namespace), body=deployment)
    await programs.start("first", "--resync-seconds=2")
    name = f"{world.namespace}/{deployment['metadata']['name']}"
    await programs.said("first", f"the same runs are looked after by another operator, {name}")
