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

from tinker_atropos.run import quantity, resources
from tinker_atropos.run.problems import Problem, nearest, unknown_key
from tinker_atropos.run.wording import not_list, not_mapping, not_switch, not_text, not_whole, shown

POD_TEMPLATE = "V1PodTemplateSpec"
VOLUME = "V1Volume"
METADATA = "V1ObjectMeta"


def spec_problems(spec: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the parts of a run's spec that are handed on to Kubernetes as they are.

    The operator says the same sentences, of a pod template that the API server has refused."""
    found: list[Problem] = []
    environments = spec.get("environments")
    for index, environment in enumerate(environments if isinstance(environments, list) else []):
        if isinstance(environment, Mapping) and isinstance(environment.get("podTemplate"), Mapping):
            place = f"environments[{index}].podTemplate"
            found += overlay_problems(place, environment["podTemplate"], "environment")
    trainer = spec.get("trainer")
    if isinstance(trainer, Mapping) and isinstance(trainer.get("podTemplate"), Mapping):
        found += overlay_problems("trainer.podTemplate", trainer["podTemplate"], "trainer")
    server = spec.get("apiServer")
    store = server.get("store") if isinstance(server, Mapping) else None
    if isinstance(store, Mapping):
        found += _volume_problems("apiServer.store.volume", store.get("volume"))
        export = store.get("export")
        if isinstance(export, Mapping):
            found += _volume_problems("apiServer.store.export.volume", export.get("volume"))
    return found


def _volume_problems(place: str, volume: object) -> list[Problem]:
    """What is wrong within the source of a volume; which sources there may be is judged with the spec."""
    if not isinstance(volume, Mapping):
        return []
    known = {key: value for key, value in volume.items() if isinstance(value, Mapping)}
    problems = problems_of(place, known, VOLUME)
    return [problem for problem in problems if "." in problem.field.removeprefix(f"{place}.")]


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
    for kind in ("containers", "initContainers"):
        listed = spec.get(kind) if isinstance(spec, Mapping) else None
        for index, container in enumerate(listed if isinstance(listed, list) else []):
            given = container.get("resources") if isinstance(container, Mapping) else None
            if isinstance(given, Mapping):
                place = f"{field}.spec.{kind}[{index}].resources"
                found += resources.problems_of(place, given, str(container.get("name")))
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
    kind = kind.removesuffix("!")
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
    meant = {nearest(key, known) for key in value if key not in known}
    for key, kind in known.items():
        if kind.endswith("!") and value.get(key) is None and key not in meant:
            yield Problem(f"{field}.{key}", "is missing", "give it a value")
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
            return quantity.not_quantity(value)
    return None
