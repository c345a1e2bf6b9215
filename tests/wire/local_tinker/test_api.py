"""Every call that a trainer and a gateway make, through the unmodified SDK."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import time
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

from tinker_atropos.local_tinker.tiny_model import NAME

pytestmark = pytest.mark.wire

ONE = types.SamplingParams(max_tokens=4, seed=1)


def ids(tokenizer: Any, text: str) -> Any:
    return types.ModelInput.from_ints(tokenizer.encode(text))


def supervised(tokenizer: Any, prompt: str, answer: str) -> types.Datum:
    before = tokenizer.encode(prompt)
    after = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    whole = before + after
    return types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=whole[1:], dtype="int64", shape=[len(whole) - 1]),
            "weights": types.TensorData(
                data=[0.0] * (len(before) - 1) + [1.0] * len(after), dtype="float32", shape=[len(whole) - 1]
            ),
        },
    )


def new_model(client: Any, **settings: Any) -> Any:
    return client.create_lora_training_client(NAME, **{"rank": 8, "seed": 1, **settings}).result(timeout=120)


def step(training: Any, data: list[types.Datum], rate: float = 1e-3) -> float:
    passed = training.forward_backward(data, "cross_entropy")
    stepped = training.optim_step(tinker.AdamParams(learning_rate=rate))
    loss: float = passed.result(timeout=120).metrics["loss:sum"]
    assert stepped.result(timeout=120).metrics["step:max"] >= 1
    return loss


@pytest.fixture
def rest(server: Any) -> Any:
    return tinker.RestClient(base_url=server.url, api_key="tml-local")


@pytest.fixture
def training(client: Any) -> Any:
    return new_model(client)


@pytest.fixture
def data(tokenizer: Any) -> list[types.Datum]:
    return [supervised(tokenizer, f"{n}+{n}=", "7") for n in range(7)]


# ---------------------------------------------------------------------- what the server says of itself


def test_capabilities(rest: Any) -> None:
    (model,) = rest.get_server_capabilities().result().supported_models
    assert (model.model_name, model.trainable, model.sampleable) == (NAME, True, True)
    assert model.max_context_length == 4096


@pytest.mark.parametrize("route", ["/healthz", "/api/v1/healthz"])
def test_health_needs_no_key(server: Any, route: str) -> None:
    answer = httpx.get(server.url + route)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_info_of_a_model(training: Any) -> None:
    info = training.get_info()
    assert (info.model_data.model_name, info.model_data.tokenizer_id, info.lora_rank) == (NAME, None, 8)
    assert ":train:" in info.model_id


def test_unknown_route_says_so(server: Any) -> None:
    answer = server.post("/copy_weights", {})
    assert answer.status_code == 404
    assert "not offered by the local server" in answer.json()["detail"]


# ---------------------------------------------------------------------- sampling


def test_sampling_the_base_model(client: Any, tokenizer: Any) -> None:
    sampler = client.create_sampling_client(base_model=NAME).result()
    response = sampler.sample(ids(tokenizer, "12+7="), 16, types.SamplingParams(max_tokens=8, seed=1)).result(
        timeout=120
    )
    assert len(response.sequences) == 16
    assert len({row.sequence_id for row in response.sequences}) == 16
    for row in response.sequences:
        assert row.stop_reason == "stop"
        assert row.tokens[-1] == tokenizer.eos_token_id
        assert len(row.logprobs) == len(row.tokens)
        assert tokenizer.decode(row.tokens, skip_special_tokens=True).isdigit()


@pytest.mark.parametrize(
    ("params", "reason", "most"),
    [
        ({"max_tokens": 3, "stop": []}, "length", 3),
        ({"max_tokens": 8, "stop": "="}, "stop", 8),
        ({"max_tokens": 40, "stop": ["9=", "8=", "7=", "6=", "5=", "4=", "3=", "2=", "1=", "0="]}, "stop", 40),
        ({"max_tokens": 8, "stop": [18]}, "stop", 8),
        ({"max_tokens": 1}, "length", 1),
    ],
    ids=["nothing stops", "a text of one token", "texts of two tokens", "a token id", "one token"],
)
def test_ends_of_a_sample(client: Any, tokenizer: Any, params: dict[str, Any], reason: str, most: int) -> None:
    sampler = client.create_sampling_client(base_model=NAME).result()
    asked = types.SamplingParams(seed=3, temperature=0.5, **params)
    prompt = ids(tokenizer, "12+7=" if params.get("stop") in (None, []) else "12+7")
    (row,) = sampler.sample(prompt, 1, asked).result(timeout=120).sequences
    text = tokenizer.decode(row.tokens, skip_special_tokens=True)
    assert len(row.tokens) <= most
    assert row.stop_reason == reason or row.tokens[-1] == tokenizer.eos_token_id
    if isinstance(params.get("stop"), str) and row.stop_reason == "stop":
        assert text.endswith(params["stop"]) or row.tokens[-1] == tokenizer.eos_token_id


def test_seed_and_temperature_zero(client: Any, tokenizer: Any) -> None:
    sampler = client.create_sampling_client(base_model=NAME).result()

    def drawn(**params: Any) -> Any:
        asked = types.SamplingParams(max_tokens=6, **params)
        return [row.tokens for row in sampler.sample(ids(tokenizer, "12+7="), 8, asked).result(timeout=60).sequences]

    assert drawn(seed=5) == drawn(seed=5)
    assert drawn(seed=5) != drawn(seed=6)
    greedy = drawn(temperature=0)
    assert greedy == drawn(temperature=0)
    assert len({tuple(row) for row in greedy}) == 1


def test_prompt_logprobs(client: Any, tokenizer: Any) -> None:
    sampler = client.create_sampling_client(base_model=NAME).result()
    prompt = ids(tokenizer, "12+7=")
    logprobs = sampler.compute_logprobs(prompt).result(timeout=120)
    assert len(logprobs) == prompt.length
    assert logprobs[0] is None
    assert all(value < 0 for value in logprobs[1:])
    last = sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2).result(timeout=60)
    assert last[:-2] == [None] * (prompt.length - 2)
    assert last[-2:] == pytest.approx(logprobs[-2:], abs=1e-5)


def test_many_samples_at_once_are_answered_alike(client: Any, tokenizer: Any, server: Any) -> None:
    """A burst of single requests runs in batches; each gets what it would get alone."""
    sampler = client.create_sampling_client(base_model=NAME).result()
    prompts = [ids(tokenizer, f"{n}+{n}=") for n in range(40)]
    asked = [sampler.sample(prompt, 1, types.SamplingParams(max_tokens=6, seed=n)) for n, prompt in enumerate(prompts)]
    together = [future.result(timeout=120).sequences[0].tokens for future in asked]
    alone = [
        sampler.sample(prompts[n], 1, types.SamplingParams(max_tokens=6, seed=n)).result(timeout=60).sequences[0].tokens
        for n in (0, 17, 39)
    ]
    assert alone == [together[n] for n in (0, 17, 39)]


def test_sampling_logprobs_equal_training_logprobs(client: Any, training: Any, tokenizer: Any) -> None:
    step(training, [supervised(tokenizer, "12+7=", "7")])
    sampler = training.save_weights_and_get_sampling_client().result(timeout=60)
    prompt = tokenizer.encode("12+7=")
    (row,) = sampler.sample(types.ModelInput.from_ints(prompt), 1, ONE).result(timeout=60).sequences
    whole = prompt + list(row.tokens)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=whole[1:], dtype="int64", shape=[len(whole) - 1])},
    )
    passed = training.forward([datum], "cross_entropy").result(timeout=120)
    trained = passed.loss_fn_outputs[0]["logprobs"].tolist()[len(prompt) - 1 :]
    assert trained == pytest.approx(list(row.logprobs), abs=1e-4)


# ---------------------------------------------------------------------- training


def test_training_lowers_the_loss(training: Any, data: list[types.Datum]) -> None:
    losses = [step(training, data, rate=3e-3) for _ in range(5)]
    assert losses[-1] < losses[0] * 0.8


def test_forward_alone_changes_nothing(training: Any, data: list[types.Datum]) -> None:
    first = training.forward(data, "cross_entropy").result(timeout=120)
    second = training.forward(data, "cross_entropy").result(timeout=60)
    assert first.metrics == second.metrics
    assert training.optim_step(tinker.AdamParams()).result(timeout=60).metrics["grad_norm:mean"] == 0


def test_flags_decide_what_is_trained(client: Any, data: list[types.Datum]) -> None:
    """With the unembedding alone the loss falls too, but otherwise than with everything."""
    every = new_model(client)
    only = new_model(client, train_mlp=False, train_attn=False)
    falls = []
    for model in (every, only):
        losses = [step(model, data, rate=3e-3) for _ in range(3)]
        falls.append(losses[0] - losses[-1])
    assert 0 < falls[1] < falls[0]


def test_chunks_of_a_batch_arrive_in_any_order(
    server: Any, client: Any, data: list[types.Datum], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK sends the first chunk last; logprobs come back in the order of the datums, sums over all of them."""
    whole = new_model(client)
    expected = whole.forward_backward(data, "cross_entropy").result(timeout=120)
    chunked = new_model(client)
    config = chunked.holder.get_client_config().model_copy(update={"fwdbwd_max_chunk_len": 2})
    monkeypatch.setattr(chunked.holder, "_client_config", config)
    before = server.usage()["train"]
    got = chunked.forward_backward(data, "cross_entropy").result(timeout=120)
    assert server.usage()["train"] - before == sum(datum.model_input.length for datum in data)
    assert got.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    for one, other in zip(got.loss_fn_outputs, expected.loss_fn_outputs, strict=True):
        assert one["logprobs"].tolist() == pytest.approx(other["logprobs"].tolist(), abs=1e-4)
    norms = [
        model.optim_step(tinker.AdamParams()).result(timeout=60).metrics["grad_norm:mean"] for model in (whole, chunked)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_later_calls_wait_for_earlier_ones(server: Any, training: Any) -> None:
    model = training.model_id
    late = server.post("/optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}}).json()["request_id"]
    early = server.post("/optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}}).json()["request_id"]
    steps = [
        server.post("/retrieve_future", {"request_id": rid}).json()["metrics"]["step:max"] for rid in (late, early)
    ]
    assert steps == [2.0, 1.0]


def test_a_call_sent_again_is_the_same_call(server: Any, training: Any) -> None:
    body = {"model_id": training.model_id, "seq_id": 1, "adam_params": {}}
    first, again = (server.post("/optim_step", body).json()["request_id"] for _ in range(2))
    assert first == again
    after = server.post("/optim_step", {**body, "seq_id": 2}).json()["request_id"]
    assert server.post("/retrieve_future", {"request_id": after}).json()["metrics"]["step:max"] == 2.0


def test_a_sample_sent_again_is_the_same_sample(server: Any, client: Any, tokenizer: Any) -> None:
    sampler = client.create_sampling_client(base_model=NAME).result()
    body = {
        "sampling_session_id": sampler._sampling_session_id,
        "seq_id": 77,
        "num_samples": 2,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokenizer.encode("1+1=")}]},
        "sampling_params": {"max_tokens": 3},
    }
    first, again = (server.post("/asample", body).json() for _ in range(2))
    assert first == again
    assert len(first["sample_sequence_ids"]) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_input": types.ModelInput.from_ints([1, 2, 5000])}, "token id 5000 is outside the vocabulary"),
        ({"model_input": types.ModelInput.from_ints([1, 2])}, "3 values for 2 input tokens"),
    ],
)
def test_a_wrong_datum_is_the_users_error_and_blocks_nothing(
    training: Any, data: list[types.Datum], change: dict[str, Any], words: str
) -> None:
    inputs = {"target_tokens": types.TensorData(data=[1, 2, 3], dtype="int64", shape=[3])}
    wrong = types.Datum(**{"model_input": types.ModelInput.from_ints([1, 2, 3]), "loss_fn_inputs": inputs, **change})
    with pytest.raises(tinker.RequestFailedError, match=words) as refused:
        training.forward_backward([wrong], "cross_entropy").result(timeout=60)
    assert refused.value.category.value == "user"
    assert step(training, data) > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t, d: t.forward_backward(d, "gspo"), "'gspo' is not offered by the local server"),
        (lambda t, d: t.forward_backward(d, "cross_entropy", {"beta": 1.0}), "not a setting of cross_entropy"),
        (lambda t, d: t.optim_step(tinker.AdamParams(learning_rate=-1)), "learning_rate"),
        (lambda t, d: t.save_state("../escape"), "not of the form"),
        (lambda t, d: t.save_state("short", ttl_seconds=0), "ttl_seconds: 0"),
    ],
    ids=["unknown loss", "unknown setting", "negative rate", "path upwards", "time to live too short"],
)
def test_refused_training_calls_name_the_field(training: Any, data: list[types.Datum], call: Any, words: str) -> None:
    with pytest.raises(tinker.RequestFailedError, match=words):
        call(training, data).result(timeout=60)
    assert step(training, data) > 0


@pytest.mark.parametrize(
    ("base", "rank", "words"),
    [("Qwen/Qwen3-8B", 8, "this server has 'tinker-atropos/tiny'"), (NAME, 999, "rank: 999")],
)
def test_models_that_cannot_be_made(client: Any, base: str, rank: int, words: str) -> None:
    with pytest.raises(tinker.RequestFailedError, match=words):
        client.create_lora_training_client(base, rank=rank).result(timeout=60)


@pytest.mark.parametrize(
    ("tokens", "params", "words"),
    [
        ([1, 5000], {}, "prompt: token id 5000"),
        ([], {}, "prompt: 0 tokens"),
        ([5] * 4096, {}, "prompt: 4096 tokens"),
        ([5], {"temperature": -1}, "temperature"),
        ([5], {"top_p": 0}, "top_p"),
        ([5], {"stop": [999]}, "sampling_params.stop: token id 999"),
        ([5], {"stop": ["a", ""]}, "an empty text"),
    ],
)
def test_samples_that_cannot_be_drawn(client: Any, tokens: list[int], params: dict[str, Any], words: str) -> None:
    sampler = client.create_sampling_client(base_model=NAME).result()
    asked = types.SamplingParams(**{"max_tokens": 2, **params})
    with pytest.raises(tinker.BadRequestError, match=words):
        sampler.sample(types.ModelInput.from_ints(tokens), 1, asked).result(timeout=60)


# ---------------------------------------------------------------------- checkpoints


def test_saved_state_goes_on_as_if_nothing_had_happened(client: Any, training: Any, data: list[types.Datum]) -> None:
    for _ in range(3):
        step(training, data)
    path = training.save_state("three", ttl_seconds=3600).result(timeout=60).path
    assert path.endswith("/weights/three")
    resumed = client.create_training_client_from_state_with_optimizer(path).result(timeout=60)
    cold = client.create_training_client_from_state(path).result(timeout=60)
    losses = []
    for model in (training, resumed, cold):
        step(model, data)
        losses.append(model.forward(data, "cross_entropy").result(timeout=60).metrics["loss:sum"])
    assert losses[0] == losses[1] != losses[2]


def test_the_same_name_twice(training: Any) -> None:
    training.save_state("one").result(timeout=60)
    with pytest.raises(tinker.RequestFailedError, match="already exists"):
        training.save_state("one").result(timeout=60)
    training.save_state("one", overwrite=True).result(timeout=60)


def test_named_sampler_weights(client: Any, training: Any, tokenizer: Any, data: list[types.Datum]) -> None:
    for _ in range(25):
        step(training, data, rate=5e-3)
    path = training.save_weights_for_sampler("final").result(timeout=60).path
    assert path.endswith("/sampler_weights/final")
    sampler = client.create_sampling_client(model_path=path).result()
    asked = types.SamplingParams(max_tokens=4, temperature=0)
    (row,) = sampler.sample(ids(tokenizer, "3+3="), 1, asked).result(timeout=60).sequences
    assert tokenizer.decode(row.tokens, skip_special_tokens=True) == "7"


def test_optimizer_state_is_not_in_sampler_weights(client: Any, training: Any) -> None:
    path = training.save_weights_for_sampler("x").result(timeout=60).path
    with pytest.raises(tinker.RequestFailedError, match="without optimizer state"):
        client.create_training_client_from_state_with_optimizer(path).result(timeout=60)


def test_what_is_listed(rest: Any, training: Any) -> None:
    state = training.save_state("a", ttl_seconds=7200, user_metadata={"step": "3"}).result(timeout=60).path
    weights = training.save_weights_for_sampler("b").result(timeout=60).path
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    assert [(item.checkpoint_id, item.checkpoint_type) for item in listed] == [
        ("weights/a", "training"),
        ("sampler_weights/b", "sampler"),
    ]
    assert listed[0].user_metadata == {"step": "3"}
    assert listed[0].size_bytes > 0
    left = listed[0].expires_at - dt.datetime.now(dt.UTC)
    assert dt.timedelta(minutes=110) < left <= dt.timedelta(hours=2)
    assert listed[1].expires_at is None
    everything = rest.list_user_checkpoints(limit=2).result()
    assert {item.tinker_path for item in everything.checkpoints} == {state, weights}
    assert everything.cursor.total_count >= 2
    info = rest.get_weights_info_by_tinker_path(state).result()
    assert (info.base_model, info.lora_rank, info.train_attn) == (NAME, 8, True)


def test_runs_are_listed(rest: Any, training: Any) -> None:
    path = training.save_state("a").result(timeout=60).path
    run = rest.get_training_run(training.model_id).result()
    assert (run.base_model, run.lora_rank, run.last_checkpoint.tinker_path) == (NAME, 8, path)
    listed = rest.list_training_runs(limit=1).result()
    assert [item.training_run_id for item in listed.training_runs] == [training.model_id]


def test_deletion(client: Any, rest: Any, training: Any) -> None:
    path = training.save_state("a").result(timeout=60).path
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(training.model_id).result().checkpoints == []
    with pytest.raises(tinker.NotFoundError, match="no such checkpoint"):
        rest.delete_checkpoint_from_tinker_path(path).result()
    with pytest.raises(tinker.NotFoundError, match="no such checkpoint"):
        client.create_sampling_client(model_path=path).result()


def test_time_to_live_runs_out(rest: Any, client: Any, training: Any) -> None:
    path = training.save_state("brief", ttl_seconds=1).result(timeout=60).path
    kept = training.save_state("kept", ttl_seconds=1).result(timeout=60).path
    rest.set_checkpoint_ttl_from_tinker_path(kept, None).result()
    time.sleep(1.2)
    assert [item.tinker_path for item in rest.list_checkpoints(training.model_id).result().checkpoints] == [kept]
    with pytest.raises(tinker.RequestFailedError, match="expired"):
        client.create_training_client_from_state(path).result(timeout=60)


# ---------------------------------------------------------------------- sessions, promises, counts


def test_sessions_are_listed(rest: Any, client: Any, training: Any) -> None:
    session = training.model_id.split(":")[0]
    assert session in rest.list_sessions(limit=1000).result().sessions
    sampler = client.create_sampling_client(base_model=NAME).result()
    found = rest.get_session(session).result()
    assert found.training_run_ids == [training.model_id]
    assert found.sampler_ids == [sampler._sampling_session_id]
    known = rest.get_sampler(sampler._sampling_session_id).result()
    assert (known.base_model, known.model_path) == (NAME, None)


def test_a_finished_session_ends_its_heartbeat(server: Any) -> None:
    session = server.post("/create_session", {"tags": [], "user_metadata": {}, "sdk_version": "0"}).json()["session_id"]
    assert server.post("/session_heartbeat", {"session_id": session}).status_code == 200
    assert server.post(f"/sessions/{session}/finish", {"reason": {"type": "success"}}).status_code == 204
    assert server.post("/session_heartbeat", {"session_id": session}).status_code == 410


def test_a_finished_session_gives_its_models_up(server: Any, data: list[types.Datum]) -> None:
    opened = tinker.ServiceClient(base_url=server.url, api_key="tml-local")
    training = new_model(opened)
    path = training.save_state("last").result(timeout=60).path
    opened.close("success").result(timeout=30)
    answer = server.post("/get_info", {"model_id": training.model_id})
    assert answer.status_code == 404
    assert "create a training client from the last saved state" in answer.json()["detail"]
    again = tinker.ServiceClient(base_url=server.url, api_key="tml-local")
    assert step(again.create_training_client_from_state(path).result(timeout=60), data) > 0
    again.close("success").result(timeout=30)


def test_unknown_promises_are_gone(server: Any) -> None:
    assert server.post("/retrieve_future", {"request_id": "never"}).status_code == 410


def test_cancelled_samples_end(server: Any, client: Any) -> None:
    sampler = client.create_sampling_client(base_model=NAME).result()
    body = {
        "sampling_session_id": sampler._sampling_session_id,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5]}]},
        "sampling_params": {"max_tokens": 4000, "stop": []},
    }
    waiting = [server.post("/asample", {**body, "seq_id": 900 + n}).json()["request_id"] for n in range(2)]
    for request_id in waiting:
        assert server.post("/cancel_future", {"request_id": request_id}).status_code == 204
        assert server.post("/retrieve_future", {"request_id": request_id}).json()["error"] == "cancelled by the client"


def test_tokens_are_counted(server: Any, client: Any, tokenizer: Any, data: list[types.Datum]) -> None:
    training = new_model(client)
    before = server.usage()
    sampler = client.create_sampling_client(base_model=NAME).result()
    prompt = ids(tokenizer, "12+7=")
    rows = sampler.sample(prompt, 4, types.SamplingParams(max_tokens=5)).result(timeout=60).sequences
    training.forward_backward(data, "cross_entropy").result(timeout=60)
    training.forward(data, "cross_entropy").result(timeout=60)
    after = server.usage()
    counted = {kind: after[kind] - before[kind] for kind in ("prefill", "cached_prefill", "sample", "train")}
    assert counted == {
        "prefill": prompt.length,
        "cached_prefill": 3 * prompt.length,
        "sample": sum(len(row.tokens) for row in rows),
        "train": 2 * sum(datum.model_input.length for datum in data),
    }


def test_billing_has_hourly_events(server: Any, client: Any, training: Any, data: list[types.Datum]) -> None:
    step(training, data)
    hour = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    admin = tinker.AdminClient(base_url=server.url, api_key="tml-local")
    usage = admin.get_billing_usage(hour - dt.timedelta(hours=1), hour + dt.timedelta(hours=1)).result()
    session = training.model_id.split(":")[0]
    events = [event.event_info for event in usage.data if event.session_id == session]
    assert sum(event.token_count for event in events if event.type == "training") > 0
    assert session in usage.sessions


# ---------------------------------------------------------------------- keys


@pytest.mark.parametrize(("key", "status"), [("tml-anything", 200), ("sk-other", 401), ("", 401)])
def test_any_key_of_the_right_form(server: Any, key: str, status: int) -> None:
    answer = server.post("/client/config", {"sdk_version": "0"}, key=key)
    assert answer.status_code == status
    if status == 401:
        assert "TINKER_API_KEY" in answer.json()["detail"]


async def test_long_poll_says_try_again(server: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a result is not there the answer is 408, which the SDK takes as: ask again."""
    training = await client.create_lora_training_client(NAME, rank=8, seed=1)
    held = server.post("/optim_step", {"model_id": training.model_id, "seq_id": 2, "adam_params": {}}).json()
    async with httpx.AsyncClient(headers={"X-API-Key": "tml-local"}, timeout=45) as http:
        started = time.monotonic()
        answer = await http.post(f"{server.url}/api/v1/retrieve_future", json=held)
    assert answer.status_code == 408
    assert answer.json()["type"] == "try_again"
    assert 5 < time.monotonic() - started < 30, "a poll is long, but shorter than the SDK's patience"
    await asyncio.to_thread(server.post, "/optim_step", {"model_id": training.model_id, "seq_id": 1, "adam_params": {}})
    assert server.post("/retrieve_future", held).json()["metrics"]["step:max"] == 2.0


def test_metric_names_carry_their_reduction(training: Any, tokenizer: Any) -> None:
    prompt = tokenizer.encode("1+1=7")
    size = len(prompt) - 1
    tensors = {
        "logprobs": types.TensorData(data=[-1.0] * size, dtype="float32", shape=[size]),
        "advantages": types.TensorData(data=[0.5] * size, dtype="float32", shape=[size]),
        "target_tokens": types.TensorData(data=prompt[1:], dtype="int64", shape=[size]),
    }
    datum = types.Datum(model_input=types.ModelInput.from_ints(prompt[:-1]), loss_fn_inputs=tensors)
    for loss in ("importance_sampling", "ppo", "cispo", "dro"):
        metrics = training.forward_backward([datum], loss).result(timeout=60).metrics
        assert all(name.count(":") == 1 for name in metrics)
        assert math.isfinite(metrics["loss:sum"])
