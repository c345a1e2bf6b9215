"""The store for API servers that may move between nodes: a Redis server (append-only file on) holds the run.

The journal is a stream, payloads are fields of a hash, the snapshot is a string. Each commit is one script run by the
server, so it is all or nothing; it carries a number, so that it can be sent again when its answer got lost; and it
checks that this process still owns the run: a newer process that opened the same run has taken it over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import redis.asyncio
from isal.isal_zlib import crc32
from redis.exceptions import RedisError, ResponseError

from tinker_atropos.trajectories.store import Fold, Recovered, StoreCorruptError, StoreUnavailableError

logger = logging.getLogger(__name__)

JOURNAL_BYTES = 16 << 20
_COMMIT_BYTES = 16 << 20
_GATHER_SECONDS = 0.001
_AGAIN_SECONDS = 0.2
_PAGE = 2000
_RUN_PARAMETER = "run"
_RUNS = "tinker-atropos:{*}:owner"
"""Pattern of a key that each run has."""

_DOWN_SECONDS = 2.0
"""After so long without an answer new writes are refused at once."""
_TAKEN = "another process has taken this run over"

# KEYS: owner, journal, payloads, commit; ARGV: owner, commit's number, then entry, payload number, payload of each
_COMMIT = f"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('TAKEN {_TAKEN}') end
if redis.call('GET', KEYS[4]) == ARGV[2] then return 0 end
redis.call('SET', KEYS[4], ARGV[2])
for i = 3, #ARGV, 3 do
  if ARGV[i + 1] ~= '' then redis.call('HSET', KEYS[3], ARGV[i + 1], ARGV[i + 2]) end
  redis.call('XADD', KEYS[2], '*', 'e', ARGV[i])
end
return 1
"""
# KEYS: owner, journal, snapshot; ARGV: owner's number, snapshot, last folded id
_FOLD = f"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('TAKEN {_TAKEN}') end
redis.call('SET', KEYS[3], ARGV[2])
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[3])
redis.call('XDEL', KEYS[2], ARGV[3])
return 1
"""

_Append = tuple[bytes, int, bytes, asyncio.Future[None]]
"""Entry, payload's number, payload, and who waits."""


class RedisStore:
    """A `Store` on a Redis server. `url` may end in ?run=NAME, which keeps several runs on one server apart."""

    def __init__(self, url: str, fold: Fold, *, journal_bytes: int = JOURNAL_BYTES) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port  # refused only when it is asked for
        except ValueError:
            given = url.rpartition("@")[2]
            raise StoreUnavailableError(f"{given} is no address; write it like redis://HOST:6379/0?run=NAME") from None
        query = parse_qs(parts.query)
        run = query.pop(_RUN_PARAMETER, ["run"])[-1]
        self._url = urlunsplit(parts._replace(query=urlencode(query, doseq=True)))
        self._where = f"{parts.hostname or parts.path}:{parts.port or 6379}"
        self._run = run
        prefix = f"tinker-atropos:{{{run}}}:"
        self._owner_key, self._journal, self._payloads, self._snapshot, self._counter, self._commit_key = (
            prefix + name for name in ("owner", "journal", "payloads", "snapshot", "owners", "commit")
        )
        self._fold = fold
        self._journal_bytes = journal_bytes
        self._redis: Any = redis.asyncio.Redis.from_url(self._url, socket_timeout=30, socket_connect_timeout=5)
        self._owner = b""
        self._commits = 0
        self._down_since: float | None = None
        self._closing = False
        self._found: list[int] = []
        self._unfolded = 0
        self._pending: list[_Append] = []
        self._committing: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._forgotten: list[int] = []
        self._crowded = False
        self.on_sync: Callable[[float], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None

    # -- opening -----------------------------------------------------------------------------------------------------

    async def open(self) -> Recovered:
        try:
            await self._check_durability()
            self._owner = str(await self._redis.incr(self._counter)).encode()
            await self._redis.set(self._owner_key, self._owner)
            snapshot = await self._redis.get(self._snapshot)
            entries = await self._read_journal()
            self._found = [int(field) for field in await self._redis.hkeys(self._payloads)]
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(f"the Redis store at {self._where}: {error}") from error
        if snapshot is not None:
            snapshot = _checked(snapshot, "the snapshot")
        self._unfolded = sum(len(entry) for entry in entries)
        return Recovered(snapshot, entries)

    @property
    def where(self) -> str:
        """Host and port, for people."""
        return self._where

    async def look(self) -> Recovered:
        """What it holds at this moment."""
        while True:
            snapshot = await self._redis.get(self._snapshot)
            entries = await self._read_journal()
            if snapshot == await self._redis.get(self._snapshot):  # else the journal was folded in between
                break
        if snapshot is None and not entries and not await self._redis.exists(self._owner_key):
            text = f"the Redis store at {self._where} holds no run {self._run!r}"
            others = sorted([key.decode().split("{")[1].split("}")[0] async for key in self._redis.scan_iter(_RUNS)])
            there = f"it holds {', '.join(others[:10])}; name one with ?run=NAME" if others else "it holds none"
            raise StoreUnavailableError(f"{text}; {there}")
        return Recovered(_checked(snapshot, "the snapshot") if snapshot is not None else None, entries)

    async def let_go(self) -> None:
        """Close the connections of a store that was only looked into."""
        await self._redis.aclose()

    async def _check_durability(self) -> None:
        try:
            settings = await self._redis.config_get("append*")
        except ResponseError:
            logger.warning("Redis at %s does not tell its settings; it must run with appendonly yes", self._where)
            return
        if settings.get("appendonly") != "yes":
            raise StoreUnavailableError(
                f"Redis at {self._where} keeps nothing over a restart (appendonly is {settings.get('appendonly')}); "
                "start it with --appendonly yes"
            )
        if settings.get("appendfsync") != "always":
            logger.warning(
                "Redis at %s syncs %s: a power failure can lose the last second; appendfsync always loses nothing",
                self._where,
                settings.get("appendfsync"),
            )

    async def _read_journal(self, until: str = "+") -> list[bytes]:
        entries: list[bytes] = []
        first = "-"
        while True:
            page = await self._redis.xrange(self._journal, first, until, _PAGE)
            entries += [fields[b"e"] for _, fields in page if fields[b"e"]]
            if len(page) < _PAGE:
                return entries
            first = "(" + page[-1][0].decode()

    # -- writing -----------------------------------------------------------------------------------------------------

    def append(self, entry: bytes, payload: tuple[int, bytes] | None = None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._down_since is not None and time.monotonic() - self._down_since > _DOWN_SECONDS:
            future.set_exception(StoreUnavailableError(f"the Redis store at {self._where} does not answer"))
            return future
        number, data = payload or (0, b"")
        self._pending.append((entry, number, data, future))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit())
        return future

    async def _commit(self) -> None:
        try:
            while self._pending:
                if self._crowded:
                    await asyncio.sleep(_GATHER_SECONDS)
                batch = self._take()
                self._crowded = len(batch) > 1
                error = await self._write(batch)
                for _, _, _, future in batch:
                    if future.cancelled():
                        continue
                    if error is None:
                        future.set_result(None)
                    else:
                        future.set_exception(error)
        finally:
            self._committing = None
        if self._unfolded >= self._journal_bytes and self._compacting is None:
            self._compacting = asyncio.create_task(self._compact())

    def _take(self) -> list[_Append]:
        """The oldest appends, as many as one command should carry."""
        size = count = 0
        for entry, _, data, _ in self._pending:
            size += len(entry) + len(data)
            if count and size > _COMMIT_BYTES:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch

    async def _write(self, batch: Sequence[_Append]) -> StoreUnavailableError | None:
        """Commit a batch. Without an answer nobody knows whether it is written: it is sent until there is one."""
        self._commits += 1
        arguments: list[bytes] = [self._owner, self._owner + b"." + str(self._commits).encode()]
        for entry, number, data, _ in batch:
            stamped = len(data).to_bytes(4, "little") + crc32(data).to_bytes(4, "little") + data if data else b""
            arguments += (entry, str(number).encode() if data else b"", stamped)
        keys = (self._owner_key, self._journal, self._payloads, self._commit_key)
        started = time.monotonic()
        while True:
            try:
                await self._redis.eval(_COMMIT, len(keys), *keys, *arguments)
                break
            except ResponseError as error:  # Redis refused it: nothing is written
                logger.error("store: Redis at %s: %s", self._where, error)
                if _TAKEN in str(error):
                    self.on_lost(f"Redis store at {self._where}: {_TAKEN}")
                return StoreUnavailableError(f"the Redis store at {self._where}: {error}")
            except (RedisError, OSError) as error:
                if self._down_since is None:
                    self._down_since = started
                    logger.error("store: Redis at %s: %s; trying again until it answers", self._where, error)
                if self._closing:
                    return StoreUnavailableError(f"the Redis store at {self._where}: {error}")
                await asyncio.sleep(_AGAIN_SECONDS)
        if self._down_since is not None:
            logger.warning("store: Redis at %s answers again", self._where)
            self._down_since = None
        self.on_sync(time.monotonic() - started)
        self._unfolded += sum(len(entry) for entry, *_ in batch)
        await self._delete_forgotten()
        return None

    async def _delete_forgotten(self) -> None:
        forgotten, self._forgotten = self._forgotten, []
        if forgotten:
            try:
                await self._redis.hdel(self._payloads, *[str(number) for number in forgotten])
            except (RedisError, OSError):
                self._forgotten += forgotten

    # -- payloads ----------------------------------------------------------------------------------------------------

    async def read(self, numbers: Sequence[int]) -> list[bytes]:
        if not numbers:
            return []
        try:
            values = await self._redis.hmget(self._payloads, [str(number) for number in numbers])
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(f"the Redis store at {self._where}: {error}") from error
        payloads = []
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                raise StoreCorruptError(f"group {number} has no payload in Redis at {self._where}")
            length, data = int.from_bytes(value[:4], "little"), value[8:]
            if len(data) != length or crc32(data) != int.from_bytes(value[4:8], "little"):
                raise StoreCorruptError(f"the payload of group {number} in Redis at {self._where} is damaged")
            payloads.append(data)
        return payloads

    def retain(self, numbers: Collection[int]) -> None:
        self.forget([number for number in self._found if number not in numbers])
        self._found = []

    def forget(self, numbers: Collection[int]) -> None:
        self._forgotten += numbers

    # -- compaction --------------------------------------------------------------------------------------------------

    async def compact(self) -> None:
        """Fold now."""
        if self._compacting is None:
            self._compacting = asyncio.create_task(self._compact())
        await self._compacting

    async def _compact(self) -> None:
        try:
            newest = await self._redis.xrevrange(self._journal, count=1)
            if not newest:
                return
            last = newest[0][0].decode()
            old = await self._redis.get(self._snapshot)
            entries = await self._read_journal(last)
            folded = await asyncio.get_running_loop().run_in_executor(
                None, self._fold, _checked(old, "the snapshot") if old is not None else None, entries
            )
            stamped = crc32(folded).to_bytes(4, "little") + folded
            await self._redis.eval(_FOLD, 3, self._owner_key, self._journal, self._snapshot, self._owner, stamped, last)
            self._unfolded -= sum(len(entry) for entry in entries)
        except (RedisError, OSError, StoreCorruptError) as error:
            logger.warning("store: compaction put off: %s", error)
        finally:
            self._compacting = None

    # -- ending ------------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, float]:
        return {"unfolded_bytes": float(self._unfolded)}

    async def close(self) -> None:
        self._closing = True
        while self._committing is not None or self._compacting is not None:
            tasks = [task for task in (self._committing, self._compacting) if task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._redis.aclose()


def _checked(stamped: bytes, what: str) -> bytes:
    if crc32(stamped[4:]) != int.from_bytes(stamped[:4], "little"):
        raise StoreCorruptError(f"{what} in Redis is damaged")
    return stamped[4:]


async def look_into_redis(url: str) -> Recovered:
    """What a run's store holds, without taking it over or changing anything. Raises StoreUnavailableError."""
    store = RedisStore(url, lambda _, __: b"")
    try:
        return await store.look()
    except (RedisError, OSError) as error:
        raise StoreUnavailableError(f"the Redis store at {store.where}: {error}") from error
    finally:
        await store.let_go()
