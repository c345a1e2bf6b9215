"""What is asked of the model and what comes back, whatever API it was asked through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length"]

MOST_SAMPLES = 1024
"""Completions of one prompt in one request."""


@dataclass(frozen=True)
class Sampling:
    """How to sample. max_tokens None = as much as the context allows."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    keep_stop: bool = False  # leave the matched stop string or token in the text
    top_logprobs: int = 0


@dataclass(frozen=True, order=True)
class Version:
    """Of a policy: see docs of the trajectory protocol."""

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.step}"


@dataclass(frozen=True)
class Sampled:
    """One sequence as the service returned it."""

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    reason: FinishReason
    top: list[list[tuple[int, float]] | None] | None = None
    """For each position the most likely (token, logprob), if asked for and known."""


@dataclass(frozen=True)
class Completion:
    """One sequence as it is answered."""

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    reason: FinishReason
    text: str
    matched: str | int | None = None
    """The stop string or stop token that ended it."""
    top: list[list[tuple[int, float]] | None] | None = None


@dataclass(frozen=True)
class Generated:
    """All completions of one prompt, sampled by one policy."""

    prompt: list[int]
    completions: list[Completion]
    version: Version
    cached_tokens: int = 0
