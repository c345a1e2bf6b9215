"""AdamW with per-call settings and global gradient clipping, over any tree of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class AdamParams:
    """Defaults are the SDK's."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


def _adamw(
    params: Any, first: Any, second: Any, gradients: Any, step: jax.Array, settings: dict[str, jax.Array]
) -> tuple[Any, Any, Any, jax.Array]:
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
    limit = settings["grad_clip_norm"]
    shrink = jnp.where((limit > 0) & (norm > limit), limit / norm, 1.0)
    beta1, beta2 = settings["beta1"], settings["beta2"]
    first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * shrink * g, first, gradients)
    second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * (shrink * g) ** 2, second, gradients)
    rate = settings["learning_rate"]

    def move(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        size = jnp.sqrt(v / (1 - beta2**step)) + settings["eps"]
        # Entries without any gradient so far (padding of the rank) stay where they are, also with eps = 0.
        direction = jnp.where(size > 0, (m / (1 - beta1**step)) / jnp.where(size > 0, size, 1.0), 0.0)
        return p * (1 - rate * settings["weight_decay"]) - rate * direction

    return jax.tree.map(move, params, first, second), first, second, norm


adamw = jax.jit(_adamw)
