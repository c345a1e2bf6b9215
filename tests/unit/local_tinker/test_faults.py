"""Injected faults hit the route they name, as often as they say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tinker_atropos.local_tinker.faults import Fault, Faults


@pytest.mark.parametrize(
    ("route", "path", "hit"),
    [
        ("/asample", "/api/v1/asample", True),
        ("/asample", "/api/v1/retrieve_future", False),
        ("/*", "/api/v1/optim_step", True),
        ("/training_runs/*", "/api/v1/training_runs/x/checkpoints", True),
        ("/*", "/healthz", False),
    ],
)
def test_route(route: str, path: str, hit: bool) -> None:
    faults = Faults()
    faults.add(Fault(route=route, status=503))
    assert (faults.take(path) is not None) is hit


def test_count_is_used_up() -> None:
    faults = Faults()
    faults.add(Fault(route="/asample", status=429, count=2))
    faults.add(Fault(route="/asample", status=503))
    taken = [faults.take("/api/v1/asample") for _ in range(4)]
    assert [fault and fault.status for fault in taken] == [429, 429, 503, None]


@pytest.mark.parametrize(
    "fields", [{}, {"status": 200}, {"status": 503, "count": 0}, {"delay": -1}, {"status": 503, "rout": "/x"}]
)
def test_faults_that_make_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Fault(**{"route": "/asample", **fields})
