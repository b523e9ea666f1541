"""Time from a kernel log line to the host's local verdict, and to a proposed advisory.

A real agent reads a FIFO as /dev/kmsg, a real aggregator judges, and a watcher receives the advice.
Each round starts new processes, because only one host of the fleet may be out at a time. The line
is written at a random moment within the second.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.load.aggregator import Running, aggregator
from bench.measure import Result, percentile
from gangline.contract.wire import advisory_pb2, advisory_pb2_grpc
from tests.hosts import unpack
from tests.processes import Process

ROUNDS, ECHOES = 20, 20
LIMIT_SECONDS = 0.5
ROUND_SECONDS_MAX = 60.0
#: By then a new store has written the first rows of each table, and the host was judged.
WARM_SECONDS = 3.0
POLL_SECONDS = 0.001
NAME = "bench-host"
LINE = (
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
CODE = "xid79"


class RoundSeconds(NamedTuple):
    """Seconds from the line to the host's status and to the watcher.

    *echo*: seconds of an empty call by the watcher.
    """

    status: float
    proposed: float
    echo: float


class AdviceWatch:
    """Receives advice in a thread of its own, and records when the first proposal came."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self.stub: Any = advisory_pb2_grpc.AdvisoryServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self.ready, self.proposed = threading.Event(), threading.Event()
        self.proposed_at = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            for event in self.stub.WatchAdvisories(advisory_pb2.WatchAdvisoriesRequest()):
                if event.WhichOneof("kind") == "advisory" and not self.proposed.is_set():
                    self.proposed_at = time.perf_counter()
                    self.proposed.set()
                self.ready.set()
        except grpc.RpcError:
            return  # the channel was closed

    def echo_seconds(self) -> float:
        """Return the seconds of an empty call on the same connection."""
        begin = time.perf_counter()
        self.stub.ListAdvisories(advisory_pb2.ListAdvisoriesRequest(page_size=1))
        return time.perf_counter() - begin

    def close(self) -> None:
        self._channel.close()
        self._thread.join()


def wait_for(condition: Callable[[], object], what: str) -> float:
    end = time.perf_counter() + ROUND_SECONDS_MAX
    while not condition():
        if time.perf_counter() > end:
            raise TimeoutError(f"after {ROUND_SECONDS_MAX:g} s still not: {what}")
        time.sleep(POLL_SECONDS)
    return time.perf_counter()


def text_of(path: Path) -> str:
    """Return the content of a file; "" if it does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""


def agent_process(
    folder: Path, running: Running, dev: Path, sys_root: Path, proc_root: Path, name: str = NAME
) -> Process:
    """Start an agent of host *name* that reads the kernel log of *dev*."""
    folders = {name: folder / name for name in ("spool", "events", "state", "run")}
    settings = [
        f"host={name}", f"dev_root={dev}", f"sys_root={sys_root}", f"proc_root={proc_root}",
        "spool_head_folder=", "nvml_library=none", *(f"{name}_folder={path}" for name, path in folders.items()),
    ]  # fmt: skip
    options = [word for setting in settings for word in ("--set", setting)]
    return Process(["agent", "--aggregator", running.address, *options], folder / "agent.log")


def _round(folder: Path, wait_seconds: float) -> RoundSeconds:
    host = unpack("h100-ib", folder / "host")
    dev = folder / "dev"
    dev.mkdir()
    os.mkfifo(dev / "kmsg")
    log = os.open(dev / "kmsg", os.O_RDWR)  # held open: else the agent reads end of file
    status = folder / "run" / "status.json"
    try:
        with aggregator(folder / "aggregator") as running:
            watch = AdviceWatch(running.address)
            with agent_process(folder, running, dev, host.roots.sys, host.roots.proc):
                wait_for(lambda: '"connected": true' in text_of(status), "the agent is connected")
                wait_for(watch.ready.is_set, "the watcher has what stands")
                time.sleep(WARM_SECONDS + wait_seconds)
                echo = sorted(watch.echo_seconds() for _ in range(ECHOES))[ECHOES // 2]
                stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
                begin = time.perf_counter()
                os.write(log, f"3,1,{stamp},-;{LINE}\n".encode())
                known_at = wait_for(lambda: CODE in text_of(status), "the status names the code")
                if not watch.proposed.wait(ROUND_SECONDS_MAX):
                    raise TimeoutError("nothing was proposed")
                watch.close()
        return RoundSeconds(known_at - begin, watch.proposed_at - begin, echo)
    finally:
        os.close(log)


def _p95(values: list[float]) -> float:
    """Return the nearest rank: the 19th of 20 values. The notes contain the maximum."""
    return sorted(values)[ceil(0.95 * len(values)) - 1]


def run(seed: int) -> list[Result]:
    """Measure ROUNDS lines, each at another moment of the second (*seed*)."""
    moments = random.Random(seed)
    rounds: list[RoundSeconds] = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(_round(Path(folder), moments.random()))
        print(f"  {number + 1} of {ROUNDS}: {rounds[-1]}", file=sys.stderr, flush=True)
    echo = percentile([timing.echo for timing in rounds], 0.5)
    proposed = [timing.proposed for timing in rounds]
    status = [timing.status for timing in rounds]
    notes = f"XID 79, {ROUNDS} rounds of a new agent and aggregator, the line at any moment of the second"
    worst = f"the worst {max(proposed):.3f} s; an empty call on the watcher's connection {1000 * echo:.1f} ms"
    return [
        Result("kernel's line to the host's own status, p50", percentile(status, 0.5), "s", "limit",
               LIMIT_SECONDS, notes),
        Result("kernel's line to the host's own status, p95", _p95(status), "s", "limit",
               LIMIT_SECONDS, f"the worst {max(status):.3f} s"),
        Result("kernel's line to PROPOSED, p50", percentile(proposed, 0.5), "s", "limit", LIMIT_SECONDS, notes),
        Result("kernel's line to PROPOSED, p95", _p95(proposed), "s", "limit", LIMIT_SECONDS, worst),
        Result("kernel's line to PROPOSED, p50", percentile(proposed, 0.5), "s",
               "empty call on the same connection", echo, "two fsyncs, a judgement of the fleet and a commit in it"),
    ]  # fmt: skip
