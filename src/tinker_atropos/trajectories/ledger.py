"""What happened to each group, and who holds the run: the state machine behind the server.

Pure: decisions are methods that return events, events change the state through `apply`, and the journal is the list of
events. Replaying a journal decides nothing again, so a restart ends in the state that was acknowledged.

    queued -> leased(epoch, step) -> trained(epoch, step) -> covered        or dropped(reason)

A batch, once cut, keeps its composition: given back, expired or taken over, it is handed out again as it was.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import orjson

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.lineage import Lineage, Version
from tinker_atropos.trajectories.packing import Candidate, Queue
from tinker_atropos.trajectories.registry import Registry
from tinker_atropos.trajectories.settings import Settings, Share
from tinker_atropos.trajectories.shares import Mix, choose, lacking, largest
from tinker_atropos.trajectories.versions import VersionRecord, split_digests

Event = dict[str, Any]

PATIENCE_SECONDS = 60.0
"""How long a batch waits for minimum shares, and for sizes that sum, before limits are waived or sizes dealt with."""


class LedgerError(Exception):
    """The call does not fit the run's state; the message says why."""


class FencedError(LedgerError):
    """The caller's epoch does not hold the run."""


class UnknownEpochError(LedgerError):
    """The caller's epoch was never granted here: the store that granted it is gone."""


class UnknownLeaseError(LedgerError):
    """No such lease."""


class GroupState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    TRAINED = "trained"
    COVERED = "covered"
    DROPPED = "dropped"


_WAITING = (GroupState.QUEUED, GroupState.LEASED)


class BatchState(StrEnum):
    READY = "ready"
    """Cut before, given back or taken over; handed out again before anything new."""
    LEASED = "leased"
    TRAINED = "trained"


@dataclass(slots=True)
class Group:
    """One acknowledged post."""

    number: int
    environment: str
    instance: str
    sequences: int
    tokens: int
    sampled: int
    """Completion tokens."""
    oldest: Version | None
    stored_at: float
    size: int = 0
    """Bytes of its payload."""
    state: GroupState = GroupState.QUEUED
    batch: int = 0
    epoch: int = 0
    step: int = 0
    reason: str = ""

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.number, self.sequences, self.environment)

    def to_json(self) -> list[Any]:
        row = [getattr(self, name) for name in _GROUP_FIELDS]
        row[_OLDEST] = list(self.oldest) if self.oldest else None
        return row

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Group:
        group = cls(*row)
        group.oldest = Version(*row[_OLDEST]) if row[_OLDEST] else None
        group.state = GroupState(group.state)
        return group


_GROUP_FIELDS = tuple(field.name for field in fields(Group))
_OLDEST = _GROUP_FIELDS.index("oldest")


@dataclass(slots=True)
class Batch:
    """Groups that one optimizer step trains."""

    number: int
    groups: list[int]
    state: BatchState
    epoch: int = 0
    step: int = 0
    until: float = 0.0
    replay: bool = False
    """Trained before, in a lineage that was abandoned."""
    arrived: bool = False
    """Known to have reached a plain trainer."""
    since: float = 0.0
    """When it was leased last."""

    @property
    def lease_id(self) -> str:
        return f"{self.epoch}.{self.number}"


@dataclass(slots=True)
class Ledger:
    """The run as the journal tells it."""

    settings: Settings = field(default_factory=Settings)
    epoch: int = 0
    holder: str = ""
    started: bool = False
    """Whether a trainer is there: environments wait until then."""
    step: int = 0
    """Newest trained step of the surviving lineage."""
    covered_step: int = 0
    state: pb.State | None = None
    """Newest complete saved state."""
    policy: pb.Policy | None = None
    lineage: Lineage = field(default_factory=Lineage)
    versions: VersionRecord = field(default_factory=VersionRecord)
    registry: Registry = field(default_factory=Registry)
    groups: dict[int, Group] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)
    posts: dict[str, int] = field(default_factory=dict)
    """Post id (with environment and instance) -> group: a repeated post is stored once."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Sequences that are stored and neither trained nor dropped, by environment."""
    held_bytes: int = 0
    """Payload that is still needed."""
    counts: Counter[GroupState] = field(default_factory=Counter)
    totals: dict[tuple[str, GroupState], list[int]] = field(default_factory=dict)
    """Groups and tokens by environment and state."""
    stored: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    last_batch: int = 0
    mix: Mix = field(default_factory=Mix)
    patience: float = PATIENCE_SECONDS
    blocked_since: float | None = None
    """Since when enough is queued and yet no batch can be made; not durable."""
    missing: str = ""
    """The share that kept the last batch from being made."""
    waived: dict[str, int] = field(default_factory=dict)
    """Environments whose share could not be kept when patience ended, and how many groups each had posted then: until
    one of them posts again there is nothing to wait for. Not durable."""
    released: list[int] = field(default_factory=list)
    """Groups whose payload is not needed any more, until `take_released`."""

    # -- decisions ---------------------------------------------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            if epoch > self.epoch:
                raise UnknownEpochError(
                    f"epoch {epoch} was never granted here: epoch {self.epoch} holds the run; take it over again"
                )
            raise FencedError(f"epoch {epoch} is fenced: epoch {self.epoch} holds the run")

    def take_over(
        self, settings: Settings, holder: str, fallback: pb.State | None, now: float, after_epoch: int = 0
    ) -> Event:
        """after_epoch: newest epoch that the caller knows from elsewhere; a store that was lost must not repeat it."""
        mine, theirs = self.settings.run_id, settings.run_id
        if mine and theirs and mine != theirs:
            raise LedgerError(
                f"this store belongs to run {mine!r}, not to {theirs!r}: give each run a store of its own"
            )
        state = self.state or fallback
        event: Event = {
            "t": "taken",
            "epoch": max(self.epoch, after_epoch) + 1,
            "holder": holder,
            "settings": settings.to_json(),
            "step": state.step if state else 0,
            "at": now,
        }
        if self.state is None and fallback is not None:
            event["state"] = encode(fallback)
        return event

    def register_trainer(self, settings: Settings, starting_step: int, now: float) -> Event:
        """A plain trainer takes the run over. It says itself where it goes on, and keeps its own checkpoints."""
        return {
            "t": "taken",
            "epoch": self.epoch + 1,
            "holder": "",
            "settings": settings.to_json(),
            "step": starting_step,
            "plain": True,
            "at": now,
        }

    @property
    def plain(self) -> bool:
        """Whether a plain Atropos trainer holds the run."""
        return self.epoch > 0 and not self.settings.run_id

    def current_lease(self, epoch: int, for_step: int) -> Batch | None:
        for batch in self.batches.values():
            if batch.state is BatchState.LEASED and batch.epoch == epoch and batch.step == for_step:
                return batch
        return None

    def expire(self, now: float) -> list[Event]:
        return [
            {"t": "returned", "batch": batch.number, "reason": "expired"}
            for batch in self.batches.values()
            if batch.state is BatchState.LEASED and batch.until < now
        ]

    def lease(self, epoch: int, for_step: int, until: float, now: float) -> list[Event]:
        """The lease of the next batch for `for_step`, or groups dropped (ask again then), or nothing to lease."""
        ready = min((batch.number for batch in self.batches.values() if batch.state is BatchState.READY), default=0)
        lease: Event = {"t": "leased", "epoch": epoch, "step": for_step, "until": until, "at": now}
        if ready:
            return [{**lease, "batch": ready}]
        size = self.settings.batch_size
        if not self.queue.sequences >= size > 0:
            self.blocked_since, self.missing = None, ""
            return []
        front = self.queue.front(size)
        unfit = {candidate.number: reason for candidate in front if (reason := self._unfit(candidate.number, for_step))}
        if unfit:  # what lies behind them comes to the front
            return [
                {"t": "dropped", "groups": [number for number, why in unfit.items() if why == reason], "reason": reason}
                for reason in sorted(set(unfit.values()))
            ]
        choice = choose(front, size, self.present_shares(), self.mix)
        if not choice.groups:
            if self.blocked_since is None:
                self.blocked_since = now
            self.missing = choice.missing
            hopeless = self.waived and all(self.posted_by(name) == count for name, count in self.waived.items())
            if now - self.blocked_since < self.patience and not (choice.missing and hopeless):
                return []
            choice = choose(front, size, self.shares(), self.mix, strict=False)
            if self.missing and choice.groups:
                self.waived = {name: self.posted_by(name) for name in lacking(choice.groups, size, self.shares())}
        else:
            self.waived = {}
        chosen = choice.groups
        if not chosen and self.settings.unpackable == "drop" and front:
            self.blocked_since = None
            return [{"t": "dropped", "groups": [candidate.number for candidate in front], "reason": "unpackable"}]
        if not chosen and self.settings.unpackable == "short":
            chosen = largest(front, size)
        if not chosen:
            return []
        self.blocked_since, self.missing = None, ""
        return [{**lease, "batch": self.last_batch + 1, "groups": [candidate.number for candidate in chosen]}]

    def posted_by(self, environment: str) -> int:
        """How many of its groups were taken."""
        return sum(self.totals.get((environment, state), _NOTHING)[0] for state in GroupState)

    def shares(self) -> dict[str, Share]:
        """What the run asks for each environment; what it leaves open is as the environment registered."""
        registered = {
            environment.name: Share(environment.name, environment.weight, environment.min_batch_allocation or 0.0)
            for environment in self.registry.environments.values()
            if environment.connected
        }
        return registered | {share.name: share for share in self.settings.shares}

    def present_shares(self) -> dict[str, Share]:
        """The same, without minimum shares of environments that are gone: nobody can wait for those."""
        gone = self.registry.gone()
        return {name: replace(share, minimum=0.0) if name in gone else share for name, share in self.shares().items()}

    def _unfit(self, number: int, for_step: int) -> str:
        """Why a group may not be trained by this step; "" = it may."""
        oldest, limit = self.groups[number].oldest, self.settings.max_steps_off_policy
        if oldest is None:
            return "unknown_version" if self.settings.unknown_version == "drop" else ""
        return "stale" if limit is not None and self.lineage.staleness(oldest, for_step) > limit else ""

    def waiting_for(self) -> str:
        """Why there is no batch, for people."""
        size, queued = self.settings.batch_size, self.queue.sequences
        if queued < size:
            return f"{queued} of {size} sequences are queued"
        if self.blocked_since is None:
            return "the trainer: enough is queued for its next batch"
        if self.missing:
            return self.missing
        sizes = Counter[int]()
        for (_, group), count in self.queue.sizes().items():
            sizes[group] += count
        listed = ", ".join(f"{count} of {group}" for group, count in sorted(sizes.items()))
        return f"no choice of the queued groups sums to {size} sequences exactly (groups by size: {listed})"

    def leased_batch(self, epoch: int, lease_id: str) -> Batch:
        """The batch that a lease of this epoch stands for; also one that expired and was not leased again."""
        self.check_epoch(epoch)
        granted, _, number = lease_id.partition(".")
        batch = self.batches.get(int(number)) if number.isdecimal() else None
        if batch is None or granted != str(batch.epoch) or batch.epoch != epoch:
            raise UnknownLeaseError(f"lease {lease_id!r} is not known here, or was given back")
        return batch

    def acknowledge(
        self, epoch: int, lease_id: str, step: int, no_signal: bool, dropped: dict[int, str]
    ) -> list[Event]:
        self.check_epoch(epoch)
        try:
            batch = self.leased_batch(epoch, lease_id)
        except UnknownLeaseError:
            granted, _, number = lease_id.partition(".")
            if (
                granted == str(epoch)
                and number.isdecimal()
                and 0 < int(number) <= self.last_batch
                and step <= self.step
            ):
                return []  # settled before and its groups are covered or dropped since
            raise
        if batch.step != step:
            raise LedgerError(f"lease {lease_id!r} is for step {batch.step}, not for step {step}")
        if batch.state is BatchState.TRAINED:
            return []
        if step <= self.step:
            raise LedgerError(f"step {step} is trained already (the run is at step {self.step})")
        strangers = sorted(set(dropped) - set(batch.groups))
        if strangers:
            raise LedgerError(f"dropped names groups that are not in the batch: {strangers}")
        return [self._trained(batch, no_signal, dropped)]

    @staticmethod
    def _trained(batch: Batch, no_signal: bool = False, dropped: dict[int, str] | None = None) -> Event:
        event: Event = {"t": "trained", "batch": batch.number, "epoch": batch.epoch, "step": batch.step}
        if no_signal:
            event["no_signal"] = True
        if dropped:
            event["dropped"] = {str(number): reason for number, reason in dropped.items()}
        return event

    def cover(self, epoch: int, state: pb.State) -> list[Event]:
        self.check_epoch(epoch)
        if self.state is not None and state.step < self.state.step:
            return []
        # A saved state includes its steps whether they were acknowledged yet or not.
        included = [
            self._trained(batch)
            for batch in self.batches.values()
            if batch.state is BatchState.LEASED and batch.epoch == epoch and batch.step <= state.step
        ]
        included.sort(key=lambda event: event["step"])
        return [*included, {"t": "covered", "state": encode(state)}]

    def give_back(self, batch: Batch, reason: str) -> list[Event]:
        return [{"t": "returned", "batch": batch.number, "reason": reason}] if batch.state is BatchState.LEASED else []

    def undelivered(self) -> list[Event]:
        """After a restart: batches that a plain trainer was being sent and perhaps never got."""
        return [
            {"t": "returned", "batch": batch.number, "reason": "not delivered"}
            for batch in self.batches.values()
            if batch.state is BatchState.LEASED and not batch.arrived
        ]

    def find_post(self, environment: str, instance: str, post: str) -> int | None:
        return self.posts.get(f"{environment}\n{instance}\n{post}")

    # -- events ------------------------------------------------------------------------------------------------------

    def apply_entry(self, entry: bytes) -> list[Event]:
        """One journal entry: an event, or several that belong together."""
        content = orjson.loads(entry)
        events = content if isinstance(content, list) else [content]
        for event in events:
            self.apply(event)
        return events

    def apply(self, event: Event) -> None:
        getattr(self, f"_on_{event['t']}")(event)

    def _on_stored(self, event: Event) -> None:
        oldest = Version(*event["ver"]) if event.get("ver") else None
        group = Group(
            event["id"],
            event["env"],
            event.get("inst", ""),
            event["n"],
            event["tok"],
            event["smp"],
            oldest,
            event["at"],
            event.get("len", 0),
        )
        self.groups[group.number] = group
        self.counts[GroupState.QUEUED] += 1
        self._count(group, GroupState.QUEUED, 1)
        self.stored += 1
        self.waiting[group.environment] += group.sequences
        self.held_bytes += group.size
        self.queue.add(group.candidate)
        if event.get("post"):
            self.posts[f"{group.environment}\n{group.instance}\n{event['post']}"] = group.number
            if len(self.posts) > _POSTS:
                for key in list(self.posts)[: _POSTS // 2]:
                    del self.posts[key]

    def _count(self, group: Group, state: GroupState, sign: int) -> None:
        total = self.totals.setdefault((group.environment, state), [0, 0])
        total[0] += sign
        total[1] += sign * group.tokens

    def _move(self, group: Group, state: GroupState, batch: Batch | None = None, reason: str = "") -> None:
        if group.state is GroupState.QUEUED and not group.batch and state is not GroupState.QUEUED:
            self.queue.remove((group.candidate,))
        self.counts[group.state] -= 1
        self.counts[state] += 1
        self._count(group, group.state, -1)
        self._count(group, state, 1)
        self.waiting[group.environment] += group.sequences * ((state in _WAITING) - (group.state in _WAITING))
        group.state, group.reason = state, reason
        if batch is not None:
            group.batch, group.epoch, group.step = batch.number, batch.epoch, batch.step
        if state is GroupState.DROPPED:
            self.reasons[reason] += 1
        if state in (GroupState.DROPPED, GroupState.COVERED):
            self.released.append(group.number)
            self.held_bytes -= group.size

    def _drop(self, numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            self._move(self.groups[number], GroupState.DROPPED, reason=reason)

    def _on_dropped(self, event: Event) -> None:
        self._drop(event["groups"], event["reason"])

    def _on_taken(self, event: Event) -> None:
        plain = bool(event.get("plain"))
        settings = Settings.from_json(event["settings"])
        resized = settings.batch_size != self.settings.batch_size
        self.settings, self.epoch, self.holder = settings, event["epoch"], event["holder"]
        self.step = event["step"]
        if event.get("state"):
            self.state = pb.State.FromString(base64.b64decode(event["state"]))
        self.lineage.take_over(self.epoch, self.step)
        if not plain:
            self.started = True
        for batch in list(self.batches.values()):
            if batch.state is BatchState.TRAINED:
                if batch.step <= self.step:
                    self._cover(batch)
                    continue
                batch.replay = True
            self._return(batch)
            if resized:
                self._dissolve(batch)

    def _on_started(self, event: Event) -> None:
        self.started = True

    def _return(self, batch: Batch) -> None:
        batch.state, batch.arrived = BatchState.READY, False
        for number in batch.groups:
            self._move(self.groups[number], GroupState.QUEUED, batch)

    def _dissolve(self, batch: Batch) -> None:
        """A batch of another size than steps have now: its groups go back to their places in the queue."""
        del self.batches[batch.number]
        for number in batch.groups:
            group = self.groups[number]
            group.batch = 0
            self.queue.add(group.candidate)

    def _on_leased(self, event: Event) -> None:
        number = event["batch"]
        batch = self.batches.get(number)
        if batch is None:
            batch = self.batches[number] = Batch(number, event["groups"], BatchState.LEASED)
            self.last_batch = number
            fresh = True
        else:
            fresh = False
        batch.state, batch.epoch, batch.step = BatchState.LEASED, event["epoch"], event["step"]
        batch.until, batch.since = event["until"], event["at"]
        content = Counter[str]()
        for group in batch.groups:
            self._move(self.groups[group], GroupState.LEASED, batch)
            content[self.groups[group].environment] += self.groups[group].sequences
        if fresh:
            largest = max(self.groups[group].sequences for group in batch.groups)
            self.mix.add(content, self.shares(), {name for name, _ in self.queue.sizes()}, largest)

    def _on_arrived(self, event: Event) -> None:
        self.batches[event["batch"]].arrived = True

    def _on_renewed(self, event: Event) -> None:
        self.batches[event["batch"]].until = event["until"]

    def _on_returned(self, event: Event) -> None:
        self._return(self.batches[event["batch"]])

    def _on_trained(self, event: Event) -> None:
        batch = self.batches[event["batch"]]
        batch.state, batch.epoch, batch.step, batch.replay = BatchState.TRAINED, event["epoch"], event["step"], False
        self.step = max(self.step, batch.step)
        dropped = {int(number): reason for number, reason in event.get("dropped", {}).items()}
        if event.get("no_signal"):
            dropped = {number: dropped.get(number, "no_signal") for number in batch.groups}
        for number in batch.groups:
            if number in dropped:
                self._move(self.groups[number], GroupState.DROPPED, batch, dropped[number])
            else:
                self._move(self.groups[number], GroupState.TRAINED, batch)
        batch.groups = [number for number in batch.groups if number not in dropped]
        if event.get("covered"):  # a plain trainer keeps its own checkpoints
            self._cover(batch)
        elif not batch.groups:
            del self.batches[batch.number]

    def _on_covered(self, event: Event) -> None:
        state = pb.State.FromString(base64.b64decode(event["state"]))
        self.state = state
        self.step = max(self.step, state.step)
        for batch in [b for b in self.batches.values() if b.state is BatchState.TRAINED and b.step <= state.step]:
            self._cover(batch)

    def _cover(self, batch: Batch) -> None:
        del self.batches[batch.number]
        for number in batch.groups:
            self._move(self.groups[number], GroupState.COVERED, batch)

    def _on_published(self, event: Event) -> None:
        self.policy = pb.Policy.FromString(base64.b64decode(event["policy"]))

    def _on_recorded(self, event: Event) -> None:
        self.versions.record(event["inst"], Version(*event["ver"]), split_digests(event["digs"]))

    def _on_registered(self, event: Event) -> None:
        self.registry.put(event["env"])

    def _on_disconnected(self, event: Event) -> None:
        self.registry.disconnect(event["id"])

    def _on_reset(self, event: Event) -> None:
        waiting = [group for group in self.groups.values() if group.state in (GroupState.QUEUED, GroupState.LEASED)]
        for group in waiting:
            self._move(group, GroupState.DROPPED, reason="reset")
        for batch in [b for b in self.batches.values() if b.state is not BatchState.TRAINED]:
            del self.batches[batch.number]
        self.settings, self.started, self.step, self.registry = Settings(), False, 0, Registry()

    def take_released(self) -> list[int]:
        released, self.released = self.released, []
        return released

    # -- numbers -----------------------------------------------------------------------------------------------------

    def sums(self) -> dict[str, int]:
        """stored = queued + leased + trained + dropped; trained counts covered ones too."""
        covered = self.counts[GroupState.COVERED]
        return {
            "stored": self.stored,
            "queued": self.counts[GroupState.QUEUED],
            "leased": self.counts[GroupState.LEASED],
            "trained": self.counts[GroupState.TRAINED] + covered,
            "covered": covered,
            "dropped": self.counts[GroupState.DROPPED],
        }

    def living(self) -> set[int]:
        """Groups whose payload is needed."""
        gone = (GroupState.COVERED, GroupState.DROPPED)
        return {number for number, group in self.groups.items() if group.state not in gone}

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> bytes:
        """Lines of JSON: the run, then one for each group (small pieces, so that no thread waits long for it)."""
        head = {
            "settings": self.settings.to_json(),
            "epoch": self.epoch,
            "holder": self.holder,
            "started": self.started,
            "step": self.step,
            "state": encode(self.state) if self.state else None,
            "policy": encode(self.policy) if self.policy else None,
            "lineage": self.lineage.to_json(),
            "versions": self.versions.to_json(),
            "registry": self.registry.to_json(),
            "batches": [
                [b.number, b.groups, b.state, b.epoch, b.step, b.until, b.replay, b.arrived, b.since]
                for b in self.batches.values()
            ],
            "posts": self.posts,
            "last_batch": self.last_batch,
            "mix": self.mix.to_json(),
        }
        return b"\n".join([orjson.dumps(head), *(orjson.dumps(group.to_json()) for group in self.groups.values())])

    @classmethod
    def from_snapshot(cls, snapshot: bytes | None) -> Ledger:
        ledger = cls()
        if snapshot is None:
            return ledger
        first, *rows = snapshot.split(b"\n")
        head = orjson.loads(first)
        ledger.settings = Settings.from_json(head["settings"])
        ledger.epoch, ledger.holder, ledger.started, ledger.step = (
            head[name] for name in ("epoch", "holder", "started", "step")
        )
        ledger.state = pb.State.FromString(base64.b64decode(head["state"])) if head["state"] else None
        ledger.policy = pb.Policy.FromString(base64.b64decode(head["policy"])) if head["policy"] else None
        ledger.lineage = Lineage.from_json(head["lineage"])
        ledger.versions.load_json(head["versions"])
        ledger.registry = Registry.from_json(head["registry"])
        ledger.posts, ledger.last_batch = head["posts"], head["last_batch"]
        ledger.mix = Mix.from_json(head["mix"])
        for row in head["batches"]:
            ledger.batches[row[0]] = Batch(row[0], row[1], BatchState(row[2]), *row[3:])
        for line in rows:
            group = Group.from_json(orjson.loads(line))
            ledger.groups[group.number] = group
            ledger.stored += 1
            ledger.counts[group.state] += 1
            ledger._count(group, group.state, 1)
            if group.state not in (GroupState.DROPPED, GroupState.COVERED):
                ledger.held_bytes += group.size
            if group.state in _WAITING:
                ledger.waiting[group.environment] += group.sequences
            if group.state is GroupState.DROPPED:
                ledger.reasons[group.reason] += 1
            if group.state is GroupState.QUEUED and not group.batch:
                ledger.queue.add(group.candidate)
        return ledger


def fold(snapshot: bytes | None, entries: Iterable[bytes]) -> bytes:
    """The store's `Fold`: a snapshot that stands for another one and the entries after it."""
    ledger = Ledger.from_snapshot(snapshot)
    for entry in entries:
        ledger.apply_entry(entry)
    return ledger.to_snapshot()


def encode(message: pb.State | pb.Policy) -> str:
    """A message inside a journal entry."""
    return base64.b64encode(message.SerializeToString()).decode()


_NOTHING = [0, 0]

_POSTS = 200_000
"""Post ids remembered; the older half goes when there are more."""
