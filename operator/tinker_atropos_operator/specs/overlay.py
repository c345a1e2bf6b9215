"""Lays a user's pod template over a built one, the way a strategic merge patch would: containers by name, variables
by name.

Whether the result is a valid pod is for the API server to say (a dry run before anything is made)."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from tinker_atropos_operator.specs.run_objects import Object

_MERGED_BY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
}
"""Key of an item in lists that are merged item by item; every other list is replaced as a whole."""

_WHOLE_ITEMS = frozenset({"env", "volumes", "volumeMounts", "ports", "imagePullSecrets", "hostAliases"})
"""Lists whose items are replaced whole: half of one volume source and half of another is neither."""


def lay_over(template: Object, overlay: Mapping[str, Any]) -> Object:
    """The pod template with the overlay's values; labels that selectors rely on stay as built."""
    if not overlay:
        return template
    merged = _merged(template, overlay)
    built_labels = template.get("metadata", {}).get("labels", {})
    if isinstance(merged.get("metadata"), dict):
        given = merged["metadata"].get("labels")
        merged["metadata"]["labels"] = {**(given if isinstance(given, dict) else {}), **built_labels}
    return merged


def place_in(overlay: Mapping[str, Any], template: Object, path: str) -> str:
    """Where in the overlay a place of the merged template comes from, as far as it does.

    `spec.containers[1].env[4].value` may be `spec.containers[0].env[0].value` there."""
    built: Any = template
    given: Any = overlay
    place, name = "", ""
    for index, key in _STEP.findall(path):
        if isinstance(built, list) and index.isdigit():
            item = built[int(index)] if int(index) < len(built) else {}
            where = _index_of(given, item, _MERGED_BY.get(name), int(index))
            if where is None:
                return place
            built, given, place = item, given[where], f"{place}[{where}]"
            continue
        name = index or key
        built = built.get(name) if isinstance(built, Mapping) else None
        given = given.get(name) if isinstance(given, Mapping) else None
        place = f"{place}.{name}" if place else name
    return place


_STEP = re.compile(r"\[([^\]]*)\]|([^.\[]+)")


def _index_of(given: Any, item: Any, key: str | None, index: int) -> int | None:
    if not isinstance(given, list):
        return None
    if key is None:
        return index if index < len(given) else None
    matches = (
        place for place, entry in enumerate(given) if isinstance(entry, Mapping) and entry.get(key) == item.get(key)
    )
    return next(matches, None)


def _merged(base: Object, overlay: Mapping[str, Any]) -> Object:
    result = dict(base)
    for key, value in overlay.items():
        present = result.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            result[key] = _merged(present, value)
        elif key in _MERGED_BY and isinstance(present, list) and isinstance(value, list):
            result[key] = _merged_list(present, value, _MERGED_BY[key], whole=key in _WHOLE_ITEMS)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merged_list(base: list[Any], overlay: list[Any], key: str, *, whole: bool) -> list[Any]:
    result = list(base)
    places = {item[key]: index for index, item in enumerate(result) if isinstance(item, dict) and key in item}
    for item in overlay:
        place = places.get(item.get(key)) if isinstance(item, Mapping) else None
        if place is None:
            result.append(copy.deepcopy(item))
        elif whole:
            result[place] = copy.deepcopy(dict(item))
        else:
            result[place] = _merged(result[place], item)
    return result
