"""Where a cluster keeps things and which addresses it uses: everything that follows from its name alone."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# The benchmarking range 198.18.0.0/15 (RFC 2544) is never routed, so it collides with no network a machine is in.
POD_RANGE = "198.18.0.0/17"
NODE_POD_RANGE = "198.18.0.0/24"
SERVICE_RANGE = "198.19.0.0/16"
API_SERVICE_ADDRESS = "198.19.0.1"
LINKS = "198.18.254"
NODE_NAME = "node1"

# Interface names may have 15 characters and every cluster needs two with a prefix.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,9}[a-z0-9])?")


class ClusterError(Exception):
    """Something that the person at the terminal can act on; its text is all they see."""


def cache_directory(environment: dict[str, str] | None = None) -> Path:
    """The folder outside the clone where everything lives that took long to make."""
    environment = dict(os.environ) if environment is None else environment
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "tinker-atropos"


@dataclass(frozen=True)
class Layout:
    """The paths of one cluster. Nothing here says whether any of them exists."""

    name: str
    root: Path

    @property
    def state(self) -> Path:
        return self.root / "cluster.json"

    @property
    def lock(self) -> Path:
        return self.root.with_name(self.root.name + ".lock")

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def processes(self) -> Path:
        return self.root / "processes"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def containerd(self) -> Path:
        return self.root / "containerd"

    @property
    def containerd_socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def network_namespace(self) -> str:
        return f"tar-{self.name}"

    @property
    def host_link(self) -> str:
        return f"{self.name}-h"

    @property
    def node_link(self) -> str:
        return f"{self.name}-n"


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ClusterError(
            f"cluster name {name!r} cannot be used: it becomes part of network interface names; "
            "use 1 to 11 lower-case letters, digits and dashes, starting with a letter and not ending with a dash"
        )
    return name


def layout(name: str, *, environment: dict[str, str] | None = None) -> Layout:
    """Root's clusters live where mounts are expected: a cache is what people remove without looking."""
    own = Path("/var/lib/tinker-atropos") if os.geteuid() == 0 else cache_directory(environment)
    return Layout(check_name(name), own / "clusters" / name)


@dataclass(frozen=True)
class Link:
    """The pair of addresses that joins a cluster's network namespace to the machine."""

    index: int

    @property
    def host(self) -> str:
        return f"{LINKS}.{4 * self.index + 1}"

    @property
    def node(self) -> str:
        return f"{LINKS}.{4 * self.index + 2}"

    prefix = 30


def free_link(taken: set[str]) -> Link:
    """The first link whose machine-side address nobody has; several clusters may live side by side."""
    for index in range(64):
        link = Link(index)
        if link.host not in taken:
            return link
    raise ClusterError(f"all 64 node networks in {LINKS}.0/24 are taken; take down clusters that you no longer need")
