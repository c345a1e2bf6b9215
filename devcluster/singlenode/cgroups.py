"""A control group of the node's own: its kubelet cleans up below it only, and at the end everything in it is ended.

Without one, two kubelets on a machine take each other's pods for leftovers and kill them.
"""

from __future__ import annotations

import os
from pathlib import Path

from singlenode import processes
from singlenode.layout import ClusterError, Layout

_UNIFIED_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


def name(layout: Layout) -> str:
    return f"/tinker-atropos-{layout.name}"


def hierarchies(mountinfo: str) -> tuple[list[Path], list[Path]]:
    """Mount points of the version 1 controllers and of version 2's tree (a machine may have both)."""
    v1: list[Path] = []
    v2: list[Path] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if not right:
            continue
        mount_point, kind = Path(left.split()[4]), right.split()[0]
        if kind == "cgroup":
            v1.append(mount_point)
        elif kind == "cgroup2":
            v2.append(mount_point)
    return v1, v2


def _mounted() -> tuple[list[Path], list[Path]]:
    return hierarchies(Path("/proc/self/mountinfo").read_text())


def version_1() -> bool:
    return bool(_mounted()[0])


def create(layout: Layout) -> None:
    v1, v2 = _mounted()
    if not v1 and not v2:
        raise ClusterError("no control groups are mounted below /sys/fs/cgroup; a node needs them to run containers")
    try:
        for hierarchy in v1:
            group = hierarchy / name(layout).lstrip("/")
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if (group / setting).exists():  # empty in a new group, and no process may join until they are set
                    (group / setting).write_text((hierarchy / setting).read_text())
        for unified in v2 if not v1 else []:  # beside version 1 it controls nothing
            wanted = set((unified / "cgroup.controllers").read_text().split()) & set(_UNIFIED_CONTROLLERS)
            enable = " ".join(f"+{controller}" for controller in sorted(wanted))
            group = unified / name(layout).lstrip("/")
            (unified / "cgroup.subtree_control").write_text(enable)
            group.mkdir(exist_ok=True)
            (group / "cgroup.subtree_control").write_text(enable)
    except OSError as error:
        raise ClusterError(
            f"the control group {name(layout)} cannot be set up ({error}); in a container, run it with a writable "
            "/sys/fs/cgroup of its own (docker run --privileged --cgroupns=host)"
        ) from error


def _groups(layout: Layout) -> list[Path]:
    """Every group of the node, innermost first."""
    v1, v2 = _mounted()
    tops = [hierarchy / name(layout).lstrip("/") for hierarchy in [*v1, *v2]]
    # os.walk passes over groups that vanish while it looks, as they do when their containers end.
    found = [Path(folder) for top in tops for folder, _, _ in os.walk(top)]
    return sorted(found, key=lambda p: len(p.parts), reverse=True)


def remove(layout: Layout) -> None:
    """End every process of every container and remove the groups."""
    pids: set[int] = set()
    for group in _groups(layout):
        try:
            pids.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
        except OSError:
            continue
    processes.end(sorted(pids), 2.0)
    for group in _groups(layout):
        try:
            group.rmdir()
        except OSError:
            continue
