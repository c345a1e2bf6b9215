"""How many instances of each environment work, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinker_atropos.run import names
from tinker_atropos.run.model import Environment
from tinker_atropos_operator.plan.observed import Observed, condition
from tinker_atropos_operator.plan.pods import Trouble, cut, first_trouble
from tinker_atropos_operator.specs import labels


@dataclass(frozen=True)
class EnvironmentState:
    """One environment as it stands."""

    name: str
    ready: int
    desired: int
    trouble: Trouble | None = None

    @property
    def is_ready(self) -> bool:
        return self.ready >= self.desired


def environment_states(run: str, entries: Sequence[Environment], observed: Observed) -> list[EnvironmentState]:
    """Each environment of the run file, in its order."""
    return [_state(run, entry, observed) for entry in entries]


def _state(run: str, entry: Environment, observed: Observed) -> EnvironmentState:
    live = observed.deployments.get(names.environment(run, entry.name))
    ready = 0 if live is None else int((live.get("status") or {}).get("readyReplicas") or 0)
    trouble = first_trouble(observed.pods_of(labels.ENVIRONMENT_COMPONENT, entry.name))
    if trouble is None and live is not None:
        failure = condition(live, "ReplicaFailure")
        if failure is not None and failure.get("status") == "True":
            text = cut(str(failure.get("message", "")))
            trouble = Trouble(
                "PodsRefused",
                f"pods of environment {entry.name} are refused: {text}; change its podTemplate or the "
                "namespace's rules",
                "",
            )
    return EnvironmentState(entry.name, min(ready, entry.replicas), entry.replicas, trouble)
