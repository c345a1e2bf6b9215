"""What is shown of a program that failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinker_atropos.local.processes import Process, readable
from tinker_atropos.local.programs import Program

RECORD = {"time": "t", "level": "error", "program": "gateway", "logger": "x", "message": "no tokenizer"}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain text", "plain text"),
        ("Error: --port 80", "Error: --port 80"),
        (json.dumps(RECORD), "error: no tokenizer"),
        (
            json.dumps({**RECORD, "exception": "Traceback\n  File x\nOSError: gone"}),
            "error: no tokenizer (OSError: gone)",
        ),
        ('{"step": 3}', '{"step": 3}'),
        ("[1, 2]", "[1, 2]"),
        ("7", "7"),
        ("", ""),
        ("\x1b[2Jred\x07\tläuft", "\N{REPLACEMENT CHARACTER}[2Jred\N{REPLACEMENT CHARACTER}\tläuft"),
    ],
)
def test_a_log_record_is_shown_as_people_read_it(line: str, shown: str) -> None:
    assert readable(line) == shown


def test_the_end_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert Process(Program("x", ("x",)), log).tail(3) == ["line 97", "line 98", "line 99"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_program_that_wrote_nothing(tmp_path: Path, exists: bool) -> None:
    log = tmp_path / "x.log"
    if exists:
        log.write_text("")
    assert Process(Program("x", ("x",)), log).tail() == []
