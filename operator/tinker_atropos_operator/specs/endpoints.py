"""Addresses of a run's Services, as its pods write them."""

from __future__ import annotations

from tinker_atropos.protocol import ports
from tinker_atropos.run import names


def trajectories_http(run: str) -> str:
    return f"http://{names.api_server(run)}:{ports.TRAJECTORIES_HTTP}"


def trajectories_grpc(run: str) -> str:
    return f"{names.api_server(run)}:{ports.TRAJECTORIES_GRPC}"


def gateway(run: str) -> str:
    return f"http://{names.api_server(run)}:{ports.GATEWAY_HTTP}"


def local_tinker(run: str) -> str:
    return f"http://{names.local_tinker(run)}:{ports.LOCAL_TINKER_HTTP}"
