"""A real node with real images and the operator installed by its chart, as a person would install it.

    DEVCLUSTER=demo pytest tests/cluster      uses the cluster of that name, makes it if need be, and leaves it there

Fixtures: `node` (the cluster, nothing installed), `images` (the project's images are in it; its tag), `operator` (the
chart is installed and ready), `namespace` (one per test, with the operator watching). They hand out RealCluster and
Namespace of tests/support/real_cluster.py.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_cluster import Namespace, RealCluster

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


def _make_namespace(cluster: RealCluster) -> Iterator[Namespace]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    space = Namespace(cluster, name)
    space.eventually("the default service account", lambda: space.get("serviceaccount", "default"))
    yield space
    cluster.run("delete", "namespace", name, "--timeout=60s")


@pytest.fixture
def bare_namespace(node: RealCluster) -> Iterator[Namespace]:
    """A namespace on the node, whether or not the operator is there; it enforces the `restricted` level."""
    yield from _make_namespace(node)


@pytest.fixture
def namespace(operator: RealCluster) -> Iterator[Namespace]:
    """A namespace of its own for each test, looked after by the operator; it enforces the `restricted` level."""
    yield from _make_namespace(operator)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failed test shows the state of its namespace, which is gone when somebody reads the report."""
    report: pytest.TestReport = yield
    if report.when == "call" and report.failed:
        for name in ("namespace", "bare_namespace"):
            space = getattr(item, "funcargs", {}).get(name)
            if isinstance(space, Namespace):
                report.sections.append((f"state of namespace {space.name}", space.state()))
    return report
