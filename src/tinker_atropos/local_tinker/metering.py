"""Token counts by session and hour: what a bill would be made of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from tinker_atropos.local_tinker.registry import Registry, Usage

TRAIN, PREFILL, CACHED_PREFILL, SAMPLE, CHECKPOINT = "train", "prefill", "cached_prefill", "sample", "checkpoint"
TOKEN_KINDS = (TRAIN, PREFILL, CACHED_PREFILL, SAMPLE)
_HOUR = 3600


class Meter:
    """Adds up what was done; counts survive a restart."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock

    def trained(self, session: str, tokens: int) -> None:
        """Tokens of all datums of a pass, forward-only passes too."""
        self._add(session, TRAIN, tokens)

    def sampled(self, session: str, prompt: int, samples: int, generated: int, *, cached: bool) -> None:
        """A prompt is prefilled once; its further samples, and equal prompts beside it, read what is cached."""
        self._add(session, PREFILL, 0 if cached else prompt)
        self._add(session, CACHED_PREFILL, prompt * (samples if cached else samples - 1))
        self._add(session, SAMPLE, generated)

    def saved(self, session: str) -> None:
        """One checkpoint."""
        self._add(session, CHECKPOINT, 1)

    def _add(self, session: str, kind: str, amount: int) -> None:
        if amount > 0:
            self._registry.add_usage(int(self._clock()) // _HOUR * _HOUR, session, kind, amount)

    def totals(self) -> dict[str, Any]:
        """Sums over everything and by session."""
        whole = dict.fromkeys((*TOKEN_KINDS, CHECKPOINT), 0)
        sessions: dict[str, dict[str, int]] = {}
        for entry in self._registry.usage():
            own = sessions.setdefault(entry.session, dict.fromkeys((*TOKEN_KINDS, CHECKPOINT), 0))
            own[entry.kind] += entry.amount
            whole[entry.kind] += entry.amount
        return {**whole, "sessions": sessions}

    def events(self, start: dt.datetime, end: dt.datetime, base_model: str) -> dict[str, Any]:
        """Hourly buckets in the form of the hosted service's billing; nothing here costs anything."""
        chosen = [entry for entry in self._registry.usage() if start.timestamp() <= entry.hour < end.timestamp()]
        sessions = {}
        for entry in chosen:
            known = self._registry.session(entry.session)
            sessions[entry.session] = {"user_metadata": known.user_metadata if known else None}
        return {"data": [_event(entry, base_model) for entry in chosen], "sessions": sessions}


def _event(entry: Usage, base_model: str) -> dict[str, Any]:
    start = dt.datetime.fromtimestamp(entry.hour, dt.UTC)
    forms: dict[str, dict[str, Any]] = {
        TRAIN: {"type": "training", "token_count": entry.amount},
        PREFILL: {"type": "sampling_prefill", "cached": False, "token_count": entry.amount},
        CACHED_PREFILL: {"type": "sampling_prefill", "cached": True, "token_count": entry.amount},
        SAMPLE: {"type": "sampling_sample", "token_count": entry.amount},
        CHECKPOINT: {"type": "checkpoint", "count": entry.amount},
    }
    return {
        "bucket_start": start.isoformat(),
        "bucket_end": (start + dt.timedelta(hours=1)).isoformat(),
        "base_model": base_model,
        "session_id": entry.session,
        "event_info": forms[entry.kind],
    }
