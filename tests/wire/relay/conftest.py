"""Relays as real processes, and the real servers behind them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gateway_stack import Stack, Tinker
from relay_process import Relay, StartRelay

os.environ["TINKER_TELEMETRY"] = "0"

TOKEN = "the-runs-token"


@pytest.fixture(scope="module")
def start_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRelay]:
    """Relay.start without its folder; all are stopped in the end."""
    started: list[Relay] = []

    def start(*arguments: str, **more: Any) -> Relay:
        started.append(Relay.start(tmp_path_factory.mktemp("relay"), *arguments, **more))
        return started[-1]

    yield start
    for relay in started:
        relay.program.kill(signal.SIGTERM)


@pytest.fixture(scope="session")
def tinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tinker]:
    server = Tinker(tmp_path_factory.mktemp("tinker"))
    yield server
    server.program.kill(signal.SIGTERM)


@pytest.fixture(scope="module")
def stack(tinker: Tinker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The real servers of a run, with its token, and a first policy."""
    started = Stack.start(tmp_path_factory.mktemp("stack"), tinker, token=TOKEN)
    try:
        started.publish()
        yield started
    finally:
        started.stop()
