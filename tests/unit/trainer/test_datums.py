"""From posted groups to what forward_backward takes."""

from __future__ import annotations

import numpy as np
import pytest

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trainer.datums import BuiltBatch, build_batch

PROMPT, COMPLETION = [5, 6], [7, 8, 9]


def sequence(score: float, **given: object) -> pb.Sequence:
    """Two prompt tokens, three of the policy."""
    tokens = given.pop("tokens", PROMPT + COMPLETION)
    mask = given.pop("mask", [0, 0, 1, 1, 1])
    logprobs = given.pop("logprobs", [1.0, 1.0, -0.1, -0.2, -0.3])
    advantages = given.pop("advantages", [])
    return pb.Sequence(
        tokens=np.array(tokens, "<i4").tobytes(),
        loss_mask=np.array(mask, np.uint8).tobytes(),
        logprobs=np.array(logprobs, "<f4").tobytes(),
        advantages=np.array(advantages, "<f4").tobytes(),
        score=score,
        **given,  # type: ignore[arg-type]
    )


def build(*sequences: pb.Sequence, max_length: int = 100, needs_logprobs: bool = True) -> BuiltBatch:
    return build_batch([pb.Group(id=1, sequences=sequences)], max_length=max_length, needs_logprobs=needs_logprobs)


def test_shift_by_one_and_prompt_mask() -> None:
    built = build(sequence(1.0), sequence(0.0))
    first = built.datums[0]
    assert first.tokens.tolist() == [5, 6, 7, 8]
    assert first.targets.tolist() == [6, 7, 8, 9]
    np.testing.assert_allclose(first.logprobs, [0, -0.1, -0.2, -0.3])
    np.testing.assert_allclose(first.advantages, [0, 0.5, 0.5, 0.5])
    assert (first.tokens.dtype, first.targets.dtype, first.logprobs.dtype, first.advantages.dtype) == (
        np.int32,
        np.int64,
        np.float32,
        np.float32,
    )
    assert (built.sampled_tokens, built.trained_tokens) == (6, 8)


def test_the_prompt_marker_never_reaches_the_service_as_a_logprob() -> None:
    for datum in build(sequence(1.0), sequence(0.0)).datums:
        assert (datum.logprobs <= 0).all()


def test_several_turns_keep_their_masks() -> None:
    turns = {"tokens": [1, 2, 3, 4, 5, 6], "mask": [0, 1, 1, 0, 1, 1], "logprobs": [1.0, -1, -2, 1.0, -3, -4]}
    datum = build(sequence(1.0, **turns), sequence(0.0, **turns)).datums[0]
    np.testing.assert_allclose(datum.advantages, [0.5, 0.5, 0, 0.5, 0.5])
    np.testing.assert_allclose(datum.logprobs, [-1, -2, 0, -3, -4])


def test_a_group_that_teaches_nothing_is_not_sent_but_counts() -> None:
    built = build(sequence(1.0), sequence(1.0))
    assert not built.has_signal and built.without_signal == 1 and built.dropped == {}


def test_one_rollout_alone_teaches_nothing() -> None:
    assert build(sequence(1.0)).without_signal == 1


def test_the_average_rollout_is_not_paid_for() -> None:
    assert len(build(sequence(1.0), sequence(0.5), sequence(0.0)).datums) == 2


def test_the_environments_own_advantages_are_used() -> None:
    built = build(sequence(1.0, advantages=[0, 0, 1, 2, 3]), sequence(1.0, advantages=[-4.0]))
    np.testing.assert_allclose(built.datums[0].advantages, [0, 1, 2, 3])
    np.testing.assert_allclose(built.datums[1].advantages, [0, -4, -4, -4])


def test_an_override_takes_a_sequence_out() -> None:
    built = build(sequence(1.0, overrides='{"set_advantage_to_zero": true}'), sequence(0.0))
    assert [datum.advantages.max() for datum in built.datums] == [0.0]


DROPPED = {
    "no logprobs were sent": ({"logprobs": []}, "no_logprobs"),
    "a policy token carries the prompt's marker": ({"logprobs": [1.0, 1.0, -0.1, 1.0, -0.3]}, "no_logprobs"),
    "longer than the trainer takes": (
        {"tokens": list(range(200)), "mask": [0] + [1] * 199, "logprobs": [-1.0] * 200},
        "too_long",
    ),
}


@pytest.mark.parametrize(("given", "reason"), DROPPED.values(), ids=DROPPED)
def test_a_group_that_cannot_be_used_is_dropped_with_its_reason(given: dict[str, object], reason: str) -> None:
    assert build(sequence(1.0, **given), sequence(0.0, **given)).dropped == {1: reason}


def test_one_long_rollout_does_not_lose_its_group() -> None:
    long = {"tokens": list(range(200)), "mask": [0] + [1] * 199, "logprobs": [-1.0] * 200}
    built = build(sequence(1.0, **long), sequence(0.0))
    assert len(built.datums) == 1 and built.dropped == {}
    np.testing.assert_allclose(built.datums[0].advantages.min(), -0.5)


def test_cross_entropy_needs_no_logprobs() -> None:
    assert len(build(sequence(1.0, logprobs=[]), sequence(0.0, logprobs=[]), needs_logprobs=False).datums) == 2
