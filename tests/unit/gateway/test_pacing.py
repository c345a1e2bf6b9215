"""Who waits at the gateway's door, and what the trajectory server is told about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import numpy as np
import pytest

from tinker_atropos.gateway import pacing as module
from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.generation import Completion, Generated, Version
from tinker_atropos.gateway.metrics import Metrics
from tinker_atropos.gateway.pacing import Caller, NoPacingError, Pacing, StreamLostError, Turn
from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.versions import prompt_digest

ME, OTHER = Caller("gsm8k", "gsm8k-0"), Caller("code", "code-0")
Said = tuple[str, str]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(module, "_LONGEST_DELAY", 0.002)
    monkeypatch.setattr(module, "_WORD_SECONDS", 0.4)


async def until(check: object) -> None:
    async with asyncio.timeout(5):
        while not check():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Everything that can happen by itself has happened."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


class Server:
    """The other end of the stream, by hand."""

    def __init__(self) -> None:
        self.streams = 0
        self.said: list[Said] = []
        self.requests: list[pb.CapacityRequest] = []
        self.failure: Exception | None = None
        self.up = asyncio.Event()
        self.up.set()
        self.refreshed = 0
        self.refreshing = asyncio.Event()
        self.refreshing.set()
        self._grants: asyncio.Queue[pb.CapacityGrant | Exception] = asyncio.Queue()

    async def open(self, requests: AsyncIterator[pb.CapacityRequest]) -> AsyncGenerator[pb.CapacityGrant, None]:
        if self.failure is not None:
            raise self.failure
        await self.up.wait()
        self.streams += 1
        self._grants = asyncio.Queue()
        self.said.append(("stream", str(self.streams)))

        async def listen() -> None:
            async for request in requests:
                self.requests.append(request)
                self.said.append((pb.CapacityRequest.Kind.Name(request.kind), request.rollout))

        listening = asyncio.create_task(listen())
        try:
            while True:
                item = await self._grants.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            listening.cancel()

    async def refresh(self) -> None:
        await self.refreshing.wait()
        self.refreshed += 1

    def grant(self, *rollouts: str, seconds: float = 600) -> None:
        for rollout in rollouts:
            self._grants.put_nowait(pb.CapacityGrant(rollout=rollout, seconds=seconds))

    def breaks(self) -> None:
        self._grants.put_nowait(StreamLostError("UNAVAILABLE: gone"))

    def told(self, kind: str) -> list[str]:
        return [rollout for said, rollout in self.said if said == kind]


class Request:
    """One request of a client, which samples until it is told what came out."""

    def __init__(
        self, pacing: Pacing, prompts: list[list[int]], samples: int = 1, caller: Caller = ME, greedy: bool = False
    ) -> None:
        self.result: asyncio.Future[list[list[int]]] = asyncio.get_running_loop().create_future()
        self.turn: Turn | None = None
        self._prompts = prompts
        self._about = (caller, prompts, samples, greedy)
        self._pacing = pacing
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        caller, prompts, samples, greedy = self._about
        async with self._pacing.turn(caller, prompts, samples, greedy=greedy) as turn:
            self.turn = turn
            completions = await self.result
            turn.results = [
                Generated(prompt, [finished(tokens) for tokens in completions], Version(1, 1)) for prompt in prompts
            ]

    @property
    def started(self) -> bool:
        return self.turn is not None

    async def answer(self, *completions: list[int]) -> None:
        await until(lambda: self.started)
        self.result.set_result(list(completions))
        await self.task

    async def fail(self, error: BaseException) -> None:
        await until(lambda: self.started)
        self.result.set_exception(error)
        with pytest.raises(type(error)):
            await self.task

    async def leave(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


def finished(tokens: Sequence[int]) -> Completion:
    return Completion(np.array(tokens, np.int32), np.zeros(len(tokens), np.float32), "stop", "")


class World:
    def __init__(self) -> None:
        self.server = Server()
        self.metrics = Metrics()
        self.pacing = Pacing(self.server.open, self.server.refresh, self.metrics)
        self.running: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self.running = asyncio.create_task(self.pacing.run())
        await until(lambda: self.server.streams or self.running.done())

    def ask(self, *prompts: list[int], samples: int = 1, caller: Caller = ME, greedy: bool = False) -> Request:
        return Request(self.pacing, list(prompts), samples, caller, greedy)

    async def granted(self, *prompts: list[int], samples: int = 1) -> tuple[Request, str]:
        """A new rollout that was let in, and its name."""
        request = self.ask(*prompts, samples=samples)
        before = len(self.server.told("WANT"))
        await until(lambda: len(self.server.told("WANT")) > before)
        name = self.server.told("WANT")[-1]
        self.server.grant(name)
        await until(lambda: request.started)
        return request, name

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tinker_atropos_gateway_{name}", labels) or 0.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.connect()
    yield made
    assert made.running is not None
    made.running.cancel()
    await asyncio.gather(made.running, return_exceptions=True)


async def test_a_new_rollout_is_held_until_it_is_granted(world: World) -> None:
    request = world.ask([1, 2], samples=16)
    await until(lambda: world.server.told("WANT"))
    await settle()
    assert not request.started
    assert world.value("held", reason="capacity") == 1
    (want,) = world.server.requests
    assert (want.environment, want.instance, want.sequences) == ("gsm8k", "gsm8k-0", 16)
    assert want.prompt == prompt_digest(np.asarray([1, 2], np.int32)), "what the requests of one group have in common"
    world.server.grant(want.rollout)
    await request.answer([3], [4])
    await until(lambda: world.server.told("SAMPLED") == [want.rollout])
    assert world.value("held", reason="capacity") == 0
    assert world.value("rollouts_total", outcome="granted") == 1
    assert world.value("capacity_wait_seconds_count") == 1


async def test_only_who_was_granted_is_let_in(world: World) -> None:
    first, second = world.ask([1]), world.ask([2])
    await until(lambda: len(world.server.told("WANT")) == 2)
    world.server.grant(world.server.told("WANT")[1])
    await until(lambda: second.started)
    await settle()
    assert not first.started
    await first.leave()
    await second.answer([5])


async def test_prompts_of_one_request_are_one_rollout(world: World) -> None:
    request = world.ask([1], [2], [3], samples=4)
    await until(lambda: world.server.told("WANT"))
    assert [want.sequences for want in world.server.requests] == [12]
    await request.leave()


async def test_the_newest_policy_is_learned_before_a_granted_one_samples(world: World) -> None:
    world.server.refreshing.clear()
    request = world.ask([1])
    await until(lambda: world.server.told("WANT"))
    world.server.grant(*world.server.told("WANT"))
    await settle()
    assert not request.started
    world.server.refreshing.set()
    await request.answer([2])
    assert world.server.refreshed == 1
    assert request.turn is not None and request.turn.fresh


async def test_grants_that_come_together_share_one_look(world: World) -> None:
    requests = [world.ask([number]) for number in range(50)]
    await until(lambda: len(world.server.told("WANT")) == 50)
    world.server.refreshing.clear()
    world.server.grant(*world.server.told("WANT"))
    await settle()
    world.server.refreshing.set()
    for request in requests:
        await request.answer([1])
    assert world.server.refreshed <= 2


async def test_the_next_turn_goes_on_at_once(world: World) -> None:
    request, name = await world.granted([1, 2])
    await request.answer([3])
    following = world.ask([1, 2, 3, 4])
    await until(lambda: following.started)
    assert following.turn is not None and not following.turn.fresh
    await following.answer([5])
    third = world.ask([1, 2, 3, 4, 5, 6])
    await third.answer([7])
    await until(lambda: len(world.server.told("SAMPLED")) == 3)
    assert [said for said in world.server.said if said[0] != "stream"] == [
        ("WANT", name),
        ("SAMPLED", name),
        ("CONTINUED", name),
        ("SAMPLED", name),
        ("CONTINUED", name),
        ("SAMPLED", name),
    ]
    assert world.value("rollouts_total", outcome="continued") == 2


async def test_branches_of_one_rollout_end_with_the_last(world: World) -> None:
    request, name = await world.granted([1], samples=2)
    await request.answer([2], [3])
    one, other = world.ask([1, 2, 9]), world.ask([1, 3, 9])
    await until(lambda: one.started and other.started)
    await one.answer([4])
    await settle()
    assert world.server.told("SAMPLED") == [name]
    await other.answer([5])
    await until(lambda: world.server.told("SAMPLED") == [name, name])
    assert world.server.told("CONTINUED") == [name]


async def test_turns_of_rollouts_with_the_same_prompt_are_shared_out(world: World) -> None:
    names = []
    for completion in (2, 3):
        request, name = await world.granted([1])
        await request.answer([completion])
        names.append(name)
    one, other = world.ask([1, 77, 9]), world.ask([1, 88, 9])  # both chats were written anew
    await until(lambda: one.started and other.started)
    assert world.server.told("CONTINUED") == names
    await one.answer([4])
    await other.answer([5])


@pytest.mark.parametrize(
    ("behaviour", "caller", "greedy"),
    [("nobody's environment", Caller(), False), ("only an instance", Caller("", "x"), False), ("greedy", ME, True)],
)
async def test_not_paced(behaviour: str, caller: Caller, greedy: bool, world: World) -> None:
    request = world.ask([1, 2], caller=caller, greedy=greedy)
    await request.answer([3])
    await settle()
    assert world.server.requests == [], behaviour
    assert request.turn is not None and not request.turn.fresh


async def test_what_another_environment_sampled_is_no_prefix(world: World) -> None:
    request, _ = await world.granted([1, 2])
    await request.answer([3])
    following = world.ask([1, 2, 3, 4], caller=OTHER)
    await until(lambda: len(world.server.told("WANT")) == 2)
    assert not following.started
    await following.leave()


async def test_who_leaves_while_waiting_gives_the_place_up(world: World) -> None:
    request = world.ask([1])
    await until(lambda: world.server.told("WANT"))
    await request.leave()
    await until(lambda: world.server.told("ABANDONED") == world.server.told("WANT"))
    assert world.value("held", reason="capacity") == 0
    world.server.grant(*world.server.told("WANT"))  # crossed on the way
    await until(lambda: len(world.server.told("ABANDONED")) == 2)


async def test_who_leaves_while_the_policy_is_looked_up(world: World) -> None:
    world.server.refreshing.clear()
    request = world.ask([1])
    await until(lambda: world.server.told("WANT"))
    world.server.grant(*world.server.told("WANT"))
    await settle()
    await request.leave()
    world.server.refreshing.set()
    await until(lambda: world.server.told("ABANDONED"))
    assert set(world.server.told("ABANDONED")) == set(world.server.told("WANT"))


@pytest.mark.parametrize("error", [RuntimeError("the service gave up"), RequestError("refused")])
async def test_a_rollout_that_fails_is_given_up(error: Exception, world: World) -> None:
    request, name = await world.granted([1])
    await request.fail(error)
    await until(lambda: world.server.told("ABANDONED") == [name])
    assert world.server.told("SAMPLED") == []
    assert world.value("rollouts_total", outcome="abandoned") == 1


async def test_a_client_that_leaves_while_sampling(world: World) -> None:
    request, name = await world.granted([1])
    await request.leave()
    await until(lambda: world.server.told("ABANDONED") == [name])


@pytest.mark.parametrize(
    ("error", "kind"), [(RuntimeError("gave up"), "ABANDONED"), (RequestError("context is full"), "SAMPLED")]
)
async def test_a_later_turn_that_fails(error: Exception, kind: str, world: World) -> None:
    request, name = await world.granted([1])
    await request.answer([2])
    await world.ask([1, 2, 3]).fail(error)
    await until(lambda: len(world.server.said) == 5)
    assert world.server.said[-1] == (kind, name)


async def test_long_sampling_keeps_its_credit(world: World) -> None:
    request = world.ask([1])
    await until(lambda: world.server.told("WANT"))
    (name,) = world.server.told("WANT")
    world.server.grant(name, seconds=0.03)
    await until(lambda: world.server.told("CONTINUED").count(name) >= 2)
    await request.answer([2])
    await until(lambda: world.server.told("SAMPLED"))
    await settle()
    count = len(world.server.said)
    await settle()
    assert len(world.server.said) == count, "what ended is not spoken of any more"


class TestLostStream:
    async def test_who_waits_asks_again_and_what_runs_is_told(self, world: World) -> None:
        running, running_name = await world.granted([1])
        waiting = world.ask([2])
        await until(lambda: len(world.server.told("WANT")) == 2)
        waiting_name = world.server.told("WANT")[-1]
        world.server.breaks()
        await until(lambda: world.server.streams == 2 and len(world.server.told("WANT")) == 3)
        after = world.server.said[world.server.said.index(("stream", "2")) + 1 :]
        assert after == [("CONTINUED", running_name), ("WANT", waiting_name)]
        assert not waiting.started
        await running.answer([3])
        world.server.grant(waiting_name)
        await waiting.answer([4])
        await until(lambda: world.server.told("SAMPLED") == [running_name, waiting_name])

    async def test_what_happens_without_a_stream_is_right_on_the_next(self, world: World) -> None:
        running, _ = await world.granted([1])
        leaving = world.ask([2])
        await until(lambda: len(world.server.told("WANT")) == 2)
        world.server.up.clear()
        world.server.breaks()
        await settle()
        await running.answer([3])
        await leaving.leave()
        coming = world.ask([4])
        await settle()
        assert not coming.started
        going_on = world.ask([1, 3, 5])
        await until(lambda: going_on.started)
        world.server.up.set()
        await until(lambda: world.server.streams == 2)
        await settle()
        after = world.server.said[world.server.said.index(("stream", "2")) + 1 :]
        newest = {rollout: kind for kind, rollout in after}
        assert sorted(kind for kind in newest.values() if kind != "ABANDONED") == ["CONTINUED", "WANT"]
        world.server.grant(*(rollout for rollout, kind in newest.items() if kind == "WANT"))
        await coming.answer([6])
        await going_on.answer([7])

    async def test_a_second_grant_of_one_that_is_over_is_given_back(self, world: World) -> None:
        """Granted just before the stream broke, asked for again on the next, and done before that granted it."""
        request, name = await world.granted([1])
        await request.answer([2])
        world.server.grant(name)
        await until(lambda: world.server.told("ABANDONED") == [name])

    async def test_a_server_that_is_not_there_yet(self) -> None:
        world = World()
        world.server.failure = StreamLostError("UNAVAILABLE: connection refused")
        running = asyncio.create_task(world.pacing.run())
        request = world.ask([1])
        await settle()
        assert not request.started
        world.server.failure = None
        await until(lambda: world.server.told("WANT"))
        world.server.grant(*world.server.told("WANT"))
        await request.answer([2])
        running.cancel()


async def test_a_server_that_knows_no_pacing_lets_everybody_in() -> None:
    world = World()
    waiting = world.ask([1])
    world.server.failure = NoPacingError("UNIMPLEMENTED")
    await world.pacing.run()
    await waiting.answer([2])
    later = world.ask([3])
    await later.answer([4])
    assert world.server.requests == []


async def test_pacing_that_is_switched_off() -> None:
    world = World()
    pacing = Pacing(world.server.open, world.server.refresh, world.metrics, on=False)
    await pacing.run()
    await Request(pacing, [[1]]).answer([2])
    assert world.server.streams == 0
