"""Adapters: where they start, what flags and ranks make of them, how they travel through files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinker_atropos.local_tinker import lora
from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.lora import LoraSettings
from tinker_atropos.local_tinker.model import ATTENTION, MLP, UNEMBED


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        (LoraSettings(4), {*ATTENTION, *MLP, UNEMBED}),
        (LoraSettings(4, train_attn=False), {*MLP, UNEMBED}),
        (LoraSettings(4, train_mlp=False), {*ATTENTION, UNEMBED}),
        (LoraSettings(4, train_unembed=False), {*ATTENTION, *MLP}),
    ],
    ids=["everything", "no attention", "no mlp", "no unembedding"],
)
def test_only_trained_groups_start_random(small: ModelConfig, settings: LoraSettings, trained: set[str]) -> None:
    adapter = lora.start(small, settings, seed=1)
    assert {name for name, (down, _) in adapter.items() if np.any(down)} == trained
    assert not any(np.any(up) for _, up in adapter.values())


@pytest.mark.parametrize(("rank", "padded"), [(1, 32), (8, 32), (32, 32), (33, 64), (64, 64), (200, 256)])
def test_ranks_share_few_shapes(small: ModelConfig, rank: int, padded: int) -> None:
    settings = LoraSettings(rank)
    down, _ = lora.start(small, settings, seed=1)["q"]
    assert settings.padded_rank == down.shape[1] == padded
    assert np.all(down[:, :rank] != 0)
    assert not np.any(down[:, rank:])


def test_seed_decides_the_start(small: ModelConfig) -> None:
    first, again, other = (lora.start(small, LoraSettings(4), seed)["q"][0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("settings", [LoraSettings(4), LoraSettings(40, train_mlp=False)])
def test_tensors_carry_an_adapter_unchanged(small: ModelConfig, settings: LoraSettings) -> None:
    adapter = lora.start(small, settings, seed=1)
    adapter[UNEMBED][1][: settings.rank] = 0.5
    tensors = lora.to_tensors(adapter, settings)
    back = lora.from_tensors(small, settings, tensors)
    for name, sides in adapter.items():
        for side, returned in zip(sides, back[name], strict=True):
            np.testing.assert_array_equal(side, returned)
    shape = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"].shape
    assert shape == (settings.rank, small.hidden_size)
    assert ("base_model.model.model.layers.0.mlp.up_proj.lora_B.weight" in tensors) is settings.train_mlp


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "rank: 0"),
        ({"rank": 257}, "rank: 257"),
        ({"rank": 8, "train_attn": False, "train_mlp": False, "train_unembed": False}, "all false"),
    ],
)
def test_refused_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LoraSettings(**fields)
