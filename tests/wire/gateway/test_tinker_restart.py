"""The Tinker server dies under the gateway and comes back without any memory of sessions."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gateway_stack import Stack, Tinker
from peer_processes import until

pytestmark = pytest.mark.wire


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    tinker = Tinker(tmp_path_factory.mktemp("tinker"))
    started = Stack.start(tmp_path_factory.mktemp("stack"), tinker)
    try:
        yield started
    finally:
        started.stop()
        tinker.program.kill(signal.SIGTERM)


def test_requests_survive_it(mortal: Stack) -> None:
    mortal.publish()
    body = {"text": "12+7=", "sampling_params": {"n": 2, "max_new_tokens": 6}}

    def generate() -> httpx.Response:
        return httpx.post(f"{mortal.gateway.url}/generate", json=body, timeout=200)

    assert generate().status_code == 200
    mortal.tinker.fault(route="/retrieve_future", hang=True, count=2)
    with ThreadPoolExecutor(4) as pool:
        in_the_middle = [pool.submit(generate) for _ in range(2)]
        until(lambda: mortal.gateway.metric("running") == 2, "two requests inside")
        mortal.tinker.program.kill()
        while_away = [pool.submit(generate) for _ in range(2)]
        until(lambda: mortal.gateway.metric("running") == 4, "four requests inside")
        mortal.tinker.program.start()
        for request in (*in_the_middle, *while_away):
            response = request.result(200)
            assert response.status_code == 200, response.text
            assert response.headers["X-Tinker-Atropos-Policy"] == f"{mortal.epoch}/0"
