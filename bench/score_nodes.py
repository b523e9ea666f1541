"""Latency of ScoreNodes over 10,000 hosts at the client, against an echo of equal size.

Calls to the score process (`listen_scores`) and to a `grpc.aio` echo alternate: idle; judged each
second; and with ingest and a hundred watchers, of complete hosts and of GPU rows alone. Some calls
go to the aggregator's own port, to show the benefit of the process.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, cast

import grpc

from bench.judging import LIMIT_BYTES
from bench.measure import Result, percentile, pss_bytes
from bench.score_server import CHANGES, ECHO
from gangline.contract.wire import score_pb2

HOSTS = 10_000
PHASE_SECONDS = 10.0
WARM_UP_CALLS = 50
#: Rounds between calls to the aggregator's own port; odd, so that both are delayed alike.
SERVICE_EVERY = 11
#: Hosts that send all their tables beside the judged hosts; rows per second of all GPUs.
LOAD_HOSTS, LOAD_SECONDS = 150, 21
GPU_ROWS_PER_SECOND = 80_000
#: Limit of a call from a scheduler's loop.
BUDGET_SECONDS = 0.005
#: Limits of p99 relative to the echo.
IDLE_RATIO, LOADED_RATIO = 1.3, 2.0
#: Watchers, and the limit of their delay.
WATCHERS, WATCH_SECONDS, WATCH_LIMIT_SECONDS = 100, 9.0, 1.0
WATCH = "/gangline.v1.ScoreService/WatchNodeScores"
SCORE_NODES = "/gangline.v1.ScoreService/ScoreNodes"

Call = Callable[[bytes], bytes]


@dataclass
class Times:
    """Seconds of calls: to the score process, to the echo, to the aggregator's own port."""

    score_process: list[float] = field(default_factory=list[float])
    echo: list[float] = field(default_factory=list[float])
    service: list[float] = field(default_factory=list[float])


@contextmanager
def _child(module: str, *arguments: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a module of this package in its own session; yield its stdin and stdout."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"bench.{module}", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdin and child.stdout
    try:
        yield child.stdin, child.stdout
    finally:
        child.stdin.close()
        child.wait(60)
        child.stdout.close()


def _call(channel: grpc.Channel, method: str) -> Call:
    """Return a unary call of bytes: no side parses, so that only server and wire are compared."""
    return cast(Call, channel.unary_unary(method))


def _seconds(call: Call, request: bytes = b"") -> float:
    begin = time.perf_counter()
    call(request)
    return time.perf_counter() - begin


@contextmanager
def running_echo(size: int) -> Iterator[Call]:
    """Run an echo that answers with *size* bytes; yield its call."""
    with _child("score_server", "echo", "--bytes", str(size)) as (_, output):
        port = json.loads(output.readline())["port"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield _call(channel, ECHO)


class Callers:
    """A client that calls in a loop.

    Calls to the aggregator's own port may take seconds, so they run concurrently.
    """

    def __init__(self, score_process: Call, echo: Call, service: Any) -> None:
        self._score_process, self._echo, self._service = score_process, echo, service
        self._pending: Any = None
        for index in range(WARM_UP_CALLS):
            self._round(Times(), index)

    def _round(self, times: Times, at: int) -> None:
        """Call both; the order alternates, because earlier work delays the first call of a round."""
        calls = [(times.score_process, self._score_process), (times.echo, self._echo)]
        for found, call in calls[:: 1 if at % 2 == 0 else -1]:
            found.append(_seconds(call))

    def _call_service(self, times: Times) -> None:
        """Call the aggregator's own port, unless a call is pending."""
        if self._pending is None or self._pending.done():
            begin = time.perf_counter()
            self._pending = self._service.future(b"")
            self._pending.add_done_callback(
                lambda _: times.service.append(time.perf_counter() - begin)
            )

    def ask(self, seconds: float = PHASE_SECONDS) -> Times:
        """Return the times of calls during *seconds*."""
        times, end, at = Times(), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            if at % SERVICE_EVERY == 0:
                self._call_service(times)
            self._round(times, at)
            at += 1
        self._pending.result()
        return times


async def _watch(address: str, seconds: float) -> list[float]:
    """Return the age of each update at each of the watchers, in seconds."""
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
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return late


def _rows(calls: Times, what: str, limit: float) -> list[Result]:
    p50, p99 = (percentile(calls.score_process, 0.5), percentile(calls.score_process, 0.99))
    echo50, echo99 = (percentile(calls.echo, 0.5), percentile(calls.echo, 0.99))
    over, echo_over, service_over = (
        sum(moment > BUDGET_SECONDS for moment in times) / len(times)
        for times in (calls.score_process, calls.echo, calls.service)
    )
    notes = (
        f"{what}; {len(calls.score_process)} calls; target: at most {limit:g}; beyond {BUDGET_SECONDS * 1e3:g} ms "
        f"{over:.2%} of ours, {echo_over:.2%} of the echo's"
    )
    service_text = f"{what}; {len(calls.service)} calls; beyond {BUDGET_SECONDS * 1e3:g} ms {service_over:.2%}; worst {max(calls.service):.3f} s"
    peer = "echo of as many bytes"
    return [
        Result("ScoreNodes p50 at the client", p50 * 1e6, "us", peer, echo50 * 1e6, what),
        Result("ScoreNodes p99 at the client", p99 * 1e6, "us", peer, echo99 * 1e6, notes),
        Result("the same on the aggregator's own port, p99", percentile(calls.service, 0.99) * 1e6, "us", peer, echo99 * 1e6, service_text),
    ]  # fmt: skip


def _loads(address: str, seed: int) -> dict[str, tuple[str, ...]]:
    to = ("--address", address, "--seed", str(seed))
    gpu_rows, seconds = str(GPU_ROWS_PER_SECOND), str(LOAD_SECONDS)
    return {
        f"of all tables from {LOAD_HOSTS} more hosts":
            ("load.generator", *to, "--plan", f"{LOAD_HOSTS}x{LOAD_SECONDS}"),
        "of GPUs, 80 a frame":
            ("gpu_rows", *to, "--rows-per-second", gpu_rows, "--seconds", seconds),
    }  # fmt: skip


def _loaded(
    load: tuple[str, ...], callers: Callers, watched: str
) -> tuple[Times, list[float], str]:
    """Return call times during ingest, delays of changes, and rates of rows."""
    with _child(*load) as (stdin, address):
        address.readline()  # connected
        stdin.write("go\n")
        stdin.flush()
        lines = [json.loads(address.readline())]
        times = callers.ask()
        late = asyncio.run(_watch(watched, WATCH_SECONDS))
        lines += [json.loads(address.readline()) for _ in range(LOAD_SECONDS - 1)]
    sent, receipted = (
        (lines[-1][name] - lines[0][name]) / (len(lines) - 1) for name in ("rows", "receipted_rows")
    )
    return times, late, f"{sent:.0f} rows/s, {receipted:.0f} made durable,"


def _watched(late: list[float], what: str) -> Result:
    assert len(late) >= WATCHERS, len(late)  # each received a change
    return Result(
        f"a change of {CHANGES} hosts at the last of {WATCHERS} watchers, p99", percentile(late, 0.99),
        "s", "limit", WATCH_LIMIT_SECONDS, f"{what}; {len(late)} updates taken; the worst {max(late):.3f} s",
    )  # fmt: skip


def run(seed: int) -> list[Result]:
    """Return p50 and p99 of the call in each state, watchers, and memory of the process."""
    with ExitStack() as stack:
        stdin, address = stack.enter_context(
            _child("score_server", "scores", "--hosts", str(HOSTS))
        )
        result = json.loads(address.readline())
        scores, whole = (f"127.0.0.1:{result[name]}" for name in ("port", "whole"))
        score_process = _call(stack.enter_context(grpc.insecure_channel(scores)), SCORE_NODES)
        service = _call(stack.enter_context(grpc.insecure_channel(whole)), SCORE_NODES)
        answer = score_process(b"")
        assert len(score_pb2.ScoreNodesResponse.FromString(answer).node_index) == HOSTS
        echo = stack.enter_context(running_echo(len(answer)))
        callers = Callers(score_process, echo, service)
        idle = callers.ask()
        stdin.write("judge\n")
        stdin.flush()
        judged = callers.ask()
        size = f"{HOSTS} hosts, {len(answer)} bytes"
        under_load: list[Result] = []
        for load_name, load in _loads(whole, seed).items():
            loaded, late, rates = _loaded(load, callers, scores)
            what = f"{size}; judged each second; {rates} {load_name}"
            under_load += [*_rows(loaded, what, LOADED_RATIO), _watched(late, what)]
        memory = pss_bytes([result["pid"]])
    return [
        *_rows(idle, f"{size}; idle otherwise", IDLE_RATIO),
        *_rows(judged, f"{size}; judged each second", LOADED_RATIO),
        *under_load,
        Result("the score process", memory / 1e6, "MB", "limit of a whole aggregator", LIMIT_BYTES / 1e6, "PSS"),
    ]  # fmt: skip
