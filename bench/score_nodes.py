"""ScoreNodes over 10,000 hosts, timed at the client, against an echo that returns as many bytes.

Both servers are `grpc.aio` in a process of their own; calls alternate, so that both meet the same machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import grpc

from gangline.fingerprints.wire import score_pb2

from .measure import Result, percentile
from .score_server import ECHO

HOSTS = 10_000
CALLS = 1_000
WARM_UP_CALLS = 50
SCORE_NODES = "/gangline.v1.ScoreService/ScoreNodes"


@contextmanager
def _server(*arguments: str) -> Iterator[grpc.Channel]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.score_server", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin and child.stdout
    try:
        port = int(child.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        child.stdin.close()
        child.wait(30)
        child.stdout.close()


def _call(channel: grpc.Channel, method: str) -> Callable[[bytes], bytes]:
    """A unary call of bytes: what is compared is server and wire, so that neither side parses."""
    return cast(Callable[[bytes], bytes], channel.unary_unary(method))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def run(seed: int) -> list[Result]:
    """Return p50 and p99 of the call, both servers idle otherwise. *seed* changes nothing here."""
    with _server("score", "--hosts", str(HOSTS)) as channel:
        ours = _call(channel, SCORE_NODES)
        answer = score_pb2.ScoreNodesResponse.FromString(ours(b""))
        assert len(answer.node_index) == HOSTS
        size = len(ours(b""))
        with _server("echo", "--bytes", str(size)) as other:
            echo = _call(other, ECHO)
            times: tuple[list[float], list[float]] = ([], [])
            for at in range(CALLS + WARM_UP_CALLS):
                pair = _seconds(lambda: ours(b"")), _seconds(lambda: echo(b""))
                if at >= WARM_UP_CALLS:
                    times[0].append(pair[0])
                    times[1].append(pair[1])
    notes = f"{HOSTS} hosts, {size} bytes, {CALLS} calls each, alternating; server otherwise idle"
    return [
        Result(
            f"ScoreNodes p{share * 100:.0f} at the client", percentile(times[0], share) * 1e6, "us",
            "echo of as many bytes", percentile(times[1], share) * 1e6, notes,
        )
        for share in (0.5, 0.99)
    ]  # fmt: skip
