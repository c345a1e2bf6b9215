"""Several troubles in few words: a cause that several parts share is said once, with the parts.

Conditions hold the whole; `status.message` is a column of `kubectl get -o wide` and has to fit there."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_atropos_operator.plan.pods import Trouble, cut

MAX_BRIEF = 200
"""Characters of status.message."""

MAX_WHOLE = 8000
_FIX_ROOM = 60
"""How much longer it may get by the next action, where there is one cause only."""


def whole(troubles: Sequence[Trouble]) -> str:
    """Everything that is known, for a condition."""
    return cut("; ".join(dict.fromkeys(trouble.message for trouble in troubles)), MAX_WHOLE)


def brief(troubles: Sequence[Trouble], more: Sequence[str] = ()) -> str:
    """The same in one line; more: what else is to be said when there is room, most important first."""
    folded = _folded(troubles)
    entries = list(folded)
    fixes = list(dict.fromkeys(trouble.fix for trouble in troubles if trouble.fix))
    if len(folded) == 1 and len(fixes) == 1:
        with_fix = f"{folded[0]}; {fixes[0]}"
        if len(with_fix) <= MAX_BRIEF + _FIX_ROOM:
            entries = [with_fix]
    return listed([*entries, *more], needed=len(entries))


def listed(entries: Sequence[str], *, needed: int | None = None) -> str:
    """As many entries as there is room for; of the first `needed` (all when None) it says how many are left out."""
    if not entries:
        return ""
    counted = len(entries) if needed is None else needed
    text = entries[0] if len(entries[0]) <= MAX_BRIEF + _FIX_ROOM else cut(entries[0], MAX_BRIEF)
    for index, entry in enumerate(entries[1:], 1):
        left = counted - index
        note = f"; {left} more in the conditions"
        longer = f"{text}; {entry}"
        if len(longer) + (len(note) if left > 1 else 0) > MAX_BRIEF:
            return f"{text}{note}" if left > 0 else text
        text = longer
    return text


def _folded(troubles: Sequence[Trouble]) -> list[str]:
    """One text for each cause, in the order of the troubles."""
    groups: dict[str, list[Trouble]] = {}
    for trouble in troubles:
        groups.setdefault(trouble.cause or trouble.message, []).append(trouble)
    texts = []
    for cause, members in groups.items():
        parts = list(dict.fromkeys(trouble.part for trouble in members if trouble.part))
        items = list(dict.fromkeys(item for trouble in members for item in trouble.items))
        of = f"{_and(parts)}: " if parts and members[0].cause else ""
        texts.append(f"{of}{cause}{f' ({_and(items)})' if items else ''}")
    return texts


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
