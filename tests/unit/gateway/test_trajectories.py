"""The gateway's client of the trajectory server, against a scripted one in this process."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest

from tinker_atropos.gateway import pacing as pacing_module
from tinker_atropos.gateway import trajectories as module
from tinker_atropos.gateway.generation import Version
from tinker_atropos.gateway.metrics import Metrics
from tinker_atropos.gateway.pacing import Caller, NoPacingError, Pacing, StreamLostError
from tinker_atropos.gateway.policies import Policy
from tinker_atropos.gateway.trajectories import RecordRefusedError, Trajectories
from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.trajectories_pb2_grpc import TrajectoriesServicer, add_TrajectoriesServicer_to_server


class Scripted(TrajectoriesServicer):
    def __init__(self) -> None:
        self.records: list[pb.RecordRequest] = []
        self.failures: list[grpc.StatusCode] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.watches = 0
        self.metadata: list[dict[str, Any]] = []

    async def Record(self, request: pb.RecordRequest, context: Any) -> pb.RecordResponse:
        self.metadata.append(dict(context.invocation_metadata()))
        await self.gate.wait()
        if self.failures:
            await context.abort(self.failures.pop(0), "as the test wants it")
        self.records.append(request)
        return pb.RecordResponse()

    async def WatchPolicy(self, request: pb.WatchPolicyRequest, context: Any) -> AsyncIterator[pb.Policy]:
        self.watches += 1
        yield pb.Policy(version=pb.PolicyVersion(epoch=1, step=self.watches), sampler_path="tinker://x", base_model="m")
        if self.watches < 3:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        await asyncio.Event().wait()

    async def Capacity(
        self, requests: AsyncIterator[pb.CapacityRequest], context: Any
    ) -> AsyncIterator[pb.CapacityGrant]:
        self.metadata.append(dict(context.invocation_metadata()))
        async for request in requests:
            if self.failures:
                await context.abort(self.failures.pop(0), "as the test wants it")
            yield pb.CapacityGrant(rollout=request.rollout, seconds=600)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(module, "_LONGEST_DELAY", 0.002)


@pytest.fixture
async def world() -> AsyncIterator[tuple[Scripted, Trajectories]]:
    scripted = Scripted()
    server = grpc.aio.server()
    add_TrajectoriesServicer_to_server(scripted, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = Trajectories(f"127.0.0.1:{port}", "secret")
    yield scripted, client
    await client.close()
    await server.stop(None)


World = tuple[Scripted, Trajectories]
OLD, NEW = Version(1, 1), Version(1, 2)


async def test_a_record_carries_who_what_and_the_token(world: World) -> None:
    scripted, client = world
    await client.record("digits-0", NEW, [b"a" * 16, b"b" * 16])
    (request,) = scripted.records
    assert request.instance == "digits-0"
    assert (request.version.epoch, request.version.step) == (1, 2)
    assert list(request.digests) == [b"a" * 16, b"b" * 16]
    assert scripted.metadata[0]["authorization"] == "Bearer secret"


async def test_records_that_wait_together_travel_together(world: World) -> None:
    scripted, client = world
    scripted.gate.clear()
    first = asyncio.create_task(client.record("digits-0", NEW, [b"first"]))
    async with asyncio.timeout(5):
        while not scripted.metadata:
            await asyncio.sleep(0.001)
    waiting = [asyncio.create_task(client.record("digits-0", NEW, [bytes([number])])) for number in range(20)]
    others = [
        asyncio.create_task(client.record("digits-0", OLD, [b"older"])),
        asyncio.create_task(client.record("digits-1", NEW, [b"other"])),
    ]
    await asyncio.sleep(0.01)
    scripted.gate.set()
    async with asyncio.timeout(5):
        await asyncio.gather(first, *waiting, *others)
    together = [list(request.digests) for request in scripted.records if request.instance == "digits-0"]
    assert sorted(map(len, together)) == [1, 1, 20]
    assert [bytes([number]) for number in range(20)] in together
    assert len(scripted.records) == 4


async def test_nothing_is_done_before_it_is_durable(world: World) -> None:
    scripted, client = world
    scripted.gate.clear()
    recording = asyncio.create_task(client.record("digits-0", NEW, [b"a"]))
    await asyncio.sleep(0.02)
    assert not recording.done()
    scripted.gate.set()
    async with asyncio.timeout(5):
        await recording


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ],
)
async def test_what_may_pass_is_tried_again(code: grpc.StatusCode, world: World) -> None:
    scripted, client = world
    scripted.failures = [code] * 3
    async with asyncio.timeout(5):
        await client.record("digits-0", NEW, [b"a"])
    assert len(scripted.records) == 1


async def test_what_is_refused_is_told_to_everybody_who_waits(world: World) -> None:
    scripted, client = world
    scripted.failures = [grpc.StatusCode.INVALID_ARGUMENT]
    recordings = [asyncio.create_task(client.record("digits-0", NEW, [b"a"])) for _ in range(3)]
    results = await asyncio.gather(*recordings, return_exceptions=True)
    assert all(isinstance(result, RecordRefusedError) for result in results)
    await client.record("digits-0", NEW, [b"b"])
    assert [list(request.digests) for request in scripted.records] == [[b"b"]]


async def test_one_who_leaves_does_not_take_the_others_along(world: World) -> None:
    scripted, client = world
    scripted.gate.clear()
    leaving = asyncio.create_task(client.record("digits-0", NEW, [b"a"]))
    staying = asyncio.create_task(client.record("digits-0", NEW, [b"b"]))
    await asyncio.sleep(0.01)
    leaving.cancel()
    scripted.gate.set()
    async with asyncio.timeout(5):
        await staying
    assert [list(request.digests) for request in scripted.records] == [[b"a", b"b"]]


async def test_very_many_digests_are_split(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted, client = world
    monkeypatch.setattr(module, "_MOST_DIGESTS", 10)
    await client.record("digits-0", NEW, [bytes([number]) for number in range(25)])
    assert [len(request.digests) for request in scripted.records] == [10, 10, 5]


async def test_who_waits_for_a_record_hears_of_any_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted, client = world

    async def broken(*_: object) -> None:
        raise ValueError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(client, "_send_one", broken)
        async with asyncio.timeout(10):
            with pytest.raises(ValueError, match="broken"):
                await client.record("digits-0", NEW, [b"a"])
    await client.record("digits-0", NEW, [b"b"])
    assert [list(request.digests) for request in scripted.records] == [[b"b"]]


async def test_the_watch_goes_on_after_every_restart(world: World) -> None:
    _, client = world
    offered: list[Policy] = []
    watching = asyncio.create_task(client.watch(offered.append))
    async with asyncio.timeout(10):
        while len(offered) < 3:
            await asyncio.sleep(0.001)
    watching.cancel()
    assert [policy.version.step for policy in offered] == [1, 2, 3]
    assert offered[0] == Policy(Version(1, 1), "tinker://x", "m")


async def wants(*rollouts: str) -> AsyncGenerator[pb.CapacityRequest, None]:
    for rollout in rollouts:
        yield pb.CapacityRequest(rollout=rollout)
    await asyncio.Event().wait()


async def test_wants_go_out_and_grants_come_in(world: World) -> None:
    scripted, client = world
    async with asyncio.timeout(5), aclosing(client.capacity(wants("a", "b"))) as grants:
        assert [(await anext(grants)).rollout, (await anext(grants)).rollout] == ["a", "b"]
    assert scripted.metadata[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, NoPacingError),
        (grpc.StatusCode.UNAVAILABLE, StreamLostError),
        (grpc.StatusCode.UNAUTHENTICATED, StreamLostError),
    ],
)
async def test_why_a_capacity_stream_ended(status: grpc.StatusCode, raised: type[Exception], world: World) -> None:
    scripted, client = world
    scripted.failures = [status]
    async with asyncio.timeout(5), aclosing(client.capacity(wants("a"))) as grants:
        with pytest.raises(raised, match=f"{status.name}: as the test wants it"):
            await anext(grants)


async def test_the_newest_policy_is_asked_for_once(world: World) -> None:
    scripted, client = world
    offered: list[Policy] = []
    async with asyncio.timeout(5):
        await client.newest(offered.append)
    assert [policy.version for policy in offered] == [Version(1, 1)]
    assert scripted.watches == 1


async def test_without_a_server_the_newest_policy_is_not_waited_for() -> None:
    client = Trajectories("127.0.0.1:1", None)
    offered: list[Policy] = []
    async with asyncio.timeout(5):
        await client.newest(offered.append)
    await client.close()
    assert offered == []


async def test_a_server_that_comes_and_goes_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asyncio would log as errors of the gateway: tasks and generators that nobody ended."""
    monkeypatch.setattr(pacing_module, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(pacing_module, "_LONGEST_DELAY", 0.002)
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["message"])))
    offered: list[Policy] = []
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
    client = Trajectories(address, None)
    pacing = Pacing(client.capacity, lambda: client.newest(offered.append), Metrics())
    running = [asyncio.create_task(pacing.run()), asyncio.create_task(client.watch(offered.append))]
    for _ in range(4):
        server, scripted = grpc.aio.server(), Scripted()
        add_TrajectoriesServicer_to_server(scripted, server)
        server.add_insecure_port(address)
        await server.start()
        async with asyncio.timeout(20):  # a turn that is granted, while the stream is up
            async with pacing.turn(Caller("e", "e-0"), [[1, 2]], 1, greedy=False):
                await asyncio.sleep(0.01)
        await server.stop(None)
        await asyncio.sleep(0.02)
        gc.collect()
        await asyncio.sleep(0.02)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await client.close()
    gc.collect()
    await asyncio.sleep(0.02)
    assert told == []
    assert offered
