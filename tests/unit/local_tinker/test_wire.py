"""Batches on the wire: what is accepted, and which datum and field a refusal names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard
from tinker.proto import response_conv
from tinker.proto import tinker_public_pb2 as pb

from tinker_atropos.local_tinker import wire
from tinker_atropos.local_tinker.engine import LossResult
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.generation import SampledRow, SampleResult
from tinker_atropos.local_tinker.losses import Loss

VOCABULARY, CONTEXT = 24, 16


def batch(loss: str = "ppo", tokens: list[int] | None = None, **inputs: Any) -> Any:
    message = pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn=loss)
    datum = message.data.add()
    ids = [1, 2, 3] if tokens is None else tokens
    datum.model_input.add().encoded_text.tokens = np.array(ids, np.int32).tobytes()
    given: dict[str, Any] = {"target_tokens": np.array([2, 3, 4])}
    if loss != "cross_entropy":
        given |= {"logprobs": np.full(3, -1, np.float32), "advantages": np.ones(3, np.float32)}
    for name, value in (given | inputs).items():
        if value is not None:
            tensor = datum.loss_fn_inputs[name]
            tensor.dense = value.tobytes()
            tensor.shape.extend(value.shape)
            tensor.dtype = pb.DTYPE_INT64 if value.dtype == np.int64 else pb.DTYPE_FLOAT32
    return message


def examples(message: Any) -> Any:
    return wire.examples_of(message, VOCABULARY, CONTEXT)


@pytest.mark.parametrize("compressed", [True, False])
def test_compressed_or_not(compressed: bool) -> None:
    body = batch().SerializeToString()
    sent = zstandard.ZstdCompressor().compress(body) if compressed else body
    assert wire.parse_forward_backward(sent) == batch()


def test_typed_settings_win_over_the_older_map() -> None:
    message = batch()
    message.loss_fn_config["clip_low_threshold"] = 0.5
    message.loss_fn_config_v2["clip_low_threshold"].number = 0.7
    assert wire.loss_of(message) == Loss("ppo", clip_low=0.7)


def test_weights_of_cross_entropy_default_to_one() -> None:
    (example,) = examples(batch("cross_entropy"))
    np.testing.assert_array_equal(example.factor, np.ones(3))
    (example,) = examples(batch("cross_entropy", weights=np.array([0.0, 1.0, 0.5], np.float32)))
    np.testing.assert_array_equal(example.factor, [0.0, 1.0, 0.5])


def test_a_column_of_targets_is_one_per_token() -> None:
    (example,) = examples(batch(target_tokens=np.array([[2], [3], [4]])))
    np.testing.assert_array_equal(example.targets, [2, 3, 4])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (batch(tokens=[1, 2, 24]), r"data\[0\].model_input: token id 24 is outside the vocabulary \(0 to 23\)"),
        (batch(tokens=[1, -2, 3]), "token id -2"),
        (batch(target_tokens=np.array([1, 2, 99])), "target_tokens: token id 99"),
        (batch(tokens=[]), "0 tokens"),
        (batch(tokens=[1] * 17), "17 tokens; the model takes 1 to 16"),
        (batch(logprobs=None), "logprobs: missing; ppo needs target_tokens, logprobs, advantages"),
        (batch(advantages=np.ones(2, np.float32)), "advantages: 2 values for 3 input tokens"),
        (batch(advantages=np.array([1, np.nan, 1], np.float32)), "not finite"),
        (batch(mask=np.ones(3, np.float32)), "mask: not an input of ppo"),
        (batch(target_tokens=np.ones((3, 2), np.int64)), r"shape \[3, 2\] is not supported"),
    ],
)
def test_refused_with_datum_and_field(message: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        examples(message)


def test_image_chunks_are_refused() -> None:
    message = batch()
    message.data[0].model_input.add().image.format = "png"
    with pytest.raises(UserError, match="only token chunks"):
        examples(message)


def test_garbage_is_refused() -> None:
    with pytest.raises(UserError, match="no ForwardBackwardRequest"):
        wire.parse_forward_backward(b"\xff\xff\xff")


def test_output_reads_back_through_the_sdk() -> None:
    data = examples(batch())
    result = LossResult(1.5, [np.array([-0.1, -0.2, -0.3], np.float32)])
    output = response_conv.deserialize_forward_backward_output(wire.encode_loss(result, data, Loss("ppo")))
    assert output.metrics["loss:sum"] == 1.5
    assert all(name.count(":") == 1 for name in output.metrics)
    assert output.loss_fn_outputs[0]["logprobs"].tolist() == pytest.approx([-0.1, -0.2, -0.3])


@pytest.mark.parametrize(("last", "known"), [(None, [False, True, True]), (1, [False, False, True])])
def test_sample_reads_back_through_the_sdk(last: int | None, known: list[bool]) -> None:
    scores = np.array([np.nan, -1, -2], np.float32)
    result = SampleResult([SampledRow([5, 2], [-0.5, -0.25], True), SampledRow([7], [-1.0], False)], scores, True)
    response = response_conv.deserialize_sample_response(wire.encode_sample(result, 3, last))
    assert [row.stop_reason for row in response.sequences] == ["stop", "length"]
    assert list(response.sequences[0].tokens) == [5, 2]
    assert response.prompt_cache_hit_tokens == 3
    assert response.prompt_logprobs is not None
    assert [value is not None for value in response.prompt_logprobs] == known
