"""sglang's /generate: requests, and the form of answers that Atropos reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.generation import Completion, Generated, Sampling, Version
from tinker_atropos.gateway.sglang_api import generate_request, generate_response
from tinker_atropos.gateway.text import Text


@pytest.mark.parametrize(
    ("body", "prompts", "batched"),
    [
        ({"input_ids": [1, 2]}, ([1, 2],), False),
        ({"input_ids": [[1, 2], [3]]}, ([1, 2], [3]), True),
        ({"text": "a"}, ("a",), False),
        ({"text": ["a", "b"]}, ("a", "b"), True),
        ({"text": None, "input_ids": [1]}, ([1],), False),
    ],
)
def test_prompts(body: dict[str, Any], prompts: Any, batched: bool) -> None:
    request = generate_request(body)
    assert request.prompts == prompts
    assert request.batched is batched


def test_what_atroposlib_sends() -> None:
    """AP-25: a whole group comes as one request, whatever max_n_completions says."""
    request = generate_request(
        {
            "input_ids": [5, 6],
            "sampling_params": {"n": 4, "temperature": 1.0, "max_new_tokens": 256, "stop": ["</a>"]},
            "return_logprob": True,
            "return_text_in_logprobs": False,
        }
    )
    assert request.samples == 4
    assert request.sampling == Sampling(max_tokens=256, temperature=1.0, stop=("</a>",))
    assert request.texts is False


@pytest.mark.parametrize(
    ("params", "sampling"),
    [
        (None, Sampling(max_tokens=128)),
        ({"max_new_tokens": None}, Sampling(max_tokens=128)),
        ({"stop": None}, Sampling(max_tokens=128)),
        ({"stop": "x", "stop_token_ids": [3]}, Sampling(max_tokens=128, stop=("x",), stop_token_ids=(3,))),
        ({"top_p": 0.9, "top_k": 20}, Sampling(max_tokens=128, top_p=0.9, top_k=20)),
        ({"sampling_seed": 5}, Sampling(max_tokens=128, seed=5)),
        ({"seed": 6}, Sampling(max_tokens=128, seed=6)),
        ({"no_stop_trim": True}, Sampling(max_tokens=128, keep_stop=True)),
        ({"frequency_penalty": 0.0, "min_new_tokens": 0}, Sampling(max_tokens=128)),
    ],
)
def test_sampling_params(params: Any, sampling: Sampling) -> None:
    assert generate_request({"input_ids": [1], "sampling_params": params}).sampling == sampling


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input_ids"),
        ({"input_ids": [1], "text": "a"}, "input_ids"),
        ({"input_ids": "a"}, "input_ids"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"input_ids": [[1], "a"]}, "input_ids[1]"),
        ({"text": 5}, "text"),
        ({"text": ["a", 5]}, "text"),
        ({"input_ids": [1], "stream": True}, "stream"),
        ({"input_ids": [1], "top_logprobs_num": 3}, "top_logprobs_num"),
        ({"input_ids": [1], "image_data": "x"}, "image_data"),
        ({"input_ids": [1], "sampling_params": 5}, "sampling_params"),
        ({"input_ids": [1], "sampling_params": {"min_new_tokens": 5}}, "sampling_params.min_new_tokens"),
        ({"input_ids": [1], "sampling_params": {"regex": "a+"}}, "sampling_params.regex"),
        ({"input_ids": [1], "sampling_params": {"max_tokens": 5}}, "sampling_params.max_tokens"),
        ({"input_ids": [1], "sampling_params": {"temperature": None, "top_p": 0}}, "sampling_params.top_p"),
        ({"input_ids": [1], "max_new_tokens": 5}, "max_new_tokens"),
    ],
)
def test_refuses_by_name(body: Any, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        generate_request(body)
    assert refused.value.param == param


def generated(*completions: Completion) -> Generated:
    return Generated([7, 8], list(completions), Version(2, 5))


def completion(reason: Any = "stop", matched: Any = None) -> Completion:
    return Completion(np.array([4, 5], np.int32), np.array([-0.5, -1.25], np.float32), reason, "ab", matched)


@pytest.mark.parametrize(
    ("behaviour", "body", "count", "listed"),
    [
        ("one completion is an object", {"input_ids": [7, 8]}, 1, False),
        ("more are a list", {"input_ids": [7, 8], "sampling_params": {"n": 2}}, 2, True),
        ("a list of one prompt is a list", {"input_ids": [[7, 8]]}, 1, True),
    ],
)
def test_form_of_the_answer(behaviour: str, body: Any, count: int, listed: bool, text: Text) -> None:
    answer = generate_response(generate_request(body), [generated(*[completion()] * count)], text)
    assert isinstance(answer, list) is listed, behaviour
    assert not listed or len(answer) == count


def test_one_answer(text: Text) -> None:
    answer = generate_response(generate_request({"input_ids": [7, 8]}), [generated(completion("stop", 5))], text)
    assert isinstance(answer, dict)
    meta = answer["meta_info"]
    assert answer["text"] == "ab"
    assert answer["output_ids"] == [4, 5]
    assert meta["output_token_logprobs"] == [[-0.5, 4, None], [-1.25, 5, None]]
    assert meta["finish_reason"] == {"type": "stop", "matched": 5}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (2, 2)
    assert meta["weight_version"] == "2/5"


def test_length_says_the_length(text: Text) -> None:
    answer = generate_response(generate_request({"input_ids": [7, 8]}), [generated(completion("length"))], text)
    assert isinstance(answer, dict)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


def test_texts_of_tokens_when_asked_for(text: Text) -> None:
    request = generate_request({"input_ids": [7, 8], "return_text_in_logprobs": True})
    answer = generate_response(request, [generated(completion())], text)
    assert isinstance(answer, dict)
    assert [entry[2] for entry in answer["meta_info"]["output_token_logprobs"]] == [
        text.token_text(4),
        text.token_text(5),
    ]
