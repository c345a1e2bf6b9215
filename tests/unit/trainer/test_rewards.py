"""What a batch says about the run."""

from __future__ import annotations

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trainer.rewards import environment_reports, mean_staleness, reward_report


def group(environment: str, scores: list[float], staleness: int = 0) -> pb.Group:
    return pb.Group(
        environment=environment, staleness=staleness, sequences=[pb.Sequence(score=score) for score in scores]
    )


def test_a_group_counts_once_whatever_its_size() -> None:
    report = reward_report([group("a", [1.0, 1.0, 1.0, 1.0]), group("a", [0.0])])
    assert report is not None and report.mean == 0.5 and (report.min, report.max) == (0.0, 1.0)


def test_nothing_is_said_of_an_empty_batch() -> None:
    assert reward_report([]) is None and mean_staleness([]) is None and environment_reports([]) == ()


def test_shares_are_of_sequences() -> None:
    reports = environment_reports([group("b", [1.0] * 3), group("a", [0.0])])
    assert [(r.name, r.groups, r.share, r.reward) for r in reports] == [("a", 1, 0.25, 0.0), ("b", 1, 0.75, 1.0)]


def test_unknown_versions_do_not_count_as_fresh() -> None:
    assert mean_staleness([group("a", [1.0], -1), group("a", [1.0], 2)]) == 2.0
    assert mean_staleness([group("a", [1.0], -1)]) is None
