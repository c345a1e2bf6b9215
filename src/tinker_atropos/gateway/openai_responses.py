"""Answers in OpenAI's form, whole or as server-sent events."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from tinker_atropos.gateway.generation import Completion, Generated
from tinker_atropos.gateway.openai_requests import ChatRequest, CompletionRequest
from tinker_atropos.gateway.text import Text

DONE = b"data: [DONE]\n\n"


def completion_response(
    request: CompletionRequest, results: Sequence[Generated], text: Text, *, model: str, created: int
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for result, prompt in zip(results, request.prompts, strict=True):
        echoed = ""
        if request.echo:
            echoed = prompt if isinstance(prompt, str) else text.decode(prompt, True)
        for completion in result.completions:
            choice: dict[str, Any] = {
                "index": len(choices),
                "text": echoed + completion.text,
                "logprobs": None if request.logprobs is None else _old_logprobs(completion, request.logprobs, text),
                "finish_reason": completion.reason,
                "stop_reason": completion.matched,
            }
            if request.return_token_ids:
                choice["token_ids"] = completion.tokens.tolist()
                choice["prompt_token_ids"] = result.prompt
            choices.append(choice)
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": created,
        "model": model,
        "system_fingerprint": fingerprint(results),
        "choices": choices,
        "usage": _usage(results),
    }


def chat_response(
    request: ChatRequest, results: Sequence[Generated], text: Text, *, model: str, created: int
) -> dict[str, Any]:
    (result,) = results
    choices: list[dict[str, Any]] = []
    for index, completion in enumerate(result.completions):
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": None if request.logprobs is None else _chat_logprobs(completion, request.logprobs, text),
            "finish_reason": completion.reason,
            "stop_reason": completion.matched,
        }
        if request.return_token_ids:
            choice["token_ids"] = completion.tokens.tolist()
        choices.append(choice)
    response: dict[str, Any] = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": created,
        "model": model,
        "system_fingerprint": fingerprint(results),
        "choices": choices,
        "usage": _usage(results),
    }
    if request.return_token_ids:
        response["prompt_token_ids"] = result.prompt
    return response


def probe_response(kind: str, *, model: str, created: int) -> dict[str, Any]:
    """The answer to a health probe: well formed, and nothing was sampled for it."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
    if kind == "chat":
        choice["message"] = {"role": "assistant", "content": ""}
    else:
        choice["text"] = ""
    return {
        "id": f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-health",
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def fingerprint(results: Sequence[Generated]) -> str:
    """The policy versions that sampled, oldest first; OpenAI's field for "which model exactly"."""
    versions = sorted({result.version for result in results}, key=lambda version: (version.epoch, version.step))
    return ",".join(f"policy-{version}" for version in versions)


def events(response: dict[str, Any], *, usage: bool) -> Iterator[bytes]:
    """A whole answer as the events of a streamed one: for each choice its content, then its end."""
    chat = response["object"] == "chat.completion"
    head: dict[str, Any] = {
        key: response[key] for key in ("id", "created", "model", "system_fingerprint") if key in response
    }
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    tail = {"usage": None} if usage else {}
    for choice in response["choices"]:
        common = {"index": choice["index"]}
        extra = {key: choice[key] for key in ("token_ids", "prompt_token_ids") if key in choice}
        end = {"finish_reason": choice["finish_reason"], "stop_reason": choice.get("stop_reason")}
        if chat:
            message = choice["message"]
            delta = {"role": message["role"], "content": message["content"]}
            first = {**common, "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None, **extra}
            last = {**common, "delta": {}, "logprobs": None, **end}
        else:
            first = {
                **common,
                "text": choice["text"],
                "logprobs": choice["logprobs"],
                "finish_reason": None,
                **extra,
            }
            last = {**common, "text": "", "logprobs": None, **end}
        yield _event({**head, "choices": [first], **tail})
        yield _event({**head, "choices": [last], **tail})
    if usage:
        yield _event({**head, "choices": [], "usage": response["usage"]})
    yield DONE


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def _usage(results: Sequence[Generated]) -> dict[str, Any]:
    prompt = sum(len(result.prompt) for result in results)
    sampled = sum(len(completion.tokens) for result in results for completion in result.completions)
    cached = sum(result.cached_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _old_logprobs(completion: Completion, wanted: int, text: Text) -> dict[str, Any]:
    """The form of /v1/completions."""
    tokens = [text.token_text(token) for token in completion.tokens.tolist()]
    logprobs = completion.logprobs.tolist()
    offsets, position = [], 0
    for token in tokens:
        offsets.append(position)
        position += len(token)
    top = None
    if wanted:
        top = [
            {text.token_text(token): logprob for token, logprob in reversed(_top(completion, index, wanted))}
            | {tokens[index]: logprobs[index]}
            for index in range(len(tokens))
        ]
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}


def _chat_logprobs(completion: Completion, wanted: int, text: Text) -> dict[str, Any]:
    content = []
    for index, (token, logprob) in enumerate(
        zip(completion.tokens.tolist(), completion.logprobs.tolist(), strict=True)
    ):
        entry = _entry(text, token, logprob)
        most_likely = _top(completion, index, wanted) or ([(token, logprob)] if wanted else [])
        entry["top_logprobs"] = [_entry(text, *pair) for pair in most_likely]
        content.append(entry)
    return {"content": content, "refusal": None}


def _entry(text: Text, token: int, logprob: float) -> dict[str, Any]:
    shown = text.token_text(token)
    # A token that is only part of a character has no text of its own; null says so, as OpenAI's form allows.
    return {"token": shown, "logprob": logprob, "bytes": None if "\ufffd" in shown else list(shown.encode())}


def _top(completion: Completion, index: int, wanted: int) -> list[tuple[int, float]]:
    if completion.top is None or index >= len(completion.top):
        return []
    return (completion.top[index] or [])[:wanted]
