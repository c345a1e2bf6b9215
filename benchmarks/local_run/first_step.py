"""How long the quick start takes on this machine: to the first optimizer step, and to its end.

    python benchmarks/local_run/first_step.py --runs 3

Writes results/first_step.json with date, commit and versions. The tiny model must be built (a first run builds it).
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).parent / "results" / "first_step.json"
PACKAGES = ("tinker", "jax", "atroposlib", "grpcio")


def steps_of(log: Path) -> list[dict[str, float]]:
    """Time (Unix seconds) and reward of each optimizer step in a trainer's log."""
    found = []
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            if str(record["message"]).startswith("step "):
                found.append(
                    {"time": dt.datetime.fromisoformat(record["time"]).timestamp(), "reward": record["reward"]}
                )
    return found


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        started = time.time()
        command = [
            sys.executable,
            "-m",
            "tinker_atropos.cli.main",
            "run",
            "examples/quickstart.yaml",
            "--data",
            str(data),
        ]
        subprocess.run(command, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        ended = time.time()
        steps = steps_of(data / "logs" / "trainer.log")
    return {
        "first_step_seconds": round(steps[0]["time"] - started, 1),
        "all_seconds": round(ended - started, 1),
        "steps": len(steps),
        "first_reward": round(steps[0]["reward"], 3),
        "last_reward": round(steps[-1]["reward"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    load = list(os.getloadavg())
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    result = {
        "provenance": {
            "command": f"python benchmarks/local_run/first_step.py --runs {runs}",
            "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "processors": os.cpu_count(),
            "load_before": [round(value, 2) for value in load],
            "python": platform.python_version(),
            "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "runs": [measure() for _ in range(runs)],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["runs"], indent=1))


if __name__ == "__main__":
    main()
