"""Where the Tinker SDK finds a key, and what is said when it finds none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_atropos.protocol.credentials import malformed_key, missing_key

CASES = {
    "no key at all": ({}, "TINKER_API_KEY is not set; set it to the key of the Tinker API", None),
    "an empty key": ({"TINKER_API_KEY": ""}, "TINKER_API_KEY is not set", None),
    "a key": ({"TINKER_API_KEY": "tml-x"}, None, None),
    "a token": ({"TINKER_API_KEY": "eyJhbGciOi"}, None, None),
    "half a key": ({"TINKER_API_KEY": "ml-x"}, None, "TINKER_API_KEY does not begin with tml- (it has 4 characters)"),
    "a command that prints one": ({"TINKER_CREDENTIAL_CMD": "print-key"}, None, None),
    "a command beside half a key": ({"TINKER_CREDENTIAL_CMD": "print-key", "TINKER_API_KEY": "ml-x"}, None, None),
}


@pytest.mark.parametrize(("variables", "missing", "malformed"), CASES.values(), ids=CASES)
def test_keys(
    variables: dict[str, str],
    missing: str | None,
    malformed: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for sentence, expected in ((missing_key(), missing), (malformed_key(), malformed)):
        assert (sentence is None) is (expected is None)
        assert expected is None or (sentence or "").startswith(expected)
