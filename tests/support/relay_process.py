"""A relay as a real process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peer_processes import Program, free_port


@dataclass
class Relay:
    program: Program
    trajectories: str
    gateway: str
    health: str
    tokenizer: Path
    instance: str

    @classmethod
    def start(
        cls, folder: Path, trajectories: str, gateway: str, *options: str, wait: bool = True, instance: str = "digits-0"
    ) -> Relay:
        ports = [free_port() for _ in range(3)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        program = Program(
            [
                *("relay", "--trajectories", trajectories, "--gateway", gateway),
                *("--environment", "digits", "--instance", instance, "--tokenizer-dir", str(folder / "tokenizer")),
                *("--trajectories-port", str(ports[0]), "--gateway-port", str(ports[1])),
                *("--health-port", str(ports[2]), *options),
            ],
            folder / "relay.log",
            f"{urls[2]}/healthz",
        )
        relay = cls(program, urls[0], urls[1], urls[2], folder / "tokenizer", instance)
        program.start(wait)
        return relay


StartRelay = Callable[..., Relay]
