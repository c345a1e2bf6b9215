"""Reads a run file: a TinkerAtroposRun manifest, or a plain tinker-atropos YAML, from a path.

A manifest is refused here when the API server would refuse it, its metadata included, so that what passes on a laptop
also passes in a cluster; paths of problems begin where the reader's file does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tinker_atropos.run import pod_template, yaml_text
from tinker_atropos.run.model import RunSpec, local_model_name
from tinker_atropos.run.names import MAX_RUN_AND_ENVIRONMENT
from tinker_atropos.run.parse import ENDPOINT_FIX, parse_spec
from tinker_atropos.run.problems import InvalidRunError, Problem, nearest, unknown_key
from tinker_atropos.run.wording import not_mapping, not_text, shown

API_VERSION = "tinker-atropos.dev/v1alpha1"
KIND = "TinkerAtroposRun"
NAME_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
PLAIN_SECTIONS = ("env", "openai", "tinker")
TOP_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")
MOST_BYTES = 1 << 20
"""A cluster stores no object of more than about 1.5 MB."""

_BEGIN = f"begin with apiVersion: {API_VERSION}, kind: {KIND}; examples/quickstart.yaml shows a whole one"
_PLAIN_ENVIRONMENT = "environment"


@dataclass(frozen=True)
class RunFile:
    """A run file that was read and is valid."""

    name: str
    spec: RunSpec
    source: Mapping[str, Any]
    """`spec` as plain data."""
    warnings: tuple[Problem, ...] = ()
    is_plain: bool = False
    """It was a plain tinker-atropos file, without the Kubernetes half."""


def load_run_file(path: Path, environment_command: Sequence[str] = (), local_model: str | None = None) -> RunFile:
    """The run of a file.

    environment_command: program of the environment, for a plain tinker-atropos file that cannot name one.
    local_model: for such a file, use the local Tinker server with this model.
    Raises InvalidRunError; its problems name the field, the value and the fix.
    """
    document = _the_run(str(path), _documents(path))
    return convert(document, path.stem, environment_command, local_model)


def _documents(path: Path) -> list[Any]:
    def refused(message: str, fix: str = "") -> InvalidRunError:
        return InvalidRunError([Problem(str(path), message, fix)])

    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig") if len(content) <= MOST_BYTES else None
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror}", "give the path of a run file") from error
    except ValueError as error:  # no UTF-8, or a path that none can have
        what = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error}"
        raise refused(what, "give the path of a YAML run file") from error
    if text is None:
        raise refused(f"is larger than {MOST_BYTES >> 20} MB", "give the path of a run file")
    try:
        return yaml_text.load_all(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        sign = f"character U+{error.character:04X}" if isinstance(error.character, int) else "character"
        raise refused(
            f"holds the {sign} at line {line}, which no YAML file may hold", "take it out; is this a run file?"
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = str(getattr(error, "problem", None) or "not YAML")
        if "could not determine a constructor" in reason:
            reason = f"the tag {reason.partition('tag ')[2]} has no meaning here"
        raise refused(f"is not valid YAML{place}: {reason}", _yaml_fix(text, mark)) from error


def _yaml_fix(text: str, mark: Any) -> str:
    line = text.splitlines()[mark.line] if mark is not None and mark.line < len(text.splitlines()) else ""
    if "\t" in line:
        return "indent with spaces, not with tabs"
    return f"the line is {line.strip()!r}" if line.strip() and len(line) <= 120 else ""


def _the_run(path: str, documents: list[Any]) -> object:
    """The one run among the documents of a file; others, such as a Secret, may stand beside it."""
    if not documents:
        raise InvalidRunError([Problem(path, "is empty", _BEGIN)])
    runs = [document for document in documents if _is_run(document)]
    if len(runs) > 1:
        raise InvalidRunError([Problem(path, f"must hold exactly one {KIND}, it holds {len(runs)}", "split it")])
    if runs:
        return runs[0]
    kinds = list(dict.fromkeys(str(document["kind"]) for document in documents))
    meant = next((kind for kind in kinds if nearest(kind, [KIND])), None)
    fix = f"did you mean {KIND!r} for {meant!r}?" if meant else _BEGIN
    raise InvalidRunError([Problem(path, f"must hold exactly one {KIND}, it holds only {', '.join(kinds)}", fix)])


def _is_run(document: object) -> bool:
    if not isinstance(document, Mapping) or document.get("kind") is None:
        return True
    group = str(document.get("apiVersion", "")).partition("/")[0]
    return document["kind"] == KIND or group == API_VERSION.partition("/")[0]


def convert(
    document: object, default_name: str, environment_command: Sequence[str] = (), local_model: str | None = None
) -> RunFile:
    """The run of one parsed document: a manifest or plain `env`/`openai`/`tinker` sections."""
    if not isinstance(document, Mapping):
        raise InvalidRunError([Problem("run file", f"is {shown(document)}, not a mapping (key: value)", _BEGIN)])
    wild = list(_not_json("", document))
    try:
        run = _converted(_text_keys(document), default_name, environment_command, local_model)
    except InvalidRunError as error:
        known = {problem.field for problem in wild}
        raise InvalidRunError([*wild, *(problem for problem in error.problems if problem.field not in known)]) from None
    if wild:
        raise InvalidRunError(wild)
    return run


def _converted(
    content: Mapping[str, Any], default_name: str, environment_command: Sequence[str], local_model: str | None
) -> RunFile:
    if any(key in content for key in TOP_KEYS):
        if environment_command and environment_command != (_PLAIN_ENVIRONMENT,):
            raise InvalidRunError(
                [Problem("--environment-command", f"is for a plain file; this is a {KIND}", "leave it out")]
            )
        if local_model is not None:
            fix = "leave it out, or write tinkerAPI: {local: {model: …}} in the file"
            raise InvalidRunError([Problem("--local-model", f"is for a plain file; this is a {KIND}", fix)])
        return _manifest(content)
    return _plain(content, default_name, environment_command, local_model)


def _plain(
    document: Mapping[str, Any], default_name: str, environment_command: Sequence[str], local_model: str | None
) -> RunFile:
    sections = {key: value for key, value in document.items() if key in (*PLAIN_SECTIONS, "slurm", "testing")}
    unknown = [key for key in document if key not in sections]
    if unknown:
        names = (*TOP_KEYS, *PLAIN_SECTIONS)
        problems = []
        for key in unknown:
            meant = nearest(key, names)
            fix = (
                f"did you mean {meant!r}?" if meant else f"a plain file has {', '.join(PLAIN_SECTIONS)}; else {_BEGIN}"
            )
            problems.append(Problem(key, "unknown section", fix))
        raise InvalidRunError(problems)
    if not sections:
        raise InvalidRunError([Problem("run file", "is empty", _BEGIN)])
    if not environment_command:
        fix = "add --environment-command 'python my_env.py'"
        raise InvalidRunError(
            [Problem("run file", "is a plain tinker-atropos file, which names no environment program", fix)]
        )
    config = {**sections}
    if isinstance(config.get("openai"), Mapping):
        config["openai"] = [config["openai"]]  # Atropos accepts one server as a mapping
    spec: dict[str, Any] = {
        "config": config,
        "environments": [{"name": _PLAIN_ENVIRONMENT, "command": list(environment_command)}],
    }
    replaced: list[Problem] = []
    if local_model is not None:
        spec["tinkerAPI"] = {"local": {"model": local_model}}
        replaced = _give_way(config, local_model)
    try:
        parsed, warnings = parse_spec(spec)
    except InvalidRunError as error:
        raise InvalidRunError(_at_plain(error.problems)) from error
    return RunFile(_name(default_name), parsed, spec, (*replaced, *_at_plain(warnings)), is_plain=True)


def _give_way(config: dict[str, Any], local_model: str) -> list[Problem]:
    """A pasted file names the model of another endpoint: who asks for a local one means that one."""
    entries = config.get("openai")
    if not isinstance(entries, list):
        return []
    serves, found, kept = local_model_name(local_model), [], []
    for index, entry in enumerate(entries):
        if isinstance(entry, Mapping) and entry.get("model_name") not in (None, serves):
            text = f"{shown(entry['model_name'])} gives way to {serves!r} of --local-model"
            found.append(Problem(f"openai[{index}].model_name", text))
            entry = {key: value for key, value in entry.items() if key != "model_name"}  # noqa: PLW2901
        kept.append(entry)
    config["openai"] = kept
    return found


def _at_plain(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Problems as fields of a plain file, which has no `config` around it, and options for the rest."""
    for problem in problems:
        field = problem.field.removeprefix("config.")
        field = re.sub(r"^tinkerAPI\.local\.model$", "--local-model", field)
        yield replace(problem, field=re.sub(r"^environments\[0\]\.command", "--environment-command", field))


def _manifest(document: Mapping[str, Any]) -> RunFile:
    unknown = [unknown_key("", key, TOP_KEYS) for key in document if key not in TOP_KEYS]
    meant = {nearest(key, TOP_KEYS) for key in document if key not in TOP_KEYS}
    problems = list(unknown)
    for key, right in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) is None:
            if key not in meant:
                problems.append(Problem(key, "is missing", f"write {key}: {right}"))
        elif document[key] != right:
            problems.append(Problem(key, f"{shown(document[key])} is not known", f"did you mean {right!r}?"))
    metadata, spec = document.get("metadata"), document.get("spec")
    name = None
    if metadata is not None or "metadata" not in meant:
        name, found = _named(metadata)
        problems += found
    if not isinstance(spec, Mapping):
        if spec is not None:
            problems.append(Problem("spec", *not_mapping(spec)))
        elif "spec" not in meant:
            problems.append(Problem("spec", "is missing", "examples/quickstart.yaml shows a whole run file"))
        raise InvalidRunError(problems)
    if spec.get("tinkerAPI") is None and not any(nearest(key, ["tinkerAPI"]) for key in spec if key != "tinkerAPI"):
        problems.append(Problem("spec.tinkerAPI", "is missing", ENDPOINT_FIX))
    problems += [replace(problem, field=f"spec.{problem.field}") for problem in pod_template.spec_problems(spec)]
    parsed: RunSpec | None = None
    warnings: tuple[Problem, ...] = ()
    try:
        parsed, warnings = parse_spec(spec)
    except InvalidRunError as error:
        problems += [replace(problem, field=f"spec.{problem.field}") for problem in error.problems]
    if name is not None and parsed is not None:
        longest = max((entry.name for entry in parsed.environments), key=len)
        if len(name) + len(longest) > MAX_RUN_AND_ENVIRONMENT:
            text = (
                f"{name!r} and the environment's name {longest!r} have {len(name) + len(longest)} characters together"
            )
            fix = f"shorten one: names of the run's objects are made of both, {MAX_RUN_AND_ENVIRONMENT} at most"
            problems.append(Problem("metadata.name", text, fix))
    if problems or parsed is None or name is None:
        raise InvalidRunError(problems)
    said = tuple(replace(warning, field=f"spec.{warning.field}") for warning in warnings)
    return RunFile(name, parsed, dict(spec), said)


def _named(metadata: object) -> tuple[str | None, list[Problem]]:
    """The run's name, and what is wrong with its metadata."""
    if metadata is None:
        return None, [Problem("metadata.name", "is missing", "write metadata: {name: my-run}")]
    problems = [
        problem
        for problem in pod_template.problems_of("metadata", metadata, pod_template.METADATA)
        if problem.field != "metadata.name"
    ]
    if not isinstance(metadata, Mapping):
        return None, problems
    name = metadata.get("name")
    if name is None:
        if not any(nearest(key, ["name"]) for key in metadata if key not in pod_template.metadata_keys()):
            problems.append(Problem("metadata.name", "is missing", "give the run a name, such as my-run"))
    elif not isinstance(name, str):
        problems.append(Problem("metadata.name", *not_text(name)))
    elif not re.fullmatch(NAME_PATTERN, name):
        fix = f"use lower-case letters, digits and '-', such as {_name(name)!r}"
        problems.append(Problem("metadata.name", f"{name!r} is no name of a Kubernetes object", fix))
    return (name if isinstance(name, str) and not problems else None), problems


def _not_json(field: str, value: object) -> Iterator[Problem]:
    """Values that no cluster can be sent: a run file travels as JSON."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _not_json(f"{field}.{key}" if field else str(key), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _not_json(f"{field}[{index}]", inner)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(field, f"{value} is not a number", "give a finite one")
    elif not isinstance(value, str | int | float | bool | None):
        yield Problem(
            field, f"{shown(value)} is no value of a run file", "use text, numbers, true, false, lists, mappings"
        )


def _text_keys(value: Any) -> Any:
    """Keys as text, as kubectl makes them of `1:` and `on:`."""
    if isinstance(value, Mapping):
        return {_key(key): _text_keys(inner) for key, inner in value.items()}
    return [_text_keys(inner) for inner in value] if isinstance(value, list) else value


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else "null" if key is None else str(key)


def _name(text: str) -> str:
    """A name that a run can have, as near to the text as can be."""
    room = MAX_RUN_AND_ENVIRONMENT - len(_PLAIN_ENVIRONMENT)
    return re.sub(r"[^a-z0-9-]+", "-", text.lower())[:room].strip("-") or "run"
