"""What the API server refuses, `validate` refuses, and the other way round: the CRD's table, and the CRD itself.

The second half plays the structural part of the schema (types, limits, patterns) on one value at a time.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_world import QUICKSTART
from run_manifests import ACCEPTED, NAMES, ONLY_OF_A_CLUSTER, REFUSED, environment
from tinker_atropos.run.load import API_VERSION, KIND, convert
from tinker_atropos.run.problems import InvalidRunError

CRD = yaml.safe_load((Path(__file__).resolve().parents[3] / "crds" / "tinkeratroposruns.yaml").read_text())
SPEC = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def problems(spec: dict[str, Any], name: str = "run") -> list[str]:
    """What is wrong with a run of that spec; [] = nothing."""
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    try:
        convert(manifest, "file")
    except InvalidRunError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(changes: dict[str, Any]) -> None:
    assert problems({**QUICKSTART, **changes}) == []


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_naming_the_field_in_the_readers_words(changes: dict[str, Any], words: str) -> None:
    found = problems({**QUICKSTART, **changes})
    assert found and all(problem.startswith("spec.") for problem in found)
    assert not any(re.search(r"\b(tuple|instance|str|dict|NoneType|bool|int|float) ?", problem) for problem in found), (
        "a word of the programming language"
    )


@pytest.mark.parametrize("changes", ONLY_OF_A_CLUSTER.values(), ids=ONLY_OF_A_CLUSTER)
def test_refused_before_a_cluster_is_asked(changes: dict[str, Any]) -> None:
    assert problems({**QUICKSTART, **changes})


@pytest.mark.parametrize(("name", "environment_name", "fits"), NAMES)
def test_names_that_fit(name: str, environment_name: str, fits: bool) -> None:
    assert (problems({**QUICKSTART, **environment(name=environment_name)}, name) == []) is fits


# -- the schema itself, one value at a time

VALUES: tuple[Any, ...] = (
    *("", "x", "8", "true", "https://a", "redis://a", "s3://archive/x", "1h", "A_b", "ppo"),
    *(-1, 0, 1, 2, 3.5, 8.0, 0.5, 4097, 1_000_001, 1e-9),
    *(True, False, None, [], {}, ["x"], [1], [{}], {"x": 1}),
)


def patterns(schema: dict[str, Any]) -> list[str]:
    """Regular expressions of a text: the schema's own, and those of rules, which say it better."""
    rules = [rule["rule"] for rule in schema.get("x-kubernetes-validations", ())]
    matched = [re.fullmatch(r"self\.matches\('(.+)'\)", rule) for rule in rules]
    return [schema.get("pattern", ""), *(found[1].replace("\\\\", "\\") for found in matched if found)]


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Whether the API server's structural checks take a value; nothing (null) counts as left out above."""
    kind = schema.get("type")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    good = {
        "string": isinstance(value, str),
        "integer": number and float(value).is_integer(),
        "number": number,
        "boolean": isinstance(value, bool),
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
    }.get(str(kind), True)
    if not good:
        return False
    if number:
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if value < low or value > high:
            return False
        return not (
            (schema.get("exclusiveMinimum") and value == low) or (schema.get("exclusiveMaximum") and value == high)
        )
    if isinstance(value, str):
        return (
            schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
            and value in schema.get("enum", [value])
            and all(re.search(pattern, value) for pattern in patterns(schema))
        )
    if isinstance(value, list):
        size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf)
        return size and all(item is not None and fits(schema["items"], item) for item in value)
    if isinstance(value, dict):
        given = {key: inner for key, inner in value.items() if inner is not None}
        every = schema.get("additionalProperties")
        return all(key in given for key in schema.get("required", ())) and all(
            fits(schema.get("properties", {}).get(key, every or {}), inner) for key, inner in given.items()
        )
    return True


def fields(schema: dict[str, Any], path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name), inner
        if inner["type"] == "array":
            yield from fields(inner["items"], (*path, name, 0))
        else:
            yield from fields(inner, (*path, name))


BASE: dict[str, Any] = {
    **QUICKSTART,
    "config": {"env": {"group_size": 1, "batch_size": 1}, "openai": [{}], "tinker": {}},
    "apiServer": {"store": {"volume": {"emptyDir": {}}}},
}


def with_value(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(BASE)
    if path[:2] in (("tinkerAPI", "keySecretRef"), ("tinkerAPI", "baseURL")):
        spec["tinkerAPI"] = {"keySecretRef": {"name": "s"}}
    if path[:3] == ("apiServer", "store", "volume") and len(path) == 4:
        spec["apiServer"]["store"]["volume"] = {}
    if path[:3] in (("apiServer", "store", "url"), ("apiServer", "store", "secretRef")):
        spec["apiServer"]["store"] = {"type": "Redis", "url": "redis://a", "secretRef": {"name": "s"}}
    if path[:3] == ("apiServer", "store", "export") and path[-1] not in ("export", "volume", "path"):
        spec["apiServer"]["store"]["export"] = {"bucket": "s3://archive"}
    at: Any = spec
    for part in path[:-1]:
        at = at[part] if isinstance(at, list) else at.setdefault(part, {})
    at[path[-1]] = value
    return spec


def name_of(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]


BETWEEN_FIELDS = (
    "minBatchShare",
    "names no endpoint",
    "is missing; give keySecretRef",
    "is no built-in model",
    "is not what tinkerAPI.local serves",
    "unknown key",
    "holds no volume",
    "is missing for type Redis",
    "names neither volume nor bucket",
    "both volume and bucket are given",
    "the maximum shares",
    "is not a multiple of",
    "is below the environment's",
    "is missing; give it a value",
    "is no name of a",
    "is no key of a Secret",
    "lets no rollout begin",
)
"""Words of problems that are about more than this one value, or about what the operator judges."""


@pytest.mark.parametrize(("path", "schema"), [pytest.param(*field, id=name_of(field[0])) for field in fields(SPEC)])
def test_each_field_takes_what_its_schema_takes(path: tuple[str | int, ...], schema: dict[str, Any]) -> None:
    for value in VALUES:
        spec = with_value(path, value)
        found = problems(spec)
        own = [problem for problem in found if not any(words in problem for words in BETWEEN_FIELDS)]
        if fits(SPEC, spec):
            assert own == [], f"{name_of(path)}: {value!r} is fine for the API server"
        else:
            assert found != [], f"{name_of(path)}: {value!r} is refused by the API server"
