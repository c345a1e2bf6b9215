"""A model small enough that its programs compile in a second, with random weights."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.engine import Engine
from tinker_atropos.local_tinker.weights import random_weights

SMALL = ModelConfig(
    vocab_size=24,
    hidden_size=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    intermediate_size=24,
    context_length=64,
    eos_tokens=(2,),
)


def text_of(tokens: Any) -> str:
    """One letter per token, so that stop strings of several tokens can be tried."""
    return "".join(chr(ord("a") + token) for token in tokens)


def sharpened() -> Any:
    """Random weights large enough that the model prefers some tokens clearly."""
    weights = random_weights(SMALL, seed=3)
    for name, value in weights["layers"].items():
        if "norm" not in name:
            weights["layers"][name] = value * 12
    weights["embed"] = weights["embed"] * 12
    return weights


@pytest.fixture(scope="session")
def small() -> ModelConfig:
    return SMALL


@pytest.fixture(scope="session")
def weights() -> Any:
    return sharpened()


@pytest.fixture(scope="session")
def engine(weights: Any) -> Engine:
    return Engine(SMALL, weights, text_of)
