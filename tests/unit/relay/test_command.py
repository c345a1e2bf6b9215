"""Wrong options of the relay: one message, nothing started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tinker_atropos.relay.command import command

GOOD = {
    "--trajectories": "http://127.0.0.1:1",
    "--gateway": "http://127.0.0.1:1",
    "--environment": "e",
    "--instance": "e-0",
    "--tokenizer-dir": "tokenizer",
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"--trajectories": "tar-gsm8k:8000"}, "--trajectories"),
        ({"--gateway": "localhost"}, "--gateway"),
        ({"--environment": None}, "--environment"),
        ({"--instance": None}, "--instance"),
        ({"--token-file": "absent"}, "--token-file"),
        ({"--token-file": "empty"}, "--token-file"),
        ({"--gateway-port": "70000"}, "--gateway-port"),
    ],
)
def test_names_the_option(
    change: dict[str, str | None], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    options = {**GOOD, **change}
    result = CliRunner().invoke(
        command, [part for name, value in options.items() if value is not None for part in (name, value)]
    )
    assert result.exit_code == 2
    assert named in result.output
    assert "Traceback" not in result.output
