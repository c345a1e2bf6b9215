"""Which Llama folders are read and which are refused, with what words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tinker_atropos.local_tinker.config import ModelConfig, parse_config, read_config
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.weights import load_weights, random_weights, save_weights

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({}, "head_dim", 4),
        ({"head_dim": 8}, "head_dim", 8),
        ({"num_key_value_heads": None}, "kv_heads", 4),
        ({"eos_token_id": [2, 5]}, "eos_tokens", (2, 5)),
        ({"eos_token_id": None}, "eos_tokens", ()),
        ({"rope_theta": 5e5}, "rope_theta", 5e5),
        ({"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}, "rope_theta", 1e5),
        ({"tie_word_embeddings": True}, "tied_embeddings", True),
    ],
)
def test_accepted(change: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(parse_config({**LLAMA, **change}, "config.json"), field) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen3"}, "model_type 'qwen3' is not supported"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope type 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn'"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_config({**LLAMA, **change}, "config.json")


def test_missing_key_is_named() -> None:
    with pytest.raises(UserError, match="'hidden_size' is missing"):
        parse_config({key: value for key, value in LLAMA.items() if key != "hidden_size"}, "config.json")


@pytest.mark.parametrize(("content", "message"), [(None, r"no config\.json"), ("{", "not valid JSON")])
def test_unreadable_folder(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_weights_survive_a_hugging_face_folder(tmp_path: Path, small: ModelConfig, tied: bool, sharded: bool) -> None:
    config = ModelConfig(**{**vars(small), "tied_embeddings": tied})
    weights = random_weights(config, seed=1)
    if not tied:
        weights["head"] = weights["embed"] + 1
    save_weights(tmp_path, weights)
    if sharded:
        tensors = load_file(str(tmp_path / "model.safetensors"))
        names = sorted(tensors)
        for shard, part in (("one", names[::2]), ("two", names[1::2])):
            save_file({name: tensors[name] for name in part}, str(tmp_path / shard))
        index = {"weight_map": {name: ("one", "two")[n % 2] for n, name in enumerate(names)}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        (tmp_path / "model.safetensors").unlink()
    back = load_weights(tmp_path, config)
    assert back.keys() == weights.keys()
    for name in ("embed", "norm", *(["head"] if not tied else [])):
        np.testing.assert_array_equal(back[name], weights[name])
    for name, value in weights["layers"].items():
        np.testing.assert_array_equal(back["layers"][name], value)


def test_incomplete_weights_are_named(tmp_path: Path, small: ModelConfig) -> None:
    with pytest.raises(UserError, match=r"neither model\.safetensors"):
        load_weights(tmp_path, small)
    weights = random_weights(small, seed=1)
    save_weights(tmp_path, weights)
    with pytest.raises(UserError, match=r"lm_head\.weight is missing"):
        load_weights(tmp_path, ModelConfig(**{**vars(small), "tied_embeddings": False}))
