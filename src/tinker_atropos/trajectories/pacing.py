"""Which rollouts may start, so that what they sample can be trained before it is too old.

Pure, with the clock passed in. A rollout that starts now is trained at the latest after everything outstanding: what is
queued, leased, or still being sampled. Room is what may be outstanding so that nobody exceeds the limit K:

    outstanding <= batch_size * (K + 1 + oldest version being sampled - trained step)

The oldest rollout under way counts, not only the new one: as it gets older the room for others shrinks, until the
trainer waits for it. So slow tasks are trained as often as they are sampled, instead of being overtaken and dropped.

Rollouts whose group never comes (equal scores are dropped by the environment) would keep their room: a credit expires
when its group would have come, as learned from those that did, and only the part of the running rollouts that can be
expected to come is counted.

An environment may ask for a group in one request or in one for each rollout. Requests of one prompt that wait together
start together, and one that belongs to a group under way starts at once: a group that waits for its own rollouts would
hold the room that they wait for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinker_atropos.trajectories.delays import Delays

SAMPLING_SECONDS = 600.0
"""A rollout that nobody spoke of for so long is given up."""
EXPECTED_SECONDS = 15.0
"""After its sampling ended a rollout's group comes soon, or never; longer where groups were seen to take longer."""
_MOST_LATE = 10_000
_MEMORY = 0.05
_LEAST_YIELD = 0.1

Key = tuple[int, str]
"""Stream and rollout."""
Prompt = tuple[str, str, bytes]
"""Environment, instance and digest of a prompt: what the rollouts of one group have in common."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What pacing has to know of the run."""

    batch_size: int
    limit: int | None
    """max_steps_off_policy; None = no limit."""
    step: int
    """Newest trained step."""
    policy_step: int
    """Surviving step of the policy that is sampled now."""
    waiting: int
    """Sequences that are stored and not trained: queued, ready and leased."""
    waiting_by_environment: Mapping[str, int]
    weights: Mapping[str, float]
    group_size: int = 0
    """Rollouts of one prompt; 0 = not known."""


@dataclass(slots=True)
class _Credit:
    environment: str
    instance: str
    sequences: int
    step: int
    deadline: float
    prompt: bytes = b""
    sampled_at: float | None = None
    """When its sampling ended; None = it goes on."""

    @property
    def group(self) -> Prompt:
        return self.environment, self.instance, self.prompt


@dataclass(slots=True)
class _Want:
    environment: str
    instance: str
    sequences: int
    prompt: bytes = b""


@dataclass(slots=True)
class _Unit:
    """Wants that start together."""

    keys: list[Key]
    sequences: int
    joins: bool = False
    """They belong to a group under way, which has its room."""


@dataclass(slots=True)
class _Late:
    """A group that was given up."""

    sampled_at: float
    """When the first of its rollouts ended."""
    credits: int = 0


class Pacing:
    """Credits of running rollouts, and who waits for one."""

    def __init__(self) -> None:
        self._credits: dict[Key, _Credit] = {}
        self._wants: dict[Key, _Want] = {}
        self._started: dict[Prompt, int] = {}
        """Groups that began and are not complete: sequences that were granted to each."""
        self._late: dict[Prompt, _Late] = {}
        """Groups whose credits expired: some come all the same."""
        self._delays = Delays(EXPECTED_SECONDS, SAMPLING_SECONDS)
        self._yield = 1.0
        self.granted = 0
        self.expired = 0

    # -- what the gateway says -----------------------------------------------------------------------------------------

    def want(self, key: Key, environment: str, instance: str, sequences: int, prompt: bytes = b"") -> None:
        if key not in self._credits:
            self._wants[key] = _Want(environment, instance, max(1, sequences), prompt)

    def sampled(self, key: Key, now: float) -> None:
        credit = self._credits.get(key)
        if credit is not None:
            credit.sampled_at, credit.deadline = now, now + self._delays.expected(credit.environment)

    def continued(
        self, key: Key, environment: str, instance: str, sequences: int, step: int, now: float, prompt: bytes = b""
    ) -> None:
        """It goes on; one that is not known here (the server was restarted) is adopted."""
        credit = self._credits.get(key)
        if credit is None:
            self._wants.pop(key, None)
            credit = self._credits[key] = _Credit(environment, instance, max(1, sequences), step, 0.0, prompt)
        credit.sampled_at, credit.deadline = None, now + SAMPLING_SECONDS

    def abandoned(self, key: Key) -> None:
        self._wants.pop(key, None)
        credit = self._credits.pop(key, None)
        if credit is not None:
            self._close_groups()

    def stream_ended(self, stream: int, now: float) -> None:
        """Its rollouts may still post; nobody will speak of them any more."""
        for key in [key for key in self._wants if key[0] == stream]:
            del self._wants[key]
        for key, credit in self._credits.items():
            if key[0] == stream:
                credit.deadline = min(credit.deadline, now + self._delays.expected(credit.environment))

    # -- what happens here ---------------------------------------------------------------------------------------------

    def posted(
        self, environment: str, instance: str, sequences: int, prompt: bytes = b"", now: float | None = None
    ) -> None:
        """A group was stored. It settles the credits of its prompt; one that nobody knows, the oldest of its instance.

        A group that was given up and comes all the same settles nobody else's: else one that is still sampled would
        not be counted from here on.
        """
        group = environment, instance, prompt
        self._started.pop(group, None)
        own = [key for key, credit in self._credits.items() if prompt and credit.group == group]
        if not own and group not in self._late:
            others = [
                key
                for key, credit in self._credits.items()
                if (credit.environment, credit.instance) == (environment, instance)
            ]
            self._settle(sorted(others, key=lambda key: self._credits[key].sampled_at is None), sequences)
            return
        # Several groups of one prompt: what ended last is most likely what comes now.
        own.sort(key=lambda key: self._credits[key].sampled_at or float("-inf"), reverse=True)
        missing, ended = self._settle(own, sequences)
        late = self._late.pop(group, None) if missing else None
        # It was given up too early; long ago, it was an earlier group of the same prompt that never came.
        if late is not None and now is not None and now - late.sampled_at <= SAMPLING_SECONDS:
            self._yield = min(1.0, self._yield / (1.0 - _MEMORY) ** late.credits)
            ended.append(late.sampled_at)
        if ended and now is not None:
            self._delays.saw(environment, now - min(ended))

    def _settle(self, keys: Sequence[Key], sequences: int) -> tuple[int, list[float]]:
        """Take so many sequences off these credits, in this order: how many are missing, and when they were sampled."""
        ended = []
        for key in keys:
            if not sequences:
                break
            credit = self._credits[key]
            if credit.sampled_at is not None:
                ended.append(credit.sampled_at)
            taken = min(sequences, credit.sequences)
            sequences -= taken
            credit.sequences -= taken
            if not credit.sequences:
                del self._credits[key]
                self._yield += _MEMORY * (1.0 - self._yield)
        return sequences, ended

    def expire(self, now: float) -> None:
        expired = [key for key, credit in self._credits.items() if credit.deadline <= now]
        for key in expired:
            credit = self._credits.pop(key)
            self.expired += 1
            self._yield = max(_LEAST_YIELD, self._yield * (1.0 - _MEMORY))
            if credit.prompt and credit.sampled_at is not None:
                late = self._late.setdefault(credit.group, _Late(credit.sampled_at))
                late.credits += 1
                late.sampled_at = min(late.sampled_at, credit.sampled_at)
        if expired or len(self._started) > len(self._credits):
            self._close_groups()
            while len(self._late) > _MOST_LATE:
                del self._late[next(iter(self._late))]

    def _close_groups(self) -> None:
        """A group of which nothing is under way any more is not gone on with: the next request begins a new one."""
        if self._started:
            living = {credit.group for credit in self._credits.values()}
            for group in [group for group in self._started if group not in living]:
                del self._started[group]

    def grants(self, situation: Situation, now: float) -> list[Key]:
        """Wants that may start now; they have a credit from here on.

        Next is always the environment that has least under way for its weight, and of it who waited longest.
        """
        self.expire(now)
        lines = self._units(situation.group_size)
        under_way = Counter(situation.waiting_by_environment)
        for credit in self._credits.values():
            under_way[credit.environment] += credit.sequences

        def load(environment: str) -> tuple[bool, float]:
            weight = situation.weights.get(environment, 1.0)
            return not lines[environment][0].joins, under_way[environment] / weight if weight > 0 else float("inf")

        result: list[Key] = []
        while lines:
            environment = min(lines, key=load)
            unit = lines[environment][0]
            if not unit.joins and not self._fits(unit.sequences, situation):
                break
            lines[environment].popleft()
            if not lines[environment]:
                del lines[environment]
            for key in unit.keys:
                self._start(key, situation, now)
            under_way[environment] += unit.sequences
            self.granted += len(unit.keys)
            result += unit.keys
        return result

    def _units(self, group_size: int) -> dict[str, deque[_Unit]]:
        """What waits, by environment: those that join a group under way, then the others in their order."""
        lines: dict[str, deque[_Unit]] = {}
        open_units: dict[Prompt, _Unit] = {}
        joining = dict(self._started) if group_size else {}
        for key, want in self._wants.items():
            line = lines.setdefault(want.environment, deque())
            group = want.environment, want.instance, want.prompt
            part = 0 < want.sequences < group_size and bool(want.prompt)
            if part and group in joining and joining[group] + want.sequences <= group_size:
                joining[group] += want.sequences
                line.appendleft(_Unit([key], want.sequences, joins=True))
                continue
            unit = open_units.get(group) if part else None
            if unit is not None and unit.sequences + want.sequences <= group_size:
                unit.keys.append(key)
                unit.sequences += want.sequences
                continue
            unit = _Unit([key], want.sequences)
            line.append(unit)
            if part:
                open_units[group] = unit
        return lines

    def _start(self, key: Key, situation: Situation, now: float) -> None:
        want = self._wants.pop(key)
        credit = self._credits[key] = _Credit(
            want.environment,
            want.instance,
            want.sequences,
            situation.policy_step,
            now + SAMPLING_SECONDS,
            want.prompt,
        )
        if not want.prompt or want.sequences >= situation.group_size:
            return
        started = self._started.get(credit.group, 0) + want.sequences
        if started < situation.group_size:
            self._started[credit.group] = started
        else:
            self._started.pop(credit.group, None)

    def _fits(self, sequences: int, situation: Situation) -> bool:
        if situation.limit is None or situation.batch_size < 1:
            return True
        oldest = min([situation.policy_step, *(credit.step for credit in self._credits.values())])
        room = situation.batch_size * (situation.limit + 1 + oldest - situation.step)
        outstanding = situation.waiting + self._expected(situation.limit)
        # One that is larger than the whole room starts when it is alone: everybody would wait behind it for ever.
        return room > 0 if outstanding == 0 else outstanding + sequences <= room

    def _expected(self, limit: int) -> float:
        """Sequences that will come of the running rollouts. On-policy runs cannot use one too many: they count all."""
        running = self.running
        return float(running) if limit == 0 else running * self._yield

    @property
    def expected_seconds(self) -> dict[str, float]:
        """How long a group may take after its sampling before it is given up, by environment."""
        return self._delays.all()

    @property
    def running(self) -> int:
        return sum(credit.sequences for credit in self._credits.values())

    @property
    def held(self) -> int:
        """Sequences that wait for a credit."""
        return sum(want.sequences for want in self._wants.values())
