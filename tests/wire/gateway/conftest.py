"""One local Tinker server for all tests here; stacks of trajectory server and gateway in front of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import openai
import pytest

from gateway_stack import Stack, Tinker

os.environ["TINKER_TELEMETRY"] = "0"


@pytest.fixture(scope="session")
def tinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tinker]:
    server = Tinker(tmp_path_factory.mktemp("tinker"))
    yield server
    server.program.kill(signal.SIGTERM)


@pytest.fixture(scope="module")
def stack(tinker: Tinker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """With a first policy published."""
    started = Stack.start(tmp_path_factory.mktemp("stack"), tinker)
    try:
        started.publish()
        yield started
    finally:
        started.stop()


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made
