"""Policies that come, change and vanish; services that go away and come back. Nobody who waits sees an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway_stack import GROUP, Stack, Tinker
from peer_processes import until
from tinker_atropos.protocol.identity import INSTANCE_HEADER

pytestmark = pytest.mark.wire

INSTANCE = "digits-0"


@pytest.fixture
def fresh(tinker: Tinker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Nothing published yet."""
    started = Stack.start(tmp_path_factory.mktemp("stack"), tinker)
    try:
        yield started
    finally:
        tinker.clear_faults()
        started.stop()


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def generate(stack: Stack, text: str = "12+7=", **params: Any) -> httpx.Response:
    body = {"text": text, "sampling_params": {"n": GROUP, "max_new_tokens": 6, **params}}
    return httpx.post(f"{stack.gateway.url}/generate", json=body, headers={INSTANCE_HEADER: INSTANCE}, timeout=120)


def policy_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.headers["X-Tinker-Atropos-Policy"]


def inside(stack: Stack, count: int) -> None:
    until(lambda: stack.gateway.metric("running") == count, f"{count} requests inside the gateway")


def post(stack: Stack, prompt: list[int], answers: list[dict[str, Any]]) -> None:
    """The group as an environment with managed_server posts it."""
    group: dict[str, Any] = {"tokens": [], "masks": [], "scores": [], "inference_logprobs": [], "env_id": None}
    for index, answer in enumerate(answers):
        pairs = answer["meta_info"]["output_token_logprobs"]
        sampled = [pair[1] for pair in pairs]
        group["tokens"].append(prompt + sampled)
        group["masks"].append([-100] * len(prompt) + sampled)
        group["inference_logprobs"].append([1.0] * len(prompt) + [pair[0] for pair in pairs])
        group["scores"].append(float(index % 2))
    headers = {INSTANCE_HEADER: INSTANCE}
    answer = httpx.post(f"{stack.trajectories.url}/scored_data", json=group, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text


def prompt_tokens(stack: Stack, text: str) -> list[int]:
    body = {"prompt": text, "max_tokens": 1, "return_token_ids": True}
    answer = httpx.post(f"{stack.gateway.url}/v1/completions", json=body, timeout=60)
    tokens: list[int] = answer.json()["choices"][0]["prompt_token_ids"]
    return tokens


def test_requests_before_the_first_policy_wait_for_it(fresh: Stack, pool: ThreadPoolExecutor) -> None:
    assert httpx.get(f"{fresh.gateway.url}/readyz").status_code == 200
    assert fresh.gateway.policy() is None
    waiting: list[Future[httpx.Response]] = [pool.submit(generate, fresh) for _ in range(3)]
    inside(fresh, 3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{fresh.gateway.url}/generate", json={"text": "1"}, timeout=1)
    inside(fresh, 3)  # the one that left is gone from the gateway too
    probe = {"model": "m", "prompt": "hi", "max_tokens": 1}
    assert httpx.post(f"{fresh.gateway.url}/v1/completions", json=probe).status_code == 200
    fresh.publish()
    assert [policy_of(one.result(60)) for one in waiting] == [f"{fresh.epoch}/0"] * 3


def test_the_version_that_sampled_is_the_version_of_the_group(stack: Stack) -> None:
    text = "12+7="
    prompt = prompt_tokens(stack, text)
    first = generate(stack, text)
    stack.train_a_little()
    stack.publish()
    second = generate(stack, text)
    assert (policy_of(first), policy_of(second)) == (f"{stack.epoch}/{stack.step - 1}", f"{stack.epoch}/{stack.step}")
    for response, step in ((second, stack.step), (first, stack.step - 1)):
        post(stack, prompt, response.json())
        (group,) = stack.lease().groups
        assert group.instance == INSTANCE
        assert (group.oldest.epoch, group.oldest.step) == (stack.epoch, step)
    mixed = [*second.json()[: GROUP - 1], first.json()[0]]
    post(stack, prompt, mixed)
    (group,) = stack.lease().groups
    assert (group.oldest.epoch, group.oldest.step) == (stack.epoch, stack.step - 1), "the oldest token decides"


def test_a_group_that_the_gateway_never_answered_has_no_version(stack: Stack) -> None:
    prompt = prompt_tokens(stack, "12+7=")
    answers = generate(stack).json()
    for answer in answers:
        answer["meta_info"]["output_token_logprobs"][0][0] -= 0.25
    post(stack, prompt, answers)
    (group,) = stack.lease().groups
    assert not group.HasField("oldest")


def test_new_weights_answer_differently(stack: Stack) -> None:
    stack.publish()
    greedy = {"temperature": 0.0, "n": 1}
    before = generate(stack, **greedy).json()["meta_info"]["output_token_logprobs"]
    for _ in range(3):
        stack.train_a_little()
    stack.publish()
    after = generate(stack, **greedy).json()["meta_info"]["output_token_logprobs"]
    assert before != after


def test_requests_go_on_while_policies_change(stack: Stack, pool: ThreadPoolExecutor) -> None:
    stop = threading.Event()

    def sample_all_the_time() -> list[str]:
        seen = []
        while not stop.is_set():
            seen.append(policy_of(generate(stack)))
        return seen

    samplers = [pool.submit(sample_all_the_time) for _ in range(3)]
    for _ in range(4):
        stack.train_a_little()
        stack.publish()
    stop.set()
    for sampler in samplers:
        steps = [int(version.split("/")[1]) for version in sampler.result(60)]
        assert steps == sorted(steps), "never back to an older policy"
    assert policy_of(generate(stack)) == f"{stack.epoch}/{stack.step}"


@pytest.mark.parametrize(
    ("behaviour", "fault"),
    [
        ("too many requests", {"route": "/asample", "status": 429, "count": 2}),
        ("service unavailable", {"route": "/asample", "status": 503, "count": 2}),
        ("server error while waiting for the result", {"route": "/retrieve_future", "status": 500, "count": 3}),
        ("the future is forgotten", {"route": "/retrieve_future", "status": 410, "count": 1}),
        ("slow", {"route": "/asample", "delay": 1.0, "count": 1}),
        ("the answer to the request is lost", {"route": "/asample", "status": 502, "after": True, "count": 1}),
        ("the sampler is unknown", {"route": "/asample", "status": 404, "count": 1}),
        ("the key is refused for a moment", {"route": "/asample", "status": 401, "count": 1}),
    ],
)
def test_trouble_at_the_service_is_not_the_environments(
    behaviour: str, fault: dict[str, Any], stack: Stack, tinker: Tinker
) -> None:
    tinker.clear_faults()
    tinker.fault(**fault)
    response = generate(stack)
    assert policy_of(response) == f"{stack.epoch}/{stack.step}", behaviour
    assert len(response.json()) == GROUP
    assert httpx.get(f"{tinker.url}/local/v1/faults").json() == [], "the fault was met"


def test_what_the_service_refuses_is_an_answer(stack: Stack, tinker: Tinker) -> None:
    tinker.fault(route="/asample", status=400, count=1)
    response = generate(stack)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_expired_weights_are_replaced_by_the_newest_policy(stack: Stack, pool: ThreadPoolExecutor) -> None:
    stack.publish("tinker://nobody:train:0/sampler_weights/expired", wait=False)
    until(lambda: "expired" in str(httpx.get(f"{stack.gateway.url}/healthz").json()["problem"]), "the problem is told")
    assert policy_of(generate(stack)) == f"{stack.epoch}/{stack.step - 1}", "the old one answers as long as it can"
    stack.publish()
    assert policy_of(generate(stack)) == f"{stack.epoch}/{stack.step}"
    assert httpx.get(f"{stack.gateway.url}/healthz").json()["problem"] is None


def test_the_trajectory_server_is_killed_and_comes_back(stack: Stack, pool: ThreadPoolExecutor) -> None:
    stack.train_a_little()  # equal weights would sample the same again, and that counts as the older policy's
    stack.publish()
    prompt = prompt_tokens(stack, "12+7=")
    stack.trajectories.program.kill()
    waiting = [pool.submit(generate, stack) for _ in range(3)]
    until(lambda: stack.gateway.metric("held", reason="record") == 3, "three sampled requests wait for their record")
    assert not any(one.done() for one in waiting), "nothing is answered that is not recorded"
    stack.trajectories.program.start()
    responses = [one.result(60) for one in waiting]
    assert {policy_of(response) for response in responses} == {f"{stack.epoch}/{stack.step}"}
    for response in responses:
        post(stack, prompt, response.json())
        (group,) = stack.lease().groups
        assert (group.oldest.epoch, group.oldest.step) == (stack.epoch, stack.step)
    stack.publish()  # the stream of policies is back too
    assert policy_of(generate(stack)) == f"{stack.epoch}/{stack.step}"


def test_the_gateway_is_killed_and_comes_back_and_ends_in_order(stack: Stack) -> None:
    stack.gateway.program.kill()
    stack.gateway.program.start()
    assert policy_of(generate(stack)) == f"{stack.epoch}/{stack.step}"
    process = stack.gateway.program.process
    assert process is not None
    process.terminate()
    assert stack.gateway.program.wait(20) == 0
    assert "Traceback" not in stack.gateway.program.text()
