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
    def sentences(self) -> list[str]:
        """Each problem for people, the first one saying whose they are."""
        return [f"{'' if index else 'your config: '}spec.{problem}" for index, problem in enumerate(self.problems)]

    @property
    def message(self) -> str:
        """All problems in one text for a condition."""
        return "; ".join(self.sentences)


def admit(spec: Object) -> Admission:
    """Judge a run's spec."""
    try:
        parsed, warnings = parse_spec(spec)
    except InvalidRunError as error:
        return Admission(None, error.problems)
    return Admission(parsed, (), warnings)
