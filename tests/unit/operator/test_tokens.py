"""Tokens of pods, checked against keys that a stand-in for the API server hands out."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tinker_atropos_operator.kube import ApiError
from tinker_atropos_operator.tokens import SECONDS_BETWEEN_FETCHES, PodIdentity, TokenRefusedError, TokenVerifier

ISSUER = "https://kubernetes.default.svc"
AUDIENCE = "tinker-atropos.dev/ns/run/uid"
BOUND = {"namespace": "ns", "pod": {"name": "trainer-a", "uid": "uid-a"}, "serviceaccount": {"name": "default"}}


class Keys:
    """The API server, as far as its public keys go."""

    def __init__(self) -> None:
        self.private = {"one": rsa.generate_private_key(65537, 2048)}
        self.asked = 0
        self.away = False

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.away:
            raise ApiError(0, "", "away")
        if path.endswith("openid-configuration"):
            return {"issuer": ISSUER}
        self.asked += 1
        await asyncio.sleep(0.01)
        keys = []
        for name, key in self.private.items():
            entry = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
            keys.append({**entry, "kid": name, "alg": "RS256", "use": "sig"})
        return {"keys": keys}

    def token(self, key: str = "one", **changes: Any) -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": [AUDIENCE], "iat": now, "exp": now + 600, "kubernetes.io": BOUND, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, self.private[key], algorithm="RS256", headers={"kid": key})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(keys: Keys, clock: Clock) -> TokenVerifier:
    return TokenVerifier(keys, clock)  # type: ignore[arg-type]


async def test_a_good_token_names_its_pod(verifier: TokenVerifier, keys: Keys) -> None:
    assert await verifier.verify(keys.token(), AUDIENCE) == PodIdentity("ns", "trainer-a", "uid-a")


async def test_many_first_tokens_at_once_ask_for_the_keys_once_and_all_pass(
    verifier: TokenVerifier, keys: Keys
) -> None:
    found = await asyncio.gather(*(verifier.verify(keys.token(), AUDIENCE) for _ in range(5)))
    assert {identity.uid for identity in found} == {"uid-a"}
    assert keys.asked == 1


REFUSED: dict[str, tuple[dict[str, Any], int]] = {
    "for somebody else": ({"aud": ["other"]}, 403),
    "without an audience": ({"aud": None}, 401),
    "of another issuer": ({"iss": "https://elsewhere"}, 401),
    "that is over": ({"exp": 1}, 401),
    "that never ends": ({"exp": None}, 401),
    "bound to no pod": ({"kubernetes.io": {"namespace": "ns"}}, 403),
}


@pytest.mark.parametrize(("changes", "status"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_token(verifier: TokenVerifier, keys: Keys, changes: dict[str, Any], status: int) -> None:
    with pytest.raises(TokenRefusedError) as refused:
        await verifier.verify(keys.token(**changes), AUDIENCE)
    assert refused.value.status == status


async def test_a_token_that_signs_itself(verifier: TokenVerifier, keys: Keys) -> None:
    await verifier.verify(keys.token(), AUDIENCE)
    unsigned = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "exp": 9e9}, "", algorithm="none", headers={"kid": "one"})
    shared = jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "exp": 9e9}, "x" * 32, algorithm="HS256", headers={"kid": "one"}
    )
    for token in (unsigned, shared, "nonsense", ""):
        with pytest.raises(TokenRefusedError) as refused:
            await verifier.verify(token, AUDIENCE)
        assert refused.value.status == 401


async def test_new_keys_are_learnt_but_strangers_do_not_make_it_ask_again_and_again(
    verifier: TokenVerifier, keys: Keys, clock: Clock
) -> None:
    await verifier.verify(keys.token(), AUDIENCE)
    keys.private["two"] = rsa.generate_private_key(65537, 2048)
    for _ in range(3):
        with pytest.raises(TokenRefusedError):
            await verifier.verify(keys.token("two"), AUDIENCE)
    assert keys.asked == 1
    clock.now += SECONDS_BETWEEN_FETCHES
    assert (await verifier.verify(keys.token("two"), AUDIENCE)).uid == "uid-a"
    assert keys.asked == 2


async def test_an_api_server_that_is_away_is_no_fault_of_the_token(verifier: TokenVerifier, keys: Keys) -> None:
    keys.away = True
    with pytest.raises(TokenRefusedError) as refused:
        await verifier.verify(keys.token(), AUDIENCE)
    assert refused.value.status == 503
    keys.away = False
    assert await verifier.verify(keys.token(), AUDIENCE)
