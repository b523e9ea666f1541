"""Latency of the scheduler extender against an echo of equal size."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path

from bench.measure import Result, percentile
from tests.executors.serving_extender import mirror_node, write_mirror
from tests.processes import GUARD_SECONDS, free_port

NODES = 5000
#: Nodes in one request: a scheduler of 5,000 nodes considers a tenth of them.
SHOWN = 500
ROUNDS, REQUESTS = 5, 1000


def run(seed: int) -> list[Result]:
    """Measure the answers. *seed* is ignored."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        mirror = Path(folder, "mirror", "nodes")
        mirror.parent.mkdir()
        with fresh_mirror(mirror), extender_process(mirror) as port:
            return [answers(port, path) for path in ("filter", "prioritize")]


@contextmanager
def fresh_mirror(path: Path) -> Iterator[None]:
    """Rewrite a mirror every 3 s, as `gangline mirror` does: reading it is measured, too."""
    result = [
        mirror_node(f"n{index}", index % 4, ready=index % 100 != 7) for index in range(1, NODES + 1)
    ]
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            write_mirror(path, result)
            ended.wait(3.0)

    write_mirror(path, result)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def extender_process(mirror: Path) -> Iterator[int]:
    """Run the extender as in production; yield its port."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("gangline")), "executor", "kubernetes", "extender",
               "--set", f"extender_listen=127.0.0.1:{port}", "--set", f"extender_mirror={mirror}"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + GUARD_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            assert time.monotonic() < end and process.poll() is None, "the extender does not answer"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(GUARD_SECONDS)


class Echo(asyncio.Protocol):
    """Answers each *taken* bytes with *given* bytes."""

    def __init__(self, taken: int, given: int) -> None:
        self._taken, self._given, self._waiting = taken, b"x" * given, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting += len(data)
        while self._waiting >= self._taken:
            self._waiting -= self._taken
            self._transport.write(self._given)


def _echo(taken: int, given: int, port: int, ready: ProcessEvent) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: Echo(taken, given), "127.0.0.1", port)
        ready.set()
        await asyncio.sleep(3600)

    asyncio.run(serve())


def answers(port: int, verb: str) -> Result:
    """Compare the p99 of an answer with the p99 of the echo, alternating."""
    names = [f"n{10 * index + 1}" for index in range(SHOWN)]
    pod = {"metadata": {"name": "train-0", "namespace": "ml"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}  # fmt: skip
    body = json.dumps(
        {"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")
    ).encode()  # as Go writes it
    path = f"/extender/v1/{verb}"
    request = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), GUARD_SECONDS) as ours:
        size = _first_size(ours, request)
        context = multiprocessing.get_context("spawn")
        ready, echo_port = context.Event(), free_port()
        process = context.Process(target=_echo, args=(len(request), size, echo_port, ready), daemon=True)  # fmt: skip
        process.start()
        assert ready.wait(GUARD_SECONDS)
        with socket.create_connection(("127.0.0.1", echo_port), GUARD_SECONDS) as echo:
            echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rounds = [_round(ours, echo, request, size) for _ in range(ROUNDS)]
        process.terminate()
        process.join(GUARD_SECONDS)
    p99 = sorted(
        ((percentile(one, 0.99), percentile(two, 0.99)) for one, two in rounds), key=lambda pair: pair[0] / pair[1]
    )  # fmt: skip
    value, floor = p99[ROUNDS // 2]
    middle = statistics.median(percentile(one, 0.5) / percentile(two, 0.5) for one, two in rounds)
    notes = (
        f"{ROUNDS} rounds of {REQUESTS} requests, by turns with the echo: ratio of p99 {p99[0][0] / p99[0][1]:.2f} to {p99[-1][0] / p99[-1][1]:.2f}, "
        f"of medians {middle:.2f}"
    )
    return Result(f"extender, {verb} of {SHOWN} names, p99", 1e6 * value, "µs", f"an echo of as many bytes ({size})", 1e6 * floor, notes)  # fmt: skip


def _first_size(plain: socket.socket, request: bytes) -> int:
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.sendall(request)
    answer = bytearray()
    while b"\r\n\r\n" not in answer:
        answer += plain.recv(1 << 16)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head, head
    length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += plain.recv(1 << 16)
    return len(head) + 4 + length


def _round(ours: socket.socket, echo: socket.socket, request: bytes, size: int) -> tuple[list[float], list[float]]:  # fmt: skip
    """Return the seconds of REQUESTS answers of both, alternating: other load affects both equally."""
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(REQUESTS):
        for plain, durations in zip((ours, echo), seconds, strict=True):
            begin, left = time.perf_counter(), size
            plain.sendall(request)
            while left:
                left -= len(plain.recv(1 << 17))
            durations.append(time.perf_counter() - begin)
    return seconds
