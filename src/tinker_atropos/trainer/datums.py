"""From the groups of a batch to what `forward_backward` takes.

Pure: groups in, arrays out. The wire form of the SDK is made in `service.py`.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trainer.advantages import group_advantages


@dataclass(frozen=True)
class Datum:
    """One sequence, shifted by one: position i predicts targets[i] from tokens[: i + 1]. All arrays are [T - 1]."""

    tokens: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    """Of the sampling policy; 0 at prompt positions."""
    advantages: npt.NDArray[np.float32]
    """0 at prompt positions."""


@dataclass
class BuiltBatch:
    """What a batch comes to."""

    datums: list[Datum] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    """Group id → reason, for groups that could not be used at all."""
    without_signal: int = 0
    """Groups whose rollouts are all equally good: nothing to learn, not sent, counted as trained."""
    sampled_tokens: int = 0
    trained_tokens: int = 0

    @property
    def has_signal(self) -> bool:
        return bool(self.datums)


def build_batch(groups: SequenceOf[pb.Group], *, max_length: int, needs_logprobs: bool) -> BuiltBatch:
    """Datums of all groups.

    max_length: longest sequence that is trained, in tokens; longer ones still count for their group's baseline.
    needs_logprobs: the loss compares with the sampling policy (every loss but cross_entropy).
    """
    built = BuiltBatch()
    for group in groups:
        datums, reason = _build_group(group, max_length, needs_logprobs)
        for sequence in group.sequences:
            built.sampled_tokens += int(np.frombuffer(sequence.loss_mask, np.uint8).sum())
        if reason == "no_signal":
            built.without_signal += 1
        elif reason:
            built.dropped[group.id] = reason
        built.datums += datums
        built.trained_tokens += sum(len(datum.tokens) for datum in datums)
    return built


def _build_group(group: pb.Group, max_length: int, needs_logprobs: bool) -> tuple[list[Datum], str]:
    advantages = group_advantages(np.array([sequence.score for sequence in group.sequences], np.float64))
    datums: list[Datum] = []
    unusable: set[str] = set()
    for sequence, advantage in zip(group.sequences, advantages, strict=True):
        tokens = np.frombuffer(sequence.tokens, "<i4")
        mask = np.frombuffer(sequence.loss_mask, np.uint8)[1:].astype(bool)
        per_token = _token_advantages(sequence, float(advantage), len(tokens)) * mask
        if not per_token.any():
            continue  # contributes neither loss nor gradient, but would be paid for
        if len(tokens) > max_length:
            unusable.add("too_long")
            continue
        logprobs = np.frombuffer(sequence.logprobs, "<f4")
        if len(logprobs) != len(tokens):
            if needs_logprobs:
                unusable.add("no_logprobs")
                continue
            logprobs = np.zeros(len(tokens), np.float32)
        # A prompt position carries no logprob of the policy; environments mark it by 1.0, which no logprob can be.
        shifted = np.where(mask, logprobs[1:], np.float32(0)).astype(np.float32)
        if needs_logprobs and (shifted > 0).any():
            unusable.add("no_logprobs")
            continue
        datums.append(Datum(tokens[:-1].copy(), tokens[1:].astype(np.int64), shifted, per_token.astype(np.float32)))
    if datums:
        return datums, ""
    return [], sorted(unusable)[0] if unusable else "no_signal"


def _token_advantages(sequence: pb.Sequence, advantage: float, length: int) -> npt.NDArray[np.float64]:
    """float64 [T - 1]: the environment's own per-token advantages where it sent some, else the group's."""
    if '"set_advantage_to_zero": true' in sequence.overrides or '"set_advantage_to_zero":true' in sequence.overrides:
        return np.zeros(length - 1)
    own = np.frombuffer(sequence.advantages, "<f4").astype(np.float64)
    if len(own) == length:
        return own[1:]
    if len(own) == 1:
        return np.full(length - 1, own[0])
    return np.full(length - 1, advantage)
