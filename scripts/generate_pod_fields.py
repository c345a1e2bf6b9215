#!/usr/bin/env python3
"""Writes src/tinker_atropos/run/pod_fields.json: which fields a pod template has, from the Kubernetes client's models.

The run file's checks need the names to say "did you mean", and the command line must not need the Kubernetes client.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "src" / "tinker_atropos" / "run" / "pod_fields.json"
ROOT = "V1PodTemplateSpec"
SCALARS = {"str": "text", "int": "whole", "float": "number", "bool": "switch", "object": "free", "datetime": "free"}
QUANTITIES = frozenset({"limits", "requests", "overhead", "capacity", "sizeLimit", "divisor"})
"""Fields that the client calls text, and that also take a number (`cpu: 2`)."""


PARTIAL = frozenset({"V1PodSpec", "V1Container"})
"""Models of which a pod template gives only a part, which is laid over the rest."""


def kind(name: str, type_: str) -> str:
    """A field's type in the table: a scalar's name or a model's, with [] for a list and {} for a mapping of it."""
    inner = re.fullmatch(r"[Ll]ist\[(.+)\]", type_)
    if inner:
        return f"{kind(name, inner[1])}[]"
    inner = re.fullmatch(r"[Dd]ict[\[(]str, (.+)[\])]", type_)
    if inner:
        return f"{kind(name, inner[1])}{{}}"
    if name in QUANTITIES and type_ == "str":
        return "quantity"
    return SCALARS.get(type_) or type_


def table() -> dict[str, dict[str, str]]:
    """Model name -> field -> kind (with "!" when it must be there), for all that a pod template can hold."""
    from kubernetes.client import models

    found: dict[str, dict[str, str]] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        model = getattr(models, name)
        required = {
            info.serialization_alias or attribute
            for attribute, info in model.model_fields.items()
            if info.is_required() and name not in PARTIAL
        }
        found[name] = {
            model.attribute_map[attribute]: kind(model.attribute_map[attribute], given)
            + ("!" if model.attribute_map[attribute] in required else "")
            for attribute, given in sorted(model.openapi_types.items())
        }
        waiting += [inner for value in found[name].values() if (inner := value.rstrip("[]{}!"))[0].isupper()]
    return dict(sorted(found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the file is fresh; write nothing")
    arguments = parser.parse_args()
    text = json.dumps(table(), indent=1, sort_keys=True) + "\n"
    if arguments.check:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.stderr.write(f"{TARGET.name} is not fresh; run scripts/generate_pod_fields.py\n")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
