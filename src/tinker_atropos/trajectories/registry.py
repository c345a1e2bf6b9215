"""Which environments there are: ids and names that outlive their processes and this server's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

SILENT_SECONDS = 60.0
"""An environment that was not heard for so long is gone: unmodified ones call several times a second."""


@dataclass(slots=True)
class Environment:
    """One registration."""

    id: int
    name: str
    """What its groups are counted under: the entry of spec.environments, else the desired name."""
    instance: str
    desired_name: str
    wandb_name: str
    max_token_length: int
    weight: float
    group_size: int
    min_batch_allocation: float | None
    connected: bool = True


class Registry:
    """Registrations by id; an environment that registers again keeps its id and name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.environments: dict[int, Environment] = {}
        self._clock = clock
        self._started = clock()
        self._last_seen: dict[int, float] = {}  # heartbeats by id; not durable

    def heard(self, number: int) -> None:
        """A heartbeat: any call that carries the id."""
        if number in self.environments:
            self._last_seen[number] = self._clock()

    def silent_seconds(self, number: int) -> float:
        """How long an environment was not heard; after a start of this server it has its full time again."""
        return self._clock() - self._last_seen.get(number, self._started)

    def alive(self, number: int) -> bool:
        environment = self.environments.get(number)
        return environment is not None and environment.connected and self.silent_seconds(number) <= SILENT_SECONDS

    def gone(self) -> set[str]:
        """Names of environments of which every registered process is disconnected or silent."""
        alive = {environment.name for environment in self.environments.values() if self.alive(environment.id)}
        return {environment.name for environment in self.environments.values()} - alive

    def known(self, name: str, instance: str, desired_name: str) -> Environment | None:
        """Who registered before under the same identity: (environment, instance), or the desired name without one."""
        for environment in self.environments.values():
            if instance or name:
                if (environment.name, environment.instance) == (name, instance):
                    return environment
            elif not environment.instance and environment.desired_name == desired_name:
                return environment
        return None

    def plan(
        self,
        *,
        name: str,
        instance: str,
        desired_name: str,
        max_token_length: int,
        weight: float,
        group_size: int,
        min_batch_allocation: float | None,
    ) -> Environment:
        """The registration that these values make; `put` is what enters it."""
        known = self.known(name, instance, desired_name)
        if known is not None:
            number, wandb_name = known.id, known.wandb_name
        else:
            number = max(self.environments, default=-1) + 1
            same = sum(environment.desired_name == desired_name for environment in self.environments.values())
            wandb_name = f"{desired_name}_{same}"
        return Environment(
            id=number,
            name=name or desired_name,
            instance=instance,
            desired_name=desired_name,
            wandb_name=wandb_name,
            max_token_length=max_token_length,
            weight=weight,
            group_size=group_size,
            min_batch_allocation=min_batch_allocation,
        )

    def put(self, fields: dict[str, Any]) -> None:
        environment = Environment(**fields)
        self.environments[environment.id] = environment

    def disconnect(self, number: int) -> None:
        self.environments[number].connected = False

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(environment) for environment in self.environments.values()]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> Registry:
        registry = cls()
        for row in rows:
            registry.put(row)
        return registry
