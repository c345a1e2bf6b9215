"""Which reports count, and what they leave in the status."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos_operator.plan.progress import Heard, newest, number, progress_fields, supersedes

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
STATUS: dict[str, Any] = {
    "epoch": 3,
    "step": 10,
    "lastProgressTime": "2026-01-02T03:04:00Z",
    "attempts": [{"epoch": 3, "pod": "a"}],
}


def heard(epoch: int, step: int, pod: str = "a", seconds: float = 0, **fields: Any) -> Heard:
    values = {"run_uid": "u", "epoch": epoch, "phase": "Training", "step": step, "total_steps": 20, **fields}
    return Heard(ProgressReport(**values), pod, NOW + dt.timedelta(seconds=seconds))


COUNTS = {
    "the next step": (heard(3, 11), "a", True),
    "the same step again": (heard(3, 10), "a", True),
    "an earlier step of the same process": (heard(3, 9), "a", False),
    "a new epoch from an earlier step": (heard(4, 7, "b"), "b", True),
    "an older epoch of a pod that was replaced": (heard(2, 99, "a"), "b", False),
    "a trainer that has not taken over yet": (heard(0, 0, "b"), "b", False),
    "a young pod whose store began anew": (heard(1, 9, "b"), "b", True),
    "the same pod after its store began anew": (heard(1, 10, "a"), "a", True),
    "an old report of the newest pod": (heard(1, 10, "a", seconds=-60), "a", False),
}


@pytest.mark.parametrize(("candidate", "newest_pod", "counts"), COUNTS.values(), ids=COUNTS.keys())
def test_which_report_counts(candidate: Heard, newest_pod: str, counts: bool) -> None:
    assert (newest(STATUS, [candidate], newest_pod) is candidate) == counts


def test_the_newest_of_several_counts() -> None:
    reports = [heard(3, 11), heard(3, 13, seconds=1), heard(3, 12, seconds=2)]
    assert newest(STATUS, reports, "a") is reports[1]


def test_the_first_report_counts() -> None:
    first = heard(1, 0)
    assert newest({}, [first], "a") is first


SUPERSEDES = {
    "the first": (None, heard(1, 1), "a", True),
    "the next": (heard(1, 1), heard(1, 2), "a", True),
    "an earlier step": (heard(1, 2), heard(1, 1), "a", False),
    "another epoch of the pod": (heard(1, 2), heard(2, 1), "a", True),
    "a younger pod": (heard(1, 2), heard(2, 1, "b"), "b", True),
    "an older pod": (heard(2, 2, "b"), heard(1, 9, "a"), "b", False),
}


@pytest.mark.parametrize(("old", "new", "newest_pod", "takes"), SUPERSEDES.values(), ids=SUPERSEDES.keys())
def test_which_report_takes_the_place_of_the_last(old: Heard | None, new: Heard, newest_pod: str, takes: bool) -> None:
    assert supersedes(new, old, newest_pod) == takes


def test_the_status_keeps_what_a_report_does_not_say() -> None:
    status = {**STATUS, "loss": 1.0, "checkpoint": {"path": "p", "step": 9, "time": "t"}}
    fields = progress_fields(status, heard(3, 11))
    assert fields["loss"] == 1.0 and fields["checkpoint"]["step"] == 9 and fields["step"] == 11


def test_the_time_moves_only_with_news() -> None:
    fields = progress_fields(STATUS, heard(3, 10))
    assert fields["lastProgressTime"] == STATUS["lastProgressTime"]
    assert progress_fields(STATUS, heard(3, 11))["lastProgressTime"] == "2026-01-02T03:04:05Z"


def test_a_checkpoint_goes_back_only_with_a_new_epoch() -> None:
    status = {**STATUS, "checkpoint": {"path": "p9", "step": 9, "time": "t"}}
    older = {"path": "p7", "step": 7, "time": "t"}
    assert progress_fields(status, heard(3, 11, checkpoint=older))["checkpoint"]["path"] == "p9"
    assert progress_fields(status, heard(4, 7, checkpoint=older))["checkpoint"]["path"] == "p7"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.1234567891, 0.123457), (1e300, 1e300), (float("nan"), None), (float("inf"), None), (0.0, 0.0), (-2.5, -2.5)],
)
def test_numbers_that_json_has(value: float, expected: float | None) -> None:
    assert number(value) == expected


def test_a_reward_that_is_no_number_is_left_out() -> None:
    fields = progress_fields({}, heard(1, 1, reward={"mean": float("nan"), "std": 1.0}, loss=float("inf")))
    assert "mean" not in fields["reward"] and fields["reward"]["std"] == 1.0
    assert "loss" not in fields
