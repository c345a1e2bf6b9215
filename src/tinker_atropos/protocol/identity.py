"""Header names by which programs of a run know each other: who an environment process is, and the run's token."""

from __future__ import annotations

ENVIRONMENT_HEADER = "X-Tinker-Atropos-Environment"
"""Name of the entry in spec.environments."""

INSTANCE_HEADER = "X-Tinker-Atropos-Instance"
"""One process of an environment: the pod's name in a cluster."""

POST_HEADER = "Idempotency-Key"
"""Unique for each post of an environment and the same when the relay sends it again: a repeated post is stored once."""

AUTHORIZATION_HEADER = "Authorization"


def bearer(token: str) -> str:
    """Value of the Authorization header (and of the gRPC metadata key `authorization`) for the run's token."""
    return f"Bearer {token}"
