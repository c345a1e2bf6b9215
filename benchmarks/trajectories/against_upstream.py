"""Durable posts, first /batch and /status-env: this server beside upstream's run-api in the same run, alternating.

    python benchmarks/trajectories/against_upstream.py --script PATH/bench_run_api.py

Uses the groups and the client of the shared load script, so both servers get exactly the same requests.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

from servers import Server, save

SHAPES = ((8, 512, 600), (16, 2048, 80))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_run_api", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def posts(
    script: ModuleType, upstream: bool, shape: tuple[int, int, int], zipped: bool, clients: int
) -> dict[str, float]:
    sequences, tokens, count = shape
    if not upstream:
        count *= 3
    bodies = [json.dumps(script.make_group(sequences, tokens, seed, 0)).encode() for seed in range(4)]
    headers = {}
    if zipped:
        bodies, headers = [gzip.compress(body) for body in bodies], {"Content-Encoding": "gzip"}
    server = Server(upstream=upstream)
    try:
        server.start()
        script.register(server.port)
        script.call(server.port, "GET", "/batch")
        script.register_env(server.port, sequences)
        script.post_many(server.port, bodies, 20, clients, headers)
        cpu = server.cpu_seconds()
        seconds, latencies, errors = script.post_many(server.port, bodies, count, clients, headers)
        cpu = server.cpu_seconds() - cpu
        assert not errors, errors
        return {
            "groups_per_second": count / seconds,
            "cpu_ms_per_group": cpu / count * 1e3,
            "p50_ms": statistics.median(latencies) * 1e3,
        }
    finally:
        server.stop()


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=Path, required=True, help="the shared load script bench_run_api.py")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    script = load(arguments.script)
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        for zipped in (False, True):
            runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
            for _ in range(arguments.repeat):
                for upstream in (True, False):
                    runs[upstream].append(posts(script, upstream, shape, zipped, arguments.clients))
            theirs, ours = median(runs[True]), median(runs[False])
            rows.append(
                {
                    "shape": f"{shape[0]}x{shape[1]}",
                    "encoding": "gzip" if zipped else "plain",
                    "clients": arguments.clients,
                    "upstream": theirs,
                    "ours": ours,
                    "throughput_ratio": round(ours["groups_per_second"] / theirs["groups_per_second"], 2),
                    "cpu_ratio": round(theirs["cpu_ms_per_group"] / ours["cpu_ms_per_group"], 2),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    save("against_upstream", {"posts": rows})


if __name__ == "__main__":
    main()
