#!/usr/bin/env python3
"""Make the development environment `.venv`: `make venv`. Uses uv where it is installed, else Python's own tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
OLDEST = (3, 11)
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3")


def fail(text: str) -> None:
    sys.exit(f"venv: {text}")


def run(command: list[str]) -> None:
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        fail(f"`{' '.join(command)}` failed")


def pick_python() -> str:
    """A Python that is new enough; the one that runs this first."""
    for candidate in (sys.executable, *CANDIDATES):
        path = shutil.which(candidate)
        if path:
            code = f"import sys; sys.exit(sys.version_info < {OLDEST})"
            if subprocess.run([path, "-c", code], check=False, capture_output=True).returncode == 0:
                return path
    fail(f"no Python {OLDEST[0]}.{OLDEST[1]} or newer was found; install one and run the same command again")
    raise AssertionError


def has_ensurepip(python: str) -> bool:
    return subprocess.run([python, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0


def ensure_compiler() -> None:
    """For the trajectory server's fast reader of posts. Without it all works, posts take twice the time."""
    if shutil.which("cc") or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    for command in (["update"], ["install", "-y", "--no-install-recommends", "gcc", "libc6-dev", "python3-dev"]):
        subprocess.run(["apt-get", "-q", *command], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def make_with_pip(python: str) -> None:
    if not has_ensurepip(python):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            fail("Python's venv module is incomplete; on Debian: apt-get install python3-venv")
        run(["apt-get", "update", "-q"])
        run(["apt-get", "install", "-y", "-q", "python3-venv"])
    if not (VENV / "bin" / "python").exists():
        run([python, "-m", "venv", str(VENV)])
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    run([*pip, "--upgrade", "pip>=25.1"])  # the first that knows --group
    run([*pip, "-c", "constraints.txt", "-e", ".[all]", "--group", "dev"])


def make_with_uv(python: str) -> None:
    if not (VENV / "bin" / "python").exists():
        run(["uv", "venv", "--quiet", "--python", python, str(VENV)])
    install = ["uv", "pip", "install", "--quiet", "--python", str(VENV / "bin" / "python"), "-c", "constraints.txt"]
    run([*install, "-e", ".[all]", "--group", "dev"])


def main() -> None:
    print("venv: installing the project and its tools into .venv (usually 1-3 min the first time) ...", file=sys.stderr)
    if not os.access(VENV if VENV.exists() else ROOT, os.W_OK):
        fail(f"{ROOT} is not yours to write: make a clone of your own and run the command there")
    python = pick_python()
    ensure_compiler()
    if shutil.which("uv"):
        make_with_uv(python)
    else:
        make_with_pip(python)
    (VENV / ".installed").touch()


if __name__ == "__main__":
    main()
