"""The decoder against a plain numpy Llama, one token at a time, with its LoRA adapters."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tinker_atropos.local_tinker import lora, model
from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.lora import LoraSettings
from tinker_atropos.local_tinker.weights import random_weights


def _adapter(config: ModelConfig, settings: LoraSettings, seed: int = 1) -> Any:
    """An adapter whose second matrices are not zero, so that it changes the model."""
    adapter = lora.start(config, settings, seed)
    rng = np.random.default_rng(seed)
    for name, (_, up) in adapter.items():
        if settings.trains(name):
            up[..., : settings.rank, :] = rng.standard_normal(up[..., : settings.rank, :].shape) * 0.1
    return adapter


def _norm(x: Any, weight: Any, eps: float) -> Any:
    return x / np.sqrt((x * x).mean() + eps) * weight


def _rotate(x: Any, position: int, config: ModelConfig) -> Any:
    half = config.head_dim // 2
    angles = position / config.rope_theta ** (np.arange(half) * 2 / config.head_dim)
    first, second = x[..., :half], x[..., half:]
    turned = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
    return np.concatenate(turned, axis=-1)


def numpy_logprobs(config: ModelConfig, weights: Any, adapter: Any, scale: float, ids: list[int]) -> Any:
    """log p over the vocabulary after each token."""

    def project(x: Any, name: str, layer: int) -> Any:
        down, up = (np.asarray(side[layer], np.float64) for side in adapter[name])
        return x @ weights["layers"][name][layer] + scale * ((x @ down.T) @ up)

    keys: list[list[Any]] = [[] for _ in range(config.layers)]
    values: list[list[Any]] = [[] for _ in range(config.layers)]
    out = []
    for position, token in enumerate(ids):
        x = weights["embed"][token].astype(np.float64)
        for n in range(config.layers):
            h = _norm(x, weights["layers"]["input_norm"][n], config.rms_norm_eps)
            q = _rotate(project(h, "q", n).reshape(config.heads, config.head_dim), position, config)
            keys[n].append(_rotate(project(h, "k", n).reshape(config.kv_heads, config.head_dim), position, config))
            values[n].append(project(h, "v", n).reshape(config.kv_heads, config.head_dim))
            mixed = []
            for head in range(config.heads):
                shared = head // (config.heads // config.kv_heads)
                scores = np.array([q[head] @ k[shared] for k in keys[n]]) / math.sqrt(config.head_dim)
                share = np.exp(scores - scores.max())
                mixed.append(sum(s * v[shared] for s, v in zip(share / share.sum(), values[n], strict=True)))
            x = x + project(np.concatenate(mixed), "o", n)
            h = _norm(x, weights["layers"]["post_norm"][n], config.rms_norm_eps)
            gate = project(h, "gate", n)
            x = x + project(gate / (1 + np.exp(-gate)) * project(h, "up", n), "down", n)
        h = _norm(x, weights["norm"], config.rms_norm_eps)
        down, up = adapter["unembed"]
        z = weights.get("head", weights["embed"]) @ h + scale * ((down @ h) @ up)
        out.append(z - z.max() - math.log(np.exp(z - z.max()).sum()))
    return np.array(out)


@pytest.mark.parametrize(
    "settings",
    [
        LoraSettings(4),
        LoraSettings(4, train_attn=False),
        LoraSettings(4, train_mlp=False, train_unembed=False),
    ],
    ids=["all groups", "without attention", "attention only"],
)
def test_logprobs_equal_a_plain_llama(small: ModelConfig, weights: Any, settings: LoraSettings) -> None:
    adapter = _adapter(small, settings)
    ids = [3, 7, 1, 22, 9, 9, 4]
    targets = [7, 1, 22, 9, 9, 4, 2]
    got = model.token_logprobs(
        small, weights, adapter, jnp.float32(settings.scale), jnp.array([[*ids, 0, 0]]), jnp.array([[*targets, 0, 0]])
    )
    expected = numpy_logprobs(small, weights, adapter, settings.scale, ids)[np.arange(7), targets]
    np.testing.assert_allclose(np.asarray(got)[0, :7], expected, rtol=1e-4, atol=1e-4)


def test_untied_head_is_used(small: ModelConfig, weights: Any) -> None:
    untied = dataclasses.replace(small, tied_embeddings=False)
    own = {**weights, "head": np.random.default_rng(5).standard_normal(weights["embed"].shape).astype(np.float32)}
    adapter = lora.zeros(untied)
    got = model.token_logprobs(untied, own, adapter, jnp.float32(0), jnp.array([[3, 7]]), jnp.array([[7, 1]]))
    expected = numpy_logprobs(untied, own, adapter, 0.0, [3, 7])[[0, 1], [7, 1]]
    np.testing.assert_allclose(np.asarray(got)[0], expected, rtol=1e-4, atol=1e-4)


def test_long_rows_in_blocks_equal_whole_rows(monkeypatch: pytest.MonkeyPatch, small: ModelConfig) -> None:
    """Query blocks, recomputed layers and logits in chunks are ways to compute the same numbers."""
    config = dataclasses.replace(small, context_length=1024)
    weights = random_weights(config, seed=1)
    adapter = _adapter(config, LoraSettings(4))
    ids = jnp.asarray(np.random.default_rng(2).integers(0, 24, (1, 768)))
    arguments = (config, weights, adapter, jnp.float32(8.0), ids, ids)
    whole = model.token_logprobs(*arguments)
    monkeypatch.setattr(model, "_WHOLE_ATTENTION", 64)
    monkeypatch.setattr(model, "_LOGIT_ELEMENTS", 24 * 100)
    monkeypatch.setattr(model, "_RESIDUAL_BUDGET", 1)
    np.testing.assert_allclose(model.token_logprobs(*arguments), whole, rtol=1e-4, atol=1e-4)
