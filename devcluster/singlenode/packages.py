"""What a node needs from the distribution, and how to get it there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from singlenode.layout import ClusterError
from singlenode.progress import step

CNI_PLUGINS = Path("/usr/lib/cni")
# Command (or file) that must be there -> Debian package that brings it.
NODE = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    str(CNI_PLUGINS / "bridge"): "containernetworking-plugins",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
}
IMAGES = {
    "buildah": "buildah",
    "skopeo": "skopeo",
    "debootstrap": "debootstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}


def search_path() -> str:
    """PATH with the folders of system programs, which an ordinary login may lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def missing(needed: dict[str, str]) -> dict[str, str]:
    """The part of `needed` that is not on this machine."""

    def there(what: str) -> bool:
        return Path(what).exists() if what.startswith("/") else shutil.which(what, path=search_path()) is not None

    return {what: package for what, package in needed.items() if not there(what)}


def ensure(needed: dict[str, str], purpose: str) -> None:
    """Install what is missing where that can be done, else say exactly what to install."""
    lacking = missing(needed)
    if not lacking:
        return
    names = sorted(set(lacking.values()))
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClusterError(
            f"{purpose} needs {', '.join(sorted(lacking))}, which this machine lacks. "
            f"On Debian or Ubuntu: sudo apt-get install {' '.join(names)}; elsewhere install their counterparts"
        )
    with step(f"installing {' '.join(names)} with apt-get", "20-60 s"):
        install(names)
    still = missing(needed)
    if still:
        raise ClusterError(f"apt-get installed {', '.join(names)}, but {', '.join(sorted(still))} is still not there")


def install(names: Iterable[str]) -> None:
    names = list(names)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install_command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]
    for command in (["apt-get", "update", "-q"], install_command):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0 and command is install_command:
            raise ClusterError(f"`{' '.join(command)}` failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")
