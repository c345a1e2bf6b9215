"""Whatever fails or overlaps, the ledger in memory is what the journal says, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories import exchange as exchange_module
from tinker_atropos.trajectories.exchange import Exchange
from tinker_atropos.trajectories.ledger import FencedError, GroupState, LedgerError, fold
from tinker_atropos.trajectories.metrics import Metrics
from tinker_atropos.trajectories.posts import Post
from tinker_atropos.trajectories.settings import Settings
from tinker_atropos.trajectories.store import Recovered, StoreCorruptError, StoreUnavailableError


class MemoryStore:
    """A store that takes its time and refuses some writes, all or nothing, in order."""

    def __init__(self, failing: float = 0.0, seed: int = 0) -> None:
        self.entries: list[bytes] = []
        self.payloads: dict[int, bytes] = {}
        self.failing = failing
        self.on_sync: Callable[[float], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None
        self._rng = random.Random(seed)
        self._last: asyncio.Future[None] | None = None

    async def open(self) -> Recovered:
        return Recovered(None, list(self.entries))

    def append(self, entry: bytes, payload: tuple[int, bytes] | None = None) -> asyncio.Future[None]:
        before, future = self._last, asyncio.get_running_loop().create_future()
        self._last = future

        async def write() -> None:
            if before is not None:
                await asyncio.wait((before,))
            for _ in range(self._rng.randrange(3)):
                await asyncio.sleep(0)
            if self._rng.random() < self.failing:
                future.set_exception(StoreUnavailableError("refused"))
                return
            self.entries.append(entry)
            if payload:
                self.payloads[payload[0]] = payload[1]
            future.set_result(None)

        self._task = asyncio.ensure_future(write())
        return future

    def hold(self) -> asyncio.Future[None]:
        """Nothing is written until this is done."""
        self._last = asyncio.get_running_loop().create_future()
        return self._last

    async def read(self, numbers: Sequence[int]) -> list[bytes]:
        try:
            return [self.payloads[number] for number in numbers]
        except KeyError as error:
            raise StoreCorruptError(str(error)) from error

    def retain(self, numbers: Collection[int]) -> None:
        self.payloads = {number: data for number, data in self.payloads.items() if number in numbers}

    def forget(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self.payloads.pop(number, None)

    def statistics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        if self._last is not None:
            await asyncio.wait((self._last,))


def post(name: str, sequences: int = 4) -> Post:
    return Post(name.encode(), None, sequences, 10, 5, None, 0)


SETTINGS = Settings(run_id="r", batch_size=8)


async def opened(store: MemoryStore, **options: Any) -> Exchange:
    return await Exchange.open(store, Metrics(), **options)


@pytest.mark.parametrize("seed", range(6))
async def test_trainers_and_environments_over_a_store_that_fails(seed: int) -> None:
    rng = random.Random(seed)
    store = MemoryStore(failing=0.2, seed=seed)
    exchange = await opened(store)
    acknowledged: list[str] = []
    ending = False

    async def environment(name: str) -> None:
        for number in range(60):
            try:
                await exchange.post(post(f"{name}{number}"), name, "", f"{number}")
                acknowledged.append(f"{name}{number}")
            except StoreUnavailableError:
                pass

    async def trainer() -> None:
        """Takes over, trains a few steps, dies; again and again, sometimes while an older one still tries."""
        while not ending:
            try:
                await exchange.take_over(SETTINGS, "t", None)
                epoch, step = exchange.ledger.epoch, exchange.ledger.step
                for _ in range(rng.randrange(1, 8)):
                    batch = await exchange.lease(epoch, step + 1, 0.0, 100.0)
                    if batch is None:
                        break
                    if rng.random() < 0.2:
                        await exchange.give_back(epoch, batch.lease_id, "x")
                        continue
                    await exchange.acknowledge(epoch, batch.lease_id, step + 1, rng.random() < 0.1, {})
                    step += 1
                    if rng.random() < 0.5:
                        await exchange.cover(epoch, pb.State(step=step, checkpoint_path=f"tinker://{step}"))
            except (StoreUnavailableError, FencedError, LedgerError):
                pass
            await asyncio.sleep(0)

    trainers = [asyncio.ensure_future(trainer()) for _ in range(2)]
    await asyncio.gather(*(environment(name) for name in "abc"))
    ending = True
    await asyncio.gather(*trainers)
    assert fold(None, store.entries) == exchange.ledger.to_snapshot()

    store.failing = 0.0
    await exchange.take_over(SETTINGS, "last", None)
    epoch, step = exchange.ledger.epoch, exchange.ledger.step
    while (batch := await exchange.lease(epoch, step + 1, 0.0, 100.0)) is not None:
        step += 1
        assert all(number in store.payloads for number in batch.groups)
        await exchange.acknowledge(epoch, batch.lease_id, step, False, {})
    await exchange.cover(epoch, pb.State(step=step, checkpoint_path="tinker://end"))
    ledger = exchange.ledger
    assert ledger.stored == len(acknowledged)
    assert ledger.sums()["queued"] < 2 and ledger.sums()["leased"] == 0
    assert set(store.payloads) == ledger.living()
    assert fold(None, store.entries) == ledger.to_snapshot()
    await exchange.close()


async def test_a_caller_that_goes_away_does_not_tear_a_decision() -> None:
    store = MemoryStore()
    exchange = await opened(store)
    await exchange.take_over(SETTINGS, "t", None)
    for number in range(20):
        await exchange.post(post(f"{number}"), "e", "")
    for step in range(10):
        asking = asyncio.ensure_future(exchange.lease(1, step + 1, 0.0, 100.0))
        await asyncio.sleep(0)
        asking.cancel()
        batch = await exchange.lease(1, step + 1, 0.0, 100.0)
        assert batch is not None
        acknowledging = asyncio.ensure_future(exchange.acknowledge(1, batch.lease_id, step + 1, False, {}))
        await asyncio.sleep(0)
        acknowledging.cancel()
        await exchange.acknowledge(1, batch.lease_id, step + 1, False, {})
    assert [group.state for group in exchange.ledger.groups.values()] == [GroupState.TRAINED] * 20
    assert [group.step for group in exchange.ledger.groups.values()] == [1 + index // 2 for index in range(20)]
    assert fold(None, store.entries) == exchange.ledger.to_snapshot()
    await exchange.close()


async def test_a_post_under_way_and_its_repetition_are_one() -> None:
    store = MemoryStore()
    exchange = await opened(store)
    results = await asyncio.gather(*(exchange.post(post("x"), "e", "i", "id") for _ in range(5)))
    assert sorted(result.duplicate for result in results) == [False, True, True, True, True]
    assert exchange.ledger.stored == 1
    await exchange.close()


async def test_a_repetition_of_a_post_whose_client_hung_up_is_one() -> None:
    store = MemoryStore()
    exchange = await opened(store)
    first = asyncio.ensure_future(exchange.post(post("x"), "e", "i", "", lambda: True))
    await asyncio.sleep(0)
    assert (await exchange.post(post("x"), "e", "i")).duplicate
    assert not (await first).duplicate
    assert not (await exchange.post(post("x"), "e", "i")).duplicate
    assert exchange.ledger.stored == 2
    await exchange.close()


async def test_a_store_that_does_not_answer_keeps_no_post_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them hears of it after its own time; what the store takes in the end is in the ledger."""
    monkeypatch.setattr(exchange_module, "STORE_SECONDS", 0.1)
    store = MemoryStore()
    exchange = await opened(store)
    gate = store.hold()
    first = exchange.post(post("x"), "e", "i", "one")
    await asyncio.sleep(0.05)
    second = exchange.post(post("y"), "e", "i", "two")
    for waiting in (first, second):
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            await waiting
    gate.set_result(None)
    assert (await exchange.post(post("x"), "e", "i", "one")).duplicate
    assert not (await exchange.post(post("z"), "e", "i", "three")).duplicate
    assert exchange.ledger.stored == 3
    await exchange.close()


async def test_a_lost_answer_is_forgotten_after_a_while() -> None:
    now = [1000.0]
    store = MemoryStore()
    exchange = await opened(store, clock=lambda: now[0])
    exchange.answer_lost(await exchange.post(post("x"), "e", "i"))
    now[0] += 301
    assert not (await exchange.post(post("x"), "e", "i")).duplicate
    await exchange.close()


async def test_a_journal_that_does_not_fit_together_is_said_so() -> None:
    store = MemoryStore()
    store.entries = [b'{"t":"trained","batch":7,"epoch":1,"step":1}']
    with pytest.raises(StoreCorruptError, match="entry 1 of the journal does not fit"):
        await opened(store)


async def test_what_starves_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    exchange = await opened(MemoryStore(), clock=lambda: now[0])
    await exchange.take_over(SETTINGS, "t", None)
    for number in range(3):
        await exchange.post(post(f"{number}", sequences=5), "e", "")
    for seconds in (0, 59, 2, 10):
        now[0] += seconds
        assert await exchange.lease(1, 1, 0.0, 100.0) is None
    sentence = "no choice of the queued groups sums to 8 sequences exactly (groups by size: 3 of 5)"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [sentence]
    await exchange.close()
