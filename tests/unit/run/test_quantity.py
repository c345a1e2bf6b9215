"""Quantities by Kubernetes' grammar; tests/controlplane asks a real API server about the same table."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from pod_templates import QUANTITIES
from tinker_atropos.run.quantity import not_quantity, parse


@pytest.mark.parametrize(("value", "good"), QUANTITIES.values(), ids=QUANTITIES)
def test_which_values_are_quantities(value: Any, good: bool) -> None:
    assert (not_quantity(value) is None) is good


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("500m", Fraction(1, 2)),
        ("4Gi", 4 * 2**30),
        ("1.5k", 1500),
        ("2E", 2 * 10**18),
        ("2E3", 2000),
        (".5", Fraction(1, 2)),
        (2, 2),
        (0.25, Fraction(1, 4)),
    ],
)
def test_what_a_quantity_stands_for(value: Any, number: Fraction) -> None:
    assert parse(value) == number


def test_a_unit_without_a_number_is_refused_though_the_api_server_takes_it_for_0() -> None:
    assert not_quantity("Gi") == ("'Gi' is no quantity", "write it like 500m, 2 or 4Gi")


MEANT = {
    "1Gb": "1Gi",
    "512MB": "512Mi",
    "4GiB": "4Gi",
    "4gi": "4Gi",
    "100K": "100Ki",
    "4 Gi": "4Gi",
    "0,5": "0.5",
    "2 cores": "2",
    "250 millicpu": "250m",
    "1.5 gigs": None,
    "lots": None,
    "": None,
}


@pytest.mark.parametrize(("value", "meant"), MEANT.items())
def test_what_a_slip_most_likely_meant(value: str, meant: str | None) -> None:
    said = not_quantity(value)
    assert said is not None
    assert said[1] == (f"did you mean {meant}?" if meant else "write it like 500m, 2 or 4Gi")
