"""Checks what a run file says about pods against the fields that Kubernetes has, as far as that needs no cluster.

The API server takes any pod template of a run and refuses it only when the pods are made; a misspelt key is better
named while the file is still open in the editor. The table of fields is of the newest Kubernetes (pod_fields.json, made
by scripts/generate_pod_fields.py), so a cluster may know less, never more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from tinker_atropos.run.problems import Problem, nearest, unknown_key
from tinker_atropos.run.wording import not_list, not_mapping, not_switch, not_text, not_whole, shown

POD_TEMPLATE = "V1PodTemplateSpec"
VOLUME = "V1Volume"
METADATA = "V1ObjectMeta"


def problems_of(field: str, value: object, model: str) -> list[Problem]:
    """What is wrong with a value that should be of that model of the Kubernetes API."""
    return list(_judge(field, value, model))


def overlay_problems(field: str, template: object, own_container: str) -> list[Problem]:
    """What is wrong with a pod template that is laid over one whose program is in `own_container`."""
    found = problems_of(field, template, POD_TEMPLATE)
    spec = template.get("spec") if isinstance(template, Mapping) else None
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    for index, container in enumerate(containers if isinstance(containers, list) else []):
        if not isinstance(container, Mapping):
            continue
        place = f"{field}.spec.containers[{index}]"
        name = container.get("name")
        if name is None:
            found.append(Problem(f"{place}.name", "is missing", f"the program's container is called {own_container}"))
        elif name != own_container and "image" not in container:
            meant = f"the program's is called {own_container}; a container of your own needs an image"
            found.append(Problem(f"{place}.name", f"{shown(name)} is no container of this pod", meant))
    return found


def metadata_keys() -> frozenset[str]:
    """Keys that `metadata` of any object may have."""
    return frozenset(_fields()[METADATA])


@cache
def _fields() -> Mapping[str, Mapping[str, str]]:
    text = files("tinker_atropos.run").joinpath("pod_fields.json").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, str]] = json.loads(text)
    return table


def _judge(field: str, value: object, kind: str) -> Iterator[Problem]:
    if value is None:
        return  # the same as leaving it out
    if kind.endswith("[]"):
        if not isinstance(value, list):
            yield Problem(field, *not_list(value, words=field.endswith(("command", "args"))))
            return
        for index, item in enumerate(value):
            yield from _judge(f"{field}[{index}]", item, kind[:-2])
    elif kind.endswith("{}"):
        if not isinstance(value, Mapping):
            yield Problem(field, *not_mapping(value))
            return
        for key, item in value.items():
            yield from _judge(f"{field}.{key}", item, kind[:-2])
    elif kind[0].isupper():
        yield from _judge_model(field, value, _fields()[kind])
    else:
        wrong = _scalar(value, kind)
        if wrong:
            yield Problem(field, *wrong)


def _judge_model(field: str, value: object, known: Mapping[str, str]) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(field, *not_mapping(value, field.rpartition(".")[2]))
        return
    for key, item in value.items():
        if key in known:
            yield from _judge(f"{field}.{key}", item, known[key])
        elif nearest(key, known) or len(known) <= 12:
            yield unknown_key(field, key, known)
        else:
            yield Problem(f"{field}.{key}", "unknown key", _elsewhere(key))


def _elsewhere(key: str) -> str:
    """Where a key belongs that stands in the wrong place of a pod template."""
    fields = _fields()
    places = {"spec": "V1PodSpec", "spec.containers[]": "V1Container", "metadata": METADATA}
    for place, model in places.items():
        meant = key if key in fields[model] else nearest(key, fields[model])
        if meant:
            return f"{meant!r} is a key of {place}"
    return "Kubernetes has no such field here"


def _scalar(value: Any, kind: str) -> tuple[str, str] | None:
    match kind:
        case "text":
            return None if isinstance(value, str) else not_text(value)
        case "whole":
            whole = isinstance(value, int) and not isinstance(value, bool)
            return None if whole or (isinstance(value, float) and value.is_integer()) else not_whole(value)
        case "switch":
            return None if isinstance(value, bool) else not_switch(value)
        case "quantity":
            good = isinstance(value, str | int | float) and not isinstance(value, bool)
            return None if good else (f"{shown(value)} is no quantity", "write it like 500m, 2 or 4Gi")
    return None
