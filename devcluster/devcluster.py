#!/usr/bin/env python3
"""Command line of the built-in Kubernetes: `python devcluster/devcluster.py --help`.

    devcluster.py up --control-plane-only --name NAME    etcd, API server, controller-manager on loopback, as any user
    devcluster.py up --name NAME                         a whole node that runs pods; needs root
    devcluster.py load --name NAME ARCHIVE...            import images into it
    devcluster.py down --name NAME                       end it and remove all it left

The last line of `up` on stdout is the path of the kubeconfig; everything else goes to stderr. From Python:

    sys.path.insert(0, "devcluster")
    from singlenode import cluster
    c = cluster.up("mytest", cluster.CONTROL_PLANE)      # c.kubeconfig, c.server, c.audit_log, c.program("kubectl")
    cluster.down("mytest")

The audit log holds one JSON line for every write request (stage ResponseComplete, level Metadata).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from singlenode import cluster, programs, volumes
from singlenode.layout import ClusterError, layout
from singlenode.progress import say

DEFAULT_NAME = "demo"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="devcluster", description="A Kubernetes of one machine, built from source.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, description=help_text)
        sub.add_argument("--name", default=DEFAULT_NAME, help="which cluster (default: %(default)s)")
        return sub

    bring_up = command("up", "make the cluster, or find it already up; prints the path of its kubeconfig")
    bring_up.add_argument(
        "--control-plane-only", action="store_true", help="no node: API server, etcd, controllers on loopback, any user"
    )
    bring_up.add_argument(
        "--internet",
        action="store_true",
        help="let pods reach what the machine reaches (one iptables rule, gone with the node)",
    )
    loading = command("load", "import images into the cluster's node")
    loading.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE", help="OCI or Docker image archive (.tar)")
    command("volumes", "serve persistent volumes to the cluster (`up` starts this)")
    command("down", "end the cluster and remove all it left")
    command("status", "say whether the cluster is up, as JSON")
    command("kubeconfig", "print the path of the cluster's kubeconfig")
    commands.add_parser("purge", help="remove programs and images kept for later clusters; none may be up")
    commands.add_parser("build", help="build the programs; prints the folder that holds kubectl, helm and the rest")
    return top


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "up":
        kind = cluster.CONTROL_PLANE if arguments.control_plane_only else cluster.NODE
        print(cluster.up(arguments.name, kind, internet=arguments.internet).kubeconfig)
    elif arguments.command == "load":
        print("\n".join(cluster.load(arguments.name, arguments.archives)))
    elif arguments.command == "volumes":
        volumes.serve(layout(arguments.name))
    elif arguments.command == "down":
        say(
            f"cluster {arguments.name!r} is gone"
            if cluster.down(arguments.name)
            else f"there was no cluster {arguments.name!r}"
        )
    elif arguments.command == "purge":
        cluster.purge()
    elif arguments.command == "build":
        print(programs.ensure().directory)
    else:
        found = cluster.find(arguments.name)
        if found is None:
            raise ClusterError(
                f"there is no cluster {arguments.name!r} up; make it with `devcluster up --name {arguments.name}`"
            )
        print(found.kubeconfig if arguments.command == "kubeconfig" else json.dumps(asdict(found), indent=1))
    return 0


def main() -> int:
    try:
        return run(parser().parse_args())
    except ClusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("devcluster: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
