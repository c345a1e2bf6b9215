"""The Redis store against a real redis-server: durable, all or nothing, one owner, and an outage loses nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tinker_atropos.trajectories.store import StoreCorruptError, StoreUnavailableError
from tinker_atropos.trajectories.store.redis import RedisStore

pytestmark = pytest.mark.wire


def join(snapshot: bytes | None, entries: Iterable[bytes]) -> bytes:
    return b"|".join([*([snapshot] if snapshot else []), *entries])


async def opened(url: str, **limits: Any) -> tuple[RedisStore, bytes]:
    store = RedisStore(url, join, **limits)
    recovered = await store.open()
    return store, join(recovered.snapshot, recovered.entries)


async def fill(store: RedisStore, first: int, last: int) -> None:
    await asyncio.gather(*(store.append(b"e%d" % n, (n, bytes([n % 256]) * 100)) for n in range(first, last + 1)))


def journal(first: int, last: int) -> bytes:
    return b"|".join(b"e%d" % number for number in range(first, last + 1))


class TestContract:
    async def test_what_was_appended_is_there_after_opening_again(self, redis_server: Any) -> None:
        store, content = await opened(redis_server.url)
        assert content == b""
        await fill(store, 1, 50)
        await store.append(b"no payload")
        await store.close()
        redis_server.restart()
        store, content = await opened(redis_server.url)
        assert content == journal(1, 50) + b"|no payload"
        assert await store.read([7, 3]) == [b"\x07" * 100, b"\x03" * 100]
        await store.close()

    async def test_compaction_keeps_the_fold_and_what_follows(self, redis_server: Any) -> None:
        store, _ = await opened(redis_server.url)
        await fill(store, 1, 30)
        await asyncio.gather(store.compact(), fill(store, 31, 60))
        await store.compact()
        await fill(store, 61, 70)
        await store.close()
        store, content = await opened(redis_server.url)
        assert content == journal(1, 70)
        assert len(await store.read(list(range(1, 71)))) == 70
        await store.close()

    async def test_it_compacts_by_itself(self, redis_server: Any) -> None:
        store, _ = await opened(redis_server.url, journal_bytes=100)
        for number in range(1, 101):
            await store.append(b"e%d" % number)
        await store.close()
        assert int(redis_server.cli("XLEN", "tinker-atropos:{run}:journal")) < 50
        store, content = await opened(redis_server.url)
        assert content == journal(1, 100)
        await store.close()

    async def test_forgotten_payloads_leave_the_server(self, redis_server: Any) -> None:
        store, _ = await opened(redis_server.url)
        await fill(store, 1, 10)
        store.forget(range(1, 9))
        await store.append(b"x")
        with pytest.raises(StoreCorruptError, match="group 3 has no payload"):
            await store.read([3])
        await store.close()
        store, _ = await opened(redis_server.url)
        store.retain([10])
        await store.append(b"x")
        await store.close()
        assert redis_server.cli("HKEYS", "tinker-atropos:{run}:payloads").split() == ["10"]

    async def test_a_damaged_payload_is_noticed(self, redis_server: Any) -> None:
        store, _ = await opened(redis_server.url)
        await fill(store, 1, 1)
        redis_server.cli("HSET", "tinker-atropos:{run}:payloads", "1", "somethingelse")
        with pytest.raises(StoreCorruptError, match="damaged"):
            await store.read([1])
        await store.close()

    async def test_runs_on_one_server_are_apart(self, redis_server: Any) -> None:
        one, _ = await opened(f"{redis_server.url}?run=one")
        two, _ = await opened(f"{redis_server.url}?run=two")
        await fill(one, 1, 3)
        await fill(two, 7, 8)
        for store in (one, two):
            await store.close()
        for run, content in (("one", journal(1, 3)), ("two", journal(7, 8))):
            store, found = await opened(f"{redis_server.url}?run={run}")
            assert found == content
            await store.close()


class TestFaults:
    async def test_a_newer_process_takes_the_run_over(self, redis_server: Any) -> None:
        old, _ = await opened(redis_server.url)
        await fill(old, 1, 2)
        new, content = await opened(redis_server.url)
        assert content == journal(1, 2)
        with pytest.raises(StoreUnavailableError, match="another process has taken this run over"):
            await old.append(b"late")
        await new.append(b"e3")
        for store in (old, new):
            await store.close()
        store, content = await opened(redis_server.url)
        assert content == journal(1, 3)
        await store.close()

    async def test_a_server_that_forgets_is_refused(self, redis_server: Any) -> None:
        redis_server.cli("CONFIG", "SET", "appendonly", "no")
        with pytest.raises(StoreUnavailableError, match="appendonly is no"):
            await opened(redis_server.url)

    async def test_a_server_that_is_not_there_is_said_so(self) -> None:
        with pytest.raises(StoreUnavailableError, match=r"Redis store at 127\.0\.0\.1:1"):
            await opened("redis://127.0.0.1:1/0")

    async def test_what_was_under_way_when_the_server_died_is_written_once(self, redis_server: Any) -> None:
        store, _ = await opened(redis_server.url)
        await fill(store, 1, 5)
        redis_server.kill()
        waiting = store.append(b"e6", (6, b"x"))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        redis_server.start()
        await waiting
        await store.append(b"e7")
        await store.close()
        store, content = await opened(redis_server.url)
        assert content == journal(1, 7)
        await store.close()

    async def test_while_it_is_away_new_writes_are_refused_at_once(self, redis_server: Any) -> None:
        store, _ = await opened(redis_server.url)
        redis_server.kill()
        waiting = store.append(b"e1")
        await asyncio.sleep(2.5)
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            await store.append(b"e2")
        assert time.monotonic() - started < 2
        redis_server.start()
        await waiting
        await store.append(b"e3")
        await store.close()
        store, content = await opened(redis_server.url)
        assert content == b"e1|e3"
        await store.close()

    async def test_a_full_server_refuses_and_loses_nothing(self, redis_server: Any) -> None:
        store, _ = await opened(redis_server.url)
        await fill(store, 1, 3)
        redis_server.cli("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailableError, match="maxmemory"):
            await store.append(b"e4", (4, b"x" * 1000))
        redis_server.cli("CONFIG", "SET", "maxmemory", "0")
        await fill(store, 5, 5)
        await store.close()
        store, content = await opened(redis_server.url)
        assert content == journal(1, 3) + b"|e5"
        await store.close()


class TestServer:
    def test_a_run_moves_to_another_server_process(self, redis_server: Any, make_server: Any) -> None:
        first = make_server(store=redis_server.url)
        epoch = first.take_over(batch_size=8).epoch
        first.post("/scored_data_list", [first.group(number) for number in range(6)])
        first.ack(epoch, first.lease(epoch, 1))
        second = make_server(store=redis_server.url)
        assert second.get("/status")["current_step"] == 1
        assert second.numbers(second.lease(epoch, 2)) == [2, 3]
        status, answer = first.call("POST", "/scored_data", first.group(9))
        assert status == 503 and "another process has taken this run over" in answer["message"]
        assert first.answer_headers["Retry-After"] == "1"

    def test_the_older_process_gives_way(self, redis_server: Any, make_process_server: Any) -> None:
        first = make_process_server(store=redis_server.url)
        second = make_process_server(store=redis_server.url)
        assert first.call("POST", "/scored_data", first.group(9))[0] == 503
        assert first.process.wait(20) == 1
        assert "another process has taken this run over" in first.log.read_text()
        assert "Traceback" not in first.log.read_text()
        second.post("/scored_data", second.group(9))

    def test_an_outage_holds_posts_and_loses_nothing(self, redis_server: Any, make_server: Any) -> None:
        server = make_server(store=redis_server.url)
        server.post("/scored_data", server.group(0))
        redis_server.kill()
        answers: list[int] = []
        headers = {"Idempotency-Key": "k"}
        thread = threading.Thread(
            target=lambda: answers.append(server.call("POST", "/scored_data", server.group(1), headers)[0])
        )
        thread.start()
        time.sleep(1)
        redis_server.start()
        thread.join(20)
        assert answers == [200]
        assert server.post("/scored_data", server.group(1), headers)["duplicate"]
        assert server.get("/status")["queue_size"] == 2
