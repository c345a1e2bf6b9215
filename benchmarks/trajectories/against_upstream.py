"""Durable posts: this server beside upstream's run-api in the same run, alternating, each on one core.

    python benchmarks/trajectories/against_upstream.py

The server is bound to one core and the client to another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any

import client
from servers import Server, save

SHAPES = ((8, 512, 1000), (16, 2048, 120))
REGISTER = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 128,
    "max_token_len": 4096,
    "checkpoint_dir": "checkpoints",
    "save_checkpoint_interval": 0,
    "starting_step": 0,
    "num_steps": 100_000,
}


def posts(upstream: bool, made: list[bytes], count: int, clients: int) -> dict[str, float]:
    if not upstream:
        count *= 4
    server = Server(upstream=upstream, core=0)
    try:
        server.start()
        server.call("POST", "/register", REGISTER)
        server.call("GET", "/batch")
        fields = {"max_token_length": 2048, "desired_name": "bench", "weight": 1.0, "group_size": 16}
        server.call("POST", "/register-env", fields)
        client.post(server.port, made, 30, clients)
        cpu = server.cpu_seconds()
        seconds, latencies = client.post(server.port, made, count, clients)
        cpu = server.cpu_seconds() - cpu
        return {
            "groups_per_second": count / seconds,
            "cpu_ms_per_group": cpu / count * 1e3,
            "p50_ms": statistics.median(latencies) * 1e3,
            "p99_ms": sorted(latencies)[int(len(latencies) * 0.99)] * 1e3,
        }
    finally:
        server.stop()


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1})
    rows: list[dict[str, Any]] = []
    for sequences, length, count in SHAPES:
        for zipped in (False, True):
            made = client.requests(sequences, length, zipped)
            runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
            for _ in range(arguments.repeat):
                for upstream in (True, False):
                    runs[upstream].append(posts(upstream, made, count, arguments.clients))
            theirs, ours = median(runs[True]), median(runs[False])
            ratios = [
                ours_run["groups_per_second"] / theirs_run["groups_per_second"]
                for theirs_run, ours_run in zip(runs[True], runs[False], strict=True)
            ]
            rows.append(
                {
                    "shape": f"{sequences}x{length}",
                    "encoding": "gzip" if zipped else "plain",
                    "clients": arguments.clients,
                    "upstream": theirs,
                    "ours": ours,
                    "throughput_ratio": round(statistics.median(ratios), 2),
                    "throughput_ratios": [round(ratio, 2) for ratio in ratios],
                    "cpu_ratio": round(theirs["cpu_ms_per_group"] / ours["cpu_ms_per_group"], 2),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    save("against_upstream", {"posts": rows})


if __name__ == "__main__":
    main()
