"""The protobuf half of the API: batches coming in, sampled sequences and training outputs going out."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as pb

from tinker_atropos.local_tinker.engine import Example, LossResult
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.generation import SampleResult
from tinker_atropos.local_tinker.losses import INPUTS, Loss, parse_loss

CONTENT_TYPE = "application/x-protobuf"
MAX_BODY = 1 << 29

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def parse_forward_backward(body: bytes) -> Any:
    """The request message; `body` may be compressed whatever its headers say (a proxy may have undone it)."""
    if body.startswith(_ZSTD_MAGIC):
        reader = zstandard.ZstdDecompressor().stream_reader(body)
        body = reader.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise UserError(f"forward_backward: the body is larger than {MAX_BODY} bytes when decompressed", status=413)
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except Exception as error:
        raise UserError(f"forward_backward: the body is no ForwardBackwardRequest ({error})") from None
    return message


def loss_of(message: Any) -> Loss:
    """The loss and its settings; the typed map wins over the older one."""
    settings: dict[str, float | str] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        settings[key] = value.text if value.WhichOneof("value") == "text" else value.number
    return parse_loss(message.loss_fn, settings)


def examples_of(message: Any, vocabulary: int, context: int) -> list[Example]:
    """Datums as arrays, checked: what is wrong is named with the datum's number."""
    return [_example(datum, f"data[{n}]", message.loss_fn, vocabulary, context) for n, datum in enumerate(message.data)]


def _example(datum: Any, where: str, loss: str, vocabulary: int, context: int) -> Example:
    chunks = []
    for chunk in datum.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise UserError(f"{where}.model_input: only token chunks are supported by the local model")
        chunks.append(np.frombuffer(chunk.encoded_text.tokens, np.int32))
    tokens = np.concatenate(chunks) if chunks else np.zeros(0, np.int32)
    check_tokens(tokens, vocabulary, f"{where}.model_input")
    if not 1 <= len(tokens) <= context:
        raise UserError(f"{where}.model_input: {len(tokens)} tokens; the model takes 1 to {context}")
    allowed = ("target_tokens", *INPUTS[loss])
    given = dict(datum.loss_fn_inputs.items())
    for name in given:
        if name not in allowed:
            raise UserError(f"{where}.loss_fn_inputs.{name}: not an input of {loss}; inputs: {', '.join(allowed)}")
    if loss == "cross_entropy" and "weights" not in given:
        weights: NDArray[np.float32] = np.ones(len(tokens), np.float32)
    else:
        weights = np.zeros(0, np.float32)
    arrays: dict[str, NDArray[Any]] = {"weights": weights}
    for name in allowed:
        if name not in given:
            if name in arrays and len(arrays[name]):
                continue
            raise UserError(f"{where}.loss_fn_inputs.{name}: missing; {loss} needs {', '.join(allowed)}")
        values = _tensor(given[name], f"{where}.loss_fn_inputs.{name}")
        if len(values) != len(tokens):
            raise UserError(
                f"{where}.loss_fn_inputs.{name}: {len(values)} values for {len(tokens)} input tokens; "
                "they must be as many"
            )
        if not np.isfinite(values).all():
            raise UserError(f"{where}.loss_fn_inputs.{name}: holds values that are not finite")
        arrays[name] = values
    check_tokens(arrays["target_tokens"], vocabulary, f"{where}.loss_fn_inputs.target_tokens")
    factor = arrays["weights"] if loss == "cross_entropy" else arrays["advantages"]
    sampled = np.zeros(len(tokens), np.float32) if loss == "cross_entropy" else arrays["logprobs"]
    return Example(
        tokens, arrays["target_tokens"].astype(np.int32), factor.astype(np.float32), sampled.astype(np.float32)
    )


def _tensor(tensor: Any, where: str) -> NDArray[Any]:
    if tensor.WhichOneof("encoding") == "sparse_csr":
        raise UserError(f"{where}: sparse tensors are not supported by the local server; send one value per token")
    kinds: dict[int, type[np.generic]] = {
        pb.DTYPE_FLOAT32: np.float32,
        pb.DTYPE_INT64: np.int64,
        pb.DTYPE_INT32: np.int32,
    }
    if tensor.dtype not in kinds:
        raise UserError(f"{where}: dtype {tensor.dtype} is not supported; send float32 or int64")
    shape = list(tensor.shape)
    if len(shape) > 1 and shape[1:] != [1] * (len(shape) - 1):
        raise UserError(f"{where}: shape {shape} is not supported by the local server; send one value per token")
    return np.frombuffer(tensor.dense, kinds[tensor.dtype])


def check_tokens(tokens: NDArray[Any], vocabulary: int, where: str) -> None:
    """JAX would silently read another row of the embedding."""
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary):
        wrong = tokens[(tokens < 0) | (tokens >= vocabulary)][0]
        raise UserError(
            f"{where}: token id {wrong} is outside the vocabulary (0 to {vocabulary - 1}); "
            "was the text encoded with another model's tokenizer?"
        )


def encode_loss(result: LossResult, examples: list[Example], loss: Loss) -> bytes:
    """Every metric's name ends in how chunks of a batch are put together (`:sum`, `:mean`), as the SDK demands."""
    output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    counted = [example.factor != 0 for example in examples]
    output.metrics["loss:sum"] = result.loss
    output.metrics["tokens:sum"] = float(sum(int(mask.sum()) for mask in counted))
    if loss.name != "cross_entropy" and examples:
        gaps = [(e.sampled - lp)[mask] for e, lp, mask in zip(examples, result.logprobs, counted, strict=True)]
        apart = np.concatenate(gaps)
        output.metrics["kl_sample_train:mean"] = float(apart.mean()) if len(apart) else 0.0
    record = output.loss_fn_outputs.add()
    record.num_datums = len(result.logprobs)
    field = record.fields["logprobs"]
    field.dtype = pb.DTYPE_FLOAT32
    field.data = b"".join(np.ascontiguousarray(lp, np.float32).tobytes() for lp in result.logprobs)
    field.offsets = np.cumsum([0] + [4 * len(lp) for lp in result.logprobs]).astype(np.int64).tobytes()
    return bytes(output.SerializeToString())


def encode_sample(result: SampleResult, prompt_tokens: int, last_n: int | None) -> bytes:
    """Sampled sequences; nan marks prompt positions without a log probability."""
    response = pb.SampleResponse()
    for row in result.sequences:
        response.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if row.stopped else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(row.tokens, np.int32).tobytes(),
            logprobs=np.asarray(row.logprobs, np.float32).tobytes(),
        )
    if result.prompt_logprobs is not None:
        logprobs = result.prompt_logprobs.copy()
        if last_n is not None:
            logprobs[: max(0, len(logprobs) - last_n)] = np.nan
        response.prompt_logprobs = logprobs.tobytes()
    if result.cached_prompt:
        response.prompt_cache_hit_tokens = prompt_tokens
    return bytes(response.SerializeToString())
