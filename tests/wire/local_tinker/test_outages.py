"""Death, restart and injected trouble: what survives, what heals by itself, and what the SDK is told."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

from tinker_atropos.local_tinker.tiny_model import NAME

pytestmark = pytest.mark.wire


def _server(request: pytest.FixtureRequest, data: Path, *options: str) -> Any:
    """A server of the test's own, of the class that the shared one has."""
    shared = request.getfixturevalue("server")
    instance = type(shared)(data, "--no-warm-up", *options)
    request.addfinalizer(instance.terminate)
    instance.start()
    return instance


def _client(server: Any, key: str = "tml-local") -> Any:
    return tinker.ServiceClient(base_url=server.url, api_key=key)


def datum(seven: int = 7) -> types.Datum:
    whole = [1, 8, 9, seven, 10, 2]
    return types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=whole[1:], dtype="int64", shape=[5])},
    )


def step(training: Any) -> None:
    passed = training.forward_backward([datum()], "cross_entropy")
    stepped = training.optim_step(tinker.AdamParams(learning_rate=1e-3))
    passed.result(timeout=120)
    stepped.result(timeout=120)


def loss(training: Any) -> float:
    value: float = training.forward([datum()], "cross_entropy").result(timeout=120).metrics["loss:sum"]
    return value


def test_everything_saved_survives_kill_9(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Checkpoints, samplers and counts are there again, samples in flight heal, training calls say what to do."""
    server = _server(request, tmp_path / "data")
    client = _client(server)
    training = client.create_lora_training_client(NAME, rank=8, seed=1).result(timeout=120)
    for _ in range(3):
        step(training)
    state = training.save_state("three").result(timeout=60).path
    weights = training.save_weights_for_sampler("three").result(timeout=60).path
    samplers = [
        client.create_sampling_client(model_path=weights).result(),
        client.create_sampling_client(base_model=NAME).result(),
        training.save_weights_and_get_sampling_client().result(timeout=60),
    ]
    prompt = types.ModelInput.from_ints([1, 8, 9])
    asked = types.SamplingParams(max_tokens=6, seed=4, stop=[])

    def drawn() -> list[list[int]]:
        return [list(s.sample(prompt, 1, asked).result(timeout=120).sequences[0].tokens) for s in samplers]

    before = drawn()
    step(training)
    expected, used = loss(training), server.usage()
    in_flight = samplers[0].sample(prompt, 2, types.SamplingParams(max_tokens=700, seed=4, stop=[]))
    time.sleep(0.5)
    server.kill()
    assert not in_flight.future().done()
    server.start()
    assert drawn() == before
    resumed = client.create_training_client_from_state_with_optimizer(state).result(timeout=60)
    step(resumed)
    assert loss(resumed) == expected
    assert server.usage()["train"] > used["train"]
    with pytest.raises(tinker.NotFoundError, match="create a training client from the last saved state"):
        training.forward_backward([datum()], "cross_entropy").result(timeout=60)
    assert [len(row.tokens) for row in in_flight.result(timeout=240).sequences] == [700, 700]


def test_only_the_set_key_is_accepted_and_sigterm_ends_in_order(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = _server(request, tmp_path / "data", "--api-key", "tml-secret")
    with pytest.raises(tinker.AuthenticationError, match="not the key of this server"):
        _client(server, "tml-wrong").create_sampling_client(base_model=NAME).result()
    sampler = _client(server, "tml-secret").create_sampling_client(base_model=NAME).result()
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert httpx.get(f"{server.url}/local/v1/tokenizer").headers["content-type"] == "application/x-tar"
    assert httpx.post(f"{server.url}/local/v1/faults", json={}).status_code == 404, "no faults unless asked for"
    long = types.SamplingParams(max_tokens=4000, stop=[])
    sampler.sample(types.ModelInput.from_ints([1, 8, 9]), 1, long)
    time.sleep(0.5)
    assert server.terminate() == 0
    assert "Traceback" not in server.log()


ROUTES = [
    "/asample",
    "/retrieve_future",
    "/forward_backward",
    "/optim_step",
    "/save_weights",
    "/save_weights_for_sampler",
    "/create_sampling_session",
    "/create_model",
    "/load_weights",
    "/get_info",
]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("route", ROUTES)
def test_a_passing_fault_heals(server: Any, client: Any, route: str, status: int) -> None:
    """One bad answer on any route of a training step: the step is done all the same, and once."""
    server.fault(route=route, status=status)
    training = client.create_lora_training_client(NAME, rank=8, seed=1).result(timeout=120)
    step(training)
    path = training.save_state("x").result(timeout=60).path
    weights = training.save_weights_for_sampler("x").result(timeout=60).path
    sampler = client.create_sampling_client(model_path=weights).result()
    sampler.sample(types.ModelInput.from_ints([1, 8]), 1, types.SamplingParams(max_tokens=2)).result(timeout=60)
    resumed = client.create_training_client_from_state_with_optimizer(path).result(timeout=60)
    metrics = resumed.optim_step(tinker.AdamParams()).result(timeout=60).metrics
    assert metrics["step:max"] == 2.0
    assert server.faults_left() == []


@pytest.mark.parametrize("route", ["/forward_backward", "/optim_step", "/save_weights"])
def test_a_lost_answer_does_not_repeat_the_call(server: Any, client: Any, route: str) -> None:
    training = client.create_lora_training_client(NAME, rank=8, seed=1).result(timeout=120)
    before = server.usage()["train"]
    server.fault(route=route, status=503, after=True)
    step(training)
    training.save_state("x").result(timeout=60)
    assert server.usage()["train"] - before == 5
    assert training.optim_step(tinker.AdamParams()).result(timeout=60).metrics["step:max"] == 2.0


def test_delay_and_hang(server: Any, client: Any) -> None:
    started = time.monotonic()
    server.fault(route="/get_server_capabilities", delay=0.5)
    client.get_server_capabilities()
    assert time.monotonic() - started >= 0.5
    server.fault(route="/get_server_capabilities", hang=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{server.url}/api/v1/get_server_capabilities", headers={"X-API-Key": "tml-x"}, timeout=1)
    client.get_server_capabilities()


def test_a_wrong_fault_is_refused(server: Any) -> None:
    answer = httpx.post(f"{server.url}/local/v1/faults", json={"route": "/asample"})
    assert answer.status_code == 400
    assert "at least one of status, delay and hang" in answer.json()["detail"]


def test_sampling_goes_on_while_another_client_trains(server: Any, client: Any) -> None:
    """Two clients share the engine; neither gets the other's weights."""
    training = client.create_lora_training_client(NAME, rank=8, seed=1).result(timeout=120)
    sampler = client.create_sampling_client(base_model=NAME).result()
    prompt, asked = types.ModelInput.from_ints([1, 8, 9]), types.SamplingParams(max_tokens=5, seed=2)
    before = sampler.sample(prompt, 1, asked).result(timeout=60).sequences[0].tokens
    ended = threading.Event()

    def train() -> None:
        for _ in range(10):
            step(training)
        ended.set()

    thread = threading.Thread(target=train)
    thread.start()
    drawn = []
    while not ended.is_set():
        drawn.append(sampler.sample(prompt, 1, asked).result(timeout=60).sequences[0].tokens)
    thread.join()
    assert drawn
    assert all(tokens == before for tokens in drawn)
