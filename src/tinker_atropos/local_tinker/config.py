"""Shape of a Llama-family decoder, read from a Hugging Face `config.json`.

Frozen and hashable, so that it can be a static argument of compiled programs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_atropos.local_tinker.errors import UserError

_DEFAULT_ROPE_TYPES = (None, "default")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one decoder; names follow the Hugging Face configuration where it has one."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    context_length: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tied_embeddings: bool = True
    eos_tokens: tuple[int, ...] = ()

    @property
    def parameters(self) -> int:
        """Number of base weights: decides how coarse the program shapes may be."""
        attention = self.hidden_size * self.head_dim * 2 * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.layers * (attention + mlp + 2 * self.hidden_size) + embeddings + self.hidden_size

    @property
    def kv_bytes_per_token(self) -> int:
        """float32 keys and values of one token in all layers."""
        return self.layers * self.kv_heads * self.head_dim * 2 * 4


def read_config(directory: Path) -> ModelConfig:
    """Read `config.json` of a Hugging Face Llama directory; refuse what the decoder does not compute."""
    path = directory / "config.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(
            f"--model {directory}: no config.json there; give `tiny` or a Hugging Face Llama folder"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    return parse_config(raw, str(path))


def parse_config(raw: dict[str, Any], where: str) -> ModelConfig:
    """Pure part of `read_config`; `where` names the file in messages."""
    if raw.get("model_type") != "llama":
        raise UserError(
            f"{where}: model_type {raw.get('model_type')!r} is not supported; the local server runs 'llama'"
        )
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise UserError(f"{where}: {key} true is not supported; only Llama models without biases are")
    if raw.get("hidden_act", "silu") != "silu":
        raise UserError(f"{where}: hidden_act {raw['hidden_act']!r} is not supported; only 'silu' is")
    rope: dict[str, Any] = raw.get("rope_parameters") or {}
    scaling: dict[str, Any] = raw.get("rope_scaling") or {}
    rope_type = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type")
    if rope_type not in _DEFAULT_ROPE_TYPES:
        raise UserError(f"{where}: rope type {rope_type!r} is not supported; only plain rotary positions are")
    eos = raw.get("eos_token_id")
    try:
        heads = int(raw["num_attention_heads"])
        return ModelConfig(
            vocab_size=int(raw["vocab_size"]),
            hidden_size=int(raw["hidden_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
            intermediate_size=int(raw["intermediate_size"]),
            context_length=int(raw.get("max_position_embeddings", 2048)),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_tokens=() if eos is None else tuple(eos) if isinstance(eos, list) else (int(eos),),
        )
    except KeyError as error:
        raise UserError(f"{where}: key {error} is missing") from None
