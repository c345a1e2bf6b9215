"""Which rollouts may start, so that what they sample can be trained before it is too old.

Pure, with the clock passed in. A rollout that starts now is trained at the latest after everything outstanding: what is
queued, leased, or still being sampled. Room is what may be outstanding so that nobody exceeds the limit K:

    outstanding <= batch_size * (K + 1 + oldest version being sampled - trained step)

The oldest rollout under way counts, not only the new one: as it gets older the room for others shrinks, until the
trainer waits for it. So slow tasks are trained as often as they are sampled, instead of being overtaken and dropped.

Rollouts whose group never comes (equal scores are dropped by the environment) would keep their room: a credit expires,
and only the part of the running rollouts that can be expected to come is counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

SAMPLING_SECONDS = 600.0
"""A rollout that nobody spoke of for so long is given up."""
EXPECTED_SECONDS = 15.0
"""After its sampling ended a rollout's group comes soon, or never."""
_MEMORY = 0.05
_LEAST_YIELD = 0.1

Key = tuple[int, str]
"""Stream and rollout."""


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


@dataclass(slots=True)
class _Credit:
    environment: str
    instance: str
    sequences: int
    step: int
    deadline: float
    sampled: bool = False


@dataclass(slots=True)
class _Want:
    environment: str
    instance: str
    sequences: int


class Pacing:
    """Credits of running rollouts, and who waits for one."""

    def __init__(self) -> None:
        self._credits: dict[Key, _Credit] = {}
        self._wants: dict[Key, _Want] = {}
        self._yield = 1.0
        self.granted = 0
        self.expired = 0

    # -- what the gateway says -----------------------------------------------------------------------------------------

    def want(self, key: Key, environment: str, instance: str, sequences: int) -> None:
        if key not in self._credits:
            self._wants[key] = _Want(environment, instance, max(1, sequences))

    def sampled(self, key: Key, now: float) -> None:
        credit = self._credits.get(key)
        if credit is not None:
            credit.sampled, credit.deadline = True, now + EXPECTED_SECONDS

    def continued(self, key: Key, environment: str, instance: str, sequences: int, step: int, now: float) -> None:
        """It goes on; one that is not known here (the server was restarted) is adopted."""
        credit = self._credits.get(key)
        if credit is None:
            self._wants.pop(key, None)
            credit = self._credits[key] = _Credit(environment, instance, max(1, sequences), step, 0.0)
        credit.sampled, credit.deadline = False, now + SAMPLING_SECONDS

    def abandoned(self, key: Key) -> None:
        self._wants.pop(key, None)
        self._credits.pop(key, None)

    def stream_ended(self, stream: int, now: float) -> None:
        """Its rollouts may still post; nobody will speak of them any more."""
        for key in [key for key in self._wants if key[0] == stream]:
            del self._wants[key]
        for key, credit in self._credits.items():
            if key[0] == stream:
                credit.deadline = min(credit.deadline, now + EXPECTED_SECONDS)

    # -- what happens here ---------------------------------------------------------------------------------------------

    def posted(self, environment: str, instance: str, sequences: int) -> None:
        """A group was stored: it settles the oldest credits of its instance, those whose sampling ended first."""
        own = [
            (not credit.sampled, key)
            for key, credit in self._credits.items()
            if (credit.environment, credit.instance) == (environment, instance)
        ]
        own.sort(key=lambda item: item[0])
        for _, key in own:
            if sequences <= 0:
                return
            credit = self._credits[key]
            taken = min(sequences, credit.sequences)
            sequences -= taken
            credit.sequences -= taken
            if not credit.sequences:
                del self._credits[key]
                self._yield += _MEMORY * (1.0 - self._yield)

    def expire(self, now: float) -> None:
        for key in [key for key, credit in self._credits.items() if credit.deadline <= now]:
            del self._credits[key]
            self.expired += 1
            self._yield = max(_LEAST_YIELD, self._yield * (1.0 - _MEMORY))

    def grants(self, situation: Situation, now: float) -> list[Key]:
        """Wants that may start now; they have a credit from here on.

        Next is always the environment that has least under way for its weight, and of it who waited longest.
        """
        self.expire(now)
        lines: dict[str, deque[Key]] = {}
        for key, want in self._wants.items():
            lines.setdefault(want.environment, deque()).append(key)
        under_way = Counter(situation.waiting_by_environment)
        for credit in self._credits.values():
            under_way[credit.environment] += credit.sequences

        def load(environment: str) -> float:
            weight = situation.weights.get(environment, 1.0)
            return under_way[environment] / weight if weight > 0 else float("inf")

        result: list[Key] = []
        while lines:
            environment = min(lines, key=load)
            key = lines[environment][0]
            want = self._wants[key]
            if not self._fits(want.sequences, situation):
                break
            lines[environment].popleft()
            if not lines[environment]:
                del lines[environment]
            del self._wants[key]
            self._credits[key] = _Credit(
                environment, want.instance, want.sequences, situation.policy_step, now + SAMPLING_SECONDS
            )
            under_way[environment] += want.sequences
            self.granted += 1
            result.append(key)
        return result

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
    def running(self) -> int:
        return sum(credit.sequences for credit in self._credits.values())

    @property
    def held(self) -> int:
        """Sequences that wait for a credit."""
        return sum(want.sequences for want in self._wants.values())
