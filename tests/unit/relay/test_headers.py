"""What crosses the relay."""

from __future__ import annotations

import pytest

from tinker_atropos.protocol.identity import ENVIRONMENT_HEADER, INSTANCE_HEADER
from tinker_atropos.relay.headers import REQUEST_KEY_HEADER, to_environment, to_server


def sent(given: list[tuple[str, str]], token: str | None = "secret") -> dict[str, str]:
    headers = to_server(given, environment="gsm8k", instance="gsm8k-0", token=token, request_key="k")
    return {name.lower(): value for name, value in headers.items()}


def test_identity_is_added() -> None:
    headers = sent([])
    assert headers[ENVIRONMENT_HEADER.lower()] == "gsm8k"
    assert headers[INSTANCE_HEADER.lower()] == "gsm8k-0"
    assert headers[REQUEST_KEY_HEADER.lower()] == "k"
    assert headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "name",
    ["Authorization", "authorization", ENVIRONMENT_HEADER, INSTANCE_HEADER.lower(), REQUEST_KEY_HEADER],
)
def test_the_environment_cannot_claim_an_identity(name: str) -> None:
    assert "forged" not in sent([(name, "forged")]).values()


def test_the_environments_own_authorization_goes_even_without_a_token() -> None:
    assert "authorization" not in sent([("Authorization", "Bearer x")], token=None)


@pytest.mark.parametrize(
    "header",
    [
        ("Content-Encoding", "gzip"),
        ("Content-Type", "application/json"),
        ("Accept-Encoding", "gzip, deflate"),
        ("X-Anything", "1"),
    ],
)
def test_passes_unchanged(header: tuple[str, str]) -> None:
    assert sent([header])[header[0].lower()] == header[1]
    assert header in list(to_environment([header]).items())


@pytest.mark.parametrize("name", ["Connection", "keep-alive", "Transfer-Encoding", "Upgrade", "Expect", "TE"])
def test_belongs_to_one_connection(name: str) -> None:
    assert name.lower() not in sent([(name, "x")])
    assert not to_environment([(name, "x")])


def test_headers_that_connection_names_stay_behind() -> None:
    assert "x-hop" not in sent([("Connection", "keep-alive, X-Hop"), ("X-Hop", "1")])


@pytest.mark.parametrize("name", ["Host", "Content-Length"])
def test_is_set_anew_for_the_server(name: str) -> None:
    assert name.lower() not in sent([(name, "1")])


def test_repeated_headers_stay_repeated() -> None:
    cookies = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    assert list(to_environment(cookies).items()) == cookies
