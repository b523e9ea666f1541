"""ScoreNodes over 10,000 hosts, timed at the client, against an echo that returns as many bytes.

Both servers are `grpc.aio` in a process of their own; calls alternate, so that both meet the same machine.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc

from gangline.fingerprints.wire import score_pb2

from .measure import Result, percentile
from .score_server import CHANGES, ECHO

HOSTS = 10_000
CALLS = 1_000
WARM_UP_CALLS = 50
#: Who watch, for how long, and how late a change may be.
WATCHERS, WATCH_SECONDS, WATCH_LIMIT_SECONDS = 100, 12.0, 1.0
WATCH = "/gangline.v1.ScoreService/WatchNodeScores"
SCORE_NODES = "/gangline.v1.ScoreService/ScoreNodes"


@contextmanager
def _server(*arguments: str) -> Iterator[tuple[grpc.Channel, str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.score_server", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin and child.stdout
    try:
        port = int(child.stdout.readline())
        address = f"127.0.0.1:{port}"
        with grpc.insecure_channel(address) as channel:
            yield channel, address
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


async def _watch(address: str) -> list[float]:
    """Return how old each update was at each of the watchers, in seconds."""
    late: list[float] = []

    async def one(channel: grpc.aio.Channel) -> None:
        method: Any = channel.unary_stream(
            WATCH, response_deserializer=score_pb2.NodeScoresUpdate.FromString
        )
        async for update in method(b""):
            if not update.snapshot and update.node_index:
                late.append(time.time() - update.compute_time.ToNanoseconds() / 1e9)

    async with grpc.aio.insecure_channel(address) as channel:
        tasks = [asyncio.create_task(one(channel)) for _ in range(WATCHERS)]
        await asyncio.wait(tasks, timeout=WATCH_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return late


def _watched() -> Result:
    with _server("score", "--hosts", str(HOSTS), "--changing") as (_, address):
        late = asyncio.run(_watch(address))
    assert len(late) >= WATCHERS * (WATCH_SECONDS - 3), len(late)
    return Result(
        f"a change of {CHANGES} hosts at the last of {WATCHERS} watchers, p99", percentile(late, 0.99),
        "s", "limit", WATCH_LIMIT_SECONDS, f"{HOSTS} hosts, {len(late)} updates taken; the worst {max(late):.3f} s",
    )  # fmt: skip


def run(seed: int) -> list[Result]:
    """Return p50 and p99 of the call, both servers idle otherwise. *seed* changes nothing here."""
    with _server("score", "--hosts", str(HOSTS)) as (channel, _):
        ours = _call(channel, SCORE_NODES)
        answer = score_pb2.ScoreNodesResponse.FromString(ours(b""))
        assert len(answer.node_index) == HOSTS
        size = len(ours(b""))
        with _server("echo", "--bytes", str(size)) as (other, _):
            echo = _call(other, ECHO)
            times: tuple[list[float], list[float]] = ([], [])
            for at in range(CALLS + WARM_UP_CALLS):
                pair = _seconds(lambda: ours(b"")), _seconds(lambda: echo(b""))
                if at >= WARM_UP_CALLS:
                    times[0].append(pair[0])
                    times[1].append(pair[1])
    notes = f"{HOSTS} hosts, {size} bytes, {CALLS} calls each, alternating; server otherwise idle"
    calls = [
        Result(
            f"ScoreNodes p{share * 100:.0f} at the client", percentile(times[0], share) * 1e6, "us",
            "echo of as many bytes", percentile(times[1], share) * 1e6, notes,
        )
        for share in (0.5, 0.99)
    ]  # fmt: skip
    return [*calls, _watched()]
