"""Reading the fields of a JSON request so that every mistake names its field, and nothing is silently ignored."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from tinker_atropos.gateway.errors import RequestError

LARGEST_TOKEN_ID = 2**31 - 1


class Fields:
    """The fields of one JSON object. A field that is null counts as not given, as OpenAI's servers have it."""

    def __init__(self, body: object, within: str = "") -> None:
        if not isinstance(body, dict):
            raise RequestError(f"{within or 'the body'} must be a JSON object, not {_kind(body)}", param=within)
        self._given: Mapping[str, Any] = {key: value for key, value in body.items() if value is not None}
        self._within = f"{within}." if within else ""
        self._known: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self._within}{name}"

    def get(self, name: str) -> Any:
        """The raw value; None = not given."""
        self._known.add(name)
        return self._given.get(name)

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be an integer, not {_kind(value)}")
        if not low <= value <= high:
            raise self.error(name, f"is {value}; it must be from {low} to {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(name, f"must be a number, not {_kind(value)}")
        if not low <= value <= high:
            raise self.error(name, f"is {value}; it must be from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {_kind(value)}")
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, f"must be a string, not {_kind(value)}")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings; empty strings would stop everything at once and are refused."""
        value = self.get(name)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.error(name, f"must be a string or a list of strings, not {_kind(value)}")
        if not all(values):
            raise self.error(name, "holds an empty string")
        return tuple(values)

    def token_ids(self, name: str) -> tuple[int, ...]:
        value = self.get(name)
        return () if value is None else tuple(token_ids(value, self.path(name)))

    def neutral(self, name: str, *values: object) -> None:
        """A field that cannot be honoured: only a value that changes nothing passes."""
        value = self.get(name)
        if value is None or value in ("", [], {}) or any(value == neutral for neutral in values):
            return
        raise self.error(name, "is not supported here; leave it out", code="unsupported_parameter")

    def ignored(self, names: Iterable[str]) -> None:
        """Fields that change nothing about what is sampled."""
        self._known.update(names)

    def done(self) -> None:
        """Refuse every field that nobody asked for: a misspelt one would change the run silently."""
        for name in self._given:
            if name not in self._known:
                close = difflib.get_close_matches(name, sorted(self._known), n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise self.error(name, f"is not known{hint}", code="unknown_parameter")

    def error(self, name: str, what: str, code: str | None = None) -> RequestError:
        return RequestError(f"{self.path(name)} {what}", param=self.path(name), code=code)


def token_ids(value: object, path: str) -> list[int]:
    """A list of token ids."""
    if not isinstance(value, list):
        raise RequestError(f"{path} must be a list of token ids, not {_kind(value)}", param=path)
    for item in value:
        if type(item) is not int:
            raise RequestError(f"{path} must hold token ids, not {_kind(item)}", param=path)
        if not 0 <= item <= LARGEST_TOKEN_ID:
            raise RequestError(f"{path} holds {item}, which is no token id", param=path)
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"
