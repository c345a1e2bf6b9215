"""AdamW against the formula in numpy, step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tinker_atropos.local_tinker.optimizer import AdamParams, adamw


def _numpy_adamw(p: Any, grads: list[Any], params: AdamParams) -> Any:
    m, v = np.zeros_like(p), np.zeros_like(p)
    for step, raw in enumerate(grads, start=1):
        norm = math.sqrt(float((raw**2).sum()))
        clipped = 0 < params.grad_clip_norm < norm
        gradient = raw * params.grad_clip_norm / norm if clipped else raw
        m = params.beta1 * m + (1 - params.beta1) * gradient
        v = params.beta2 * v + (1 - params.beta2) * gradient**2
        p = p * (1 - params.learning_rate * params.weight_decay)
        p = p - params.learning_rate * (m / (1 - params.beta1**step)) / (
            np.sqrt(v / (1 - params.beta2**step)) + params.eps
        )
    return p


@pytest.mark.parametrize(
    "params",
    [
        AdamParams(),
        AdamParams(learning_rate=0.01, eps=1e-8, weight_decay=0.1),
        AdamParams(learning_rate=0.01, eps=1e-3, grad_clip_norm=0.5),
        AdamParams(learning_rate=0.01, grad_clip_norm=1e6),
    ],
    ids=["the SDK's defaults", "weight decay", "clipped", "limit not reached"],
)
def test_three_steps_follow_the_formula(params: AdamParams) -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal(5).astype(np.float32)
    grads = [rng.standard_normal(5).astype(np.float32) for _ in range(3)]
    p, m, v = {"a": start}, {"a": np.zeros(5, np.float32)}, {"a": np.zeros(5, np.float32)}
    settings = {name: np.float32(value) for name, value in vars(params).items()}
    for step, gradient in enumerate(grads, start=1):
        p, m, v, norm = adamw(p, m, v, {"a": gradient}, np.float32(step), settings)
        assert float(norm) == pytest.approx(float(np.linalg.norm(gradient)), rel=1e-5)
    np.testing.assert_allclose(p["a"], _numpy_adamw(start, grads, params), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("eps", [0.0, 1e-12])
def test_what_never_had_a_gradient_stays(eps: float) -> None:
    zero = {"a": np.zeros(3, np.float32)}
    settings = {name: np.float32(value) for name, value in vars(AdamParams(eps=eps)).items()}
    p, _, _, _ = adamw(zero, zero, zero, zero, np.float32(1), settings)
    np.testing.assert_array_equal(p["a"], np.zeros(3))
