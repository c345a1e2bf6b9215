"""Requests of OpenAI's two routes: what is understood, what is refused and by which name."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.generation import Sampling
from tinker_atropos.gateway.openai_requests import chat_request, completion_request, health_probe

USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("behaviour", "prompt", "prompts"),
    [
        ("text", "a b", ("a b",)),
        ("texts", ["a", "b"], ("a", "b")),
        ("token ids", [1, 2, 3], ([1, 2, 3],)),
        ("lists of token ids", [[1], [2, 3]], ([1], [2, 3])),
        ("empty text is for the tokenizer to judge", "", ("",)),
    ],
)
def test_forms_of_a_prompt(behaviour: str, prompt: Any, prompts: Any) -> None:
    assert completion_request({"model": "m", "prompt": prompt}).prompts == prompts, behaviour


def test_completion_defaults() -> None:
    request = completion_request({"prompt": "a"})
    assert request.samples == 1
    assert request.sampling == Sampling(max_tokens=16)
    assert (request.logprobs, request.stream, request.echo, request.model) == (None, False, False, "")


def test_chat_defaults() -> None:
    request = chat_request({"messages": [USER]})
    assert request.sampling == Sampling(max_tokens=None)
    assert request.template_options == {"add_generation_prompt": True, "continue_final_message": False}


@pytest.mark.parametrize(
    ("given", "sampling"),
    [
        ({"max_tokens": 7}, Sampling(max_tokens=7)),
        ({"max_tokens": 7.0}, Sampling(max_tokens=7)),
        ({"max_tokens": None}, Sampling(max_tokens=16)),
        ({"temperature": 0}, Sampling(max_tokens=16, temperature=0.0)),
        ({"top_p": 0.5, "top_k": 5}, Sampling(max_tokens=16, top_p=0.5, top_k=5)),
        ({"top_k": 0}, Sampling(max_tokens=16, top_k=-1)),
        ({"seed": 3}, Sampling(max_tokens=16, seed=3)),
        ({"stop": "x"}, Sampling(max_tokens=16, stop=("x",))),
        ({"stop": ["x", "yy"]}, Sampling(max_tokens=16, stop=("x", "yy"))),
        ({"stop": None}, Sampling(max_tokens=16)),
        ({"stop": []}, Sampling(max_tokens=16)),
        ({"stop_token_ids": [4]}, Sampling(max_tokens=16, stop_token_ids=(4,))),
        ({"ignore_eos": True}, Sampling(max_tokens=16, ignore_eos=True)),
        ({"logprobs": 3}, Sampling(max_tokens=16, top_logprobs=3)),
        ({"logprobs": 0}, Sampling(max_tokens=16)),
        ({"include_stop_str_in_output": True}, Sampling(max_tokens=16, keep_stop=True)),
        ({"skip_special_tokens": False}, Sampling(max_tokens=16, skip_special_tokens=False)),
    ],
)
def test_sampling(given: dict[str, Any], sampling: Sampling) -> None:
    assert completion_request({"prompt": "a", **given}).sampling == sampling


@pytest.mark.parametrize(
    "harmless",
    [
        {"user": "me"},
        {"metadata": {"a": "b"}},
        {"store": True},
        {"frequency_penalty": 0},
        {"presence_penalty": 0.0},
        {"logit_bias": {}},
        {"logit_bias": None},
        {"best_of": 1},
        {"suffix": ""},
        {"repetition_penalty": 1.0},
        {"min_p": 0},
        {"n": 2, "best_of": 2},
        {"anything at all": None},
    ],
)
def test_accepts_what_changes_nothing(harmless: dict[str, Any]) -> None:
    completion_request({"prompt": "a", **harmless})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [[1], [2.5]]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 100_000}, "n"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "top_p": 1.5}, "top_p"),
        ({"prompt": "a", "top_k": -2}, "top_k"),
        ({"prompt": "a", "seed": "x"}, "seed"),
        ({"prompt": "a", "stop": 3}, "stop"),
        ({"prompt": "a", "stop": [3]}, "stop"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "stop_token_ids": "x"}, "stop_token_ids"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "stream_options": {"include_usages": True}}, "stream_options.include_usages"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": "a", "best_of": 4}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "model": 5}, "model"),
        ({"prompt": "a", "max_token": 5}, "max_token"),
        ([1], ""),
        ("text", ""),
        (None, ""),
    ],
)
def test_refuses_a_completion_by_name(body: Any, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        completion_request(body)
    assert refused.value.param == param
    assert refused.value.status == 400
    assert param in refused.value.message


def test_a_near_miss_gets_the_right_name() -> None:
    with pytest.raises(RequestError, match="did you mean 'temperature'"):
        completion_request({"prompt": "a", "temprature": 1})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools"),
        ({"messages": [USER], "tool_choice": "required"}, "tool_choice"),
        ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [USER], "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [USER], "logprobs": 2}, "logprobs"),
        ({"messages": [USER], "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
        ({"messages": [USER], "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"messages": [USER], "prompt": "a"}, "prompt"),
    ],
)
def test_refuses_a_chat_by_name(body: Any, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat_request(body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab"},
        ),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        ),
        ({"role": "tool", "content": "3", "tool_call_id": "1"}, {"role": "tool", "content": "3", "tool_call_id": "1"}),
        ({"role": "user", "content": "a", "name": None}, {"role": "user", "content": "a"}),
    ],
)
def test_messages(message: dict[str, Any], read: dict[str, Any]) -> None:
    assert chat_request({"messages": [message]}).messages == [read]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit(name: str) -> None:
    assert chat_request({"messages": [USER], name: 9}).sampling.max_tokens == 9


def test_template_options() -> None:
    assistant = {"role": "assistant", "content": "so"}
    request = chat_request(
        {
            "messages": [USER, assistant],
            "continue_final_message": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    )
    assert request.template_options == {
        "enable_thinking": False,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


@pytest.mark.parametrize(
    ("behaviour", "body", "kind"),
    [
        ("what atroposlib sends", {"model": "m", "prompt": "hi", "max_tokens": 1}, "completion"),
        ("the chat form", {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}, "chat"),
        ("without a model", {"prompt": "hi", "max_tokens": 1}, "completion"),
        ("another prompt", {"prompt": "hi!", "max_tokens": 1}, None),
        ("more tokens", {"prompt": "hi", "max_tokens": 2}, None),
        ("no limit", {"prompt": "hi"}, None),
        ("somebody wants logprobs", {"prompt": "hi", "max_tokens": 1, "logprobs": 1}, None),
        ("somebody wants more of them", {"prompt": "hi", "max_tokens": 1, "n": 4}, None),
        ("a system prompt", {"messages": [{"role": "system", "content": "hi"}], "max_tokens": 1}, None),
        ("no object", ["hi"], None),
    ],
)
def test_health_probe(behaviour: str, body: Any, kind: str | None) -> None:
    assert health_probe(body) == kind, behaviour
