"""The losses, as the public documentation defines them: sums over tokens.

One function for all, chosen by a traced index: switching the loss never compiles anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from tinker_atropos.local_tinker.errors import UserError

LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro")
INPUTS = dict.fromkeys(LOSSES, ("logprobs", "advantages")) | {"cross_entropy": ("weights",)}

_CLIPPED = frozenset({"clip_low_threshold", "clip_high_threshold"})
_SETTINGS: dict[str, frozenset[str]] = {
    "cross_entropy": frozenset(),
    "importance_sampling": frozenset(),
    "ppo": _CLIPPED,
    "cispo": _CLIPPED,
    "dro": frozenset({"beta"}),
}


@dataclass(frozen=True)
class Loss:
    """A loss and its constants."""

    name: str
    clip_low: float = 0.8
    clip_high: float = 1.2
    beta: float = 0.05

    @property
    def index(self) -> int:
        return LOSSES.index(self.name)


def parse_loss(name: str, settings: Mapping[str, float | str]) -> Loss:
    """Check `loss_fn` and `loss_fn_config` of a request."""
    if name not in LOSSES:
        raise UserError(f"loss_fn: {name!r} is not offered by the local server; it has {', '.join(LOSSES)}")
    values: dict[str, float] = {}
    for key, value in settings.items():
        if key not in _SETTINGS[name]:
            known = ", ".join(sorted(_SETTINGS[name])) or "none"
            raise UserError(f"loss_fn_config.{key}: not a setting of {name}; settings: {known}")
        if isinstance(value, str):
            raise UserError(f"loss_fn_config.{key}: {value!r} is a text; a number is needed")
        values[key] = value
    loss = Loss(
        name,
        clip_low=values.get("clip_low_threshold", 0.8),
        clip_high=values.get("clip_high_threshold", 1.2),
        beta=values.get("beta", 0.05),
    )
    if loss.clip_low > loss.clip_high:
        raise UserError(
            f"loss_fn_config: clip_low_threshold {loss.clip_low} is above clip_high_threshold {loss.clip_high}"
        )
    return loss


def token_losses(
    index: jax.Array,
    constants: tuple[jax.Array, jax.Array, jax.Array],
    logprobs: jax.Array,
    sampled: jax.Array,
    factor: jax.Array,
    real: jax.Array,
) -> jax.Array:
    """Loss of each token. `factor` is the weight (cross entropy) or the advantage; `real` is 0 on padding, else 1."""
    low, high, beta = constants

    def cross_entropy(lp: jax.Array) -> jax.Array:
        return -lp * factor

    def importance_sampling(lp: jax.Array) -> jax.Array:
        return -jnp.exp(lp - sampled) * factor

    def ppo(lp: jax.Array) -> jax.Array:
        ratio = jnp.exp(lp - sampled)
        return -jnp.minimum(ratio * factor, jnp.clip(ratio, low, high) * factor)

    def cispo(lp: jax.Array) -> jax.Array:
        return -lax.stop_gradient(jnp.clip(jnp.exp(lp - sampled), low, high)) * lp * factor

    def dro(lp: jax.Array) -> jax.Array:
        return -(lp * factor - 0.5 * beta * (lp - sampled) ** 2)

    return real * lax.switch(index, [cross_entropy, importance_sampling, ppo, cispo, dro], logprobs)
