#!/usr/bin/env python3
"""Make the chart's copy of the CRD from crds/: the same schema, wrapped in the chart's two switches.

`--check` only says whether the copy is stale (exit status 1)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crds" / "tinkeratroposruns.yaml"
TARGET = ROOT / "charts" / "tinker-atropos" / "templates" / "crds" / "tinkeratroposruns.yaml"


def chart_copy(source: str) -> str:
    """Template text of the CRD."""
    crd = yaml.safe_load(source)
    body = yaml.safe_dump({"spec": crd["spec"]}, sort_keys=False, allow_unicode=True, width=100_000)
    body = body.replace("{{", '{{ "{{" }}')  # Helm must not take the schema's text for its own
    return "\n".join(
        [
            "{{/* Made by scripts/generate_chart_crd.py from crds/tinkeratroposruns.yaml: change that one. */}}",
            "{{- if .Values.crds.enabled }}",
            f"apiVersion: {crd['apiVersion']}",
            f"kind: {crd['kind']}",
            "metadata:",
            f"  name: {crd['metadata']['name']}",
            '  labels: {{- include "tinker-atropos.labels" . | nindent 4 }}',
            "  {{- if .Values.crds.keep }}",
            "  annotations:",
            "    helm.sh/resource-policy: keep",
            "  {{- end }}",
            body.rstrip("\n"),
            "{{- end }}",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the copy is stale")
    arguments = parser.parse_args()
    text = chart_copy(SOURCE.read_text(encoding="utf-8"))
    current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    if arguments.check:
        if text != current:
            print(f"{TARGET.relative_to(ROOT)} is stale: run scripts/generate_chart_crd.py", file=sys.stderr)
            return 1
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
