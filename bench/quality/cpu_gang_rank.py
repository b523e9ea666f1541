"""One rank of the gang of `cpu_gang.py`. Exits with its parent.

    python -m bench.quality.cpu_gang_rank JSON

A step: wait, do a fixed count of matrix products, wait, and meet the others at a barrier over
sockets, which rank 0 runs. The log has a line per step: start of computing (monotonic), its
duration, and its use of a core.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

#: One unit of work: this product of matrices, about 1 ms of a core.
SIZE = 160
CONNECT_SECONDS = 60.0


@dataclass(frozen=True)
class RankPlan:
    """The work of a rank. `wait_seconds`: before it computes, and after."""

    rank: int
    ranks: int
    port: int
    core: int
    units: int
    wait_seconds: tuple[float, float]
    log: str
    work: str


def unit_of_work() -> Callable[[], object]:
    """Return a function that does a unit of work. numpy reads its thread limit when loaded."""
    import numpy as np

    source = np.random.default_rng(0)
    left, right = source.random((SIZE, SIZE)), source.random((SIZE, SIZE))
    product = np.empty((SIZE, SIZE))
    return lambda: np.matmul(left, right, out=product)


def unit_seconds(trials: int = 200) -> float:
    """Return the median CPU seconds of one unit on this machine."""
    unit, result = unit_of_work(), []
    for _ in range(trials):
        began = time.thread_time()
        unit()
        result.append(time.thread_time() - began)
    return sorted(result)[trials // 2]


@contextmanager
def barrier(plan: RankPlan) -> Iterator[Callable[[], None]]:
    """Yield a function that waits for all ranks; it raises ConnectionError if a rank has ended."""
    with ExitStack() as left:
        if plan.rank == 0:
            server = left.enter_context(socket.create_server(("127.0.0.1", plan.port)))
            server.settimeout(CONNECT_SECONDS)
            peers = [server.accept()[0] for _ in range(plan.ranks - 1)]
        else:
            peers = [_connected(plan.port)]
        for peer in peers:
            left.enter_context(peer)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(CONNECT_SECONDS)

        def receive() -> None:
            for peer in peers:
                if not peer.recv(1):
                    raise ConnectionError

        def send() -> None:
            for peer in peers:
                peer.sendall(b".")

        first, second = (receive, send) if plan.rank == 0 else (send, receive)

        def meet() -> None:
            first()
            second()

        yield meet


def _connected(port: int) -> socket.socket:
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def run(plan: RankPlan) -> None:
    """Step until the parent or another rank ends."""
    parent = os.getppid()
    os.sched_setaffinity(0, {plan.core})
    unit, done = unit_of_work(), 0
    with ExitStack() as left:
        file = left.enter_context(open(plan.work, "r+b"))
        counter = left.enter_context(mmap.mmap(file.fileno(), 8))
        log = left.enter_context(open(plan.log, "w", buffering=1))
        meet = left.enter_context(barrier(plan))
        while os.getppid() == parent:
            time.sleep(plan.wait_seconds[0])
            began, began_core = time.monotonic(), time.thread_time()
            for _ in range(plan.units):
                unit()
                done += 1
                struct.pack_into("Q", counter, 0, done)
            seconds, core = time.monotonic() - began, time.thread_time() - began_core
            log.write(f"{began:.6f} {seconds:.6f} {core:.6f}\n")
            time.sleep(plan.wait_seconds[1])
            meet()


def compete(core: int) -> None:
    """Use the core until the parent ends."""
    parent = os.getppid()
    os.sched_setaffinity(0, {core})
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


def main(text: str) -> None:
    """Run a rank (its plan), or the competitor on a core (a number)."""
    plan_or_core = json.loads(text)
    if isinstance(plan_or_core, int):
        compete(plan_or_core)
        return
    try:
        run(RankPlan(**plan_or_core))
    except (ConnectionError, TimeoutError):
        sys.exit(
            f"rank {plan_or_core['rank']}: another is gone; see {Path(plan_or_core['log']).parent}"
        )


if __name__ == "__main__":
    main(sys.argv[1])
