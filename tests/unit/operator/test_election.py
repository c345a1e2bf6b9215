"""Who leads: the rules of the Lease, with a clock that is told."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from typing import Any

import pytest

from tinker_atropos_operator.election import Election
from tinker_atropos_operator.kube import ApiError


class Leases:
    """The API server, as far as one Lease goes."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False

    def _store(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.away:
            raise ApiError(0, "", "away")
        if self.lease is None:
            raise ApiError(404, "NotFound", "not found")
        return copy.deepcopy(self.lease)

    async def create(self, _: Any, __: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "exists")
        return self._store(body)

    async def replace(self, _: Any, __: str, ___: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        if body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "changed")
        return self._store(body)


class World:
    def __init__(self) -> None:
        self.leases = Leases()
        self.time = 1000.0

    def candidate(self, name: str) -> Election:
        def now() -> dt.datetime:
            return dt.datetime.fromtimestamp(self.time, dt.UTC)

        return Election(self.leases, "ns", "lease", name, 15, now, lambda: self.time)  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World()


async def test_the_first_to_come_leads_and_the_second_does_not(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    assert await first._try()
    assert not await second._try()
    assert first.valid() and not second.valid()


async def test_a_leader_that_renews_keeps_it(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    await first._try()
    for _ in range(20):
        world.time += 5
        assert await first._try()
        assert not await second._try()
    assert world.leases.lease is not None
    assert world.leases.lease["spec"]["leaseTransitions"] == 0


async def test_a_leader_that_is_silent_is_followed_after_the_lease_is_over(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    await first._try()
    assert not await second._try()
    world.time += 14
    assert not await second._try()
    world.time += 2
    assert await second._try()
    assert world.leases.lease is not None
    assert world.leases.lease["spec"]["holderIdentity"] == "second"
    assert world.leases.lease["spec"]["leaseTransitions"] == 1
    assert not await first._try()


async def test_a_leader_knows_that_it_may_be_none_before_another_can_be(world: World) -> None:
    first = world.candidate("first")
    await first._try()
    world.time += 9
    assert first.valid()
    world.time += 2
    assert not first.valid()


async def test_a_lease_given_back_is_free_at_once(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    await first._try()
    await first.release()
    assert not first.valid()
    assert await second._try()


async def test_the_loser_of_a_race_does_not_lead(world: World) -> None:
    first, second = world.candidate("first"), world.candidate("second")
    await first._try()
    await first.release()
    before = copy.deepcopy(world.leases.lease)
    assert await second._try()
    third = world.candidate("third")
    stale = world.leases.get

    async def old(*_: Any) -> Any:
        return before

    world.leases.get = old  # type: ignore[method-assign]
    assert not await third._try(), "what it read was changed before it wrote"
    world.leases.get = stale  # type: ignore[method-assign]


async def test_a_lease_that_is_not_answered_names_the_time_that_it_waited(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    held = Election(world.leases, "ns", "lease", "first", 0.15, lambda: dt.datetime.now(dt.UTC))  # type: ignore[arg-type]
    assert await held._try()

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    world.leases.get = never  # type: ignore[method-assign]
    await held.hold()
    assert "the Lease was not renewed: no answer within 0.1 s" in caplog.messages


async def test_an_api_server_that_is_away_makes_no_leader(world: World) -> None:
    world.leases.away = True
    with pytest.raises(ApiError):
        await world.candidate("first")._try()
