"""Names of what a run consists of.

Service names begin with `tar-`: a Service named tinker-atropos would put
TINKER_ATROPOS_PORT into every pod beside it, which our programs would read as an option."""

from __future__ import annotations

MAX_RUN_AND_ENVIRONMENT = 42
"""A run's name and the longest environment name together, so that every name stays within the 63 characters of a label
value with room for the hash that a ReplicaSet adds."""


def config_map(run: str) -> str:
    return f"tar-{run}-config"


def token_secret(run: str) -> str:
    return f"tar-{run}-token"


def api_server(run: str) -> str:
    return f"tar-{run}-api"


def local_tinker(run: str) -> str:
    return f"tar-{run}-tinker"


def environment(run: str, name: str) -> str:
    return f"tar-{run}-env-{name}"


def trainer(run: str, attempt: int) -> str:
    return f"tar-{run}-trainer-{attempt}"
