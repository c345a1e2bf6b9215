"""Quantities as Kubernetes has them ("500m", "2", "4Gi"), by its documented grammar:

    quantity = signedNumber suffix; number = digits [ "." [ digits ] ] | "." digits
    suffix = Ki Mi Gi Ti Pi Ei | n u m k M G T P E | ( "e" | "E" ) signedInteger

The API server judges them only when a pod is made; in a run file they are better judged while it is written.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tinker_atropos.run.wording import shown

FORM = "write it like 500m, 2 or 4Gi"
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_QUANTITY = re.compile(rf"({_NUMBER})(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{{1,3}}))?", re.ASCII)
_LOOSE = re.compile(rf"\s*({_NUMBER.replace('[.]', '[.,]')})\s*([a-zA-Z]*)\s*", re.ASCII)
_FACTORS = {
    **{f"{letter}i": Fraction(1 << 10 * power) for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}


def parse(value: object) -> Fraction:
    """The number that a quantity stands for. Raises ValueError when it is none."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    found = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{shown(value)} is no quantity")
    number, suffix, exponent = found.groups()
    return Fraction(number.rstrip(".")) * (_FACTORS[suffix] if suffix else Fraction(10) ** int(exponent or 0))


def not_quantity(value: object) -> tuple[str, str] | None:
    """What is wrong with a value where a quantity should stand, and the fix; None when nothing is."""
    try:
        if parse(value) >= 0:
            return None
    except ValueError as error:
        meant = _meant(value) if isinstance(value, str) else None
        return str(error), f"did you mean {meant}?" if meant else FORM
    return f"{shown(value)} is below 0", FORM


def _meant(value: str) -> str | None:
    """What a text that is no quantity was most likely meant to be."""
    found = _LOOSE.fullmatch(value.replace(",", "."))
    if found is None:
        return None
    number, unit = found[1].lstrip("+"), found[2].lower()
    if unit in ("", "cpu", "cpus", "core", "cores", "b", "byte", "bytes"):
        return number
    if unit in ("millicpu", "milli", "millicores"):
        return f"{number}m"
    letter = unit[0].upper()
    if letter in "KMGTPE" and unit[1:] in ("", "b", "i", "ib", "byte", "bytes", "ibytes"):
        return f"{number}{letter}i"
    return None
