"""May this run be made at all? The same answers as local mode gives, from the same parser."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_atropos.run.model import RunSpec
from tinker_atropos.run.parse import parse_spec
from tinker_atropos.run.problems import InvalidRunError, Problem
from tinker_atropos_operator.plan.observed import Object


@dataclass(frozen=True)
class Admission:
    """A usable spec, or what is wrong with it."""

    spec: RunSpec | None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def message(self) -> str:
        """All problems in one text for a condition."""
        return "your config: " + "; ".join(f"spec.{problem}" for problem in self.problems)


def admit(spec: Object) -> Admission:
    """Judge a run's spec."""
    try:
        parsed, warnings = parse_spec(spec)
    except InvalidRunError as error:
        return Admission(None, error.problems)
    return Admission(parsed, (), warnings)
