"""LoRA adapters: how they start, how rank and `train_*` flags become zeros, how they are named on disk.

An adapter always has every matrix at a padded rank, so all adapters of a server share compiled programs. What a flag
switches off, and what lies beyond the rank, is zero on both sides; its gradient is then zero too and it stays zero.
Names on disk are those of PEFT, so a checkpoint can be used outside.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.model import ATTENTION, MLP, PROJECTIONS, UNEMBED, Adapter, projection_shapes

ALPHA = 32.0
MAX_RANK = 256
_SMALLEST_PADDED_RANK = 32
_MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class LoraSettings:
    """What a client asks for; the scale follows from the rank (alpha is not on the wire)."""

    rank: int
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            raise UserError(f"lora_config.rank: {self.rank} is not between 1 and {MAX_RANK}")
        if not (self.train_attn or self.train_mlp or self.train_unembed):
            raise UserError(
                "lora_config: train_attn, train_mlp and train_unembed are all false; nothing would be trained"
            )

    @property
    def scale(self) -> float:
        return ALPHA / self.rank

    @property
    def padded_rank(self) -> int:
        """Powers of two from a common floor: few distinct shapes."""
        return max(_SMALLEST_PADDED_RANK, 1 << (self.rank - 1).bit_length())

    def trains(self, name: str) -> bool:
        """Whether the named matrix belongs to a group that is trained."""
        if name in ATTENTION:
            return self.train_attn
        return self.train_mlp if name in MLP else self.train_unembed


def _shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    return {**projection_shapes(config), UNEMBED: (config.hidden_size, config.vocab_size)}


def zeros(config: ModelConfig, padded_rank: int = _SMALLEST_PADDED_RANK) -> Adapter:
    """An adapter that changes nothing: how the base model itself is sampled with the same programs."""
    adapter: Adapter = {}
    for name, (inputs, outputs) in _shapes(config).items():
        lead = () if name == UNEMBED else (config.layers,)
        adapter[name] = (
            np.zeros((*lead, padded_rank, inputs), np.float32),
            np.zeros((*lead, padded_rank, outputs), np.float32),
        )
    return adapter


def start(config: ModelConfig, settings: LoraSettings, seed: int) -> Adapter:
    """A fresh adapter: random A, zero B, so that training starts at the base model."""
    rng = np.random.default_rng(seed)
    adapter = zeros(config, settings.padded_rank)
    for name, (inputs, _) in _shapes(config).items():
        down, _ = adapter[name]
        drawn = rng.standard_normal((*down.shape[:-2], settings.rank, inputs)) / math.sqrt(inputs)
        if settings.trains(name):
            down[..., : settings.rank, :] = drawn.astype(np.float32)
    return adapter


def to_tensors(adapter: Mapping[str, Any], settings: LoraSettings) -> dict[str, Matrix]:
    """Matrices under PEFT's names, cut to the rank and to what is trained."""
    tensors: dict[str, Matrix] = {}
    rank = settings.rank
    for name in (*PROJECTIONS, UNEMBED):
        if not settings.trains(name):
            continue
        down, up = (np.asarray(side) for side in adapter[name])
        if name == UNEMBED:
            tensors[_tensor_name(name, 0, "A")] = np.ascontiguousarray(down[:rank])
            tensors[_tensor_name(name, 0, "B")] = np.ascontiguousarray(up[:rank].T)
            continue
        for layer in range(down.shape[0]):
            tensors[_tensor_name(name, layer, "A")] = np.ascontiguousarray(down[layer, :rank])
            tensors[_tensor_name(name, layer, "B")] = np.ascontiguousarray(up[layer, :rank].T)
    return tensors


def from_tensors(config: ModelConfig, settings: LoraSettings, tensors: Mapping[str, Matrix]) -> Adapter:
    """Reverse of `to_tensors`, padded again."""
    adapter = zeros(config, settings.padded_rank)
    for name in (*PROJECTIONS, UNEMBED):
        if not settings.trains(name):
            continue
        down, up = adapter[name]
        if name == UNEMBED:
            down[: settings.rank] = tensors[_tensor_name(name, 0, "A")]
            up[: settings.rank] = tensors[_tensor_name(name, 0, "B")].T
            continue
        for layer in range(config.layers):
            down[layer, : settings.rank] = tensors[_tensor_name(name, layer, "A")]
            up[layer, : settings.rank] = tensors[_tensor_name(name, layer, "B")].T
    return adapter


def _tensor_name(name: str, layer: int, side: str) -> str:
    module = "lm_head" if name == UNEMBED else f"model.layers.{layer}.{_MODULES[name]}"
    return f"base_model.model.{module}.lora_{side}.weight"


def peft_config(settings: LoraSettings, base_model: str) -> dict[str, Any]:
    """`adapter_config.json` beside the weights."""
    modules = [re.sub(r".*\.", "", module) for name, module in _MODULES.items() if settings.trains(name)]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": settings.rank,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules + (["lm_head"] if settings.train_unembed else []),
    }
