"""Is what a run refers to (Secrets, claims, images, addresses) named in a way that it can have at all?

A cluster takes any text there and fails when it looks for the thing, minutes later and in the words of a kubelet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tinker_atropos.run.model import Environment, RunSpec, SecretKeyRef
from tinker_atropos.run.problems import Problem

_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"(?:[a-zA-Z0-9.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@\w+:[0-9a-fA-F]+)?")


def reference_problems(spec: RunSpec) -> list[Problem]:
    """Everything that is wrong with names of things outside of the run file."""
    found: list[Problem] = []
    api, store = spec.tinker_api, spec.api_server.store
    if api.key_secret_ref is not None:
        found += _secret("tinkerAPI.keySecretRef", api.key_secret_ref)
    if store.secret_ref is not None:
        found += _secret("apiServer.store.secretRef", store.secret_ref)
    if store.export is not None and store.export.secret_ref is not None:
        found += _object("apiServer.store.export.secretRef.name", store.export.secret_ref.name, "Secret")
    if api.base_url is not None and not _has_host(api.base_url):
        fix = "write it like https://tinker.example.com"
        found.append(Problem("tinkerAPI.baseURL", f"{api.base_url!r} names no host", fix))
    volumes = {"volume": store.volume, "export.volume": (store.export.volume if store.export else None) or {}}
    for field, volume in volumes.items():
        claim = volume.get("persistentVolumeClaim")
        name = claim.get("claimName") if isinstance(claim, dict) else None
        if isinstance(name, str):
            found += _object(f"apiServer.store.{field}.persistentVolumeClaim.claimName", name, "claim")
    for index, environment in enumerate(spec.environments):
        found += _program(f"environments[{index}]", environment)
    return found


def _secret(field: str, reference: SecretKeyRef) -> Iterator[Problem]:
    yield from _object(f"{field}.name", reference.name, "Secret")
    if not _KEY.fullmatch(reference.key):
        fix = "use letters, digits, '-', '_' and '.', such as api-key"
        yield Problem(f"{field}.key", f"{reference.key!r} is no key of a Secret", fix)


def _object(field: str, name: str, kind: str) -> Iterator[Problem]:
    if not _OBJECT.fullmatch(name):
        meant = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
        fix = "use lower-case letters, digits, '-' and '.'" + (f", such as {meant}" if meant else "")
        yield Problem(field, f"{name!r} is no name of a {kind}", fix)


def _program(field: str, environment: Environment) -> Iterator[Problem]:
    if not environment.command[0].strip():
        yield Problem(f"{field}.command", "begins with empty text", "name the program first, such as python")
    image = environment.image
    if image is None or _IMAGE.fullmatch(image):
        return
    bare = re.sub(r"^\w+://", "", image.strip())
    host, slash, path = bare.partition("/")
    name, colon, tag = (path or host).partition(":")
    lower = f"{host}{slash}{name.lower()}{colon}{tag}" if slash else f"{name.lower()}{colon}{tag}"
    meant = next((guess for guess in (bare, lower) if _IMAGE.fullmatch(guess)), None)
    fix = f"did you mean {meant!r}?" if meant else "write it like registry.example.com/team/image:1"
    yield Problem(f"{field}.image", f"{image!r} is no name of an image", fix)


def _has_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False
