"""What is wrong with a run file, said so that the reader can mend it: the field, its value, the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong (or worth a warning) at one place of a run file.

    field: path from `spec`, such as "config.tinker.lora_rank" or "environments[1].name".
    """

    field: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}"
        return f"{text}; {self.fix}" if self.fix else text


class InvalidRunError(ValueError):
    """The run file cannot be used; `problems` says why, all of them at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most likely meant, or None when nothing is near."""
    candidates = list(known)
    folded = {candidate.replace("_", "").lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.replace("_", "").lower(), folded, n=1, cutoff=0.75)
    return folded[close[0]] if close else None


def unknown_key(field: str, name: str, known: Iterable[str]) -> Problem:
    """Problem for a key that nothing reads."""
    names = sorted(known)
    meant = nearest(name, names)
    fix = f"did you mean {meant!r}?" if meant else f"known keys: {', '.join(names)}"
    return Problem(f"{field}.{name}" if field else name, "unknown key", fix)
