"""The exit status of a program is the one that it means, whatever its threads do."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUSY_THREAD = "threading.Thread(target=time.sleep, args=(600,)).start()"


@pytest.mark.parametrize(
    ("ending", "status"),
    [("end_now(79)", 79), ("end_now(0)", 0), ("end_in_any_case(0.1, 143); time.sleep(600)", 143)],
    ids=["with a reserved status", "in order", "after its patience"],
)
def test_a_thread_that_hangs_changes_nothing(ending: str, status: int) -> None:
    program = f"""
import logging, sys, threading, time
from tinker_atropos.protocol.ending import end_in_any_case, end_now
logging.basicConfig(stream=sys.stderr)
{BUSY_THREAD}
print("printed", end="")
sys.stdout.flush() if {ending.startswith("end_in")} else None
logging.error("logged")
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert done.stdout == "printed" and "logged" in done.stderr
