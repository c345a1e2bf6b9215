"""A password joins the address of a Redis store only where it is used."""

from __future__ import annotations

import pytest

from tinker_atropos.trajectories.store.address import with_password

CASES = {
    "plain": ("redis://redis:6379/0?run=u", "pw", "redis://:pw@redis:6379/0?run=u"),
    "characters that mean something in a URL": ("redis://redis", "p@s/w:#", "redis://:p%40s%2Fw%3A%23@redis"),
    "over TLS": ("rediss://redis:6380", "pw", "rediss://:pw@redis:6380"),
    "a user and password that are there": ("redis://u:x@redis", "pw", "redis://u:x@redis"),
    "none": ("redis://redis", None, "redis://redis"),
    "empty": ("redis://redis", "", "redis://redis"),
    "a folder": ("/var/lib/store", "pw", "/var/lib/store"),
}


@pytest.mark.parametrize(("address", "password", "joined"), CASES.values(), ids=CASES)
def test_joined(address: str, password: str | None, joined: str) -> None:
    assert with_password(address, password) == joined
