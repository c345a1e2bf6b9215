#!/usr/bin/env python3
"""Write docs/crd-reference.md from crds/: each field with its type, default, limits and meaning.

`--check` only says whether the page is stale (exit status 1)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crds" / "tinkeratroposruns.yaml"
TARGET = ROOT / "docs" / "crd-reference.md"
Schema = dict[str, Any]


def reference(crd: Schema) -> str:
    """The page."""
    version = crd["spec"]["versions"][0]
    names = crd["spec"]["names"]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# {names['kind']} reference",
        "",
        "<!-- Made by scripts/generate_crd_reference.py from crds/tinkeratroposruns.yaml: change that one. -->",
        "",
        f"`apiVersion: {crd['spec']['group']}/{version['name']}`, `kind: {names['kind']}`; "
        f"`kubectl get {names['shortNames'][0]}`, `kubectl explain {names['shortNames'][0]}.spec`.",
        "",
        schema["description"],
        "",
        "## spec",
        "",
        schema["properties"]["spec"]["description"],
        "",
        *_table(schema["properties"]["spec"], "", settings=True),
        "",
        "### Rules",
        "",
        "The API server refuses a run that breaks one of these; each answer says what to do.",
        "",
        *[f"- {message}" for message in dict.fromkeys(_messages(schema))],
        "",
        "## status",
        "",
        schema["properties"]["status"]["description"],
        "",
        *_table(schema["properties"]["status"], "", settings=False),
        "",
    ]
    return "\n".join(lines)


def _table(schema: Schema, path: str, *, settings: bool) -> list[str]:
    if settings:
        head = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    else:
        head = ["| field | type | meaning |", "| --- | --- | --- |"]
    rows = []
    for field, node, required in _fields(schema, path):
        cells = [f"`{field}`", _type(node)]
        if settings:
            cells.append("**required**" if required else _default(node))
        cells.append(_escape(str(node.get("description", ""))))
        rows.append(f"| {' | '.join(cells)} |")
    return head + rows


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    for name, node in schema.get("properties", {}).items():
        field = f"{path}.{name}" if path else name
        yield field, node, name in schema.get("required", ())
        yield from _fields(node, field)
        if node.get("type") == "array":
            yield from _fields(node["items"], f"{field}[]")


def _type(node: Schema) -> str:
    kind = str(node.get("type", ""))
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if kind == "array":
        return f"list of {_type(node['items'])}"
    if kind in ("integer", "number"):
        return kind + _limits(node)
    if kind == "string" and node.get("format"):
        return str(node["format"])
    return kind


def _limits(node: Schema) -> str:
    parts = []
    if "minimum" in node:
        parts.append(f"{'>' if node.get('exclusiveMinimum') else '≥'} {node['minimum']}")
    if "maximum" in node:
        parts.append(f"{'<' if node.get('exclusiveMaximum') else '≤'} {node['maximum']}")
    return f" {', '.join(parts)}" if parts else ""


def _default(node: Schema) -> str:
    if "default" not in node or (node["default"] == {} and node.get("properties")):
        return ""
    return f"`{json.dumps(node['default'])}`"


def _messages(node: Any, name: str = "") -> Iterator[str]:
    """Messages of all rules below a part of the schema; those of one value begin with its name."""
    if isinstance(node, list):
        for item in node:
            yield from _messages(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "x-kubernetes-validations":
                of = f"{name}: " if node.get("type") == "string" else ""
                yield from (f"{of}{rule['message']}" for rule in value)
            else:
                yield from _messages(value, key)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is stale")
    arguments = parser.parse_args()
    text = reference(yaml.safe_load(SOURCE.read_text(encoding="utf-8")))
    current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    if arguments.check:
        if text != current:
            print(f"{TARGET.relative_to(ROOT)} is stale: run scripts/generate_crd_reference.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
