"""Which policy answers while policies come, expire and fail to open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tinker_atropos.gateway import policies as module
from tinker_atropos.gateway.generation import Version
from tinker_atropos.gateway.policies import Policies, Policy
from tinker_atropos.gateway.service import (
    RefusedError,
    Sampler,
    SamplerGoneError,
    ServiceAnswer,
    ServiceSampling,
    UnavailableError,
)


class NamedSampler:
    def __init__(self, path: str) -> None:
        self.path = path

    async def sample(self, prompt: list[int], samples: int, sampling: ServiceSampling) -> ServiceAnswer:
        raise AssertionError("not sampled here")


def policy(step: int) -> Policy:
    return Policy(Version(1, step), f"tinker://run/sampler_weights/{step}", "base")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(module, "_LONGEST_DELAY", 0.002)


@asynccontextmanager
async def running(
    open_sampler: Callable[[str, str], Awaitable[Sampler]],
) -> AsyncIterator[tuple[Policies, list[Version]]]:
    changes: list[Version] = []
    policies = Policies(open_sampler, on_change=changes.append)
    task = asyncio.create_task(policies.run())
    try:
        yield policies, changes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def opened(path: str, base_model: str) -> Sampler:
    return NamedSampler(path)


async def test_requests_wait_for_the_first_policy() -> None:
    async with running(opened) as (policies, _):
        waiting = [asyncio.create_task(policies.current()) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        policies.offer(policy(0))
        active = await asyncio.gather(*waiting)
        assert {one.policy for one in active} == {policy(0)}


async def test_a_waiting_request_that_is_cancelled_harms_nobody() -> None:
    async with running(opened) as (policies, _):
        leaving, staying = asyncio.create_task(policies.current()), asyncio.create_task(policies.current())
        await asyncio.sleep(0)
        leaving.cancel()
        policies.offer(policy(0))
        assert (await staying).policy == policy(0)


async def test_the_old_policy_answers_until_the_new_one_is_open() -> None:
    gate = asyncio.Event()

    async def slow(path: str, base_model: str) -> Sampler:
        if path.endswith("/1"):
            await gate.wait()
        return NamedSampler(path)

    async with running(slow) as (policies, changes):
        policies.offer(policy(0))
        await policies.current()
        policies.offer(policy(1))
        await asyncio.sleep(0.01)
        assert (await policies.current()).policy == policy(0)
        gate.set()
        await until(lambda: len(changes) == 2)
        assert (await policies.current()).policy == policy(1)


async def test_only_the_newest_of_many_is_opened_after_a_slow_one() -> None:
    gate = asyncio.Event()
    asked: list[str] = []

    async def slow(path: str, base_model: str) -> Sampler:
        asked.append(path)
        if len(asked) == 1:
            await gate.wait()
        return NamedSampler(path)

    async with running(slow) as (policies, _):
        for step in range(5):
            policies.offer(policy(step))
            await asyncio.sleep(0.002)
        gate.set()
        await until(lambda: policies.active is not None and policies.active.policy == policy(4))
        assert asked == [policy(0).sampler_path, policy(4).sampler_path]


async def test_the_same_policy_told_again_changes_nothing() -> None:
    async with running(opened) as (policies, changes):
        policies.offer(policy(0))
        first = await policies.current()
        policies.offer(policy(0))
        await asyncio.sleep(0.01)
        assert await policies.current() is first
        assert changes == [Version(1, 0)]


@pytest.mark.parametrize("failure", [SamplerGoneError("404"), UnavailableError("503"), RefusedError("400")])
async def test_opening_is_tried_again(failure: Exception) -> None:
    attempts = 0

    async def flaky(path: str, base_model: str) -> Sampler:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise failure
        return NamedSampler(path)

    async with running(flaky) as (policies, _):
        policies.offer(policy(0))
        assert (await policies.current()).policy == policy(0)
        assert policies.problem == ""


async def test_a_newer_policy_replaces_one_that_cannot_be_opened() -> None:
    async def expired(path: str, base_model: str) -> Sampler:
        if path.endswith("/0"):
            raise SamplerGoneError("expired")
        return NamedSampler(path)

    async with running(expired) as (policies, _):
        policies.offer(policy(0))
        await until(lambda: "expired" in policies.problem)
        policies.offer(policy(1))
        assert (await policies.current()).policy == policy(1)


async def test_a_sampler_that_is_gone_is_opened_again() -> None:
    async with running(opened) as (policies, changes):
        policies.offer(policy(0))
        first = await policies.current()
        policies.gone(first)
        second = await policies.current()
        assert second is not first
        assert second.policy == policy(0)
        policies.gone(first)  # another request notices late
        assert await policies.current() is second
        assert changes == [Version(1, 0)] * 2


async def test_the_base_model_is_a_policy_too() -> None:
    seen = []

    async def open_sampler(path: str, base_model: str) -> Sampler:
        seen.append((path, base_model))
        return NamedSampler(path)

    async with running(open_sampler) as (policies, _):
        policies.offer(Policy(Version(1, 0), "", "base"))
        await policies.current()
        assert seen == [("", "base")]


class Gated:
    """Opens samplers when it is let, or fails."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing: set[str] = set()

    async def open(self, path: str, base_model: str) -> Sampler:
        await self.gate.wait()
        if path in self.failing:
            raise UnavailableError("503")
        return NamedSampler(path)


async def test_who_needs_the_newest_waits_while_it_comes_in() -> None:
    gated = Gated()
    async with running(gated.open) as (policies, _):
        policies.offer(policy(0))
        assert (await policies.newest()).policy == policy(0)
        gated.gate.clear()
        policies.offer(policy(1))
        waiting = asyncio.create_task(policies.newest())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert (await policies.current()).policy == policy(0), "others go on with the older one meanwhile"
        policies.offer(policy(2))  # overtakes the one that is being opened
        gated.gate.set()
        async with asyncio.timeout(5):
            assert (await waiting).policy == policy(2)


async def test_who_needs_the_newest_takes_what_there_is_when_it_cannot_come_in() -> None:
    gated = Gated()
    async with running(gated.open) as (policies, _):
        policies.offer(policy(0))
        await policies.newest()
        gated.failing.add(policy(1).sampler_path)
        policies.offer(policy(1))
        async with asyncio.timeout(5):
            assert (await policies.newest()).policy == policy(0)
        gated.failing.clear()
        await until(lambda: policies.active is not None and policies.active.policy == policy(1))
        assert (await policies.newest()).policy == policy(1)


async def test_a_late_word_of_an_older_policy_is_passed_over() -> None:
    async with running(opened) as (policies, changes):
        policies.offer_if_newer(policy(5))
        policies.offer_if_newer(policy(4))
        policies.offer_if_newer(Policy(Version(2, 3), "tinker://run/sampler_weights/other", "base"))
        assert (await policies.newest()).policy.version == Version(2, 3)
        policies.offer_if_newer(policy(6))
        await asyncio.sleep(0.01)
        assert changes[-1] == Version(2, 3)
