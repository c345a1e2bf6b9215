"""`run-api` with upstream's flags is this server."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.wire

START = "from tinker_atropos.trajectories.run_api import main; main()"


def test_it_serves_with_upstreams_flags(tmp_path: Path, free_port: Any) -> None:
    port = free_port()
    command = [sys.executable, "-c", START, "--host", "127.0.0.1", "--port", str(port), "--reload"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                    assert answer.read() == b'{"message":"AtroposLib API"}'
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "--reload has no meaning here" in errors
    assert (tmp_path / "run-api-store" / "segment-00000001.log").exists()


def test_its_help_names_every_flag() -> None:
    text = subprocess.run([sys.executable, "-c", START, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(flag in text for flag in ("--host", "--port", "--reload", "--store"))
