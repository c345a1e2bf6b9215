"""Objects of a cluster over one kept connection: a kubectl for every look costs more CPU than the cluster looked at."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any

import httpx

Object = dict[str, Any]
_CORE, _APPS = "api/v1", "apis/apps/v1"
_GROUPS = {
    "configmaps": _CORE,
    "deployments": _APPS,
    "jobs": "apis/batch/v1",
    "namespaces": _CORE,
    "nodes": _CORE,
    "persistentvolumeclaims": _CORE,
    "persistentvolumes": _CORE,
    "pods": _CORE,
    "secrets": _CORE,
    "serviceaccounts": _CORE,
    "services": _CORE,
    "tinkeratroposruns": "apis/tinker-atropos.dev/v1alpha1",
}


class ClusterReader:
    """Reads as the user of a kubeconfig with certificates in it."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())  # devcluster writes it as JSON
        [cluster], [user] = config["clusters"], config["users"]
        context = ssl.create_default_context(cadata=_decoded(cluster["cluster"]["certificate-authority-data"]))
        with tempfile.NamedTemporaryFile("w") as file:  # ssl takes certificates of a client from files only
            file.write(_decoded(user["user"]["client-certificate-data"]))
            file.write(_decoded(user["user"]["client-key-data"]))
            file.flush()
            context.load_cert_chain(file.name)
        self._client = httpx.Client(base_url=cluster["cluster"]["server"], verify=context, timeout=60)

    def get(self, plural: str, name: str, namespace: str = "") -> Object | None:
        """The object, or None where there is none."""
        answer = self._client.get(f"{_path(plural, namespace)}/{name}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return _checked(answer)

    def list(self, plural: str, namespace: str = "", selector: str = "") -> list[Object]:
        """All of them, or those with these labels; of all namespaces if none is named."""
        answer = self._client.get(_path(plural, namespace), params={"labelSelector": selector} if selector else {})
        items: list[Object] = _checked(answer)["items"]
        return items


def _path(plural: str, namespace: str) -> str:
    return f"/{_GROUPS[plural]}/{f'namespaces/{namespace}/' if namespace else ''}{plural}"


def _checked(answer: httpx.Response) -> Object:
    assert answer.is_success, f"GET {answer.url}: {answer.status_code} {answer.text}"
    content: Object = answer.json()
    return content


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()
