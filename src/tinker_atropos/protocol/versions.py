"""How a completion is recognised again: the digest that ties sampled tokens to the policy version that made them.

Environments send no version with their posts, so the gateway records one digest for each completion that it answers and
the trajectory server computes the same digest from the posted sequence.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DIGEST_SIZE = 16  # bytes


PROMPT_DIGEST_SIZE = 8


def prompt_digest(prompt: npt.NDArray[np.int32]) -> bytes:
    """Digest of a prompt: int32 [P], the tokens before the first that is sampled."""
    return hashlib.blake2b(prompt.astype("<i4", copy=False).tobytes(), digest_size=PROMPT_DIGEST_SIZE).digest()


def completion_digest(
    prompt: npt.NDArray[np.int32], completion: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]
) -> bytes:
    """Digest of one completion.

    prompt: int32 [P], every token before the completion; completion: int32 [C]; logprobs: float32 [C] as answered.
    A logprob survives JSON unchanged because float32 → float64 → text → float64 → float32 is exact.
    """
    digest = hashlib.blake2b(len(prompt).to_bytes(8, "little"), digest_size=DIGEST_SIZE)
    digest.update(prompt.astype("<i4", copy=False).tobytes())
    digest.update(completion.astype("<i4", copy=False).tobytes())
    digest.update(logprobs.astype("<f4", copy=False).tobytes())
    return digest.digest()
