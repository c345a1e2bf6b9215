"""The whole node: control plane, scheduler, containerd, kubelet, kube-proxy and DNS in one network namespace."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from singlenode import cgroups, containers, control_plane, network, packages, processes, volumes
from singlenode.control_plane import Addresses, Api
from singlenode.layout import NODE_NAME, NODE_POD_RANGE, POD_RANGE, ClusterError, Layout
from singlenode.programs import Programs
from singlenode.progress import step

_CLIENTS = ("admin", "kubelet", "scheduler", "controllers", "proxy", "dns")
# Who depends on whom decides the order in which they end.
STOP_ORDER = ("volumes", "kubelet", "proxy", "dns", "scheduler", "controllers", "apiserver", "etcd")


def check_machine() -> None:
    """Refuse early, in one sentence, what could only fail half-way."""
    if sys.platform != "linux":
        raise ClusterError("a node runs on Linux only; use the local mode (`make demo-local`), which needs no cluster")
    if os.geteuid() != 0:
        raise ClusterError(
            "a node needs root (containers, a network namespace): run the same command as root, "
            "or use the local mode (`make demo-local`), which needs neither root nor a cluster"
        )
    packages.ensure(packages.NODE, "the node")


def kubelet_configuration(layout: Layout, address: str, *, cgroup_v1: bool) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.name(layout),
        "failCgroupV1": not cgroup_v1,
        "failSwapOn": False,
        "clusterDNS": [address],
        "clusterDomain": "cluster.local",
        "resolvConf": str(layout.config / "resolv.conf"),
        "podLogsDir": str(layout.root / "pod-logs"),
        # A disk that is shared with everything else and nearly full must not evict the pods.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "shutdownGracePeriod": "0s",
        # Tests change configuration and look at what follows.
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "10s",
    }


def proxy_configuration(layout: Layout, *, masquerade_all: bool) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(layout.config / "proxy.kubeconfig")},
        "mode": "iptables",
        "iptables": {"masqueradeAll": masquerade_all},
        "clusterCIDR": POD_RANGE,
        "conntrack": {"maxPerCore": 0, "min": 0},
        "hostnameOverride": NODE_NAME,
    }


def dns_configuration(layout: Layout, address: str, forward: str) -> str:
    return "\n".join(
        [
            ".:53 {",
            f"  bind {address}",
            "  errors",
            "  kubernetes cluster.local in-addr.arpa {",
            f"    kubeconfig {layout.config / 'dns.kubeconfig'}",
            "    ttl 2",
            "  }",
            f"  {forward}",
            "  cache 2",
            "}",
            "",
        ]
    )


def start(layout: Layout, programs: Programs, *, internet: bool) -> str:
    """Bring everything up and wait until the node takes pods; answers with the API server's address."""
    with step("making the node's network namespace and control group", "1 s"):
        layout.root.mkdir(parents=True, exist_ok=True)
        cgroups.create(layout)
        link = network.create(layout)
        if internet:
            network.open_way_out(layout, link)
    at = Addresses(link.node, 6443, 2379, 2380, 10257)
    inside = network.inside(layout)
    with step("starting etcd, API server and controller-manager", "4-8 s"):
        control_plane.prepare(layout, at, _CLIENTS)
        api = control_plane.start(
            layout,
            programs,
            at,
            inside=inside,
            api_extra=(
                "--bind-address=0.0.0.0",
                f"--kubelet-client-certificate={layout.pki / 'admin.crt'}",
                f"--kubelet-client-key={layout.pki / 'admin.key'}",
                "--kubelet-preferred-address-types=InternalIP",  # else logs and exec try to resolve the node's name
            ),
            controllers_extra=("--allocate-node-cidrs", f"--node-cidr-mask-size={NODE_POD_RANGE.partition('/')[2]}"),
        )
    with step("starting containerd, kubelet, kube-proxy, scheduler and DNS", "5-15 s"):
        _start_node_programs(layout, programs, link.node, internet=internet)
        api.send("POST", "/apis/storage.k8s.io/v1/storageclasses", volumes.STORAGE_CLASS)
        control_plane.wait_until(
            lambda: node_is_ready(api), f"readiness of node {NODE_NAME}", layout, processes.recorded(layout)
        )
        control_plane.wait_for_service_account(layout, api)
    return at.server


def _start_node_programs(layout: Layout, programs: Programs, address: str, *, internet: bool) -> None:
    inside = network.inside(layout)

    def run(name: str, *command: str) -> None:
        processes.start(layout, name, [*inside, *command], {"PATH": packages.search_path()})

    scheduler = str(layout.config / "scheduler.kubeconfig")
    run(
        "scheduler",
        programs.path("kube-scheduler"),
        f"--kubeconfig={scheduler}",
        f"--authentication-kubeconfig={scheduler}",
        f"--authorization-kubeconfig={scheduler}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    )
    containers.start(layout, programs)
    (layout.config / "resolv.conf").write_text(f"nameserver {address}\n")
    config = layout.config / "kubelet.json"
    control_plane.write_json(config, kubelet_configuration(layout, address, cgroup_v1=cgroups.version_1()))
    run(
        "kubelet",
        programs.path("kubelet"),
        f"--config={config}",
        f"--kubeconfig={layout.config / 'kubelet.kubeconfig'}",
        f"--root-dir={layout.root / 'kubelet'}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={address}",
    )
    config = layout.config / "proxy.json"
    masquerade_all = not network.bridge_is_filtered(layout)
    control_plane.write_json(config, proxy_configuration(layout, masquerade_all=masquerade_all))
    run("proxy", programs.path("kube-proxy"), f"--config={config}")
    corefile = layout.config / "Corefile"
    corefile.write_text(dns_configuration(layout, address, "forward . /etc/resolv.conf" if internet else ""))
    run("dns", programs.path("coredns"), "-conf", str(corefile))
    program = Path(__file__).resolve().parent.parent / "devcluster.py"
    processes.start(layout, "volumes", [sys.executable, str(program), "volumes", "--name", layout.name])


def node_is_ready(api: Api) -> bool:
    node = api.get_json(f"/api/v1/nodes/{NODE_NAME}")
    if not node:
        return False
    tainted = any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", []))
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node.get("status", {}).get("conditions", []))
    return ready and not tainted


def end(layout: Layout) -> None:
    """Take everything down in an order in which nothing is started again by something that still lives."""
    for name in STOP_ORDER:
        processes.stop(layout, name)
    cgroups.remove(layout)
    processes.end(containers.shims(layout), 2.0)
    containers.unmount_below(layout.root)
    containers.park_images(layout)
    processes.stop(layout, "containerd")
    cgroups.remove(layout)
    containers.unmount_below(layout.root)
    network.remove(layout)
    _remove_traces(layout)


def _remove_traces(layout: Layout) -> None:
    """What kubelet and the network plugins leave in folders that they share with others."""
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{layout.root}/"):
            link.unlink(missing_ok=True)
    for result in Path("/var/lib/cni/results").glob(f"{layout.network_namespace}-*"):
        result.unlink(missing_ok=True)
    shutil.rmtree(Path("/var/lib/cni/networks") / layout.network_namespace, ignore_errors=True)
