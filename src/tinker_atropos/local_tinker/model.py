"""The decoder: a Llama-family forward pass in JAX with LoRA on every projection and on the unembedding.

Layers are stacked and scanned (one layer's code is compiled, whatever the depth), all arithmetic is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tinker_atropos.local_tinker.config import ModelConfig

Weights = dict[str, Any]
Adapter = dict[str, Any]

ATTENTION = ("q", "k", "v", "o")
MLP = ("gate", "up", "down")
PROJECTIONS = ATTENTION + MLP
UNEMBED = "unembed"

_MASKED = -1e30
_WHOLE_ATTENTION = 512
_QUERY_BLOCK = 256
_LOGIT_ELEMENTS = 1 << 24
_RESIDUAL_BUDGET = 1 << 28


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of each projection of a layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "q": (hidden, queries),
        "k": (hidden, keys),
        "v": (hidden, keys),
        "o": (queries, hidden),
        "gate": (hidden, inner),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }


def _norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _project(x: jax.Array, layer: Weights, adapter: Adapter, scale: jax.Array, name: str) -> jax.Array:
    down, up = adapter[name]
    return x @ layer[name] + scale * ((x @ down.T) @ up)


def _rotate(x: jax.Array, positions: jax.Array, config: ModelConfig) -> jax.Array:
    """Rotary positions, halves convention; x is [rows, time, heads, head_dim]."""
    frequencies = config.rope_theta ** (-jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array, config: ModelConfig
) -> jax.Array:
    """Grouped-query attention of whole rows; mask is [rows or 1, time, keys]."""
    rows, time = queries.shape[:2]
    grouped = queries.reshape(rows, time, config.kv_heads, config.heads // config.kv_heads, config.head_dim)
    scores = jnp.einsum("btgrd,bsgd->bgrts", grouped, keys) / math.sqrt(config.head_dim)
    shares = jax.nn.softmax(jnp.where(mask[:, None, None], scores, _MASKED), axis=-1)
    mixed = jnp.einsum("bgrts,bsgd->btgrd", shares, values)
    return mixed.reshape(rows, time, config.heads * config.head_dim)


def attend_one(
    query: jax.Array, segments: list[tuple[jax.Array, jax.Array, jax.Array]], config: ModelConfig
) -> jax.Array:
    """Attention of one token per row over several (keys, values, mask [rows or 1, keys]) segments under one softmax.

    Keys and values are [rows, kv_heads, keys, head_dim]: read in place, never transposed.
    """
    rows = query.shape[0]
    grouped = query.reshape(rows, config.kv_heads, config.heads // config.kv_heads, config.head_dim)
    scores = [
        jnp.where(mask[:, None, None], jnp.einsum("bgrd,bgsd->bgrs", grouped, keys), _MASKED)
        for keys, _, mask in segments
    ]
    shares = jax.nn.softmax(jnp.concatenate(scores, axis=-1) / math.sqrt(config.head_dim), axis=-1)
    mixed: jax.Array = jnp.float32(0)
    start = 0
    for _, values, _ in segments:
        end = start + values.shape[2]
        mixed = mixed + jnp.einsum("bgrs,bgsd->bgrd", shares[..., start:end], values)
        start = end
    return mixed.reshape(rows, 1, config.heads * config.head_dim)


def _causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, config: ModelConfig) -> jax.Array:
    """Causal attention over right-padded rows: padding lies after every real token, so it needs no mask of its own."""
    time = q.shape[1]
    steps = jnp.arange(time)
    if time <= _WHOLE_ATTENTION or time % _QUERY_BLOCK:
        return _attention(q, k, v, (steps[None, :] <= steps[:, None])[None], config)

    # Long rows in blocks of queries, recomputed in the backward pass: the full time × time scores would not fit.
    def block(start: jax.Array) -> jax.Array:
        part = lax.dynamic_slice_in_dim(q, start, _QUERY_BLOCK, axis=1)
        seen = steps[None, :] <= (start + jnp.arange(_QUERY_BLOCK))[:, None]
        return _attention(part, k, v, seen[None], config)

    blocks = lax.map(jax.checkpoint(block), jnp.arange(0, time, _QUERY_BLOCK))
    return jnp.moveaxis(blocks, 0, 1).reshape(q.shape[0], time, -1)


def decoder_layer(
    config: ModelConfig,
    x: jax.Array,
    layer: Weights,
    adapter: Adapter,
    scale: jax.Array,
    positions: jax.Array,
    attend: Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]],
) -> tuple[jax.Array, Any]:
    """One layer; `attend(q, k, v)` decides what is looked at and what of it is kept."""
    rows, time = x.shape[:2]
    normed = _norm(x, layer["input_norm"], config.rms_norm_eps)
    q = _project(normed, layer, adapter, scale, "q").reshape(rows, time, config.heads, config.head_dim)
    k = _project(normed, layer, adapter, scale, "k").reshape(rows, time, config.kv_heads, config.head_dim)
    v = _project(normed, layer, adapter, scale, "v").reshape(rows, time, config.kv_heads, config.head_dim)
    mixed, kept = attend(_rotate(q, positions, config), _rotate(k, positions, config), v)
    x = x + _project(mixed, layer, adapter, scale, "o")
    normed = _norm(x, layer["post_norm"], config.rms_norm_eps)
    gated = jax.nn.silu(_project(normed, layer, adapter, scale, "gate")) * _project(normed, layer, adapter, scale, "up")
    return x + _project(gated, layer, adapter, scale, "down"), kept


def layer_adapters(adapter: Adapter) -> Adapter:
    """The part of an adapter that is stacked over layers."""
    return {name: adapter[name] for name in PROJECTIONS}


def final_norm(config: ModelConfig, base: Weights, x: jax.Array) -> jax.Array:
    """What the unembedding reads."""
    return _norm(x, base["norm"], config.rms_norm_eps)


def forward(
    config: ModelConfig, base: Weights, adapter: Adapter, scale: jax.Array, ids: jax.Array, *, keep_kv: bool = False
) -> tuple[jax.Array, Any]:
    """Final hidden states of right-padded rows [rows, time], and the stacked keys and values if asked."""
    rows, time = ids.shape
    positions = jnp.broadcast_to(jnp.arange(time), (rows, time))

    def step(x: jax.Array, stacked: tuple[Weights, Adapter]) -> tuple[jax.Array, Any]:
        layer, lora = stacked

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
            return _causal_attention(q, k, v, config), (k, v) if keep_kv else None

        return decoder_layer(config, x, layer, lora, scale, positions, attend)

    residuals = config.layers * rows * time * 4 * (6 * config.hidden_size + 4 * config.intermediate_size)
    residuals += config.layers * rows * config.heads * time * min(time, _QUERY_BLOCK) * 4
    body = jax.checkpoint(step) if not keep_kv and residuals > _RESIDUAL_BUDGET else step
    x, kept = lax.scan(body, base["embed"][ids], (base["layers"], layer_adapters(adapter)))
    return final_norm(config, base, x), kept


def logits(base: Weights, adapter: Adapter, scale: jax.Array, hidden: jax.Array) -> jax.Array:
    """Scores over the vocabulary of normed hidden states."""
    down, up = adapter[UNEMBED]
    return hidden @ (base["head"] if "head" in base else base["embed"]).T + scale * ((hidden @ down.T) @ up)


def token_logprobs(
    config: ModelConfig, base: Weights, adapter: Adapter, scale: jax.Array, ids: jax.Array, targets: jax.Array
) -> jax.Array:
    """log p(target) at each position, [rows, time]. Logits exist for a chunk of tokens at a time."""
    hidden, _ = forward(config, base, adapter, scale, ids)
    rows, time, width = hidden.shape
    total = rows * time
    chunk = min(total, max(64, _LOGIT_ELEMENTS // config.vocab_size))

    def pick(h: jax.Array, t: jax.Array) -> jax.Array:
        z = logits(base, adapter, scale, h)
        return jnp.take_along_axis(z, t[:, None], axis=1)[:, 0] - jax.nn.logsumexp(z, axis=-1)

    # Recomputed in the backward pass, so that no chunk's logits are kept for it.
    checked = jax.checkpoint(pick)
    padding = -total % chunk
    flat = jnp.pad(hidden.reshape(total, width), ((0, padding), (0, 0)))
    wanted = jnp.pad(targets.reshape(total), (0, padding))
    if flat.shape[0] == chunk:
        return checked(flat, wanted)[:total].reshape(rows, time)
    picked = lax.map(lambda pair: checked(*pair), (flat.reshape(-1, chunk, width), wanted.reshape(-1, chunk)))
    return picked.reshape(-1)[:total].reshape(rows, time)
