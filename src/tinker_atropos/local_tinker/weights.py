"""Base weights between a Hugging Face Llama folder and the stacked arrays of the decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.flax import load_file
from safetensors.numpy import save_file

from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.model import PROJECTIONS, Weights, projection_shapes

_MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NORMS = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}

Floats = NDArray[np.float32]


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Where pre-training of the tiny model starts."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Floats:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32)

    layers = {name: normal(config.layers, *shape) for name, shape in projection_shapes(config).items()}
    layers |= {name: np.ones((config.layers, config.hidden_size), np.float32) for name in _NORMS}
    return {
        "embed": normal(config.vocab_size, config.hidden_size),
        "norm": np.ones(config.hidden_size, np.float32),
        "layers": layers,
    }


def load_weights(directory: Path, config: ModelConfig) -> Weights:
    """Read `model.safetensors`, or the shards that its index names, as float32."""
    tensors = _read(directory)

    def take(name: str) -> Floats:
        try:
            return np.asarray(tensors[name], np.float32)
        except KeyError:
            raise UserError(f"{directory}: tensor {name} is missing; not a complete Llama checkpoint") from None

    layers: dict[str, Floats] = {}
    for name in PROJECTIONS:
        parts = [take(f"model.layers.{n}.{_MODULES[name]}.weight").T for n in range(config.layers)]
        layers[name] = np.ascontiguousarray(np.stack(parts))
        expected = (config.layers, *projection_shapes(config)[name])
        if layers[name].shape != expected:
            raise UserError(f"{directory}: {_MODULES[name]} is {layers[name].shape}, config.json says {expected}")
    for name, module in _NORMS.items():
        layers[name] = np.stack([take(f"model.layers.{n}.{module}.weight") for n in range(config.layers)])
    weights: Weights = {"embed": take("model.embed_tokens.weight"), "norm": take("model.norm.weight"), "layers": layers}
    if not config.tied_embeddings:
        weights["head"] = take("lm_head.weight")
    return weights


def _read(directory: Path) -> Mapping[str, Any]:
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if single.exists():
        return dict(load_file(str(single)))
    if not index.exists():
        raise UserError(f"--model {directory}: neither model.safetensors nor its index is there")
    tensors: dict[str, Any] = {}
    for shard in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        tensors.update(load_file(str(directory / shard)))
    return tensors


def save_weights(directory: Path, weights: Weights) -> None:
    """Write `model.safetensors` under Hugging Face names."""
    tensors: dict[str, Floats] = {
        "model.embed_tokens.weight": np.asarray(weights["embed"]),
        "model.norm.weight": np.asarray(weights["norm"]),
    }
    if "head" in weights:
        tensors["lm_head.weight"] = np.asarray(weights["head"])
    layers = {name: np.asarray(value) for name, value in weights["layers"].items()}
    for number in range(layers["q"].shape[0]):
        for name in PROJECTIONS:
            tensors[f"model.layers.{number}.{_MODULES[name]}.weight"] = np.ascontiguousarray(layers[name][number].T)
        for name, module in _NORMS.items():
            tensors[f"model.layers.{number}.{module}.weight"] = np.ascontiguousarray(layers[name][number])
    path = directory / "model.safetensors"
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes for the owner only; images run as another user
