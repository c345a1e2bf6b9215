"""What a batch says about the run: mean reward, per environment, how old it was, and what the server warned of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.progress import EnvironmentReport, RewardReport, WarningReport

MOST_WARNINGS = 10
MOST_WARNING_CHARACTERS = 500


def reward_report(groups: Sequence[pb.Group]) -> RewardReport | None:
    """Rewards over all groups, each group counted once whatever its size. None for an empty batch."""
    if not groups:
        return None
    means = [float(np.mean([sequence.score for sequence in group.sequences])) for group in groups]
    scores = [sequence.score for group in groups for sequence in group.sequences]
    return RewardReport(
        mean=float(np.mean(means)), std=float(np.std(scores)), min=float(np.min(scores)), max=float(np.max(scores))
    )


def environment_reports(groups: Sequence[pb.Group]) -> tuple[EnvironmentReport, ...]:
    """Each environment's groups, share of the batch's sequences and mean reward."""
    total = sum(len(group.sequences) for group in groups)
    reports = []
    for name in sorted({group.environment for group in groups}):
        own = [group for group in groups if group.environment == name]
        scores = [sequence.score for group in own for sequence in group.sequences]
        reports.append(
            EnvironmentReport(
                name=name, groups=len(own), share=round(len(scores) / total, 4), reward=float(np.mean(scores))
            )
        )
    return tuple(reports)


def warning_reports(warnings: Iterable[pb.SupplyWarning]) -> tuple[WarningReport, ...]:
    """The trajectory server's warnings, short enough for a report."""
    return tuple(
        WarningReport(
            reason=warning.reason, environment=warning.environment, message=warning.message[:MOST_WARNING_CHARACTERS]
        )
        for warning in islice(warnings, MOST_WARNINGS)
    )


def mean_staleness(groups: Sequence[pb.Group]) -> float | None:
    """Mean staleness in optimizer steps over groups whose policy version is known."""
    known = [group.staleness for group in groups if group.staleness >= 0]
    return float(np.mean(known)) if known else None
