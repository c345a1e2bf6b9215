"""What a container may ask of a node and be limited to, as the API server judges it when the pod is made."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tinker_atropos.run import quantity
from tinker_atropos.run.pod_requests import REQUESTS
from tinker_atropos.run.problems import Problem, nearest
from tinker_atropos.run.wording import shown

STANDARD = ("cpu", "memory", "ephemeral-storage")


def problems_of(field: str, given: Mapping[str, Any], container: str) -> list[Problem]:
    """What is wrong with `resources` of a container, its quantities being judged elsewhere."""
    own = REQUESTS.get(container, {})
    requests = given["requests"] if isinstance(given.get("requests"), Mapping) else {}
    limits = given["limits"] if isinstance(given.get("limits"), Mapping) else {}
    found = []
    for kind, values in (("requests", requests), ("limits", limits)):
        for name, value in values.items():
            found += _of_one(f"{field}.{kind}.{name}", str(name), value)
    for name, value in limits.items():
        asked = requests.get(name, own.get(str(name)))
        low, high = _number(asked), _number(value)
        if low is None or high is None or low <= high:
            continue
        where = "" if name in requests else f" of {container}; give a request as well"
        text = f"{shown(value)} is below the request {shown(asked)}"
        found.append(Problem(f"{field}.limits.{name}", text + where, "raise it, or lower the request"))
    for name, value in requests.items():
        if "/" in str(name) and value is not None and _number(value) != _number(limits.get(name)):
            fix = f"write limits: {{{name}: {value}}} beside it"
            found.append(Problem(f"{field}.requests.{name}", "is a device, whose limit must be the same", fix))
    return found


def _of_one(field: str, name: str, value: object) -> list[Problem]:
    if "/" not in name and name not in STANDARD and not name.startswith("hugepages-"):
        meant = None if "gpu" in name.lower() else nearest(name, STANDARD)  # gpu is near cpu, and meant as it stands
        fix = f"did you mean {meant!r}?" if meant else f"use {', '.join(STANDARD)}, or a device such as nvidia.com/gpu"
        return [Problem(field, "is no resource of a container", fix)]
    number = _number(value)
    if number is None or number.denominator == 1 or name == "cpu":
        return []
    text = str(value)
    if text.endswith("m") and name in STANDARD:
        return [Problem(field, f"{shown(value)} is {float(number):g} bytes", f"did you mean {text[:-1]}Mi?")]
    return [] if name in STANDARD else [Problem(field, f"{shown(value)} is no whole number", "devices are whole")]


def _number(value: object) -> Fraction | None:
    try:
        return None if value is None else quantity.parse(value)
    except ValueError:
        return None
