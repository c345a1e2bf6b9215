"""YAML as version 1.2 reads it where it matters to a run file: `4e-5` is a number, and a key stands once.

PyYAML follows YAML 1.1, in which `4e-5` (no dot, no sign) is a string: a learning rate would silently become text.
Dates and `1:30` stay text, as kubectl reads them.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)

_INT = re.compile(r"^[-+]?(?:0b[0-1_]+|0[0-7_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*)$")

MOST_NODES = 200_000
"""Values of one file, each alias counted as often as it is used: a run file has hundreds."""


class TooLargeError(yaml.YAMLError):
    """A document that cannot be walked through: nested or multiplied beyond reason."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 floats and with duplicate keys refused."""


_OTHERWISE = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OTHERWISE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, str | int | float | bool) and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which YAML 1.1 or 1.2 would read as a number."""


_Dumper.yaml_implicit_resolvers = {
    first: list(resolvers) for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def load_all(text: str) -> list[Any]:
    """Every document of a YAML text. Raises yaml.YAMLError with line and column."""
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
        _count(documents, MOST_NODES)
    except RecursionError:
        raise TooLargeError("it is nested too deeply") from None
    except yaml.constructor.ConstructorError as error:
        if "recursive" in str(error.problem):
            error.problem = "an alias (*name) stands inside of what it names"
        raise
    return documents


def _count(value: object, left: int) -> int:
    """How many values may still come after this one."""
    if left <= 0:
        raise TooLargeError(f"it has more than {MOST_NODES} values; are its aliases (*name) meant?")
    left -= 1
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            left = _count(inner, left)
    return left


def dump(value: object) -> str:
    """YAML text of plain data, keys in the order given."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
