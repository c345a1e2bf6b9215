"""sglang's native /generate: the one Atropos environments train with, because it tells tokens and logprobs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.fields import Fields, token_ids
from tinker_atropos.gateway.generation import MOST_SAMPLES, Completion, Generated, Sampling
from tinker_atropos.gateway.text import Text

MOST_TOKENS = 2**31 - 1
DEFAULT_NEW_TOKENS = 128  # sglang's

_HARMLESS_PARAMS = ("spaces_between_special_tokens", "stream_interval")
_HARMLESS = (
    "rid",
    "log_metrics",
    "background",
    "return_hidden_states",
    "model",
    "priority",
    "conversation_id",
    "logprob_start_len",
    "return_logprob",  # logprobs are always told
)


@dataclass(frozen=True)
class GenerateRequest:
    prompts: tuple[str | list[int], ...]
    batched: bool
    """Whether a list of prompts was given: then the answer is a list even for one completion."""
    field: str
    samples: int
    sampling: Sampling
    texts: bool
    """Whether output_token_logprobs tells the text of each token."""


def generate_request(body: object) -> GenerateRequest:
    fields = Fields(body)
    prompts, batched, name = _prompts(fields)
    for unsupported in (
        "image_data",
        "video_data",
        "audio_data",
        "input_embeds",
        "lora_path",
        "session_params",
        "token_ids_logprob",
        "custom_logit_processor",
    ):
        fields.neutral(unsupported)
    fields.neutral("stream", False)
    fields.neutral("top_logprobs_num", 0)
    fields.ignored(_HARMLESS)
    texts = fields.flag("return_text_in_logprobs", False)
    params = Fields(fields.get("sampling_params") or {}, "sampling_params")
    fields.done()

    samples = params.integer("n", 1, 1, MOST_SAMPLES) or 1
    for penalty in ("frequency_penalty", "presence_penalty", "min_p", "min_new_tokens"):
        params.neutral(penalty, 0)
    params.neutral("repetition_penalty", 1)
    for grammar in ("json_schema", "regex", "ebnf", "structural_tag", "logit_bias", "custom_params", "stop_regex"):
        params.neutral(grammar)
    params.ignored(_HARMLESS_PARAMS)
    top_p = params.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0.0:
        raise params.error("top_p", "is 0; it must be greater (use temperature 0 for the most likely token)")
    top_k = params.integer("top_k", -1, -1, MOST_TOKENS)
    seed = params.integer("seed", None, -(2**63), 2**63 - 1)
    sglang_seed = params.integer("sampling_seed", None, -(2**63), 2**63 - 1)
    sampling = Sampling(
        max_tokens=params.integer("max_new_tokens", DEFAULT_NEW_TOKENS, 1, MOST_TOKENS),
        temperature=params.number("temperature", 1.0, 0.0, 100.0),
        top_p=top_p,
        top_k=top_k if top_k else -1,
        seed=seed if seed is not None else sglang_seed,
        stop=params.strings("stop"),
        stop_token_ids=params.token_ids("stop_token_ids"),
        ignore_eos=params.flag("ignore_eos", False),
        skip_special_tokens=params.flag("skip_special_tokens", True),
        keep_stop=params.flag("no_stop_trim", False),
    )
    params.done()
    return GenerateRequest(prompts, batched, name, samples, sampling, texts)


def _prompts(fields: Fields) -> tuple[tuple[str | list[int], ...], bool, str]:
    ids, text = fields.get("input_ids"), fields.get("text")
    if (ids is None) == (text is None):
        raise RequestError("give one of input_ids and text", param="input_ids")
    if ids is not None:
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return tuple(token_ids(item, f"input_ids[{i}]") for i, item in enumerate(ids)), True, "input_ids"
        return (token_ids(ids, "input_ids"),), False, "input_ids"
    if isinstance(text, str):
        return (text,), False, "text"
    if not isinstance(text, list) or not text or not all(isinstance(item, str) for item in text):
        raise RequestError("text must be a string or a list of strings", param="text")
    return tuple(text), True, "text"


def generate_response(
    request: GenerateRequest, results: Sequence[Generated], text: Text
) -> dict[str, Any] | list[dict[str, Any]]:
    """One object for one completion, a list for more: what sglang does, and what its clients look at."""
    answers = [_answer(completion, result, request, text) for result in results for completion in result.completions]
    return answers if request.batched or request.samples > 1 else answers[0]


def _answer(completion: Completion, result: Generated, request: GenerateRequest, text: Text) -> dict[str, Any]:
    tokens = completion.tokens.tolist()
    reason: dict[str, Any] = {"type": completion.reason}
    if completion.reason == "length":
        reason["length"] = len(tokens)
    elif completion.matched is not None:
        reason["matched"] = completion.matched
    return {
        "text": completion.text,
        "output_ids": tokens,
        "meta_info": {
            "id": uuid.uuid4().hex,
            "finish_reason": reason,
            "prompt_tokens": len(result.prompt),
            "completion_tokens": len(tokens),
            "cached_tokens": result.cached_tokens,
            "weight_version": str(result.version),
            "output_token_logprobs": [
                [logprob, token, text.token_text(token) if request.texts else None]
                for logprob, token in zip(completion.logprobs.tolist(), tokens, strict=True)
            ],
        },
    }
