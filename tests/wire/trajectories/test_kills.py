"""kill -9 at random points under load: nothing acknowledged is lost, nothing is trained twice, the ledger balances.

TINKER_ATROPOS_KILLS=200 makes it the long run that benchmarks/trajectories/README.md reports.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import grpc
import pytest

pytestmark = [pytest.mark.wire, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("TINKER_ATROPOS_KILLS", "5"))


class Load:
    """Posts, leases and acknowledgements until the server dies; remembers what was acknowledged."""

    def __init__(self, server: Any, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.posted: list[int] = []
        self.trained: dict[int, list[int]] = {}
        self.covered = 0
        self.epoch = 0
        self.step = 0
        self.next = 0

    def resume(self) -> None:
        answer = self.server.take_over()
        self.epoch, self.step = answer.epoch, answer.state.step
        assert answer.state.step >= self.covered
        self.trained = {step: numbers for step, numbers in self.trained.items() if step <= answer.state.step}

    def post(self) -> None:
        while True:
            number, self.next = self.next, self.next + 1
            self.server.post("/scored_data", self.server.group(number, length=64))
            self.posted.append(number)

    def train(self) -> None:
        while True:
            batch = self.server.lease(self.epoch, self.step + 1, wait=5)
            if batch is None:
                continue
            self.trained[self.step + 1] = self.server.numbers(batch)
            if self.step > self.covered and self.rng.random() < 0.7:
                self.server.cover(self.epoch, self.step)
                self.covered = self.step
            self.server.ack(self.epoch, batch)
            self.step += 1

    def until_the_server_dies(self, seconds: float) -> None:
        def guarded(work: Any) -> None:
            try:
                work()
            except (OSError, grpc.RpcError, AssertionError, ValueError):
                if self.server.process.poll() is None and not self.dying.is_set():
                    raise

        self.dying = threading.Event()
        threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in (self.post, self.train)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self.dying.set()
        self.server.kill()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["embedded", "redis"])
def test_killed_at_random_points_nothing_is_lost_and_nothing_is_trained_twice(
    kind: str, request: pytest.FixtureRequest, make_process_server: Any
) -> None:
    server = make_process_server(
        store="" if kind == "embedded" else request.getfixturevalue("redis_server").url, compact_mb=0.02
    )
    load = Load(server, seed=3)
    for _ in range(KILLS):
        load.resume()
        load.until_the_server_dies(0.2 + load.rng.random() * 0.8)
        server.start()
    load.resume()
    sums = server.get("/status")["ledger"]
    # One post was under way at each kill: it may be stored although it was never acknowledged.
    assert len(load.posted) <= sums["stored"] <= len(load.posted) + KILLS
    assert sums["stored"] == sums["queued"] + sums["leased"] + sums["trained"] + sums["dropped"]
    while (batch := server.lease(load.epoch, load.step + 1)) is not None:
        load.step += 1
        load.trained[load.step] = server.numbers(batch)
        server.ack(load.epoch, batch)
    server.cover(load.epoch, load.step)
    trained = [number for step in sorted(load.trained) for number in load.trained[step]]
    assert len(trained) == len(set(trained)), "trained twice"
    left = server.get("/status")["ledger"]["queued"]
    assert left < 4
    waiting = set(load.posted) - set(trained)
    assert len(waiting) <= left, "lost"
    assert {entry["state"] for entry in server.ledger()} <= {"covered", "queued"}
