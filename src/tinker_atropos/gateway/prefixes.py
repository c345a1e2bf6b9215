"""Which prompts go on from something that was sampled before: the next turn of a rollout, not a new one.

Sequences are remembered by a hash of their tokens, so an end costs the same whatever its length, and only the newest
`most` ends are kept. One that was forgotten, or whose tokens changed at the seam, is taken for a new rollout: that
costs it a wait, nothing else.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

MOST_ENDS = 131_072
_MOST_OWNERS = 1024
"""Of one end: everybody who asked for the same prompt."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)

Hashes = npt.NDArray[np.uint64]
Scope = tuple[str, str]
"""Environment and instance: nobody goes on from what somebody else sampled."""
Owner = TypeVar("Owner")


class _Powers:
    """Powers of the multiplier modulo 2^64, as many as were needed so far."""

    def __init__(self) -> None:
        self._powers: Hashes = np.ones(1, np.uint64)

    def up_to(self, length: int) -> Hashes:
        if len(self._powers) < length:
            factors = np.full(max(length, 2 * len(self._powers)), _MULTIPLIER)
            factors[0] = 1
            self._powers = np.cumprod(factors, dtype=np.uint64)
        return self._powers[:length]


_powers = _Powers()


def prefix_hashes(tokens: Sequence[int] | npt.NDArray[np.int32]) -> Hashes:
    """Hash of each prefix: item i is that of the first i + 1 tokens."""
    values = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
    values *= _MIX
    values ^= values >> _SHIFT
    values *= _MIX
    return np.cumsum(values * _powers.up_to(len(values)), dtype=np.uint64)


class Prefixes(Generic[Owner]):
    """Ends of sampled sequences, and whose they are."""

    def __init__(self, most: int = MOST_ENDS) -> None:
        self._most = most
        self._ends: OrderedDict[tuple[Scope, int, int], deque[Owner]] = OrderedDict()
        self._lengths: dict[Scope, Counter[int]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def remember(
        self, scope: Scope, prompt: Sequence[int], completions: Iterable[npt.NDArray[np.int32]], owner: Owner
    ) -> None:
        """`owner` sampled these. The prompt alone counts too: a chat may be written anew without, say, its thoughts."""
        asked = np.asarray(prompt, dtype=np.int32)
        self._add(scope, len(asked), int(prefix_hashes(asked)[-1]), owner)
        for completion in completions:
            if len(completion):
                whole = np.concatenate((asked, completion))
                self._add(scope, len(whole), int(prefix_hashes(whole)[-1]), owner)

    def _add(self, scope: Scope, length: int, digest: int, owner: Owner) -> None:
        key = (scope, length, digest)
        owners = self._ends.get(key)
        if owners is None:
            owners = self._ends[key] = deque(maxlen=_MOST_OWNERS)
            self._lengths.setdefault(scope, Counter())[length] += 1
        self._ends.move_to_end(key)
        if owner not in owners:
            owners.append(owner)
        while len(self._ends) > self._most:
            self._forget()

    def _forget(self) -> None:
        (scope, length, _), _ = self._ends.popitem(last=False)
        lengths = self._lengths[scope]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._lengths[scope]

    def extended(self, scope: Scope, prompt: Sequence[int]) -> Sequence[Owner]:
        """Owners of the longest sequence that this prompt extends by at least one token, oldest first."""
        lengths = self._lengths.get(scope)
        if not lengths:
            return ()
        hashes = prefix_hashes(prompt)
        for length in sorted((length for length in lengths if length < len(prompt)), reverse=True):
            owners = self._ends.get((scope, length, int(hashes[length - 1])))
            if owners:
                return owners
        return ()
