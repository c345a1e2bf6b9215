"""What is wrong with a run file, said so that the reader can mend it: the field, its value, the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong (or worth a warning) at one place of a run file.

    field: its path, such as "config.tinker.lora_rank" or "environments[1].name": from `spec` on where only a spec was
    judged, from the top of the document where a file was read.
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
    folded = {_folded(candidate): candidate for candidate in candidates}
    close = difflib.get_close_matches(_folded(name), folded, n=1, cutoff=0.75)
    if close:
        return folded[close[0]]
    # In a short name one slip is a large part of it: `evn`, `pp0`, `rnu`.
    slips = [candidate for candidate in folded if len(candidate) > 2 and _one_slip(_folded(name), candidate)]
    return folded[slips[0]] if slips else None


def unknown_key(field: str, name: str, known: Iterable[str]) -> Problem:
    """Problem for a key that nothing reads."""
    names = sorted(known)
    meant = nearest(name, names)
    fix = f"did you mean {meant!r}?" if meant else f"known keys: {', '.join(names)}"
    return Problem(f"{field}.{name}" if field else name, "unknown key", fix)


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _one_slip(given: str, meant: str) -> bool:
    """Whether one letter too many, too few or wrong, or two in the wrong order, make one text of the other."""
    if abs(len(given) - len(meant)) > 1 or given == meant:
        return given == meant
    start = next((i for i, (a, b) in enumerate(zip(given, meant, strict=False)) if a != b), min(len(given), len(meant)))
    left, right = given[start:], meant[start:]
    swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return swapped or left[1:] == right[1:] or left[1:] == right or left == right[1:]
