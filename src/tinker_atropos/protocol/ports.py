"""Ports on which programs find each other inside a run's pods; every program takes others by option."""

from __future__ import annotations

TRAJECTORIES_HTTP = 8000
GATEWAY_HTTP = 8001
TRAJECTORIES_GRPC = 8002
LOCAL_TINKER_HTTP = 8003
RELAY_TRAJECTORIES = 8000
"""On the loopback of an environment's pod."""
RELAY_GATEWAY = 8001
RELAY_HEALTH = 8009
OPERATOR_PROGRESS = 8443
OPERATOR_METRICS = 8080
OPERATOR_PROBES = 8081
