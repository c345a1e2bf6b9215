"""A real API server for these tests, and the operator in this process with exactly the rights that the chart gives."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_world import World, eventually
from tinker_atropos_operator.app import Operator
from tinker_atropos_operator.kube import Kube, Resource
from tinker_atropos_operator.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tinker-atropos"
SYSTEM = "tinker-system"
RELEASE = "tinker-atropos"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:tinker-atropos-operator"
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")

sys.path.insert(0, str(ROOT / "devcluster"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.controlplane)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """etcd, API server and controller-manager on loopback, ended afterwards."""
    from singlenode import cluster as devcluster
    from singlenode.layout import ClusterError

    name = f"cp{uuid.uuid4().hex[:6]}"
    try:
        up = devcluster.up(name, devcluster.CONTROL_PLANE)
    except ClusterError as error:
        pytest.skip(f"no control plane on this machine: {error}")
    try:
        yield up
    finally:
        devcluster.down(name)


@pytest.fixture(scope="session")
def helm(cluster: Any) -> Callable[..., str]:
    """Run helm against the cluster; its output. Raises CalledProcessError."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [cluster.program("helm"), *arguments, "--kubeconfig", cluster.kubeconfig],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, arguments, done.stdout, done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def kubectl(cluster: Any) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [cluster.program("kubectl"), "--kubeconfig", cluster.kubeconfig, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def installed(helm: Callable[..., str]) -> None:
    """The chart, without a pod of the operator: its account and rights are used by the tests' own."""
    helm("install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace", "--set", "replicaCount=0")


@pytest.fixture(scope="session")
def operator_kubeconfig(
    cluster: Any,
    installed: None,
    kubectl: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Credentials of the chart's service account."""
    done = kubectl("create", "token", "tinker-atropos-operator", "--namespace", SYSTEM, "--duration", "4h")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": done.stdout.strip()}
    path = tmp_path_factory.mktemp("operator") / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
async def world(cluster: Any, installed: None) -> AsyncIterator[World]:
    """A namespace of its own for each test; it enforces the `restricted` pod security level."""
    kube = await Kube.connect(cluster.kubeconfig)
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    await kube.request("POST", NAMESPACES.path(None), body=body)
    world = World(kube, namespace, Path(cluster.audit_log))
    await eventually(
        "the namespace's default service account",
        lambda: world._try_post(  # the token of a Job's pod needs it
            f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        ),
    )
    try:
        yield world
    finally:
        with contextlib.suppress(Exception):
            await kube.request("DELETE", NAMESPACES.path(None, namespace))
        await kube.close()


@dataclasses.dataclass
class Running:
    """An operator that runs in this process."""

    operator: Operator
    task: asyncio.Task[bool]
    stop: asyncio.Event

    @property
    def progress_url(self) -> str:
        return f"https://127.0.0.1:{self.operator.progress_port}"

    async def end(self) -> bool:
        self.stop.set()
        return await asyncio.wait_for(self.task, 20)


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start_operator(operator_kubeconfig: Path) -> AsyncIterator[Start]:
    """Start an operator; it is stopped at the end of the test."""
    started: list[Running] = []

    async def start(*, wait: bool = True, **changes: Any) -> Running:
        settings = Settings(
            namespace=SYSTEM,
            identity=f"test-{uuid.uuid4().hex[:6]}",
            host="127.0.0.1",
            progress_port=0,
            metrics_port=0,
            probes_port=0,
            progress_url="https://127.0.0.1",
            kubeconfig=str(operator_kubeconfig),
            status_interval_seconds=0.2,
        )
        operator = await Operator.create(dataclasses.replace(settings, **changes))
        stop = asyncio.Event()
        running = Running(operator, asyncio.create_task(operator.run(stop)), stop)
        started.append(running)
        if wait:

            async def leads() -> bool:
                if running.task.done():
                    raise AssertionError(f"the operator ended: {running.task}")
                return operator.leading

            await eventually("an operator that leads", leads, 20)
        return running

    yield start
    for running in started:
        if not running.task.done():
            with contextlib.suppress(Exception):
                await running.end()


@pytest.fixture
async def operator(start_operator: Start) -> Running:
    return await start_operator()


@pytest.fixture
def audit_lines(cluster: Any) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [json.loads(line) for line in Path(cluster.audit_log).read_text().splitlines()]
