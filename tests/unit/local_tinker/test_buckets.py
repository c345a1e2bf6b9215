"""Shapes of programs: few for a tiny model, and nothing too large to be split."""

from __future__ import annotations

import dataclasses

import pytest

from tinker_atropos.local_tinker.buckets import (
    Buckets,
    SampleNeed,
    for_model,
    plan_sampling,
    plan_sequences,
)
from tinker_atropos.local_tinker.config import ModelConfig

TINY = ModelConfig(100, 128, 4, 4, 2, 32, 384, context_length=4096)
REAL = ModelConfig(49152, 576, 30, 9, 3, 64, 1536, context_length=2048)


def need(tokens: int, samples: int = 1, most: int = 8, first: int = 0) -> SampleNeed:
    return SampleNeed((first, *range(1, tokens)), samples, most)


@pytest.mark.parametrize("config", [TINY, REAL])
def test_every_length_up_to_the_context_has_a_shape(config: ModelConfig) -> None:
    buckets = for_model(config)
    assert buckets.length(config.context_length) == config.context_length
    assert buckets.tokens_to_generate(config.context_length - 1) == config.context_length
    assert buckets.length(1) == 16


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ([need(7, 16, first=n) for n in range(8)], [(16, 16, 128)]),
        ([need(7)], [(16, 16, 16)]),
        ([need(7, 20)], [(16, 16, 128)]),
        ([need(7, first=n) for n in range(17)], [(128, 16, 128)]),
        ([need(7, 300)], [(16, 16, 128), (16, 16, 128), (16, 16, 128)]),
        ([need(7), need(60)], [(16, 16, 16), (4, 64, 16)]),
        ([need(3000)], [(1, 4096, 16)]),
    ],
    ids=["a batch of groups", "one sample", "one group", "many prompts", "too many rows", "two lengths", "long prompt"],
)
def test_sampling_shapes(needs: list[SampleNeed], expected: list[tuple[int, int, int]]) -> None:
    plans = plan_sampling(for_model(TINY), needs)
    assert [(plan.prompt_slots, plan.prompt_length, plan.row_slots) for plan in plans] == expected
    rows = sorted((index, sample) for plan in plans for index, sample, _ in plan.rows)
    assert rows == [(i, s) for i, wanted in enumerate(needs) for s in range(wanted.samples)]
    for plan in plans:
        assert len(plan.rows) <= plan.row_slots
        assert len(plan.prompts) <= plan.prompt_slots
        for index, _, slot in plan.rows:
            assert plan.prompts[slot] == needs[index].prompt


def test_equal_prompts_share_a_slot() -> None:
    (plan,) = plan_sampling(for_model(TINY), [need(7), need(7), need(7, first=9)])
    assert [slot for _, _, slot in plan.rows] == [0, 0, 1]


def test_memory_bounds_the_rows() -> None:
    tight = dataclasses.replace(for_model(REAL), kv_budget=1 << 28)
    for plan in plan_sampling(tight, [need(1000, 64, most=900, first=n) for n in range(3)]):
        used = plan.row_slots * (plan.prompt_length + plan.generation) * tight.kv_bytes_per_token
        assert used <= tight.kv_budget


@pytest.mark.parametrize("config", [TINY, REAL])
@pytest.mark.parametrize("lengths", [[5], [16] * 128, [10] * 700, [3, 70, 300, 2000, 9], [2048] * 5])
def test_sequences_are_split_never_refused(config: ModelConfig, lengths: list[int]) -> None:
    buckets: Buckets = for_model(config)
    plans = plan_sequences(buckets, lengths, buckets.train_tokens)
    assert sorted(index for plan in plans for index in plan.indices) == list(range(len(lengths)))
    for plan in plans:
        assert len(plan.indices) <= plan.rows
        assert plan.rows * plan.length <= max(buckets.train_tokens, plan.length)
        assert all(lengths[index] <= plan.length for index in plan.indices)
