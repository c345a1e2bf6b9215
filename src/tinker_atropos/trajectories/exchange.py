"""Where posts come in and batches go out: the ledger, its store and everybody who waits, behind both front ends.

Every change is decided on the ledger, written to the store, and only then applied and answered. Posts may be under way
together (they only add); everything that takes or moves groups is decided one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import orjson
from isal.isal_zlib import crc32

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.export import Export
from tinker_atropos.trajectories.ledger import Batch, BatchState, Event, Group, GroupState, Ledger, LedgerError, encode
from tinker_atropos.trajectories.lineage import Version
from tinker_atropos.trajectories.metrics import Metrics
from tinker_atropos.trajectories.pacing import Pacing, Situation
from tinker_atropos.trajectories.posts import Bytes, Floats, Ints, InvalidPostError, Limits, Post
from tinker_atropos.trajectories.refusals import Refusals, named
from tinker_atropos.trajectories.registry import Environment
from tinker_atropos.trajectories.settings import Settings
from tinker_atropos.trajectories.starvation import REFUSED, Starvation
from tinker_atropos.trajectories.store import Store, StoreCorruptError, StoreUnavailableError
from tinker_atropos.trajectories.versions import completion_digests

logger = logging.getLogger(__name__)

LEASE_SECONDS = 600.0
MAX_WAIT_SECONDS = 60.0
STORE_SECONDS = 20.0
"""How long a post waits for a store that is away, before its caller hears of it."""
LOST_SECONDS = 300.0
"""How long the same content is taken for a repeated post, when the answer to the first got lost."""
DOUBT_SECONDS = 10.0
"""After a crash the answers of this last time may not have arrived."""
HOLD_SECONDS = 240.0
"""How long a post waits while the queue is full; aiohttp's clients give up after 300 s."""
_MOST_LOST = 10_000
_MOST_PROMPTS = 100_000
FOR_EVER = 1e15
_EXPORTED_AT_ONCE = 32
_PACE_SECONDS = 0.002
_LOOK_SECONDS = 1.0
"""Who waits for a batch looks again so often: patience and expired leases make no noise."""
T = TypeVar("T")


Mark = tuple[str, str, int, int]
"""Environment, instance, checksum and length of a payload: what a repeated post has in common with the first."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a post."""

    number: int
    mark: Mark
    duplicate: bool = False


class _Signal:
    """Wakes everybody who waits, once per change."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._future is not None:
            self._future.set_result(None)
            self._future = None

    def future(self) -> asyncio.Future[None]:
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future


class Exchange:
    """One run's trajectories."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
        max_held_bytes: int = 0,
        export: Export | None = None,
    ) -> None:
        self.metrics = metrics
        self._max_held_bytes = max_held_bytes
        self._export = export
        self._store = store
        self.ledger = ledger
        self._clock = clock
        self._next_group = max(ledger.groups, default=0) + 1
        self._moves = asyncio.Lock()
        self._changed = _Signal()
        self._policy_changed = _Signal()
        self._promised: deque[tuple[float, asyncio.Future[Stored]]] = deque()
        self._overdue: asyncio.TimerHandle | None = None
        self._storing: dict[tuple[object, ...], tuple[int, asyncio.Future[None], Callable[[], bool]]] = {}
        self._lost: dict[Mark, tuple[int, float]] = {}
        self._prompts: dict[tuple[str, bytes], str] = {}
        self.duplicate_prompts = Counter[str]()
        self._delivering: set[int] = set()
        """Batches whose answer to a plain trainer is not known to have arrived."""
        self._settling: set[asyncio.Future[None]] = set()
        self._latest = self._next_group - 1
        self._posting: dict[int, bytes] = {}
        """Prompts of the groups that are being stored."""
        self._pacing = Pacing()
        self._capacity: dict[int, asyncio.Queue[str]] = {}
        self._last_stream = 0
        self._pace_soon = False
        self._pace_again: asyncio.TimerHandle | None = None
        self.refusals = Refusals(clock)
        self.starvation = Starvation(self.refusals)
        self.vocabulary_size = -1
        """As the gateway told it, which knows the tokenizer; -1 = not heard yet."""
        self.closed = False

    @classmethod
    async def open(
        cls,
        store: Store,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
        max_held_bytes: int = 0,
        export: Export | None = None,
    ) -> Exchange:
        recovered = await store.open()
        ledger = Ledger.from_snapshot(recovered.snapshot)
        stored: list[Event] = []
        for count, entry in enumerate(recovered.entries, 1):
            try:
                stored += [event for event in ledger.apply_entry(entry) if event["t"] == "stored"]
            except (KeyError, ValueError, AttributeError, TypeError) as error:
                raise StoreCorruptError(
                    f"entry {count} of the journal does not fit to those before it: {error!r}"
                ) from error
        ledger.take_released()
        store.retain(ledger.living())
        exchange = cls(store, ledger, metrics, clock=clock, max_held_bytes=max_held_bytes, export=export)
        exchange._doubt(stored)
        lost = ledger.undelivered() if ledger.plain else []
        if lost:
            await exchange._write(lost)
        return exchange

    def _doubt(self, stored: Sequence[Event]) -> None:
        """The last answers before a crash may not have arrived."""
        since = stored[-1]["at"] - DOUBT_SECONDS if stored else 0.0
        for event in stored:
            if event["at"] >= since and "crc" in event and not event.get("post"):
                mark = (event["env"], event["inst"], event["crc"], event["len"])
                self._lost[mark] = (event["id"], self._clock() + LOST_SECONDS)

    def end_waiting(self) -> None:
        """Let everybody who waits go home."""
        self.closed = True
        self._changed.wake()
        self._policy_changed.wake()
        for granted in self._capacity.values():
            granted.put_nowait("")

    async def close(self) -> None:
        self.end_waiting()
        if self._settling:
            await asyncio.wait(self._settling)
        await self._store.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def _write(
        self,
        events: Sequence[Event],
        payload: tuple[int, bytes] | None = None,
        then: Callable[[asyncio.Future[None]], None] = lambda _: None,
    ) -> asyncio.Future[None]:
        """Durable, then applied; applied in the order of the calls whether or not the caller still waits."""
        entry = orjson.dumps(events[0] if len(events) == 1 else list(events))
        future = self._store.append(entry, payload)

        def done(future: asyncio.Future[None]) -> None:
            self._applied(future, events)
            then(future)

        future.add_done_callback(done)
        return future

    def _applied(self, done: asyncio.Future[None], events: Sequence[Event]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        for event in events:
            self.ledger.apply(event)
            if event["t"] == "stored":
                prompt = self._posting.get(event["id"], b"")
                self._pacing.posted(event["env"], event["inst"], event["n"], prompt, self._clock())
        released = self.ledger.take_released()
        if released:
            self._store.forget(released)
        self._changed.wake()
        self._pace()

    async def _alone(self, move: Callable[[], Awaitable[T]]) -> T:
        """One decision at a time, each until it is written, whether or not the caller still waits."""

        async def run() -> T:
            async with self._moves:
                return await move()

        return await asyncio.shield(asyncio.ensure_future(run()))

    # -- posts -------------------------------------------------------------------------------------------------------

    def limits(self) -> Limits:
        settings = self.ledger.settings
        vocabulary = settings.vocabulary_size if settings.vocabulary_size > 0 else self.vocabulary_size
        return Limits(settings.batch_size, settings.max_token_length, vocabulary)

    def find_versions(self, instance: str) -> Callable[[Ints, Bytes, Floats], list[Version | None]] | None:
        versions = self.ledger.versions
        if not len(versions):
            return None

        def find(tokens: Ints, loss_mask: Bytes, logprobs: Floats) -> list[Version | None]:
            return [versions.find(instance, digest) for digest in completion_digests(tokens, loss_mask, logprobs)]

        return find

    def post(
        self,
        post: Post,
        environment: str,
        instance: str,
        post_id: str = "",
        hung_up: Callable[[], bool] = lambda: False,
    ) -> asyncio.Future[Stored]:
        """Store a group, unless it is one that was stored before and comes again because its answer got lost.

        The same post id is the same post. Without one (no relay in between) the same content is, but only if the answer
        to the first is known to have been lost, or may have been in a crash: equal groups are not duplicates as such.
        """
        mark = (environment, instance, crc32(post.payload), len(post.payload))
        key: tuple[object, ...] = (environment, instance, post_id) if post_id else mark
        under_way = self._storing.get(key)
        if post_id:
            again = under_way is not None or self.ledger.find_post(environment, instance, post_id) is not None
        else:
            again = mark in self._lost or (under_way is not None and under_way[2]())
        if again or self._full():
            return asyncio.ensure_future(self._post_with_care(post, mark, key, post_id, hung_up))
        return self._store_post(post, mark, key, post_id, hung_up)

    async def _post_with_care(
        self, post: Post, mark: Mark, key: tuple[object, ...], post_id: str, hung_up: Callable[[], bool]
    ) -> Stored:
        """A post that perhaps came before, or that has to wait for room."""
        before = await (self._find_post(*mark[:2], post_id) if post_id else self._find_lost(mark, post.payload))
        if before is not None:
            self.metrics.duplicate("id" if post_id else "content")
            return Stored(before, mark, duplicate=True)
        await self._wait_for_room()
        return await self._store_post(post, mark, key, post_id, hung_up)

    def _store_post(
        self, post: Post, mark: Mark, key: tuple[object, ...], post_id: str, hung_up: Callable[[], bool]
    ) -> asyncio.Future[Stored]:
        environment, instance, checksum, size = mark
        number, self._next_group = self._next_group, self._next_group + 1
        event: Event = {
            "t": "stored",
            "id": number,
            "env": environment,
            "inst": instance,
            "n": post.sequences,
            "tok": post.tokens,
            "smp": post.sampled,
            "at": self._clock(),
            "crc": checksum,
            "len": size,
        }
        if post.oldest is not None:
            event["ver"] = list(post.oldest)
        if post_id:
            event["post"] = post_id
        stored = self._promise()

        def written(done: asyncio.Future[None]) -> None:
            self._posting.pop(number, None)
            self._storing.pop(key, None)
            if stored.done():
                return
            error = done.exception()
            if error is not None:
                stored.set_exception(error)
                return
            self._latest = number
            self._look_at_prompt(environment, instance, post.prompt)
            stored.set_result(Stored(number, mark))

        self._posting[number] = post.prompt
        self._storing[key] = (number, self._write((event,), (number, post.payload), written), hung_up)
        return stored

    def _promise(self) -> asyncio.Future[Stored]:
        """What a post's caller waits for, not longer than STORE_SECONDS; one timer is for all of them."""
        loop = asyncio.get_running_loop()
        promise: asyncio.Future[Stored] = loop.create_future()
        while self._promised and self._promised[0][1].done():
            self._promised.popleft()
        self._promised.append((loop.time() + STORE_SECONDS, promise))
        if self._overdue is None:
            self._overdue = loop.call_later(STORE_SECONDS, self._break_promises)
        return promise

    def _break_promises(self) -> None:
        loop = asyncio.get_running_loop()
        self._overdue = None
        while self._promised:
            deadline, promise = self._promised[0]
            if not promise.done():
                if deadline > loop.time():
                    self._overdue = loop.call_at(deadline, self._break_promises)
                    return
                message = "the store does not answer; whether it took the group is not known yet"
                promise.set_exception(StoreUnavailableError(message))
            self._promised.popleft()

    async def _find_post(self, environment: str, instance: str, post_id: str) -> int | None:
        under_way = self._storing.get((environment, instance, post_id))
        if under_way is not None:
            await asyncio.wait((under_way[1],), timeout=STORE_SECONDS)
        return self.ledger.find_post(environment, instance, post_id)

    async def _find_lost(self, mark: Mark, payload: bytes) -> int | None:
        under_way = self._storing.get(mark)
        if under_way is not None and under_way[2]():
            number, future, _ = under_way
            await asyncio.wait((future,), timeout=STORE_SECONDS)
            self._lost.pop(mark, None)
            return number if future.done() and future.exception() is None else None
        lost = self._lost.pop(mark, None)
        if lost is None or lost[1] < self._clock() or lost[0] not in self.ledger.groups:
            return None
        try:
            (stored,) = await self._store.read((lost[0],))
        except (
            StoreCorruptError
        ):  # trained and covered meanwhile: its payload is gone, the content's length and sum agree
            return lost[0]
        return lost[0] if stored == payload else None

    def answer_lost(self, stored: Stored) -> None:
        """Nobody heard that this group is stored: the same content will come again."""
        if not stored.duplicate:
            self._lost[stored.mark] = (stored.number, self._clock() + LOST_SECONDS)
            if len(self._lost) > _MOST_LOST:
                del self._lost[next(iter(self._lost))]

    async def _wait_for_room(self) -> None:
        """A full queue holds posts back instead of refusing them: a refused environment throws its group away."""
        if not self._full():
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HOLD_SECONDS
        while self._full():
            left = deadline - loop.time()
            if left <= 0 or self.closed:
                raise StoreUnavailableError(
                    f"{self.ledger.held_bytes >> 20} MB of groups wait already and none was trained"
                )
            await asyncio.wait((self._changed.future(),), timeout=left)

    def _full(self) -> bool:
        return 0 < self._max_held_bytes <= self.ledger.held_bytes

    def _look_at_prompt(self, environment: str, instance: str, prompt: bytes) -> None:
        """Count prompts that several replicas work on: they sample the same part of the data."""
        if not instance or not prompt:
            return
        first = self._prompts.setdefault((environment, prompt), instance)
        if first != instance:
            self.duplicate_prompts[environment] += 1
            self.metrics.duplicate_prompt(environment)
        elif len(self._prompts) > _MOST_PROMPTS:
            del self._prompts[next(iter(self._prompts))]

    def refused(self, error: InvalidPostError, env_id: int | None, environment: str, instance: str) -> None:
        """Count a post that was not taken."""
        self.metrics.refused(error.field)
        self.refusals.add(self.environment_of(env_id, environment, instance)[0], error)

    def waiting_for(self) -> str:
        """Why there is no batch, for people."""
        refused = "".join(
            f"; posts of {named(name)} are refused: {refused.last}"
            for name, refused in sorted(self.refusals.current().items())
        )
        return self.ledger.waiting_for() + refused

    def environment_of(self, env_id: int | None, environment: str, instance: str) -> tuple[str, str]:
        """Whose post it is: what the relay says, else the registration, else a name made of the unknown id."""
        if environment or instance:
            return environment, instance
        if env_id is None:
            return "", ""
        known = self.ledger.registry.environments.get(env_id)
        return (known.name, known.instance) if known else (f"unregistered-{env_id}", "")

    async def latest_payload(self) -> bytes | None:
        group = self.ledger.groups.get(self._latest)
        if group is None or group.state in (GroupState.COVERED, GroupState.DROPPED):
            return None
        return (await self._store.read((self._latest,)))[0]

    async def payloads(self, groups: Sequence[Group]) -> list[bytes]:
        try:
            return await self._store.read([group.number for group in groups])
        except StoreCorruptError as error:
            names = ", ".join(f"{group.number} of environment {group.environment!r}" for group in groups)
            raise StoreCorruptError(f"group {names} cannot be read any more: {error}") from error

    # -- environments ------------------------------------------------------------------------------------------------

    async def register_environment(self, **values: Any) -> Environment:
        async def register() -> Environment:
            environment = self.ledger.registry.plan(**values)
            if self.ledger.registry.environments.get(environment.id) != environment:
                await self._write(({"t": "registered", "env": asdict(environment)},))
            return environment

        return await self._alone(register)

    async def disconnect(self, env_id: int) -> bool:
        async def disconnect() -> bool:
            if env_id not in self.ledger.registry.environments:
                return False
            await self._write(({"t": "disconnected", "id": env_id},))
            return True

        return await self._alone(disconnect)

    # -- trainers ----------------------------------------------------------------------------------------------------

    async def take_over(self, settings: Settings, holder: str, fallback: pb.State | None, after_epoch: int = 0) -> bool:
        """Grant a new epoch; True when no trainer was here before."""

        async def take_over() -> bool:
            fresh = self.ledger.epoch == 0
            await self._write((self.ledger.take_over(settings, holder, fallback, self._clock(), after_epoch),))
            self._delivering.clear()
            return fresh

        return await self._alone(take_over)

    async def register_trainer(self, settings: Settings, starting_step: int) -> dict[str, int]:
        async def register() -> dict[str, int]:
            outstanding = sum(batch.state is not BatchState.READY for batch in self.ledger.batches.values())
            await self._write((self.ledger.register_trainer(settings, starting_step, self._clock()),))
            self._delivering.clear()
            return {"epoch": self.ledger.epoch, "given_back": outstanding}

        return await self._alone(register)

    async def lease(self, epoch: int, for_step: int, wait_seconds: float, lease_seconds: float) -> Batch | None:
        """The batch for a step; waits for one up to `wait_seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, MAX_WAIT_SECONDS)
        while True:
            changed = self._changed.future()
            batch = await self._alone(lambda: self._lease(epoch, for_step, lease_seconds))
            left = deadline - loop.time()
            if batch is not None or left <= 0 or self.closed:
                return batch
            await asyncio.wait((changed,), timeout=min(left, _LOOK_SECONDS))

    async def _lease(self, epoch: int, for_step: int, lease_seconds: float) -> Batch | None:
        ledger = self.ledger
        ledger.check_epoch(epoch)
        now = self._clock()
        until = now + lease_seconds
        held = ledger.current_lease(epoch, for_step)
        if held is not None:
            await self._write(({"t": "renewed", "batch": held.number, "until": until},))
            return held
        if for_step <= ledger.step:
            raise LedgerError(f"step {for_step} is trained already (the run is at step {ledger.step})")
        expired = ledger.expire(now)
        if expired:
            await self._write(expired)
        return await self._next_batch(epoch, for_step, until, now)

    async def _next_batch(
        self, epoch: int, for_step: int, until: float, now: float, before: Sequence[Event] = ()
    ) -> Batch | None:
        while True:
            events = self.ledger.lease(epoch, for_step, until, now)
            if before or events:
                await self._write((*before, *events))
            before = ()
            self._look_what_starves(now, events)
            if not events:
                return None
            if events[-1]["t"] == "leased":
                batch = self.ledger.batches[events[-1]["batch"]]
                for number in batch.groups:
                    oldest = self.ledger.groups[number].oldest
                    if oldest is not None:
                        self.metrics.staleness(self.ledger.lineage.staleness(oldest, for_step))
                return batch

    def _look_what_starves(self, now: float, events: Sequence[Event]) -> None:
        """What keeps batches from being made as asked is logged once; the trainer hears it with each lease."""
        ledger = self.ledger
        if events and events[-1]["t"] == "leased" and "groups" in events[-1]:
            cut = [ledger.groups[number].candidate for number in events[-1]["groups"]]
            self.starvation.batch_cut(ledger.queue, cut)
        for warning in self.starvation.look(ledger, now):
            if warning.reason != REFUSED:  # the log had it when the post came
                logger.warning("%s", warning.message)

    async def renew(self, epoch: int, lease_id: str, lease_seconds: float) -> None:
        async def renew() -> None:
            batch = self.ledger.leased_batch(epoch, lease_id)
            if batch.state is BatchState.LEASED:
                await self._write(({"t": "renewed", "batch": batch.number, "until": self._clock() + lease_seconds},))

        await self._alone(renew)

    async def acknowledge(self, epoch: int, lease_id: str, step: int, no_signal: bool, dropped: dict[int, str]) -> None:
        async def acknowledge() -> None:
            await self._write_some(self.ledger.acknowledge(epoch, lease_id, step, no_signal, dropped))

        await self._alone(acknowledge)

    async def give_back(self, epoch: int, lease_id: str, reason: str) -> None:
        async def give_back() -> None:
            await self._write_some(self.ledger.give_back(self.ledger.leased_batch(epoch, lease_id), reason))

        await self._alone(give_back)

    async def cover(self, epoch: int, state: pb.State) -> None:
        async def cover() -> None:
            await self._write_some(self.ledger.cover(epoch, state))

        await self._alone(cover)

    async def _write_some(self, events: list[Event]) -> None:
        if events:
            await self._write(events)

    async def finish(self, epoch: int) -> str:
        """The run is over: export it; where to, "" = nowhere. Raises ExportError."""
        self.ledger.check_epoch(epoch)
        await self.export()
        return self._export.place if self._export is not None else ""

    async def export(self) -> None:
        """Write the export if one is asked for and it is not up to date. Raises ExportError."""
        export = self._export

        async def write() -> None:
            if export is not None and export.due(self.ledger):
                await export.write(self.ledger, self._living_payloads(), self._clock())
                logger.info("exported to %s", export.place)

        await self._alone(write)

    async def _living_payloads(self) -> AsyncIterator[tuple[int, bytes]]:
        living = sorted(self.ledger.living())
        for first in range(0, len(living), _EXPORTED_AT_ONCE):
            numbers = living[first : first + _EXPORTED_AT_ONCE]
            for number, payload in zip(numbers, await self._store.read(numbers), strict=True):
                yield number, payload

    # -- policies ----------------------------------------------------------------------------------------------------

    async def publish(self, epoch: int, policy: pb.Policy) -> None:
        async def publish() -> None:
            self.ledger.check_epoch(epoch)
            policy.version.epoch = epoch
            policy.published_at = self._clock()
            await self._write(({"t": "published", "policy": encode(policy)},))
            self._policy_changed.wake()

        await self._alone(publish)

    async def policies(self) -> AsyncIterator[pb.Policy]:
        """The newest policy, then each newer one."""
        seen: pb.Policy | None = None
        while not self.closed:
            changed = self._policy_changed.future()
            policy = self.ledger.policy
            if policy is not None and policy is not seen:
                seen = policy
                yield policy
                continue
            await asyncio.wait((changed,))

    async def record(self, instance: str, version: Version, digests: Sequence[bytes]) -> None:
        if digests:
            event: Event = {"t": "recorded", "inst": instance, "ver": list(version), "digs": b"".join(digests).hex()}
            await asyncio.shield(self._write((event,)))

    # -- pacing ------------------------------------------------------------------------------------------------------

    def open_capacity(self) -> tuple[int, asyncio.Queue[str]]:
        """A gateway's stream: its number, and where rollouts come out that may start."""
        self._last_stream += 1
        granted = self._capacity[self._last_stream] = asyncio.Queue()
        return self._last_stream, granted

    def close_capacity(self, stream: int) -> None:
        del self._capacity[stream]
        self._pacing.stream_ended(stream, self._clock())
        self._pace()

    def told_of_rollout(self, stream: int, request: pb.CapacityRequest) -> None:
        """What the gateway says of one rollout."""
        key, now = (stream, request.rollout), self._clock()
        environment, instance = request.environment, request.instance
        if request.kind == pb.CapacityRequest.WANT:
            self._pacing.want(key, environment, instance, request.sequences, request.prompt)
        elif request.kind == pb.CapacityRequest.SAMPLED:
            self._pacing.sampled(key, now)
        elif request.kind == pb.CapacityRequest.CONTINUED:
            step = self.situation().policy_step
            self._pacing.continued(key, environment, instance, request.sequences, step, now, request.prompt)
        else:
            self._pacing.abandoned(key)
        self._pace()

    def situation(self) -> Situation:
        ledger = self.ledger
        version = ledger.policy.version if ledger.policy is not None else None
        return Situation(
            batch_size=ledger.settings.batch_size,
            group_size=ledger.settings.group_size,
            limit=ledger.settings.max_steps_off_policy,
            step=ledger.step,
            policy_step=ledger.lineage.surviving_step(Version(version.epoch, version.step)) if version else ledger.step,
            waiting=sum(ledger.waiting.values()),
            waiting_by_environment=ledger.waiting,
            weights={name: share.weight for name, share in ledger.shares().items()},
        )

    def _pace(self) -> None:
        """Look soon what may start; many changes at once are one look."""
        if self._pacing.held and not self._pace_soon:
            self._pace_soon = True
            asyncio.get_running_loop().call_later(_PACE_SECONDS, self._grant)

    def _grant(self) -> None:
        """Let start what fits now; while somebody waits, look again each second, because credits expire."""
        self._pace_soon = False
        if self._pace_again is not None:
            self._pace_again.cancel()
            self._pace_again = None
        for stream, rollout in self._pacing.grants(self.situation(), self._clock()):
            self._capacity[stream].put_nowait(rollout)
        if self._pacing.held:
            self._pace_again = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._grant)

    @property
    def pacing(self) -> dict[str, object]:
        pacing = self._pacing
        return {
            "running": pacing.running,
            "held": pacing.held,
            "granted": pacing.granted,
            "expired": pacing.expired,
            "expected_seconds": {name: round(seconds, 1) for name, seconds in pacing.expected_seconds.items()},
        }

    # -- plain trainers ----------------------------------------------------------------------------------------------

    async def next_plain_batch(self) -> Batch | None:
        """GET /batch: acknowledges what was delivered before, then hands out the next batch."""

        async def next_batch() -> Batch | None:
            ledger = self.ledger
            events: list[Event] = [] if ledger.started else [{"t": "started"}]
            step = ledger.step
            for batch in self._outstanding():
                if batch.number not in self._delivering:
                    step += 1
                    events.append(
                        {"t": "trained", "batch": batch.number, "epoch": batch.epoch, "step": step, "covered": True}
                    )
            for_step = (
                max([step, *(batch.step for batch in self._outstanding() if batch.number in self._delivering)]) + 1
            )
            following = await self._next_batch(ledger.epoch, for_step, FOR_EVER, self._clock(), events)
            if following is not None:
                self._delivering.add(following.number)
            return following

        return await self._alone(next_batch)

    def _outstanding(self) -> list[Batch]:
        return sorted(
            (b for b in self.ledger.batches.values() if b.state is BatchState.LEASED), key=lambda batch: batch.step
        )

    def delivered(self, number: int, epoch: int, arrived: bool) -> None:
        """What became of a batch's way to a plain trainer; a reset may still follow when its kernel has it all."""

        async def settle() -> None:
            batch = self.ledger.batches.get(number)
            if batch is None or batch.epoch != epoch or batch.state is not BatchState.LEASED:
                return
            if not arrived:
                logger.warning("batch %d did not reach the trainer: given back", number)
                await self._write(self.ledger.give_back(batch, "not delivered"))
            elif number in self._delivering:
                await self._write(({"t": "arrived", "batch": number},))
            self._delivering.discard(number)

        task = asyncio.ensure_future(self._alone(settle))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def reset(self) -> None:
        async def reset() -> None:
            self._delivering.clear()
            await self._write(({"t": "reset"},))

        await self._alone(reset)
