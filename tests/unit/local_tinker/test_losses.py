"""Each loss against its formula written out in numpy, and its derivative with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.losses import Loss, parse_loss, token_losses

LOGPROBS = np.array([-0.1, -1.5, -0.7, -2.0, -0.3, -1.0], np.float32)
SAMPLED = np.array([-0.1, -0.5, -1.4, -2.2, -1.3, -0.2], np.float32)
FACTOR = np.array([1.0, 1.0, 1.0, -2.0, -0.5, -1.0], np.float32)
RATIO = np.exp(LOGPROBS - SAMPLED)
LOW, HIGH, BETA = 0.8, 1.2, 0.05

Expected = Callable[[], tuple[Any, Any]]


def _ppo() -> tuple[Any, Any]:
    inside = (RATIO >= LOW) & (RATIO <= HIGH)
    free = np.clip(RATIO, LOW, HIGH) * FACTOR >= RATIO * FACTOR
    slope = -RATIO * FACTOR * (inside | free)
    return -np.minimum(RATIO * FACTOR, np.clip(RATIO, LOW, HIGH) * FACTOR), slope


FORMULAS: dict[str, Expected] = {
    "cross_entropy": lambda: (-LOGPROBS * FACTOR, -FACTOR),
    "importance_sampling": lambda: (-RATIO * FACTOR, -RATIO * FACTOR),
    "ppo": _ppo,
    "cispo": lambda: (-np.clip(RATIO, LOW, HIGH) * LOGPROBS * FACTOR, -np.clip(RATIO, LOW, HIGH) * FACTOR),
    "dro": lambda: (
        -(LOGPROBS * FACTOR - 0.5 * BETA * (LOGPROBS - SAMPLED) ** 2),
        -(FACTOR - BETA * (LOGPROBS - SAMPLED)),
    ),
}


@pytest.mark.parametrize("name", list(FORMULAS))
def test_loss_and_derivative_follow_the_formula(name: str) -> None:
    loss = Loss(name)

    def of(logprobs: Any) -> Any:
        constants = (jnp.float32(LOW), jnp.float32(HIGH), jnp.float32(BETA))
        return token_losses(jnp.int32(loss.index), constants, logprobs, SAMPLED, FACTOR, jnp.ones(6))

    expected, slope = FORMULAS[name]()
    np.testing.assert_allclose(of(LOGPROBS), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda lp: of(lp).sum())(LOGPROBS), slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(FORMULAS))
def test_padding_costs_nothing(name: str) -> None:
    constants = (jnp.float32(LOW), jnp.float32(HIGH), jnp.float32(BETA))
    index = jnp.int32(Loss(name).index)
    lost = token_losses(index, constants, LOGPROBS, SAMPLED, FACTOR * 0, jnp.zeros(6))
    np.testing.assert_array_equal(lost, np.zeros(6))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gspo", {}, "loss_fn: 'gspo'"),
        ("ppo", {"clip": 0.1}, "loss_fn_config.clip: not a setting of ppo"),
        ("cross_entropy", {"beta": 0.1}, "settings: none"),
        ("dro", {"beta": "small"}, "a number is needed"),
        ("cispo", {"clip_low_threshold": 1.3}, "is above"),
    ],
)
def test_refused_with_the_field_named(name: str, settings: dict[str, float | str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        parse_loss(name, settings)


def test_settings_reach_the_loss() -> None:
    assert parse_loss("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.5}) == Loss("ppo", 0.9, 1.5)
