"""What every object of a run is built from, and the object together with the user's words that it was built from."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinker_atropos.run.load import API_VERSION, KIND
from tinker_atropos.run.model import RunSpec
from tinker_atropos_operator.settings import Settings
from tinker_atropos_operator.specs import labels

Object = dict[str, Any]
"""A Kubernetes object as plain data. Typed models of the client library drop fields that they do not know."""


@dataclass(frozen=True)
class Platform:
    """What the operator brings to every run."""

    settings: Settings
    ca_certificate: str
    """PEM of the authority that signed the progress receiver's certificate."""
    token_key: bytes
    """Key from which run tokens are derived."""


@dataclass(frozen=True)
class RunContext:
    """One admitted run."""

    namespace: str
    name: str
    uid: str
    spec: RunSpec
    source: Mapping[str, Any]
    """`spec` as the API server holds it."""
    platform: Platform

    def secret_for(self, purpose: str) -> str:
        """A secret of this run object only: the same at every call, so applying it again changes nothing."""
        digest = hmac.new(self.platform.token_key, f"{purpose}/{self.uid}".encode(), hashlib.sha256).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True)
class Child:
    """An object that a run should have."""

    object: Object
    overlay_field: str = ""
    """Field of the run file whose words are in the object as they stand, which the API server must judge before
    anything is made; empty = there is none."""
    overlay: Mapping[str, Any] | None = None
    """The pod template that was laid over the built one."""

    @property
    def kind(self) -> str:
        return str(self.object["kind"])

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def inputs(self) -> str:
        return str(self.object["metadata"]["annotations"][labels.INPUTS])


def digest_of(value: object) -> str:
    """Short digest of plain data, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def metadata(context: RunContext, name: str, object_labels: Mapping[str, str], inputs: object) -> Object:
    """Metadata of an object that belongs to the run and goes when the run goes."""
    return {
        "name": name,
        "namespace": context.namespace,
        "labels": dict(object_labels),
        "annotations": {labels.INPUTS: digest_of(inputs)},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": context.name,
                "uid": context.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
