"""atroposlib's own classes behind a relay, in front of the real servers: from a prompt to a group with its version."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx
import numpy as np
import pytest

from gateway_stack import GROUP, MODEL, Stack
from relay_process import Relay, StartRelay

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def relay(stack: Stack, start_relay: StartRelay) -> Relay:
    return start_relay(
        stack.trajectories.url, stack.gateway.url, "--token-file", str(stack.folder / "token"), instance="digits-7"
    )


@pytest.fixture
async def server(relay: Relay) -> AsyncIterator[Any]:
    """atroposlib's sglang client as the operator configures it."""
    from atroposlib.envs.server_handling.server_baseline import APIServerConfig
    from atroposlib.envs.server_handling.sglang_server import SGLangServer

    made = SGLangServer(
        APIServerConfig(
            model_name=MODEL,
            tokenizer_name=str(relay.tokenizer),
            base_url=f"{relay.gateway}/v1",
            api_key="relay",
            server_type="sglang",
            timeout=86_400,
        )
    )
    yield made
    if getattr(made, "check_task", None) is not None:
        made.check_task.cancel()
    await made.openai.close()


async def send(relay: Relay, group: dict[str, Any]) -> int:
    """As BaseEnv posts a group."""
    body = gzip.compress(json.dumps(group).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{relay.trajectories}/scored_data", data=body, headers=headers) as answer,
    ):
        return answer.status


def group_of(nodes: list[Any]) -> dict[str, Any]:
    return {
        "tokens": [node.tokens for node in nodes],
        "masks": [node.masked_tokens for node in nodes],
        "inference_logprobs": [node.logprobs for node in nodes],
        "scores": [float(index % 2) for index in range(len(nodes))],
        "ref_logprobs": None,
        "overrides": None,
        "group_overrides": None,
        "env_id": None,
    }


async def test_a_group_of_the_managed_server_is_recognised(server: Any, relay: Relay, stack: Stack) -> None:
    from atroposlib.envs.server_handling.managed_server import ManagedServer

    managed = ManagedServer(server, tokenizer=server.tokenizer)
    response = await managed.chat_completion(
        messages=[{"role": "user", "content": "12+7="}], n=GROUP, max_tokens=6, temperature=1.0, stop=["\n"]
    )
    nodes = managed.get_state()["nodes"]
    assert len(response.choices) == len(nodes) == GROUP
    for choice, node in zip(response.choices, nodes, strict=True):
        sampled = [token for token in node.masked_tokens if token != -100]
        assert sampled, "a completion has tokens"
        assert choice.finish_reason in ("stop", "length")
        assert server.tokenizer.decode(sampled, skip_special_tokens=True) == choice.message.content
        prompt = node.tokens[: len(node.tokens) - len(sampled)]
        told = node.logprobs[len(prompt) :]
        np.testing.assert_allclose(told, stack.training_logprobs(prompt, sampled), atol=1e-3)
    assert await send(relay, group_of(nodes)) == 200
    (group,) = stack.lease().groups
    assert (group.environment, group.instance) == ("digits", "digits-7")
    assert (group.oldest.epoch, group.oldest.step) == (stack.epoch, stack.step)


async def test_a_conversation_over_two_policies_has_the_older_ones_version(
    server: Any, relay: Relay, stack: Stack
) -> None:
    from atroposlib.envs.server_handling.managed_server import ManagedServer

    nodes = []
    for _ in range(GROUP):
        managed = ManagedServer(server, tokenizer=server.tokenizer)
        await managed.completion(prompt="12+7=", n=1, max_tokens=3, temperature=1.0)
        nodes.append((managed, managed.get_state()["nodes"][0]))
    stack.train_a_little()
    stack.publish()
    extended = []
    for managed, node in nodes:
        await managed.completion(prompt=f"{node.full_text}\n8+9=", n=1, max_tokens=3, temperature=1.0)
        extended.append(managed.get_state()["nodes"][-1])
    assert await send(relay, group_of(extended)) == 200
    (group,) = stack.lease().groups
    # ManagedServer.completion masks what came before, so only the second turn is the policy's own.
    assert (group.oldest.epoch, group.oldest.step) == (stack.epoch, stack.step)


async def test_turns_of_a_chat_keep_their_versions(server: Any, relay: Relay, stack: Stack) -> None:
    from atroposlib.envs.server_handling.managed_server import ManagedServer

    stack.train_a_little()
    stack.publish()
    first_step = stack.step
    sessions = []
    for _ in range(GROUP):
        managed = ManagedServer(server, tokenizer=server.tokenizer)
        messages = [{"role": "user", "content": "12+7="}]
        answer = await managed.chat_completion(messages=messages, n=1, max_tokens=3, temperature=1.0)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
        sessions.append((managed, messages))
    stack.train_a_little()
    stack.publish()
    nodes = []
    for managed, messages in sessions:
        await managed.chat_completion(
            messages=[*messages, {"role": "user", "content": "8+9="}], n=1, max_tokens=3, temperature=1.0
        )
        state = managed.get_state()["nodes"]
        assert len(state) == 1, "the second turn extends the first"
        nodes.append(state[0])
    assert await send(relay, group_of(nodes)) == 200
    (group,) = stack.lease().groups
    assert (group.oldest.epoch, group.oldest.step) == (stack.epoch, first_step)


async def test_the_health_check_of_the_client_costs_nothing(server: Any, relay: Relay, stack: Stack) -> None:
    import asyncio

    before = stack.gateway.metric("sampling_seconds_count")
    task = asyncio.create_task(server.check_server_status_task(chat_completion=False))
    async with asyncio.timeout(30):
        server.server_healthy = False
        while not server.server_healthy:
            await asyncio.sleep(0.05)
    task.cancel()
    assert stack.gateway.metric("sampling_seconds_count") == before


async def test_a_scored_group_survives_the_kill_of_the_trajectory_server(
    server: Any, relay: Relay, stack: Stack
) -> None:
    import asyncio

    from atroposlib.envs.server_handling.managed_server import ManagedServer

    managed = ManagedServer(server, tokenizer=server.tokenizer)
    await managed.completion(prompt="1+1=", n=GROUP, max_tokens=4, temperature=1.0)
    group = group_of(managed.get_state()["nodes"])
    stack.trajectories.program.kill()
    posting = asyncio.create_task(send(relay, group))
    polling = [
        asyncio.create_task(asyncio.to_thread(httpx.get, f"{relay.trajectories}/status", timeout=60)) for _ in range(3)
    ]
    await asyncio.sleep(1)
    assert not posting.done()
    await asyncio.to_thread(stack.trajectories.program.start)
    async with asyncio.timeout(60):
        assert await posting == 200
        assert [answer.status_code for answer in await asyncio.gather(*polling)] == [200] * 3
    (leased,) = stack.lease().groups
    posted = [list(np.frombuffer(sequence.tokens, "<i4")) for sequence in leased.sequences]
    assert posted == group["tokens"]


def test_the_environments_own_key_does_not_matter(relay: Relay) -> None:
    body = {"text": "1+1=", "sampling_params": {"max_new_tokens": 2}}
    answer = httpx.post(f"{relay.gateway}/generate", json=body, headers={"Authorization": "Bearer x"}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert httpx.post(f"{relay.gateway}/generate", json={}, timeout=60).status_code == 400
