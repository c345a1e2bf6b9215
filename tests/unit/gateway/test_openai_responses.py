"""Answers in OpenAI's form, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tinker_atropos.gateway.generation import Completion, Generated, Version
from tinker_atropos.gateway.openai_requests import chat_request, completion_request
from tinker_atropos.gateway.openai_responses import DONE, chat_response, completion_response, events, probe_response
from tinker_atropos.gateway.text import Text

FIRST = Version(1, 3)


def generated(text: Text, *words: str, version: Version = FIRST, top: Any = None) -> Generated:
    completions = []
    for word in words:
        tokens = np.array(text.encode(word), np.int32)
        completions.append(Completion(tokens, -np.ones(len(tokens), np.float32), "length", word, None, top))
    return Generated(text.encode("ask"), completions, version, cached_tokens=1)


def whole_completion(text: Text, results: list[Generated], **given: Any) -> dict[str, Any]:
    return completion_response(completion_request({"prompt": "ask", **given}), results, text, model="m", created=7)


def whole_chat(text: Text, results: list[Generated], **given: Any) -> dict[str, Any]:
    request = chat_request({"messages": [{"role": "user", "content": "ask"}], **given})
    return chat_response(request, results, text, model="m", created=7)


def streamed(response: dict[str, Any], usage: bool = False) -> list[dict[str, Any]]:
    raw = list(events(response, usage=usage))
    assert raw[-1] == DONE
    for event in raw:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n") == 2, "an event is one line"
    return [json.loads(event[6:]) for event in raw[:-1]]


def test_completion(text: Text) -> None:
    response = whole_completion(text, [generated(text, "yes", "no")], n=2)
    assert response["object"] == "text_completion"
    assert [choice["text"] for choice in response["choices"]] == ["yes", "no"]
    assert [choice["index"] for choice in response["choices"]] == [0, 1]
    assert {choice["finish_reason"] for choice in response["choices"]} == {"length"}
    assert response["choices"][0]["logprobs"] is None
    assert response["usage"]["prompt_tokens"] == 3
    assert response["usage"]["completion_tokens"] == 5
    assert response["usage"]["total_tokens"] == 8
    assert response["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert response["system_fingerprint"] == "policy-1/3"


def test_several_prompts_number_their_choices_through(text: Text) -> None:
    results = [generated(text, "a", "b"), generated(text, "c", "d", version=Version(1, 4))]
    response = whole_completion(text, results, prompt=["ask", "ask"], n=2)
    assert [(choice["index"], choice["text"]) for choice in response["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
        (3, "d"),
    ]
    assert response["system_fingerprint"] == "policy-1/3,policy-1/4"


def test_echo(text: Text) -> None:
    assert whole_completion(text, [generated(text, "yes")], echo=True)["choices"][0]["text"] == "askyes"
    tokens = text.encode("ask")
    assert whole_completion(text, [generated(text, "yes")], prompt=tokens, echo=True)["choices"][0]["text"] == "askyes"


def test_completion_logprobs(text: Text) -> None:
    (y, e) = text.encode("ye")
    results = [generated(text, "ye", top=[[(y, -1.0), (e, -2.0)], [(e, -1.0)]])]
    logprobs = whole_completion(text, results, logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["y", "e"]
    assert logprobs["token_logprobs"] == [-1.0, -1.0]
    assert logprobs["text_offset"] == [0, 1]
    assert logprobs["top_logprobs"] == [{"y": -1.0, "e": -2.0}, {"e": -1.0}]


def test_completion_logprobs_of_the_sampled_token_only(text: Text) -> None:
    logprobs = whole_completion(text, [generated(text, "ye")], logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-1.0, -1.0]
    assert logprobs["top_logprobs"] is None


def test_chat(text: Text) -> None:
    response = whole_chat(text, [generated(text, "yes")])
    assert response["object"] == "chat.completion"
    assert response["choices"][0]["message"] == {"role": "assistant", "content": "yes", "refusal": None}
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["choices"][0]["logprobs"] is None


def test_chat_logprobs(text: Text) -> None:
    content = whole_chat(text, [generated(text, "ye")], logprobs=True)["choices"][0]["logprobs"]["content"]
    assert content == [
        {"token": "y", "logprob": -1.0, "bytes": [121], "top_logprobs": []},
        {"token": "e", "logprob": -1.0, "bytes": [101], "top_logprobs": []},
    ]


def test_chat_top_logprobs_has_at_least_the_sampled_token(text: Text) -> None:
    (y,) = text.encode("y")
    content = whole_chat(text, [generated(text, "y")], logprobs=True, top_logprobs=2)["choices"][0]["logprobs"][
        "content"
    ]
    assert content[0]["top_logprobs"] == [{"token": "y", "logprob": -1.0, "bytes": [121]}]
    (e,) = text.encode("e")
    known = [generated(text, "y", top=[[(e, -0.5), (y, -1.0), (y + 1, -9.0)]])]
    content = whole_chat(text, known, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content[0]["top_logprobs"]] == ["e", "y"]


def test_token_ids_when_asked_for(text: Text) -> None:
    response = whole_chat(text, [generated(text, "yes")], return_token_ids=True)
    assert response["prompt_token_ids"] == text.encode("ask")
    assert response["choices"][0]["token_ids"] == text.encode("yes")


def test_streamed_chat(text: Text) -> None:
    chunks = streamed(whole_chat(text, [generated(text, "yes", "no")], n=2))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts = ["", ""]
    reasons: list[str | None] = [None, None]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert reasons[choice["index"]] is None, "nothing comes after the end of a choice"
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"]
        assert "usage" not in chunk
    assert texts == ["yes", "no"]
    assert reasons == ["length", "length"]


def test_streamed_completion_with_usage(text: Text) -> None:
    chunks = streamed(whole_completion(text, [generated(text, "yes")]), usage=True)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "yes"
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, False]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_probe_answers_cost_nothing() -> None:
    for kind in ("completion", "chat"):
        response = probe_response(kind, model="m", created=7)
        assert response["usage"]["total_tokens"] == 0
        assert len(response["choices"]) == 1
