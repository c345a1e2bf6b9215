"""OpenAI's own Python client against the gateway in front of a model that really samples."""

from __future__ import annotations

import httpx
import numpy as np
import openai
import pytest

from gateway_stack import MODEL, Stack

pytestmark = pytest.mark.wire

MESSAGES = [{"role": "user", "content": "12+7="}]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_chat(client: openai.OpenAI, stack: Stack) -> None:
    response = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=6, n=2)
    assert len(response.choices) == 2
    for choice in response.choices:
        assert choice.message.role == "assistant"
        assert choice.finish_reason in ("stop", "length")
    assert response.usage is not None
    assert response.usage.prompt_tokens == 6  # <bos> and five characters
    assert 2 <= response.usage.completion_tokens <= 12
    assert response.system_fingerprint == f"policy-{stack.epoch}/{stack.step}"


def test_chat_logprobs_belong_to_the_text(client: openai.OpenAI) -> None:
    response = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=1, seed=1
    )
    (choice,) = response.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    shown = "".join(entry.token for entry in choice.logprobs.content if not entry.token.startswith("<"))
    assert shown == choice.message.content
    assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
    assert all(len(entry.top_logprobs) == 1 for entry in choice.logprobs.content)


def test_streamed_chat(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    text, reason, usage = "", None, None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert reason == whole.choices[0].finish_reason
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_completions_of_several_prompts_and_samples(client: openai.OpenAI) -> None:
    response = client.completions.create(model=MODEL, prompt=["1+1=", "2+2="], n=3, max_tokens=4, logprobs=1)
    assert [choice.index for choice in response.choices] == list(range(6))
    for choice in response.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert choice.logprobs.token_logprobs is not None
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) > 0
    assert response.usage is not None
    assert response.usage.prompt_tokens == 10


def test_token_ids_as_prompt(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "max_tokens": 4, "temperature": 0, "extra_body": {"return_token_ids": True}}
    first = client.completions.create(prompt="1+1=", **asked)
    ids = first.choices[0].model_extra["prompt_token_ids"]
    second = client.completions.create(prompt=ids, **asked)
    third = client.completions.create(prompt=[ids, ids], **asked)
    assert second.choices[0].text == first.choices[0].text
    assert [choice.text for choice in third.choices] == [first.choices[0].text] * 2


def test_streamed_completion(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model=MODEL, prompt="1+1=", max_tokens=4, temperature=0, stream=True))
    whole = client.completions.create(model=MODEL, prompt="1+1=", max_tokens=4, temperature=0)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_echo(client: openai.OpenAI) -> None:
    response = client.completions.create(model=MODEL, prompt="1+1=", max_tokens=4, echo=True)
    assert response.choices[0].text.startswith("1+1=")


def test_length_and_stop_are_told_apart(client: openai.OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="12+34=", max_tokens=8, temperature=0)
    text = free.choices[0].text
    assert len(text) > 1, "the tiny model writes a number"
    short = client.completions.create(model=MODEL, prompt="12+34=", max_tokens=1, temperature=0)
    assert short.choices[0].finish_reason == "length"
    assert short.choices[0].text == text[0]
    stopped = client.completions.create(model=MODEL, prompt="12+34=", max_tokens=8, temperature=0, stop=text[1])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == text[: text.index(text[1])]
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens == text.index(text[1]) + 1, "the stop token was sampled and counts"


def test_a_seed_repeats_itself(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "8", "max_tokens": 8, "n": 4, "seed": 5, "temperature": 2.0}
    texts = [[choice.text for choice in client.completions.create(**asked).choices] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1, "but the samples differ among each other"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"temperature": -1.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"max_new_tokens": 5}}, "max_new_tokens"),
        ({"prompt": [1] * 5000}, "prompt"),
        ({"prompt": [10**6]}, None),
    ],
)
def test_bad_requests_are_400_and_name_the_field(
    given: dict[str, object], param: str | None, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": MODEL, "prompt": "1", "max_tokens": 2, **given})
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


def test_other_routes_and_methods(stack: Stack) -> None:
    missing = httpx.post(f"{stack.gateway.url}/v1/embeddings", json={})
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    wrong = httpx.get(f"{stack.gateway.url}/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    broken = httpx.post(f"{stack.gateway.url}/generate", content=b'{"text": ')
    assert broken.status_code == 400
    assert "JSON" in broken.json()["error"]["message"]


def test_health_probes_are_not_sampled(client: openai.OpenAI, stack: Stack) -> None:
    """AP-26: atroposlib asks for one token every second."""
    before = stack.gateway.metric("sampling_seconds_count"), stack.gateway.metric("health_probes_total")
    probe = client.completions.create(model=MODEL, prompt="hi", max_tokens=1)
    assert len(probe.choices) == 1
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=1)
    after = stack.gateway.metric("sampling_seconds_count"), stack.gateway.metric("health_probes_total")
    assert (after[0] - before[0], after[1] - before[1]) == (0, 2)


def test_logprobs_are_those_of_training(stack: Stack) -> None:
    body = {"text": "12+34=", "sampling_params": {"n": 4, "max_new_tokens": 8}}
    prompt = httpx.post(
        f"{stack.gateway.url}/v1/completions",
        json={"prompt": "12+34=", "max_tokens": 2, "return_token_ids": True},
        timeout=60,
    ).json()["choices"][0]["prompt_token_ids"]
    answers = httpx.post(f"{stack.gateway.url}/generate", json=body, timeout=120).json()
    assert len(answers) == 4
    for answer in answers:
        pairs = answer["meta_info"]["output_token_logprobs"]
        again = stack.training_logprobs(prompt, [pair[1] for pair in pairs])
        np.testing.assert_allclose([pair[0] for pair in pairs], again, atol=1e-3)
