"""Reads a run file: a TinkerAtroposRun manifest, or a plain tinker-atropos YAML, from a path."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tinker_atropos.run import yaml_text
from tinker_atropos.run.model import RunSpec
from tinker_atropos.run.parse import parse_spec
from tinker_atropos.run.problems import InvalidRunError, Problem, nearest

API_VERSION = "tinker-atropos.dev/v1alpha1"
KIND = "TinkerAtroposRun"
NAME_PATTERN = r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?"
PLAIN_SECTIONS = ("env", "openai", "tinker")


@dataclass(frozen=True)
class RunFile:
    """A run file that was read and is valid."""

    name: str
    spec: RunSpec
    source: Mapping[str, Any]
    """`spec` as plain data."""
    warnings: tuple[Problem, ...] = ()


def load_run_file(path: Path, environment_command: Sequence[str] = (), local_model: str | None = None) -> RunFile:
    """The run of a file.

    environment_command: program of the environment, for a plain tinker-atropos file that cannot name one.
    local_model: for such a file, use the local Tinker server with this model.
    Raises InvalidRunError; its problems name the field, the value and the fix.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRunError(
            [Problem(str(path), f"cannot be read: {error.strerror}", "give the path of a run file")]
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRunError([Problem(str(path), "is not UTF-8 text", "give the path of a YAML run file")]) from error
    try:
        documents = yaml_text.load_all(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "not YAML"
        raise InvalidRunError([Problem(str(path), f"is not valid YAML{place}: {reason}")]) from error
    runs = [
        document for document in documents if not isinstance(document, Mapping) or document.get("kind", KIND) == KIND
    ]
    if len(runs) != 1:
        kinds = sorted(
            {
                str(document.get("kind"))
                for document in documents
                if isinstance(document, Mapping) and "kind" in document
            }
        )
        held = f"it holds {', '.join(kinds)}" if kinds and not runs else f"it holds {len(runs)}"
        raise InvalidRunError([Problem(str(path), f"must hold exactly one {KIND}, {held}")])
    return convert(runs[0], path.stem, environment_command, local_model)


def convert(
    document: object, default_name: str, environment_command: Sequence[str] = (), local_model: str | None = None
) -> RunFile:
    """The run of one parsed document: a manifest or plain `env`/`openai`/`tinker` sections."""
    if not isinstance(document, Mapping):
        raise InvalidRunError(
            [
                Problem(
                    "run file",
                    f"is a {type(document).__name__}, not a mapping",
                    f"start it with apiVersion: {API_VERSION}",
                )
            ]
        )
    if "kind" in document or "spec" in document or "apiVersion" in document:
        return _manifest(document, default_name)
    sections = {key: value for key, value in document.items() if key in (*PLAIN_SECTIONS, "slurm", "testing")}
    unknown = [key for key in document if key not in sections]
    if unknown:
        names = ("apiVersion", "kind", "metadata", "spec", *PLAIN_SECTIONS)
        problems = []
        for key in unknown:
            meant = nearest(str(key), names)
            problems.append(
                Problem(
                    str(key),
                    "unknown section",
                    f"did you mean {meant!r}?" if meant else f"a plain file has {', '.join(PLAIN_SECTIONS)}",
                )
            )
        raise InvalidRunError(problems)
    if not sections:
        raise InvalidRunError([Problem("run file", "is empty", f"start it with apiVersion: {API_VERSION}")])
    if not environment_command:
        raise InvalidRunError(
            [
                Problem(
                    "run file",
                    "is a plain tinker-atropos file, which names no environment program",
                    "add --environment-command 'python my_env.py'",
                )
            ]
        )
    config = {**sections}
    if isinstance(config.get("openai"), Mapping):
        config["openai"] = [config["openai"]]  # Atropos accepts one server as a mapping
    spec: dict[str, Any] = {
        "config": config,
        "environments": [{"name": "environment", "command": list(environment_command)}],
    }
    if local_model is not None:
        spec["tinkerAPI"] = {"local": {"model": local_model}}
    parsed, warnings = parse_spec(spec)
    return RunFile(_name(default_name), parsed, spec, warnings)


def _manifest(document: Mapping[str, Any], default_name: str) -> RunFile:
    problems = []
    if document.get("apiVersion") != API_VERSION:
        problems.append(Problem("apiVersion", f"{document.get('apiVersion')!r} is not known", f"use {API_VERSION}"))
    if document.get("kind") != KIND:
        problems.append(Problem("kind", f"{document.get('kind')!r} is not a run", f"use {KIND}"))
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        problems.append(Problem("spec", "is missing", "see examples/quickstart.yaml"))
    if problems or not isinstance(spec, Mapping):
        raise InvalidRunError(problems)
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if name is not None and not re.fullmatch(NAME_PATTERN, str(name)):
        fix = f"use lower-case letters, digits and '-', such as {_name(str(name))[:40].strip('-')!r}"
        raise InvalidRunError([Problem("metadata.name", f"{name!r} is no name of a Kubernetes object", fix)])
    parsed, warnings = parse_spec(spec)
    return RunFile(str(name) if name else _name(default_name), parsed, dict(spec), warnings)


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") or "run"
