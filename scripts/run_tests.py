#!/usr/bin/env python3
"""Run the tiers of tests that this machine can carry and say of each why it ran or not: `make test`.

make test                                  lint, unit, wire, controlplane, cluster
make test TIERS="unit wire"                only these
make test TIERS=cluster PYTEST="-k killed" with arguments for pytest
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import images
from catalog import ROOT
from singlenode import node, packages, programs
from singlenode.layout import ClusterError

BIN = Path(sys.executable).parent
PYTEST_TIERS = ("unit", "wire", "controlplane", "cluster")
TIERS = ("lint", *PYTEST_TIERS)
PARALLEL = {"unit", "wire", "controlplane"}
"""Tiers whose tests share nothing: each worker has servers of its own. One node is shared by the tests of `cluster`."""
WORKERS = min(4, (os.cpu_count() or 1) + 1)
"""One more than processors: much of a test is waiting for programs to start, or to be gone."""
SPREAD = (f"--numprocesses={WORKERS}", "--dist=worksteal")
LINT = (("ruff", "check"), ("ruff", "format", "--check"), ("mypy",), ("lint-imports",))


@dataclass
class Outcome:
    """What became of one tier."""

    tier: str
    why: str
    ran: bool = True
    failed_to_run: bool = False
    interrupted: bool = False
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not self.failed and not self.failed_to_run


def ensure_go() -> str:
    """Go, installed from the distribution where that helps."""
    try:
        return programs.find_go()
    except ClusterError:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise
    for package in ("golang-1.26-go", "golang-1.25-go", "golang-1.24-go", "golang-go"):
        policy = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True, check=False).stdout
        if programs.new_enough_candidate(policy):
            packages.install([package])
            break
    return programs.find_go()


def reason_to_run(tier: str) -> str:
    """Why this tier can run here; a ClusterError says why it cannot."""
    if tier == "lint":
        return "ruff, mypy and import-linter are in the environment"
    if tier == "unit":
        return "Python is all it needs"
    if tier == "wire":
        with suppress(ClusterError):  # without it the tests of the Redis store say so and are skipped
            packages.ensure({"redis-server": "redis-server"}, "the Redis store's tests")
        return "the Tinker SDK, atroposlib and OpenAI's client are in the environment"
    if tier == "controlplane":
        if programs.built():
            return "the programs of the control plane are built"
        ensure_go()
        return "Go is there to build the control plane"
    node.check_machine()
    if not programs.built():
        ensure_go()
    return "root on Linux with all that a node needs"


def prepare(tier: str) -> None:
    """Make what takes minutes before the tests, where its progress is seen and no test's time limit runs."""
    if tier in ("controlplane", "cluster"):
        programs.ensure()
    if tier == "cluster":
        images.build(images.pick_builder())


def call(command: list[str]) -> int:
    """Run a command to its end, also when this one is asked to end: tests take down what they have brought up."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        # Interrupted, pytest and its workers run the ends of all fixtures; terminated, they would just be gone.
        before = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal has told the command as well
            process.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def run_lint(outcome: Outcome) -> None:
    for command in LINT:
        print(f"$ {' '.join(command)}", flush=True)
        if call([str(BIN / command[0]), *command[1:]]) == 0:
            outcome.passed += 1
        else:
            outcome.failed += 1


def run_pytest(outcome: Outcome, arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        results = Path(folder) / "results.xml"
        command = [str(BIN / "python"), "-m", "pytest", f"tests/{outcome.tier}", f"--junit-xml={results}"]
        status = call([*command, *(SPREAD if outcome.tier in PARALLEL else ()), *arguments])
        count(outcome, results)
    # Status 5 means that no test was there to run, which is no success either.
    outcome.failed_to_run = status not in (0, 1)
    outcome.interrupted = status == 2 or status < 0


def count(outcome: Outcome, results: Path) -> None:
    if not results.exists():
        outcome.failed_to_run = True
        return
    for suite in ElementTree.parse(results).getroot().iter("testsuite"):  # noqa: S314 - pytest wrote it a moment ago
        tests, failures, errors, skipped = (int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped"))
        outcome.failed += failures + errors
        outcome.skipped += skipped
        outcome.passed += tests - failures - errors - skipped


def run_tier(tier: str, arguments: list[str]) -> Outcome:
    print(f"\n=== tier {tier} ===", flush=True)
    try:
        outcome = Outcome(tier, reason_to_run(tier))
    except ClusterError as error:
        print(f"not run: {error}", flush=True)
        return Outcome(tier, str(error), ran=False)
    print(f"runs: {outcome.why}", flush=True)
    started = time.monotonic()
    try:
        prepare(tier)
        if tier == "lint":
            run_lint(outcome)
        else:
            run_pytest(outcome, arguments)
    except ClusterError as error:
        print(f"failed: {error}", flush=True)
        outcome.failed_to_run = True
    outcome.seconds = time.monotonic() - started
    return outcome


def summary(outcomes: list[Outcome]) -> str:
    lines = ["", "=== all tiers ==="]
    for outcome in outcomes:
        if not outcome.ran:
            lines.append(f"{outcome.tier:<13} not run: {outcome.why}")
            continue
        result = "ok    " if outcome.good else "FAILED"
        counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
        lines.append(f"{outcome.tier:<13} {result} {counts} in {outcome.seconds:.0f} s ({outcome.why})")
    passed, failed, skipped = (sum(getattr(o, k) for o in outcomes) for k in ("passed", "failed", "skipped"))
    lines.append(f"{passed} passed, {failed} failed, {skipped} skipped")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="run_tests", description="Run the tiers of tests that this machine can carry."
    )
    parser.add_argument("tiers", nargs="*", help=f"which tiers (default: {' '.join(TIERS)})")
    parser.add_argument("--pytest", default="", help="further arguments for pytest")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.tiers) - set(TIERS))
    if unknown:
        parser.error(f"there is no tier {', '.join(unknown)}; tiers are {', '.join(TIERS)}")
    wanted = [tier for tier in TIERS if tier in (arguments.tiers or TIERS)]
    outcomes = []
    for tier in wanted:
        outcomes.append(run_tier(tier, shlex.split(arguments.pytest)))
        if outcomes[-1].interrupted:
            break
    print(summary(outcomes), flush=True)
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
