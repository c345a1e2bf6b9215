"""Certificates and kubeconfigs of a throw-away cluster, made with the openssl command."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

from singlenode.layout import API_SERVICE_ADDRESS, NODE_NAME, ClusterError

_DAYS = "90"
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
    "scheduler": "/CN=system:kube-scheduler",
    "controllers": "/CN=system:kube-controller-manager",
    "proxy": "/CN=system:kube-proxy",
    "dns": "/O=system:masters/CN=coredns",
}


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed:\n{done.stderr.strip()}")


def create(directory: Path, address: str, clients: tuple[str, ...]) -> None:
    """One authority, one server certificate for `address`, and one client certificate for each of `clients`."""
    if not shutil.which("openssl"):
        raise ClusterError("the openssl command is missing; install it (Debian: apt-get install openssl)")
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca_crt, ca_key = str(directory / "ca.crt"), str(directory / "ca.key")
    _openssl("req", "-x509", *curve, "-days", _DAYS, "-subj", "/CN=devcluster-ca", "-keyout", ca_key, "-out", ca_crt)

    def issue(name: str, subject: str, alternatives: str) -> None:
        key, crt = str(directory / f"{name}.key"), str(directory / f"{name}.crt")
        extensions = ["extendedKeyUsage=serverAuth,clientAuth", "basicConstraints=critical,CA:FALSE"]
        extensions.append(f"subjectAltName={alternatives}")
        added = [argument for extension in extensions for argument in ("-addext", extension)]
        signed = ("-CA", ca_crt, "-CAkey", ca_key, "-keyout", key, "-out", crt)
        _openssl("req", "-x509", *curve, "-days", _DAYS, "-subj", subject, *added, *signed)

    service = "kubernetes.default.svc"
    names = ["kubernetes", "kubernetes.default", service, f"{service}.cluster.local", "localhost"]
    addresses = [f"IP:{a}" for a in dict.fromkeys((address, "127.0.0.1", API_SERVICE_ADDRESS))]
    issue("apiserver", "/CN=kube-apiserver", ",".join([*(f"DNS:{n}" for n in names), *addresses]))
    for client in clients:
        issue(client, CLIENTS[client], f"DNS:{NODE_NAME},IP:{address}" if client == "kubelet" else f"DNS:{client}")
    # RSA, as everywhere: service account tokens are then RS256, which is what token checkers are written for.
    private, public = str(directory / "service-accounts.key"), str(directory / "service-accounts.pub")
    _openssl("genrsa", "-out", private, "2048")
    _openssl("rsa", "-in", private, "-pubout", "-out", public)


def write_kubeconfig(target: Path, directory: Path, client: str, server: str, cluster: str) -> None:
    """A kubeconfig that holds its certificates, so that it can be copied anywhere. (JSON is YAML.)"""

    def data(name: str) -> str:
        return base64.b64encode((directory / name).read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
        "users": [
            {
                "name": client,
                "user": {"client-certificate-data": data(f"{client}.crt"), "client-key-data": data(f"{client}.key")},
            }
        ],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": client}}],
        "current-context": cluster,
    }
    target.touch(mode=0o600)
    target.write_text(json.dumps(config, indent=1))
