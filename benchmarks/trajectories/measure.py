"""What the server reaches beside posts: deliveries, gRPC posts, /status-env, connections, memory, restart.

python benchmarks/trajectories/measure.py [deliveries posts status connections memory restart]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from servers import Server, save

from tinker_atropos.protocol import trajectories_pb2 as pb


def group(sequences: int, length: int, seed: int = 0) -> pb.Group:
    rng = np.random.default_rng(seed)
    mask = bytes([0] * (length // 4) + [1] * (length - length // 4))
    made = pb.Group()
    for _ in range(sequences):
        made.sequences.add(
            tokens=rng.integers(0, 128_000, length, np.int32).tobytes(),
            loss_mask=mask,
            logprobs=(-rng.random(length, np.float32)).tobytes(),
            score=1.0,
        )
    return made


def fill(server: Server, count: int, sequences: int, length: int) -> float:
    """Post groups over gRPC as fast as it goes; seconds."""
    groups = [group(sequences, length, seed) for seed in range(8)]
    started = time.monotonic()
    requests = (pb.PostRequest(number=number, group=groups[number % 8], environment="e") for number in range(count))
    for answer in server.rpc.Post(requests):
        assert not answer.error, answer.error
    return time.monotonic() - started


class Probe:
    """Asks for /info every few milliseconds; how long was it blocked at most?"""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ending = threading.Event()
        self.seconds: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self._server.port)
        while not self._ending.is_set():
            started = time.perf_counter()
            connection.request("GET", "/info")
            connection.getresponse().read()
            self.seconds.append(time.perf_counter() - started)
            time.sleep(0.003)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def summary(self) -> dict[str, float]:
        ordered = sorted(self.seconds)
        return {
            "blocked_max_ms": round(ordered[-1] * 1e3, 1),
            "blocked_p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 1),
        }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return (time.perf_counter() - started) * 1e3, result


def deliveries() -> dict[str, Any]:
    """A batch of 512 sequences of 2,048 tokens while 10,000 groups are queued."""
    result: dict[str, Any] = {}
    server = Server()
    try:
        server.start()
        epoch = server.take_over(512)
        fill(server, 100, 16, 2048)  # what the batches take, first in first out
        fill(server, 9_900, 8, 64)
        with Probe(server) as probe:
            time.sleep(0.3)
            lease = pb.LeaseRequest(epoch=epoch, for_step=1)
            first, batch = timed(lambda: server.rpc.Lease(lease).batch)
            again, _ = timed(lambda: server.rpc.Lease(lease))
            time.sleep(0.3)
        tokens = sum(len(sequence.tokens) // 4 for item in batch.groups for sequence in item.sequences)
        result["lease"] = {
            "first_ms": round(first, 1),
            "again_ms": round(again, 1),
            "tokens": tokens,
            **probe.summary(),
        }
        register = {
            "wandb_group": "",
            "wandb_project": "",
            "batch_size": 512,
            "max_token_len": 4096,
            "checkpoint_dir": "",
        }
        server.call(
            "POST", "/register", {**register, "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": 9}
        )
        with Probe(server) as probe:
            milliseconds, text = timed(lambda: server.read("/batch"))
        sequences = sum(len(item["tokens"]) for item in json.loads(text)["batch"])
        size = round(len(text) / 1e6, 1)
        result["batch_json"] = {"ms": round(milliseconds, 1), "sequences": sequences, "mb": size, **probe.summary()}
    finally:
        server.stop()
    return result


def posts() -> dict[str, Any]:
    """Durable posts over gRPC, 8 sequences of 1,000 tokens with logprobs."""
    server = Server()
    try:
        server.start()
        server.take_over(10_000_000)
        fill(server, 300, 8, 1000)
        count = 3_000
        cpu = server.cpu_seconds()
        seconds = fill(server, count, 8, 1000)
        cpu = server.cpu_seconds() - cpu
        rate = count / seconds
        latencies = _paced_posts(server, rate / 2, 4.0)
        return {
            "groups_per_second": round(rate),
            "server_cpu_ms_per_group": round(cpu / count * 1e3, 3),
            "groups_per_second_per_core": round(count / cpu),
            "at_half_load_p50_ms": round(statistics.median(latencies) * 1e3, 2),
            "at_half_load_p99_ms": round(sorted(latencies)[int(len(latencies) * 0.99)] * 1e3, 2),
        }
    finally:
        server.stop()


def _paced_posts(server: Server, rate: float, seconds: float) -> list[float]:
    """Posts at a steady rate; seconds until each acknowledgement."""
    made, sent, latencies = group(8, 1000), {}, []

    def requests() -> Iterator[pb.PostRequest]:
        start = time.perf_counter()
        for number in range(int(rate * seconds)):
            wait = start + number / rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sent[number] = time.perf_counter()
            yield pb.PostRequest(number=number, group=made, environment="e")

    for answer in server.rpc.Post(requests()):
        latencies.append(time.perf_counter() - sent[answer.number])
    return latencies


async def _polls(port: int, connections: int, seconds: float, pause: float) -> tuple[int, float, int]:
    """Answers of /status-env, seconds, and failed connections, with so many clients that pause between their calls."""
    body = b'{"env_id":0}'
    request = b"GET /status-env HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answers = failed = 0
    ending = time.monotonic() + seconds

    async def client() -> None:
        nonlocal answers, failed
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(random.random() * pause)
            while time.monotonic() < ending:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                await reader.readexactly(length)
                answers += 1
                if pause:
                    await asyncio.sleep(pause)
            writer.close()
        except OSError:
            failed += 1

    started = time.monotonic()
    await asyncio.gather(*(client() for _ in range(connections)))
    return answers, time.monotonic() - started, failed


def status() -> dict[str, Any]:
    """/status-env at growing queues."""
    import uvloop

    rows = []
    for queued in (0, 100, 1_000, 10_000):
        server = Server()
        try:
            server.start()
            server.take_over(100_000_000)
            fill(server, queued, 8, 16)
            cpu = server.cpu_seconds()
            answers, seconds, _ = uvloop.run(_polls(server.port, 16, 3.0, 0.0))
            cpu = server.cpu_seconds() - cpu
            rows.append(
                {
                    "queued_groups": queued,
                    "per_second": round(answers / seconds),
                    "server_cpu_us": round(cpu / answers * 1e6),
                    "per_second_per_core": round(answers / cpu),
                }
            )
        finally:
            server.stop()
    return {"status_env": rows}


def connections() -> dict[str, Any]:
    """Environments that poll as upstream's do, every 0.11 s: how many are answered?"""
    import resource

    import uvloop

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    rows = []
    for count in (100, 1_000, 5_000):
        server = Server()
        try:
            server.start()
            server.take_over(16)
            memory, cpu = server.resident_bytes(), server.cpu_seconds()
            answers, seconds, failed = uvloop.run(_polls(server.port, count, 5.0, 0.11))
            cpu = server.cpu_seconds() - cpu
            rows.append(
                {
                    "environments": count,
                    "failed": failed,
                    "wanted_per_second": round(count / 0.11),
                    "answered_per_second": round(answers / seconds),
                    "server_cores": round(cpu / seconds, 2),
                    "kb_per_connection": round((server.resident_bytes() - memory) / count / 1024, 1),
                }
            )
        finally:
            server.stop()
    return {"connections": rows}


def memory() -> dict[str, Any]:
    """Resident memory for each queued token; the tokens are on disk."""
    rows = []
    for sequences, length, count in ((16, 2048, 2_000), (8, 512, 10_000)):
        server = Server()
        try:
            server.start()
            server.take_over(100_000_000)
            fill(server, 50, sequences, length)
            before = server.resident_bytes()
            fill(server, count, sequences, length)
            grown = server.resident_bytes() - before
            tokens = count * sequences * length
            rows.append(
                {
                    "shape": f"{sequences}x{length}",
                    "groups": count,
                    "bytes_per_token": round(grown / tokens, 3),
                    "kb_per_group": round(grown / count / 1024, 2),
                }
            )
        finally:
            server.stop()
    return {"memory": rows}


def forget_cached(folder: Path) -> None:
    """As after a reboot: nothing of these files is in the page cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def restart() -> dict[str, Any]:
    """kill -9 with 10,000 groups stored; seconds to the first answer."""
    server = Server()
    try:
        server.start()
        server.take_over(100_000_000)
        fill(server, 10_000, 8, 512)
        times, cold = [], []
        for _ in range(5):
            server.kill()
            times.append(server.start())
        for _ in range(5):
            server.kill()
            forget_cached(Path(server.store))
            cold.append(server.start())
        assert server.call("GET", "/status")["ledger"]["queued"] == 10_000
        return {
            "restart_seconds": [round(value, 2) for value in times],
            "nothing_of_the_store_in_memory": [round(value, 2) for value in cold],
            "groups": 10_000,
        }
    finally:
        server.stop()


MEASUREMENTS = {
    "deliveries": deliveries,
    "posts": posts,
    "status": status,
    "connections": connections,
    "memory": memory,
    "restart": restart,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MEASUREMENTS), help=", ".join(MEASUREMENTS))
    for name in parser.parse_args().names:
        result = MEASUREMENTS[name]()
        print(name, json.dumps(result), flush=True)
        save(name, result)


if __name__ == "__main__":
    main()
