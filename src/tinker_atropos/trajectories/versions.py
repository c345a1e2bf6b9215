"""Which weights sampled which completion: the gateway's record, looked up when a group is posted.

The record is bounded: it is kept in generations, and the oldest generation goes when there are too many completions.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tinker_atropos.protocol.versions import DIGEST_SIZE, completion_digest
from tinker_atropos.trajectories.lineage import Version

GENERATION = 65_536
GENERATIONS = 4


class VersionRecord:
    """Digest of a completion -> version, per instance (DESIGN "Policy version of a completion")."""

    def __init__(self, generation: int = GENERATION, generations: int = GENERATIONS) -> None:
        self._limit = generation
        self._keep = generations
        self._generations: list[dict[tuple[str, bytes], Version]] = [{}]  # newest last

    def __len__(self) -> int:
        return sum(len(generation) for generation in self._generations)

    def record(self, instance: str, version: Version, digests: Iterable[bytes]) -> None:
        newest = self._generations[-1]
        for digest in digests:
            known = newest.get((instance, digest))
            newest[instance, digest] = version if known is None else min(known, version)
        if len(newest) >= self._limit:
            self._generations.append({})
            del self._generations[: -self._keep]

    def find(self, instance: str, digest: bytes) -> Version | None:
        """The oldest version that answered exactly this, to that instance or to a caller without a name."""
        found = [
            version
            for generation in self._generations
            for key in ((instance, digest), ("", digest))
            if (version := generation.get(key)) is not None
        ]
        return min(found) if found else None

    def to_json(self) -> list[list[list[object]]]:
        """Per generation: [instance, epoch, step, digests in hex] for each instance and version."""
        result = []
        for generation in self._generations:
            runs: dict[tuple[str, Version], list[bytes]] = {}
            for (instance, digest), version in generation.items():
                runs.setdefault((instance, version), []).append(digest)
            result.append([[i, *version, b"".join(digests).hex()] for (i, version), digests in runs.items()])
        return result

    def load_json(self, generations: list[list[list[object]]]) -> None:
        self._generations = []
        for rows in generations:
            generation: dict[tuple[str, bytes], Version] = {}
            for instance, epoch, step, digests in rows:
                assert isinstance(instance, str) and isinstance(epoch, int) and isinstance(step, int)
                for digest in split_digests(str(digests)):
                    generation[instance, digest] = Version(epoch, step)
            self._generations.append(generation)
        self._generations = self._generations or [{}]


def split_digests(joined: str) -> list[bytes]:
    """Digests from their joined hexadecimal form."""
    data = bytes.fromhex(joined)
    return [data[start : start + DIGEST_SIZE] for start in range(0, len(data), DIGEST_SIZE)]


def completion_digests(
    tokens: npt.NDArray[np.int32], loss_mask: npt.NDArray[np.uint8], logprobs: npt.NDArray[np.float32]
) -> list[bytes]:
    """Digests of a sequence's completions: each maximal run of unmasked tokens; its prompt is all tokens before it.

    tokens [T], loss_mask [T] (1 = the policy's own), logprobs [T].
    """
    edges = np.flatnonzero(np.diff(loss_mask, prepend=np.uint8(0), append=np.uint8(0)))
    return [
        completion_digest(tokens[:start], tokens[start:end], logprobs[start:end])
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]
