"""What minimum and maximum shares of a batch may be, so that a batch can be made at all.

A batch is whole groups: a share that is not a whole number of groups is rounded (a minimum up, a maximum down), and the
rounded ones have to fit together as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinker_atropos.run.model import Environment, RunSpec
from tinker_atropos.run.problems import Problem

_ROUNDING = 1e-9
"""0.1 + 0.2 + 0.7 is not above 1."""


def share_problems(spec: RunSpec) -> list[Problem]:
    """Everything that is wrong with the shares of a run."""
    found = [problem for index in range(len(spec.environments)) for problem in _of_one(spec, index)]
    return found or _of_all(spec)


def _of_one(spec: RunSpec, index: int) -> list[Problem]:
    environment = spec.environments[index]
    field = f"environments[{index}].minBatchShare"
    own = environment.config.get("min_batch_allocation")
    if own is not None and (isinstance(own, bool) or not isinstance(own, int | float) or not 0 <= own <= 1):
        where = f"environments[{index}].config.min_batch_allocation"
        return [Problem(where, f"{own!r} is no share", "give a number from 0 to 1, or use minBatchShare")]
    given = [
        (name, value)
        for name, value in (
            (f"environments[{index}].config.min_batch_allocation", own),
            ("config.env.min_batch_allocation", spec.config.env.min_batch_allocation),
        )
        if value is not None
    ]
    if environment.min_batch_share is not None and given and given[0][1] != environment.min_batch_share:
        name, value = given[0]
        text = f"{environment.min_batch_share:g} and {name} {value:g} differ"
        return [Problem(field, text, "they are one setting; keep one")]
    least, most = spec.min_batch_share_of(environment), environment.max_batch_share
    if most is not None and least > most:
        return [
            Problem(
                f"environments[{index}].maxBatchShare",
                f"{most:g} is below the environment's minBatchShare {least:g}",
                "raise the one or lower the other",
            )
        ]
    return []


def _of_all(spec: RunSpec) -> list[Problem]:
    size, group = spec.config.env.batch_size, spec.config.env.group_size
    least = {environment.name: spec.min_batch_share_of(environment) for environment in spec.environments}
    total = sum(least.values())
    if total > 1 + _ROUNDING:
        listed = _listed(spec, lambda environment: f"{least[environment.name]:g}")
        return [Problem("environments", f"the minimum shares ({listed}) sum to {total:g}", "they may be at most 1")]
    needed = {name: math.ceil(share * size / group - _ROUNDING) * group for name, share in least.items()}
    if sum(needed.values()) > size:
        listed = _listed(spec, lambda environment: f"{needed[environment.name]}")
        return [
            Problem(
                "environments",
                f"in whole groups of {group} the minimum shares need {sum(needed.values())} sequences of each batch "
                f"of {size} ({listed})",
                "lower a minBatchShare, or raise config.env.batch_size",
            )
        ]
    limits = [environment.max_batch_share for environment in spec.environments]
    if any(limit is None for limit in limits):
        return []
    most = {
        environment.name: math.floor((environment.max_batch_share or 0) * size / group + _ROUNDING) * group
        for environment in spec.environments
    }
    if sum(most.values()) < size:
        listed = _listed(spec, lambda environment: f"{most[environment.name]}")
        return [
            Problem(
                "environments",
                f"in whole groups of {group} the maximum shares allow {sum(most.values())} sequences of a batch "
                f"of {size} ({listed})",
                "raise a maxBatchShare, or leave one out",
            )
        ]
    return []


def _listed(spec: RunSpec, text: Callable[[Environment], str]) -> str:
    return ", ".join(f"{environment.name} {text(environment)}" for environment in spec.environments)
