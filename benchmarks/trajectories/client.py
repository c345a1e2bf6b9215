"""A client that costs little: requests made beforehand, sent over raw sockets from one thread.

A client that makes its requests with a library takes longer for each than the server does.
"""

from __future__ import annotations

import gzip
import json
import random
import select
import socket
import time
from dataclasses import dataclass, field
from typing import Any

HEAD = b"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def group(sequences: int, length: int, seed: int) -> dict[str, Any]:
    """A group as an Atropos environment posts it: the first quarter is the prompt, logprobs are doubles."""
    rng = random.Random(seed)
    prompt = length // 4
    tokens = [[rng.randrange(128_000) for _ in range(length)] for _ in range(sequences)]
    return {
        "tokens": tokens,
        "masks": [[-100] * prompt + row[prompt:] for row in tokens],
        "scores": [float(rng.randrange(2)) for _ in range(sequences)],
        "env_id": 0,
        "inference_logprobs": [
            [1.0] * prompt + [-rng.random() * 3 for _ in range(length - prompt)] for _ in range(sequences)
        ],
    }


def requests(sequences: int, length: int, zipped: bool) -> list[bytes]:
    made = []
    for seed in range(4):
        body = json.dumps(group(sequences, length, seed)).encode()
        if zipped:
            body = gzip.compress(body)
        encoding = b"Content-Encoding: gzip\r\n" if zipped else b""
        made.append(HEAD + encoding + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return made


@dataclass
class _Connection:
    socket: socket.socket
    rest: memoryview = field(default_factory=lambda: memoryview(b""))
    answer: bytes = b""
    started: float = 0.0


def post(port: int, made: list[bytes], count: int, clients: int) -> tuple[float, list[float]]:
    """So many posts over so many connections, each with one under way: seconds in all, and for each."""
    poll = select.epoll()
    connections: dict[int, _Connection] = {}
    seconds: list[float] = []
    sent = 0

    def start(connection: _Connection) -> None:
        nonlocal sent
        connection.rest, connection.answer = memoryview(made[sent % len(made)]), b""
        connection.started = time.perf_counter()
        sent += 1
        push(connection)

    def push(connection: _Connection) -> None:
        wanted = select.EPOLLIN
        try:
            while connection.rest:
                connection.rest = connection.rest[connection.socket.send(connection.rest) :]
        except BlockingIOError:
            wanted = select.EPOLLOUT
        poll.modify(connection.socket, wanted)

    for _ in range(clients):
        connection = _Connection(socket.create_connection(("127.0.0.1", port)))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        connection.socket.setblocking(False)
        connections[connection.socket.fileno()] = connection
        poll.register(connection.socket, select.EPOLLIN)
    began = time.perf_counter()
    for connection in connections.values():
        start(connection)
    while len(seconds) < count:
        for number, event in poll.poll():
            connection = connections[number]
            if event & select.EPOLLOUT:
                push(connection)
                continue
            connection.answer += connection.socket.recv(65536)
            head, end, body = connection.answer.partition(b"\r\n\r\n")
            if not end or len(body) < int(head.lower().partition(b"content-length:")[2].split()[0]):
                continue
            assert head.startswith(b"HTTP/1.1 200 "), connection.answer
            seconds.append(time.perf_counter() - connection.started)
            if sent < count:
                start(connection)
    total = time.perf_counter() - began
    for connection in connections.values():
        connection.socket.close()
    return total, seconds
