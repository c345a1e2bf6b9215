"""Whether the Tinker SDK finds a key, asked before anything is started: the SDK says so late and in its own words."""

from __future__ import annotations

import os

KEY_VARIABLE = "TINKER_API_KEY"
NO_KEY_NEEDED = "tml-none"
"""For an endpoint that asks for none: the SDK refuses to start without a key, the server never looks at it."""


def missing_key() -> str | None:
    """A sentence when the SDK has no key: no variable, no TINKER_CREDENTIAL_CMD, no `tinker auth login`."""
    if os.environ.get(KEY_VARIABLE) or os.environ.get("TINKER_CREDENTIAL_CMD"):
        return None
    from tinker.auth import tinker_has_credentials

    if tinker_has_credentials():
        return None
    return (
        f"{KEY_VARIABLE} is not set; set it to the key of the Tinker API (tml-…), or to any tml-… for a server that "
        "asks for none"
    )


def malformed_key() -> str | None:
    """A sentence when the key is none by its form; the SDK refuses to send it."""
    key = os.environ.get(KEY_VARIABLE, "")
    if not key or key.startswith(("tml-", "eyJ")) or os.environ.get("TINKER_CREDENTIAL_CMD"):
        return None
    return f"{KEY_VARIABLE} does not begin with tml- (it has {len(key)} characters); copy the whole key"
