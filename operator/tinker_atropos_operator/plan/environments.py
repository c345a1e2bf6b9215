"""How many instances of each environment work, and what is wrong with the others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_atropos.run import names
from tinker_atropos.run.model import Environment
from tinker_atropos_operator.plan.observed import Observed, is_true
from tinker_atropos_operator.plan.pods import Trouble, all_troubles, troubles_of
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


def environment_states(
    run: str, entries: Sequence[Environment], observed: Observed, now: dt.datetime
) -> list[EnvironmentState]:
    """Each environment of the run file, in its order."""
    return [_state(run, entry, observed, now) for entry in entries]


def _state(run: str, entry: Environment, observed: Observed, now: dt.datetime) -> EnvironmentState:
    live = observed.deployments.get(names.environment(run, entry.name))
    ready = 0 if live is None else int((live.get("status") or {}).get("readyReplicas") or 0)
    pods = observed.pods_of(labels.ENVIRONMENT_COMPONENT, entry.name)
    # Its container is ready as soon as it runs: one that has just crashed again and again does not work for that.
    ready -= sum(is_true(pod, "Ready") and any(trouble.until for trouble in troubles_of(pod, now)) for pod in pods)
    troubles = [
        *all_troubles(pods, now),
        *refused_pods(live, f"environment {entry.name}", has_template=True),
    ]
    return EnvironmentState(entry.name, max(0, min(ready, entry.replicas)), entry.replicas, troubles)
