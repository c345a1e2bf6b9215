"""A real node with real images and the operator installed by its chart, as a person would install it.

    DEVCLUSTER=demo pytest tests/cluster      uses the cluster of that name, makes it if need be, and leaves it there

Fixtures: `node` (the cluster, nothing installed), `images` (the project's images are in it; its tag), `operator` (the
chart is installed and ready), `bare_namespace` (one per test), `shared` (one for the first runs), `stories` (further
runs, told side by side) and `at_rest` (since when all of those are over). They hand out RealCluster and Namespace of
tests/support/real_cluster.py.

Files run in the order of their names: what `test_first_runs` leaves behind rests while `test_node` tries what needs no
operator, and `test_operator_at_rest` then looks what the operator wrote meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cluster_runs
from real_cluster import Namespace, RealCluster
from stories import Stories, told_by

ROOT = Path(__file__).resolve().parents[2]
for folder in ("scripts", "devcluster"):
    sys.path.insert(0, str(ROOT / folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:  # pods and images take longer than calls
                item.add_marker(pytest.mark.timeout(900))


def _interrupt(number: int, frame: Any) -> None:
    """A terminated session takes its node down, as an interrupted one does."""
    raise KeyboardInterrupt(f"signal {number}")


@pytest.fixture(scope="session")
def node() -> Iterator[RealCluster]:
    """A node that runs pods."""
    from singlenode import cluster, node
    from singlenode.layout import ClusterError, layout

    kept = os.environ.get("DEVCLUSTER")
    name = kept or f"ct{uuid.uuid4().hex[:6]}"
    try:
        node.check_machine()
    except ClusterError as error:
        pytest.skip(f"no node on this machine: {error}")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        up = cluster.up(name, cluster.NODE)
        state = layout(name).root
        yield RealCluster(up.kubeconfig, up.audit_log, up.program("kubectl"), up.program("helm"), state)
    finally:
        if not kept:
            cluster.down(name)
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def images(node: RealCluster) -> str:
    """The project's images, built from the present sources and loaded into the node; their tag."""
    import images as project_images

    node.tag = project_images.load(project_images.pick_builder(), node.state.name)
    return node.tag


@pytest.fixture(scope="session")
def operator(node: RealCluster, images: str) -> RealCluster:
    """The cluster with the operator installed by helm and ready."""
    import demo

    binaries = (
        (node.kubectl_program, "--kubeconfig", node.kubeconfig),
        (node.helm_program, "--kubeconfig", node.kubeconfig),
    )
    demo.install_operator(demo.Target(*binaries, None), images)
    return node


@pytest.fixture
def bare_namespace(node: RealCluster) -> Iterator[Namespace]:
    """A namespace on the node, whether or not the operator is there."""
    with node.namespace() as space:
        yield space


@pytest.fixture(scope="session")
def shared(operator: RealCluster) -> Iterator[Namespace]:
    """The namespace of the quick start and of the runs that cannot work, which are left in it."""
    with operator.namespace() as space:
        yield space


@pytest.fixture(scope="session")
def stories(operator: RealCluster, request: pytest.FixtureRequest) -> Stories:
    """All stories of this session, begun when the first test asks for this."""
    functions = (getattr(item, "function", None) for item in request.session.items)
    return Stories(operator, told_by(functions))


@dataclass(frozen=True)
class Rest:
    """The operator has had nothing to do since then."""

    since: float
    audit_size: int
    versions: dict[str, str]


@pytest.fixture(scope="session")
def at_rest(shared: Namespace, stories: Stories) -> Rest:
    """When every run was over and its leftovers were away."""
    if not shared.list("tinkeratroposruns"):
        shared.apply(cluster_runs.manifest("quickstart"))
    stories.all_over()

    def over() -> bool:
        gone = not shared.list("pods", "app.kubernetes.io/component in (environment,api-server)")
        runs = shared.cluster.reader.list("tinkeratroposruns")
        elsewhere = [run for run in runs if run["metadata"]["namespace"] != shared.name]
        return gone and not elsewhere and all(map(cluster_runs.is_over, runs))

    shared.eventually("every run over", over, 400)
    time.sleep(10)
    return Rest(time.monotonic(), shared.cluster.audit_size(), cluster_runs.versions(shared))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failed test shows the state of its namespace, which is gone when somebody reads the report."""
    report: pytest.TestReport = yield
    if report.when == "call" and report.failed:
        for name in ("bare_namespace", "shared"):
            space = getattr(item, "funcargs", {}).get(name)
            if isinstance(space, Namespace):
                report.sections.append((f"state of namespace {space.name}", space.state()))
    return report
