"""Which headers cross the relay: everything but what belongs to one connection, plus who is asking."""

from __future__ import annotations

from collections.abc import Iterable

from multidict import CIMultiDict

from tinker_atropos.protocol.identity import AUTHORIZATION_HEADER, ENVIRONMENT_HEADER, INSTANCE_HEADER, bearer

REQUEST_KEY_HEADER = "Idempotency-Key"
"""The same for every attempt of one request: a post whose answer was lost is recognised when it comes again."""

_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    }
)
_SET_HERE = frozenset(
    name.lower()
    for name in (
        AUTHORIZATION_HEADER,
        ENVIRONMENT_HEADER,
        INSTANCE_HEADER,
        REQUEST_KEY_HEADER,
        "Host",
        "Content-Length",
    )
)


def to_server(
    given: Iterable[tuple[str, str]], *, environment: str, instance: str, token: str | None, request_key: str
) -> CIMultiDict[str]:
    """Headers of the request as the server gets it. The environment's own Authorization and identity do not pass."""
    headers = _without(given, _ONE_CONNECTION | _SET_HERE)
    headers[ENVIRONMENT_HEADER] = environment
    headers[INSTANCE_HEADER] = instance
    headers[REQUEST_KEY_HEADER] = request_key
    if token is not None:
        headers[AUTHORIZATION_HEADER] = bearer(token)
    return headers


def to_environment(given: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    """Headers of the answer as the environment gets it."""
    return _without(given, _ONE_CONNECTION)


def _without(given: Iterable[tuple[str, str]], names: frozenset[str]) -> CIMultiDict[str]:
    given = list(given)
    named = {part.strip().lower() for name, value in given if name.lower() == "connection" for part in value.split(",")}
    return CIMultiDict(
        (name, value) for name, value in given if name.lower() not in names and name.lower() not in named
    )
