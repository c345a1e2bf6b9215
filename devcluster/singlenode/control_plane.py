"""etcd, API server and controller-manager: all that is needed where no container has to run.

On loopback, as any user, up in a few seconds. A whole node puts the same three programs into its network namespace.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singlenode import pki, processes
from singlenode.layout import POD_RANGE, SERVICE_RANGE, ClusterError, Layout
from singlenode.programs import Programs

PATIENCE = 120.0
# Tests count the operator's writes: every write leaves one line, reads leave none.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}
# The chart must work where owner references with blockOwnerDeletion are checked against the writer's rights.
ADMISSION = "NodeRestriction,OwnerReferencesPermissionEnforcement"


@dataclass(frozen=True)
class Addresses:
    """Where the three programs listen."""

    api: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    controllers_port: int

    @property
    def server(self) -> str:
        return f"https://{self.api}:{self.api_port}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now (held together while choosing, so that they differ)."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def etcd_command(programs: Programs, layout: Layout, at: Addresses) -> list[str]:
    client, peer = f"http://127.0.0.1:{at.etcd_port}", f"http://127.0.0.1:{at.etcd_peer_port}"
    return [
        programs.path("etcd"),
        "--name=default",
        f"--data-dir={layout.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nothing of a throw-away cluster has to survive the machine
        "--log-level=warn",
    ]


def api_server_command(programs: Programs, layout: Layout, at: Addresses, extra: Sequence[str]) -> list[str]:
    pki_directory = layout.pki
    return [
        programs.path("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{at.etcd_port}",
        f"--secure-port={at.api_port}",
        f"--advertise-address={at.api}",
        f"--client-ca-file={pki_directory / 'ca.crt'}",
        f"--tls-cert-file={pki_directory / 'apiserver.crt'}",
        f"--tls-private-key-file={pki_directory / 'apiserver.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        f"--enable-admission-plugins={ADMISSION}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-signing-key-file={pki_directory / 'service-accounts.key'}",
        f"--service-account-key-file={pki_directory / 'service-accounts.pub'}",
        "--allow-privileged=true",
        f"--audit-policy-file={layout.config / 'audit-policy.json'}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=200",
        "--audit-log-maxbackup=2",
        *extra,
    ]


def controllers_command(programs: Programs, layout: Layout, at: Addresses, extra: Sequence[str]) -> list[str]:
    kubeconfig = str(layout.config / "controllers.kubeconfig")
    return [
        programs.path("kube-controller-manager"),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={at.controllers_port}",
        f"--service-account-private-key-file={layout.pki / 'service-accounts.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-key-file={layout.pki / 'ca.key'}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--cluster-cidr={POD_RANGE}",
        # With the default rate the first ServiceAccount appears after 8 s, with this one after 4.
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        # A pod that ended stays readable until its owner goes; 12 500 of them, the default, is a lot for one machine.
        "--terminated-pod-gc-threshold=500",
        *extra,
    ]


class Api:
    """Just enough of a client to see whether the cluster is ready."""

    def __init__(self, layout: Layout, server: str) -> None:
        self._server = server
        self._context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        self._context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        # No proxy: the server is on this machine whatever the environment says about the outside.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )

    def get(self, path: str) -> bytes | None:
        try:
            with self._opener.open(self._server + path, timeout=5) as answer:
                body: bytes = answer.read()
                return body
        except (urllib.error.URLError, OSError):
            return None

    def get_json(self, path: str) -> dict[str, Any] | None:
        body = self.get(path)
        found: dict[str, Any] | None = json.loads(body) if body is not None else None
        return found

    def send(self, method: str, path: str, body: object) -> bool:
        """Write once; whoever calls looks again later, so a refusal is an answer and no error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the address is this cluster's own server
            self._server + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with self._opener.open(request, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def ready(self) -> bool:
        return self.get("/readyz") == b"ok"


def wait_until(
    condition: Callable[[], bool], what: str, layout: Layout, needs: Sequence[str], patience: float = PATIENCE
) -> None:
    """Poll until it is so; a program that died meanwhile ends the wait with its last lines."""
    deadline = time.monotonic() + patience
    while not condition():
        for name in needs:
            processes.require(layout, name)
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {name}\n{processes.log_tail(layout, name, 8)}" for name in needs)
            raise ClusterError(f"{what} did not happen within {patience:.0f} s; logs are in {layout.logs}\n{logs}")
        time.sleep(0.1)


def prepare(layout: Layout, at: Addresses, clients: tuple[str, ...]) -> None:
    for directory in (layout.root, layout.config, layout.logs, layout.processes):
        directory.mkdir(parents=True, exist_ok=True)
    pki.create(layout.pki, at.api, clients)
    for client in clients:
        target = layout.kubeconfig if client == "admin" else layout.config / f"{client}.kubeconfig"
        pki.write_kubeconfig(target, layout.pki, client, at.server, f"devcluster-{layout.name}")
    write_json(layout.config / "audit-policy.json", AUDIT_POLICY)


def write_json(target: Path, content: object) -> None:
    target.write_text(json.dumps(content, indent=1) + "\n")


def start(
    layout: Layout,
    programs: Programs,
    at: Addresses,
    *,
    inside: Sequence[str] = (),
    api_extra: Sequence[str] = (),
    controllers_extra: Sequence[str] = (),
) -> Api:
    """Start the three programs, each behind the command prefix `inside`, and wait until they serve."""
    processes.start(layout, "etcd", [*inside, *etcd_command(programs, layout, at)])
    processes.start(layout, "apiserver", [*inside, *api_server_command(programs, layout, at, api_extra)])
    api = Api(layout, at.server)
    wait_until(api.ready, "the API server's readiness", layout, ("etcd", "apiserver"))
    processes.start(layout, "controllers", [*inside, *controllers_command(programs, layout, at, controllers_extra)])
    return api


def wait_for_service_account(layout: Layout, api: Api) -> None:
    """Until the default ServiceAccount exists every pod is refused, so a cluster is not up before."""
    wait_until(
        lambda: api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
        "the default ServiceAccount",
        layout,
        ("etcd", "apiserver", "controllers"),
    )
