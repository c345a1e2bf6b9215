"""How many instances of each environment work, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinker_atropos.run import names
from tinker_atropos.run.model import Environment
from tinker_atropos_operator.plan.observed import Observed
from tinker_atropos_operator.plan.pods import Trouble, all_troubles
from tinker_atropos_operator.plan.refusals import refused_pods
from tinker_atropos_operator.specs import labels


@dataclass(frozen=True)
class EnvironmentState:
    """One environment as it stands."""

    name: str
    ready: int
    desired: int
    troubles: Sequence[Trouble] = ()

    @property
    def is_ready(self) -> bool:
        return self.ready >= self.desired


def environment_states(run: str, entries: Sequence[Environment], observed: Observed) -> list[EnvironmentState]:
    """Each environment of the run file, in its order."""
    return [_state(run, entry, observed) for entry in entries]


def _state(run: str, entry: Environment, observed: Observed) -> EnvironmentState:
    live = observed.deployments.get(names.environment(run, entry.name))
    ready = 0 if live is None else int((live.get("status") or {}).get("readyReplicas") or 0)
    troubles = [
        *all_troubles(observed.pods_of(labels.ENVIRONMENT_COMPONENT, entry.name)),
        *refused_pods(live, f"environment {entry.name}", has_template=True),
    ]
    return EnvironmentState(entry.name, min(ready, entry.replicas), entry.replicas, troubles)
