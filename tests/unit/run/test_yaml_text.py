"""Numbers are numbers, as YAML 1.2 says."""

from __future__ import annotations

import math

import pytest

from tinker_atropos.run import yaml_text

VALUES = {
    "4e-5": 4e-5,
    "4.0e-5": 4e-5,
    "1E3": 1000.0,
    "+1e3": 1000.0,
    ".5": 0.5,
    "12": 12,
    "1.5": 1.5,
    "-.inf": -math.inf,
    "1e": "1e",
    "e5": "e5",
    "1.2.3": "1.2.3",
    "0x1F": 31,
    "'4e-5'": "4e-5",
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_scalar(text: str, value: object) -> None:
    [loaded] = yaml_text.load_all(f"x: {text}\n")
    assert loaded == {"x": value} and type(loaded["x"]) is type(value)


def test_merge_keys_still_work() -> None:
    [loaded] = yaml_text.load_all("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert loaded["b"] == {"x": 1, "y": 3}


def test_dump_and_load_agree() -> None:
    value = {"z": [1, 4e-5, "4e-5", None, True], "a": {"ü": "7"}}
    assert yaml_text.load_all(yaml_text.dump(value)) == [value]
