"""The work queue: one worker per key, nothing lost, errors put off."""

from __future__ import annotations

import asyncio

import pytest

from tinker_atropos_operator.queue import FIRST_DELAY, LONGEST_DELAY, WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock, lambda: 0.5)


async def test_keys_come_in_order_and_each_once(queue: WorkQueue[str]) -> None:
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await queue.take(), await queue.take()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_change_during_the_work_brings_the_key_back_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0, "no second worker gets it meanwhile"
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_key_put_off_comes_when_it_is_due(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("later", 10)
    queue.add_after("sooner", 5)
    queue.add("now")
    assert await queue.take() == "now"
    clock.now += 6
    assert await queue.take() == "sooner"
    clock.now += 5
    assert await queue.take() == "later"


async def test_the_earlier_of_two_times_counts_and_the_key_comes_once(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 30)
    clock.now += 4
    assert await queue.take() == "a"
    queue.done("a")
    clock.now += 60
    queue.add("b")
    assert await queue.take() == "b"


async def test_a_delay_of_nothing_is_now(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 0)
    assert await queue.take() == "a"


async def test_errors_put_a_key_off_longer_each_time_until_it_succeeds(queue: WorkQueue[str]) -> None:
    delays = [queue.retry("a") for _ in range(4)]
    assert delays == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY, 8 * FIRST_DELAY]
    assert queue.retry("b") == FIRST_DELAY, "each key for itself"
    for _ in range(100):
        last = queue.retry("a")
    assert last == LONGEST_DELAY
    queue.forget_failures("a")
    assert queue.retry("a") == FIRST_DELAY


async def test_a_worker_that_waits_wakes_for_a_new_key(queue: WorkQueue[str]) -> None:
    taken = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    assert await asyncio.wait_for(taken, 5) == "a"


async def test_a_closed_queue_sends_all_workers_home(queue: WorkQueue[str]) -> None:
    workers = [asyncio.create_task(queue.take()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    assert await asyncio.wait_for(asyncio.gather(*workers), 5) == [None, None, None]


async def test_many_workers_never_share_a_key(clock: Clock) -> None:
    queue: WorkQueue[int] = WorkQueue()
    working: set[int] = set()
    done: list[int] = []

    async def work() -> None:
        while (key := await queue.take()) is not None:
            assert key not in working
            working.add(key)
            await asyncio.sleep(0)
            working.discard(key)
            done.append(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(5)]
    for turn in range(200):
        queue.add(turn % 7)
        if turn % 3 == 0:
            await asyncio.sleep(0)
    while len(queue) or working:
        await asyncio.sleep(0)
    queue.close()
    await asyncio.gather(*workers)
    assert set(done) == set(range(7))


def test_the_oldest_work_is_known(queue: WorkQueue[str], clock: Clock) -> None:
    assert queue.oldest_work() == 0

    async def run() -> None:
        queue.add("a")
        await queue.take()

    asyncio.run(run())
    clock.now += 42
    assert queue.oldest_work() == 42
