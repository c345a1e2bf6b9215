"""Persistent volumes for the built-in node: a claim of the default class gets a folder of the cluster.

Runs as a process of its own beside the node (`devcluster.py volumes`), because Kubernetes' own hostPath provisioner
makes folders that only root can write to; a `local` volume gets the pod's fsGroup like a real disk.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from singlenode.control_plane import Api
from singlenode.layout import NODE_NAME, Layout

CLASS = "local"
PROVISIONER = "tinker-atropos.dev/devcluster"
_ROUND = 1.0

Object = dict[str, Any]

STORAGE_CLASS: Object = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": PROVISIONER,
    "volumeBindingMode": "Immediate",
    "reclaimPolicy": "Delete",
}


def volume_for(claim: Object, directory: Path) -> Object:
    """The volume that answers a pending claim, bound to that claim by its uid."""
    metadata, spec = claim["metadata"], claim["spec"]
    name = f"pvc-{metadata['uid']}"
    this_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "local": {"path": str(directory / name)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [this_node]}]}},
        },
    }


def wants_volume(claim: Object) -> bool:
    spec, metadata = claim["spec"], claim["metadata"]
    pending = claim.get("status", {}).get("phase", "Pending") == "Pending"
    return (
        pending
        and spec.get("storageClassName") == CLASS
        and not spec.get("volumeName")
        and "deletionTimestamp" not in metadata
    )


def released(volume: Object) -> bool:
    phase = volume.get("status", {}).get("phase")
    return volume["spec"].get("storageClassName") == CLASS and phase in ("Released", "Failed")


def one_round(api: Api, directory: Path) -> None:
    for claim in _items(api.get_json("/api/v1/persistentvolumeclaims")):
        if wants_volume(claim):
            volume = volume_for(claim, directory)
            folder = directory / volume["metadata"]["name"]
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            api.send("POST", "/api/v1/persistentvolumes", volume)
    for volume in _items(api.get_json("/api/v1/persistentvolumes")):
        name = volume["metadata"]["name"]
        if released(volume) and api.send("DELETE", f"/api/v1/persistentvolumes/{name}", None):
            shutil.rmtree(directory / name, ignore_errors=True)


def _items(answer: Object | None) -> list[Object]:
    return list(answer["items"]) if answer else []


def serve(layout: Layout) -> None:
    api = Api(layout, json.loads(layout.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    directory = layout.root / "volumes"
    while True:
        one_round(api, directory)
        time.sleep(_ROUND)
