"""A network namespace of the node's own, so that nothing of it touches the machine's addresses, routes or iptables.

There is deliberately no default route inside: the cluster has no way out, and what tries one fails at once instead of
after a timeout. `internet=True` adds the way out and, on the machine, the one rule that it needs.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from singlenode import processes
from singlenode.layout import SERVICE_RANGE, ClusterError, Layout, Link, free_link

_NAMESPACES = Path("/run/netns")


def inside(layout: Layout) -> list[str]:
    """The command prefix that puts a program into the namespace (`ip netns exec` would also hide the cgroups)."""
    return ["nsenter", f"--net={_NAMESPACES / layout.network_namespace}"]


def run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def addresses(listing: str) -> set[str]:
    """The IPv4 addresses in the output of `ip -j -4 address`."""
    found = json.loads(listing or "[]")
    return {a["local"] for interface in found for a in interface.get("addr_info", []) if "local" in a}


def create(layout: Layout) -> Link:
    link = free_link(addresses(run("ip", "-j", "-4", "address")))
    namespace, outer, inner = layout.network_namespace, layout.host_link, layout.node_link
    run("ip", "netns", "add", namespace)
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
    run("ip", "link", "set", inner, "netns", namespace)
    run("ip", "address", "add", f"{link.host}/{link.prefix}", "dev", outer)
    run("ip", "link", "set", outer, "up")

    def node(*command: str, check: bool = True) -> None:
        run(*inside(layout), *command, check=check)

    node("ip", "link", "set", "lo", "up")
    node("ip", "address", "add", f"{link.node}/{link.prefix}", "dev", inner)
    node("ip", "link", "set", inner, "up")
    # The node's own programs reach Services too: a route must exist before the rules rewrite the address.
    node("ip", "route", "add", SERVICE_RANGE, "dev", inner)
    node("sysctl", "-qw", "net.ipv4.ip_forward=1")
    node("sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1", check=False)
    return link


def bridge_is_filtered(layout: Layout) -> bool:
    """Whether answers between two pods pass iptables; where not, Services work only if their traffic is masqueraded."""
    done = subprocess.run(
        [*inside(layout), "sysctl", "-n", "net.bridge.bridge-nf-call-iptables"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() == "1"


def _way_out(link: Link) -> list[str]:
    return ["POSTROUTING", "-s", link.node, "!", "-d", link.node, "-j", "MASQUERADE"]


def open_way_out(layout: Layout, link: Link) -> None:
    """Let the node reach what the machine reaches."""
    run(*inside(layout), "ip", "route", "add", "default", "via", link.host)
    run(*inside(layout), "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", layout.node_link, "-j", "MASQUERADE")
    run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    run("iptables", "-t", "nat", "-A", *_way_out(link))
    (layout.root / "way-out").write_text(f"{link.index}\n")


def _close_way_out(layout: Layout) -> None:
    mark = layout.root / "way-out"
    if mark.exists():
        run("iptables", "-t", "nat", "-D", *_way_out(Link(int(mark.read_text()))), check=False)


def remove(layout: Layout) -> None:
    """End what still lives in the namespace before it goes: else the next start talks to the old server."""
    _close_way_out(layout)
    if (_NAMESPACES / layout.network_namespace).exists():
        left = [int(pid) for pid in run("ip", "netns", "pids", layout.network_namespace, check=False).split()]
        processes.end(left, 5.0)
    run("ip", "link", "delete", layout.host_link, check=False)
    run("ip", "netns", "delete", layout.network_namespace, check=False)
