"""With a run's token nothing that costs or tells anything is open."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from gateway_stack import Stack, Tinker

pytestmark = pytest.mark.wire

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def guarded(tinker: Tinker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    started = Stack.start(tmp_path_factory.mktemp("stack"), tinker, token=TOKEN)
    try:
        started.publish()
        yield started
    finally:
        started.stop()


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/tokenizer"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/generate"),
        ("GET", "/unknown"),
    ],
)
def test_refuses(method: str, path: str, given: str | None, guarded: Stack) -> None:
    headers = {} if given is None else {"Authorization": given}
    answer = httpx.request(method, f"{guarded.gateway.url}{path}", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert TOKEN not in answer.text


def test_the_right_token_opens(guarded: Stack) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    body = {"text": "1+1=", "sampling_params": {"max_new_tokens": 2}}
    answer = httpx.post(f"{guarded.gateway.url}/generate", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz", "/metrics"])
def test_probes_need_none(path: str, guarded: Stack) -> None:
    assert httpx.get(f"{guarded.gateway.url}{path}").status_code == 200
