"""Requests of OpenAI's completions and chat completions, read strictly: what cannot be honoured is refused by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.fields import Fields, token_ids
from tinker_atropos.gateway.generation import MOST_SAMPLES, Sampling

MOST_TOKENS = 2**31 - 1
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
MOST_TOP_LOGPROBS = 20

HARMLESS = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "truncation",
    "verbosity",
    "request_id",
    "priority",
    "spaces_between_special_tokens",
)
"""Fields that change nothing about the tokens."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True)
class OpenAIRequest:
    """What both routes have in common."""

    model: str
    samples: int
    sampling: Sampling
    logprobs: int | None
    """Number of most likely tokens to tell of, beside the sampled one; None = no logprobs."""
    stream: bool
    stream_usage: bool
    return_token_ids: bool


@dataclass(frozen=True)
class CompletionRequest(OpenAIRequest):
    prompts: tuple[str | list[int], ...] = ()
    echo: bool = False


@dataclass(frozen=True)
class ChatRequest(OpenAIRequest):
    messages: list[dict[str, Any]] = field(default_factory=list)
    template_options: dict[str, Any] = field(default_factory=dict)


def health_probe(body: object) -> Literal["completion", "chat"] | None:
    """Whether this is exactly the one-token request by which Atropos environments ask, every second, who is alive."""
    if not isinstance(body, dict) or body.get("max_tokens") != 1:
        return None
    fields = set(body) - {"model", "max_tokens"}
    if fields == {"prompt"} and body["prompt"] == "hi":
        return "completion"
    if fields == {"messages"} and body["messages"] == [{"role": "user", "content": "hi"}]:
        return "chat"
    return None


def completion_request(body: object) -> CompletionRequest:
    fields = Fields(body)
    prompts = _prompts(fields.get("prompt"))
    logprobs = fields.integer("logprobs", None, 0, MOST_TOP_LOGPROBS)
    echo = fields.flag("echo", False)
    if echo and logprobs is not None:
        raise fields.error("echo", "is not supported together with logprobs", code="unsupported_parameter")
    fields.neutral("suffix")
    samples = fields.integer("n", 1, 1, MOST_SAMPLES)
    fields.neutral("best_of", samples, 1)
    max_tokens = fields.integer("max_tokens", DEFAULT_COMPLETION_TOKENS, 1, MOST_TOKENS)
    common = _common(fields, samples or 1, max_tokens, logprobs)
    fields.done()
    return CompletionRequest(**common, prompts=prompts, echo=echo)


def chat_request(body: object) -> ChatRequest:
    fields = Fields(body)
    messages = _messages(fields.get("messages"))
    wanted = fields.flag("logprobs", False)
    top = fields.integer("top_logprobs", 0, 0, MOST_TOP_LOGPROBS)
    if top and not wanted:
        raise fields.error("top_logprobs", "needs logprobs: true")
    max_tokens = fields.integer("max_completion_tokens", None, 1, MOST_TOKENS)
    older_name = fields.integer("max_tokens", None, 1, MOST_TOKENS)
    if max_tokens is not None and older_name is not None and max_tokens != older_name:
        raise fields.error("max_tokens", f"says {older_name}, but max_completion_tokens says {max_tokens}")
    for name in ("tools", "functions", "audio", "prediction", "web_search_options"):
        fields.neutral(name)
    fields.neutral("tool_choice", "none", "auto")
    fields.neutral("function_call", "none", "auto")
    fields.neutral("modalities", ["text"])
    fields.neutral("response_format", {"type": "text"})
    fields.neutral("reasoning_effort", "none")
    options = _template_options(fields, messages)
    samples = fields.integer("n", 1, 1, MOST_SAMPLES)
    tokens = max_tokens if max_tokens is not None else older_name
    common = _common(fields, samples or 1, tokens, top if wanted else None)
    fields.done()
    return ChatRequest(**common, messages=messages, template_options=options)


def _common(fields: Fields, samples: int, max_tokens: int | None, logprobs: int | None) -> dict[str, Any]:
    for name in ("frequency_penalty", "presence_penalty", "min_p", "min_tokens"):
        fields.neutral(name, 0)
    fields.neutral("repetition_penalty", 1)
    fields.neutral("logit_bias")
    fields.neutral("use_beam_search", False)
    fields.ignored(HARMLESS)
    stream = fields.flag("stream", False)
    options = fields.get("stream_options")
    usage = False
    if options is not None:
        inner = Fields(options, "stream_options")
        usage = inner.flag("include_usage", False)
        inner.ignored(("include_obfuscation", "continuous_usage_stats"))
        inner.done()
    top_k = fields.integer("top_k", -1, -1, MOST_TOKENS)
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_p=_top_p(fields),
        top_k=top_k if top_k else -1,
        seed=fields.integer("seed", None, -(2**63), 2**63 - 1),
        stop=fields.strings("stop"),
        stop_token_ids=fields.token_ids("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos", False),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        keep_stop=fields.flag("include_stop_str_in_output", False),
        top_logprobs=logprobs or 0,
    )
    return {
        "model": fields.text("model") or "",
        "samples": samples,
        "sampling": sampling,
        "logprobs": logprobs,
        "stream": stream,
        "stream_usage": usage,
        "return_token_ids": fields.flag("return_token_ids", False),
    }


def _top_p(fields: Fields) -> float:
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0.0:
        raise fields.error("top_p", "is 0; it must be greater (use temperature 0 for the most likely token)")
    return top_p


def _prompts(value: object) -> tuple[str | list[int], ...]:
    """OpenAI's four forms: text, list of texts, token ids, list of lists of token ids."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise RequestError("prompt must be a string, a list of strings, or token ids", param="prompt")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if isinstance(value[0], list):
        return tuple(token_ids(item, f"prompt[{index}]") for index, item in enumerate(value))
    return (token_ids(value, "prompt"),)


def _messages(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be a list with at least one message", param="messages")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(value)]


def _message(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{path} must be an object with role and content", param=path)
    role = value.get("role")
    if role not in _ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(_ROLES)}, not {role!r}", param=f"{path}.role")
    message = {key: item for key, item in value.items() if item is not None}
    message["role"] = "system" if role == "developer" else role  # the newer name; templates know the older one
    message["content"] = _content(value.get("content"), f"{path}.content", needed=role != "assistant")
    return message


def _content(value: object, path: str, *, needed: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None and not needed:
        return ""  # an assistant's turn may be only a tool call
    if not isinstance(value, list):
        raise RequestError(f"{path} must be a string or a list of text parts", param=path)
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
            kind = part.get("type") if isinstance(part, dict) else part
            raise RequestError(f"{path}[{index}] is {kind!r}; only text parts are supported", param=f"{path}[{index}]")
        text = part.get("text") if part["type"] == "text" else part.get("refusal")
        if not isinstance(text, str):
            raise RequestError(f"{path}[{index}].text must be a string", param=f"{path}[{index}].text")
        texts.append(text)
    return "".join(texts)


def _template_options(fields: Fields, messages: list[dict[str, Any]]) -> dict[str, Any]:
    continued = fields.flag("continue_final_message", False)
    if continued and messages[-1]["role"] != "assistant":
        raise fields.error("continue_final_message", "needs an assistant's message at the end")
    opened = fields.flag("add_generation_prompt", not continued)
    if continued and opened:
        raise fields.error("add_generation_prompt", "cannot be combined with continue_final_message")
    more = fields.get("chat_template_kwargs")
    if more is not None and not isinstance(more, dict):
        raise fields.error("chat_template_kwargs", "must be an object")
    fixed = {"add_generation_prompt": opened, "continue_final_message": continued}
    for name in ("tokenize", "chat_template", *fixed):
        if more and name in more:
            raise RequestError(f"chat_template_kwargs.{name} cannot be set there", param=f"chat_template_kwargs.{name}")
    return {**(more or {}), **fixed}
