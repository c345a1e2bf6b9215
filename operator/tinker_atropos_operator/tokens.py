"""Who sends a progress report? Projected service account tokens, checked offline against the API server's public
keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jwt

from tinker_atropos_operator.kube import ApiError, Kube

ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]
SECONDS_BETWEEN_FETCHES = 10.0
"""Tokens with unknown keys must not make the operator ask the API server at each report."""
LEEWAY = 10


class TokenRefusedError(Exception):
    """The token does not prove what it should; `status` is the HTTP status for it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class PodIdentity:
    """The pod that a token is bound to."""

    namespace: str
    name: str
    uid: str


class TokenVerifier:
    """Checks signature, issuer, time and audience; whether the pod is the right one is the caller's question."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._issuer = ""
        self._fetched = float("-inf")
        self._fetching = asyncio.Lock()

    async def verify(self, token: str, audience: str) -> PodIdentity:
        """The pod of a token that is meant for `audience`. Raises TokenRefusedError."""
        key = await self._key_of(token)
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key=key.key,
                algorithms=ALGORITHMS,
                audience=audience,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "aud", "iss"]},
            )
        except jwt.InvalidAudienceError as error:
            raise TokenRefusedError(403, "the token is not meant for this run") from error
        except jwt.InvalidTokenError as error:
            raise TokenRefusedError(401, f"the token is not valid: {error}") from error
        bound = claims.get("kubernetes.io") or {}
        pod = bound.get("pod") or {}
        if not pod.get("uid") or not pod.get("name"):
            raise TokenRefusedError(403, "the token is not bound to a pod")
        return PodIdentity(str(bound.get("namespace", "")), str(pod["name"]), str(pod["uid"]))

    async def _key_of(self, token: str) -> jwt.PyJWK:
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))
        except jwt.InvalidTokenError as error:
            raise TokenRefusedError(401, "the token is no JSON Web Token") from error
        if key_id not in self._keys:
            async with self._fetching:  # a second token must wait for the keys that the first one asked for
                if key_id not in self._keys and self._clock() - self._fetched >= SECONDS_BETWEEN_FETCHES:
                    await self._fetch()
        if key_id not in self._keys:
            raise TokenRefusedError(401, "the token is signed with an unknown key")
        return self._keys[key_id]

    async def _fetch(self) -> None:
        self._fetched = self._clock()
        try:
            discovery = await self._kube.request("GET", "/.well-known/openid-configuration", resource="openid")
            keys = await self._kube.request(
                "GET", "/openid/v1/jwks", accept="application/jwk-set+json", resource="openid"
            )
        except ApiError as error:
            self._fetched = float("-inf")
            raise TokenRefusedError(503, f"the API server's keys cannot be read: {error}") from error
        self._issuer = str(discovery["issuer"])
        self._keys = {str(entry.get("kid", "")): jwt.PyJWK(entry) for entry in keys.get("keys") or ()}
