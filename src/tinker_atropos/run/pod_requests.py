"""What each program's container asks of a node unless a pod template says otherwise.

Here because both halves need it: the operator builds the containers, and a limit in a run file may not be below it."""

from __future__ import annotations

from collections.abc import Mapping

REQUESTS: Mapping[str, Mapping[str, str]] = {
    "trajectories": {"cpu": "50m", "memory": "128Mi"},
    "gateway": {"cpu": "50m", "memory": "256Mi"},
    "local-tinker": {"cpu": "250m", "memory": "512Mi"},
    "relay": {"cpu": "10m", "memory": "64Mi"},
    "trainer": {"cpu": "100m", "memory": "256Mi"},
}
"""By the container's name. An environment's own program asks for nothing: nobody but its author knows what it needs."""
