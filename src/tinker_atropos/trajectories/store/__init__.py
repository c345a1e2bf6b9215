"""Where the trajectory server's state lives: an ordered journal, payloads by number, snapshots of the journal's fold.

The interface is what a directory of files and a Redis server can both do, so that the same ledger runs on either:

* `append` adds one journal entry, together with at most one payload, atomically; it is durable when the future is done.
  Entries become durable in the order of the calls.
* `read` gives payloads back, `forget` says which are no longer needed.
* Old entries may be replaced by what `fold` makes of them at any time; the store decides when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

Fold = Callable[[bytes | None, Iterable[bytes]], bytes]
"""(snapshot or None, entries after it) -> a snapshot that stands for all of them; pure."""


class StoreUnavailableError(Exception):
    """Nothing was written; the caller may try again."""


class StoreCorruptError(Exception):
    """Something that was durable is not readable any more."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a store held when it was opened."""

    snapshot: bytes | None
    entries: Iterable[bytes]
    """Journal entries after the snapshot, in order; to be read once, before the first append."""


class Store(Protocol):
    """One run's durable state."""

    on_sync: Callable[[float], None]
    """Told how many seconds each commit took."""
    on_lost: Callable[[str], None]
    """Told, with the reason, when the store belongs to another process from now on."""

    async def open(self) -> Recovered:
        """Take the store over (a second process is refused) and give back what it holds."""

    def append(self, entry: bytes, payload: tuple[int, bytes] | None = None) -> asyncio.Future[None]:
        """Write one entry and its payload (number, bytes); raises StoreUnavailableError through the future."""

    async def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Payloads by number, in the order asked for."""

    def retain(self, numbers: Collection[int]) -> None:
        """After `open`: the payloads that are still needed; all others are forgotten."""

    def forget(self, numbers: Collection[int]) -> None:
        """These payloads are not needed any more; their space may be used again."""

    def statistics(self) -> dict[str, float]:
        """Numbers for /metrics and /status: bytes held, entries, seconds of the last sync."""

    async def close(self) -> None:
        """Finish what was appended and let go."""
