"""Says what the types of the run file refuse in the words of its reader: the value, what it should be, how to write it.

pydantic's own texts speak of its classes and of Python ("instance", "tuple"); none of them reaches a person.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tinker_atropos.run.bucket_address import BUCKET_ADDRESS, ENDPOINT
from tinker_atropos.run.problems import Problem, nearest

_FORMS = {
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "use lower-case letters, digits and, between them, '-'",
    r"^https?://": "begin it with http:// or https://",
    BUCKET_ADDRESS: "write it like s3://my-bucket/runs: letters, digits, '-', '_' and '.' between slashes",
    ENDPOINT: "write it like https://minio.example.com:9000",
    r"^rediss?://[^@]+$": "write it like redis://HOST:6379/0, without a password (that comes from secretRef)",
    r"^([^/.][^/]*(/[^/.][^/]*)*)?$": "write it like runs/mine, without / at its ends and parts that begin with '.'",
}
"""Pattern of a field -> how to fulfil it."""

_EXAMPLES = {
    "command": "give the program and its arguments, such as [python, my_env.py]",
    "environments": "name at least one, such as - {name: digits, command: [python, digits.py]}",
    "name": "give it a name",
}


_MAIN_KEYS: Mapping[object, str] = {
    "local": "model",
    "keySecretRef": "name",
    "secretRef": "name",
    "persistentVolumeClaim": "claimName",
    "metadata": "name",
    "openai": "model_name",
    "store": "type",
    "export": "bucket",
    "deadlines": "startup",
}
"""What people mean who write one value where a mapping belongs."""


def problem_of(error: Mapping[str, Any]) -> Problem:
    """The problem that one entry of ValidationError.errors() stands for."""
    field = _path(error["loc"])
    message, fix = _say(str(error["type"]), error.get("input"), error.get("ctx", {}), error["loc"])
    return Problem(field, message or _first_small(str(error["msg"])), fix)


def shown(value: object) -> str:
    """A value as its reader wrote it, or what kind of thing it is when it is no single value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value) if len(value) <= 100 else f"{value[:97]!r}…"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        return "a mapping (key: value)"
    if isinstance(value, Sequence):
        return "a list"
    return f"a {type(value).__name__}"


def not_text(value: object) -> tuple[str, str]:
    """Message and fix for something that stands where text should."""
    fix = f'put it in quotes: "{shown(value)}"' if isinstance(value, bool | int | float) else ""
    return f"{shown(value)} is not text", fix


def not_whole(value: object) -> tuple[str, str]:
    """The same for a whole number."""
    fix = ""
    if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
        fix = f"write it without quotes: {value.strip()}"
    elif isinstance(value, float):
        fix = f"write {math.floor(value)} or {math.ceil(value)}"
    return f"{shown(value)} is not a whole number", fix


def not_switch(value: object) -> tuple[str, str]:
    """The same for true or false."""
    return f"{shown(value)} is neither true nor false", "write true or false, without quotes"


def not_mapping(value: object, name: object = None) -> tuple[str, str]:
    """The same for a mapping; name: of the field."""
    if isinstance(value, str) and name in _MAIN_KEYS:
        return f"{shown(value)} is not a mapping (key: value)", f"write {name}: {{{_MAIN_KEYS[name]}: {value}}}"
    fix = (
        "leave out the '- ' before its keys" if isinstance(value, list | tuple) else "write its keys below it, indented"
    )
    return f"{shown(value)} is not a mapping (key: value)", fix


def not_list(value: object, *, words: bool = False) -> tuple[str, str]:
    """The same for a list; words: of a program and its arguments."""
    if isinstance(value, str) and words:
        return f"{shown(value)} is text, not a list", f"write [{', '.join(_words(value))}]"
    if isinstance(value, Mapping):
        return f"{shown(value)} is not a list", "write '- ' before each of its items"
    fix = f"write [{value}]" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    return f"{shown(value)} is not a list", fix


def _say(kind: str, given: object, context: Mapping[str, Any], location: Sequence[object]) -> tuple[str, str]:
    value = shown(given)
    match kind:
        case "missing":
            return "is missing", _EXAMPLES.get(str(location[-1]), "give it a value")
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return not_whole(given)
        case "float_type" | "float_parsing" | "finite_number":
            return f"{value} is not a number", _number_fix(given)
        case "bool_type" | "bool_parsing":
            return not_switch(given)
        case "string_type" if location[-1] == "startup" and isinstance(given, int | float):
            return f"{value} is no duration", f"write {value}s, or like 10m or 1h30m"
        case "string_type":
            return not_text(given)
        case "tuple_type" | "list_type":
            return not_list(given, words=location[-1] == "command")
        case "dict_type" | "model_type" | "mapping_type" | "model_attributes_type":
            return not_mapping(given, location[-1])
        case "literal_error":
            names = [word.strip(" '") for word in str(context["expected"]).replace(" or ", ", ").split(",")]
            meant = nearest(given, names) if isinstance(given, str) else None
            return f"{value} is not known", f"did you mean {meant!r}?" if meant else f"use {' or '.join(names)}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            low, own = kind.startswith("greater"), kind.endswith("equal")
            limit = next(iter(context.values()))
            edge = f"{limit}" if isinstance(limit, int) else f"{limit:g}"
            bound = f"at {'least' if low else 'most'} {edge}" if own else f"{'more' if low else 'less'} than {edge}"
            return f"{value} is too {'small' if low else 'large'}", f"it must be {bound}"
        case "too_short":
            return "is empty", _EXAMPLES.get(str(location[-1]), f"give at least {context['min_length']}")
        case "too_long":
            return f"has {context['actual_length']} entries", f"give at most {context['max_length']}"
        case "string_too_short":
            return "is empty text", "give it a value, or leave it out"
        case "string_too_long":
            return f"{value} is too long", f"use at most {context['max_length']} characters"
        case "string_pattern_mismatch":
            return f"{value} is not valid", _FORMS.get(str(context["pattern"]), "")
        case "value_error":
            return str(context["error"]), ""
    return "", ""


def _path(location: Sequence[object]) -> str:
    field = ""
    for part in location:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    return field


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _number_fix(given: object) -> str:
    if not isinstance(given, str):
        return ""
    if _is_number(given):
        return "write it without quotes"
    part = given.strip().removesuffix("%")
    return f"write {float(part) / 100:g}" if part != given.strip() and _is_number(part) else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip().lower().lstrip("+-")[:1] not in ("n", "i")


def _first_small(text: str) -> str:
    return text[:1].lower() + text[1:]
