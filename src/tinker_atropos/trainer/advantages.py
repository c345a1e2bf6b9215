"""How the scores of a group become advantages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RELATIVE_TOLERANCE = 1e-9
"""Scores that differ by less than this part of their size are equal: 0.1 + 0.2 and 0.3 are one reward."""


def group_advantages(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Score minus the group's mean (the group-mean baseline of GRPO without the division by the deviation).

    scores: float64 [G], one of each rollout of a prompt. Returns float64 [G]; all exactly 0 when the scores are equal
    up to rounding, so that a group which teaches nothing is recognised.
    """
    if len(scores) == 0:
        return scores
    spread = float(scores.max() - scores.min())
    if spread <= RELATIVE_TOLERANCE * max(1.0, float(np.abs(scores).max())):
        return np.zeros_like(scores)
    advantages: npt.NDArray[np.float64] = scores - scores.mean()
    return advantages
