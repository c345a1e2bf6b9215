"""Bring a cluster up, tell how it is, take it down: what the command line and the tests call."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from singlenode import containers, control_plane, node, processes, programs
from singlenode.layout import ClusterError, Layout, cache_directory, layout
from singlenode.progress import say, step

CONTROL_PLANE = "control-plane"
NODE = "node"


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up, as written to its cluster.json."""

    name: str
    kind: str
    server: str
    kubeconfig: str
    audit_log: str
    programs: str

    def program(self, name: str) -> str:
        """Full path of kubectl, helm, ..."""
        return programs.Programs(Path(self.programs)).path(name)


@contextmanager
def _alone(paths: Layout) -> Iterator[None]:
    """One `up` or `down` of a cluster at a time."""
    try:
        paths.lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"{paths.lock.parent} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder of yours"
        ) from error
    with paths.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find(name: str) -> Cluster | None:
    """The cluster of that name if it is up and answers."""
    paths = layout(name)
    try:
        cluster = Cluster(**json.loads(paths.state.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    running = processes.recorded(paths)
    if not running or not all(processes.alive(paths, process) for process in running):
        return None
    return cluster if control_plane.Api(paths, cluster.server).ready() else None


def up(name: str, kind: str, *, internet: bool = False) -> Cluster:
    """Make the cluster, or answer with the one that is already there."""
    paths = layout(name)
    if kind == NODE:
        node.check_machine()
    built = programs.ensure()
    with _alone(paths):
        existing = find(name)
        if existing is not None:
            if existing.kind != kind:
                raise ClusterError(
                    f"cluster {name!r} is up as a {existing.kind}, not as a {kind}: "
                    f"choose another --name or run `devcluster down --name {name}` first"
                )
            say(f"cluster {name!r} is already up")
            return existing
        _remove(paths)
        try:
            server = node.start(paths, built, internet=internet) if kind == NODE else _start_control_plane(paths, built)
        except BaseException:
            _end(paths)
            raise
        cluster = Cluster(name, kind, server, str(paths.kubeconfig), str(paths.audit_log), str(built.directory))
        paths.state.write_text(json.dumps(asdict(cluster), indent=1) + "\n")
        return cluster


def _start_control_plane(paths: Layout, built: programs.Programs) -> str:
    with step("starting etcd, API server and controller-manager on loopback", "4-8 s"):
        ports = control_plane.free_ports(4)
        at = control_plane.Addresses("127.0.0.1", *ports)
        control_plane.prepare(paths, at, ("admin", "controllers"))
        api = control_plane.start(
            paths, built, at, api_extra=("--bind-address=127.0.0.1", "--endpoint-reconciler-type=none")
        )
        control_plane.wait_for_service_account(paths, api)
    return at.server


def down(name: str) -> bool:
    """End the cluster and remove all it left; False if there was none."""
    paths = layout(name)
    with _alone(paths):
        existed = paths.root.exists()
        if existed:
            with step(f"taking down cluster {name!r} and removing its files", "2-60 s, by the number of images"):
                _remove(paths)
        else:
            _remove(paths)
    paths.lock.unlink(missing_ok=True)
    return existed


def purge() -> None:
    """Remove what is kept between clusters: built programs and, as root, the images that wait for the next node."""
    some = layout("some")
    clusters = some.root.parent
    left = sorted(p.name for p in clusters.iterdir() if p.is_dir()) if clusters.is_dir() else []
    if left:
        raise ClusterError(f"cluster {', '.join(left)} is still there: run `devcluster down --name {left[0]}` first")
    for folder in (cache_directory(), containers.store(some)):
        if folder.exists():
            with step(f"removing {folder}", "1-60 s"):
                shutil.rmtree(folder)


def _end(paths: Layout) -> None:
    if os.geteuid() == 0:  # only root's clusters can hold a node, whatever is left of it
        node.end(paths)
    for process in node.STOP_ORDER:
        processes.stop(paths, process)


def load(name: str, archives: list[Path]) -> list[str]:
    """Import image archives into the cluster's node; answers with every image that it has then."""
    found = find(name)
    if found is None or found.kind != NODE:
        raise ClusterError(f"there is no cluster {name!r} with a node up; make it with `devcluster up --name {name}`")
    for archive in archives:
        containers.load_archive(layout(name), archive)
    return containers.images(layout(name))


def _remove(paths: Layout) -> None:
    _end(paths)
    for last in (False, True):  # once more if something was still being written
        if paths.root.exists():
            shutil.rmtree(paths.root, ignore_errors=not last)
