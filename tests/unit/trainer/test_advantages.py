"""Advantages of a group."""

from __future__ import annotations

import numpy as np
import pytest

from tinker_atropos.trainer.advantages import group_advantages

CASES = {
    "two levels": ([1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
    "all equal": ([0.3, 0.3], [0, 0]),
    "equal up to rounding": ([0.1 + 0.2, 0.3], [0, 0]),
    "equal at a large size": ([1e9, 1e9 + 1e-3], [0, 0]),
    "tiny but real difference": ([1e-3, 0], [5e-4, -5e-4]),
    "one rollout": ([1], [0]),
    "none": ([], []),
}


@pytest.mark.parametrize(("scores", "advantages"), CASES.values(), ids=CASES)
def test_score_minus_mean(scores: list[float], advantages: list[float]) -> None:
    np.testing.assert_allclose(group_advantages(np.array(scores, np.float64)), advantages, atol=1e-12)
