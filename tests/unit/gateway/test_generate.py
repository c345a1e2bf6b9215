"""From prompts to recorded completions: waiting, repeating, recording, in that order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from tinker_atropos.gateway import generate as module
from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.generate import GaveUpError, Generator, NotRecordedError
from tinker_atropos.gateway.generation import Generated, Sampled, Sampling, Version
from tinker_atropos.gateway.metrics import Metrics
from tinker_atropos.gateway.pacing import Caller, Pacing
from tinker_atropos.gateway.policies import Policies, Policy
from tinker_atropos.gateway.service import (
    RefusedError,
    Sampler,
    SamplerGoneError,
    ServiceAnswer,
    ServiceSampling,
    UnavailableError,
)
from tinker_atropos.gateway.text import Text
from tinker_atropos.gateway.trajectories import RecordRefusedError
from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.versions import completion_digest

Answer = Callable[[int, list[int], int, ServiceSampling], ServiceAnswer]


def sequences(*texts: list[int]) -> ServiceAnswer:
    return ServiceAnswer(
        [Sampled(np.array(tokens, np.int32), np.full(len(tokens), -0.3, np.float32), "length") for tokens in texts], 0
    )


class Scripted:
    """A sampler that answers by a function of (number of the call, prompt, samples, sampling)."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[tuple[list[int], int, ServiceSampling]] = []

    async def sample(self, prompt: list[int], samples: int, sampling: ServiceSampling) -> ServiceAnswer:
        self.calls.append((prompt, samples, sampling))
        await asyncio.sleep(0)
        return self.answer(len(self.calls), prompt, samples, sampling)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


async def no_stream(requests: AsyncIterator[pb.CapacityRequest]) -> AsyncGenerator[pb.CapacityGrant, None]:
    raise AssertionError("there is no pacing here")
    yield


async def no_refresh() -> None:
    raise AssertionError("there is no pacing here")


class World:
    def __init__(self, answer: Answer, *, patience: float = 100.0) -> None:
        self.sampler = Scripted(answer)
        self.opened = 0
        self.records: list[tuple[str, Version, list[bytes]]] = []
        self.record_error: Exception | None = None
        self.policies = Policies(self._open)
        metrics = Metrics()
        pacing = Pacing(no_stream, no_refresh, metrics, on=False)
        self.generator = Generator(
            self.policies, self._record, metrics, pacing, patience=patience, clock=Clock(), uniform=lambda: 0.0
        )
        self.policies.offer(Policy(Version(2, 7), "tinker://x", "base"))

    async def _open(self, path: str, base_model: str) -> Sampler:
        self.opened += 1
        return self.sampler

    async def _record(self, instance: str, version: Version, digests: list[bytes]) -> None:
        await asyncio.sleep(0)
        if self.record_error is not None:
            raise self.record_error
        self.records.append((instance, version, digests))

    async def generate(
        self, text: Text, prompts: list[list[int]], samples: int = 1, **sampling: Any
    ) -> list[Generated]:
        task = asyncio.create_task(self.policies.run())
        try:
            async with asyncio.timeout(10):
                return await self.generator.generate(
                    prompts, samples, Sampling(**sampling), caller=Caller("gsm8k", "gsm8k-0"), text=text, field="prompt"
                )
        finally:
            task.cancel()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(module, "_LONGEST_DELAY", 0.002)


def plenty(call: int, prompt: list[int], samples: int, sampling: ServiceSampling) -> ServiceAnswer:
    return sequences(*[[10, 11, 12]] * samples)


async def test_what_is_answered_is_what_is_recorded(text: Text) -> None:
    world = World(plenty)
    (result,) = await world.generate(text, [[5, 6]], 2)
    ((instance, version, digests),) = world.records
    assert (instance, version) == ("gsm8k-0", Version(2, 7))
    assert result.version == version
    assert digests == [completion_digest(np.array([5, 6], np.int32), c.tokens, c.logprobs) for c in result.completions]
    assert len(digests) == 2


async def test_what_was_cut_off_is_not_recorded(text: Text) -> None:
    (eos,) = text.eos_ids
    world = World(lambda *_: sequences([10, eos, 12]))
    (result,) = await world.generate(text, [[5]])
    assert result.completions[0].tokens.tolist() == [10, eos]
    assert world.records[0][2] == [
        completion_digest(np.array([5], np.int32), np.array([10, eos], np.int32), np.full(2, -0.3, np.float32))
    ]


async def test_prompts_are_sampled_at_the_same_time(text: Text) -> None:
    inside = most = 0

    class Counting(Scripted):
        async def sample(self, prompt: list[int], samples: int, sampling: ServiceSampling) -> ServiceAnswer:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1
            return sequences([prompt[0]])

    world = World(plenty)
    world.sampler = Counting(plenty)
    results = await world.generate(text, [[10], [11], [12]])
    assert most == 3
    assert [result.completions[0].tokens.tolist() for result in results] == [[10], [11], [12]]
    assert len(world.records) == 1, "one version, one record"


async def test_one_request_of_n_is_one_call_of_n(text: Text) -> None:
    world = World(plenty)
    await world.generate(text, [[5]], 16)
    assert [samples for _, samples, _ in world.sampler.calls] == [16]


@pytest.mark.parametrize("failures", [1, 3])
async def test_an_outage_is_waited_for(failures: int, text: Text) -> None:
    def answer(call: int, *rest: Any) -> ServiceAnswer:
        if call <= failures:
            raise UnavailableError("503")
        return sequences([10])

    world = World(answer)
    (result,) = await world.generate(text, [[5]])
    assert result.completions[0].tokens.tolist() == [10]
    assert world.opened == 1


async def test_patience_ends(text: Text) -> None:
    def answer(*_: Any) -> ServiceAnswer:
        raise UnavailableError("connection refused")

    with pytest.raises(GaveUpError, match="connection refused"):
        await World(answer, patience=5).generate(text, [[5]])


async def test_a_refused_request_is_the_clients_error(text: Text) -> None:
    def answer(*_: Any) -> ServiceAnswer:
        raise RefusedError("top_k is too large")

    world = World(answer)
    with pytest.raises(RequestError, match="top_k is too large") as refused:
        await world.generate(text, [[5], [6]])
    assert refused.value.status == 400
    assert world.records == []


async def test_a_service_without_likely_tokens_is_asked_without_them(text: Text) -> None:
    def answer(call: int, prompt: list[int], samples: int, sampling: ServiceSampling) -> ServiceAnswer:
        if sampling.top_logprobs:
            raise RefusedError("topk_sample_logprobs: not offered")
        return sequences([10])

    world = World(answer)
    (result,) = await world.generate(text, [[5]], top_logprobs=3)
    assert result.completions[0].top is None
    assert len(world.sampler.calls) == 2


async def test_a_sampler_that_is_gone_is_replaced(text: Text) -> None:
    def answer(call: int, *rest: Any) -> ServiceAnswer:
        if call == 1:
            raise SamplerGoneError("404")
        return sequences([10])

    world = World(answer)
    await world.generate(text, [[5]])
    assert world.opened == 2


async def test_a_sampler_that_is_gone_for_ever_does_not_spin(text: Text) -> None:
    def answer(*_: Any) -> ServiceAnswer:
        raise SamplerGoneError("404")

    with pytest.raises(GaveUpError, match="404"):
        await World(answer, patience=5).generate(text, [[5]])


async def test_too_few_sequences_are_not_passed_on(text: Text) -> None:
    world = World(lambda call, *_: sequences([10]) if call == 1 else sequences([10], [11]))
    (result,) = await world.generate(text, [[5]], 2)
    assert len(result.completions) == 2


async def test_nothing_is_answered_that_is_not_recorded(text: Text) -> None:
    world = World(plenty)
    world.record_error = RecordRefusedError("INVALID_ARGUMENT")
    with pytest.raises(NotRecordedError, match="INVALID_ARGUMENT"):
        await world.generate(text, [[5]])


@pytest.mark.parametrize(
    ("behaviour", "length", "wanted", "context", "asked"),
    [
        ("unknown context", 3, 50, None, 50),
        ("unknown context, no limit", 3, None, None, None),
        ("fits", 3, 5, 10, 5),
        ("cut to what fits", 3, 50, 10, 7),
        ("no limit means what fits", 3, None, 10, 7),
        ("one token fits", 9, None, 10, 1),
    ],
)
async def test_room(
    behaviour: str, length: int, wanted: int | None, context: int | None, asked: int | None, text: Text
) -> None:
    world = World(plenty)
    world.generator.context_length = context
    await world.generate(text, [[5] * length], max_tokens=wanted)
    assert world.sampler.calls[0][2].max_tokens == asked, behaviour


@pytest.mark.parametrize(("prompt", "told"), [([5] * 10, "context is 10"), ([5] * 11, "11 tokens"), ([], "no tokens")])
async def test_prompts_that_cannot_be_continued(prompt: list[int], told: str, text: Text) -> None:
    world = World(plenty)
    world.generator.context_length = 10
    with pytest.raises(RequestError, match=told) as refused:
        await world.generate(text, [prompt])
    assert refused.value.param == "prompt"
    assert world.sampler.calls == []
