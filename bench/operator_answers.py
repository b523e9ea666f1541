"""Latency of `hosts`, `explain`, `job` and `advise` at the client, for 32 and 1,000 hosts.

All hosts run one job; the aggregator is idle, or judges each second. Peer: an echo of equal size by
the same server library. The time of a call includes decoding, but not the start of Python (about
half a second).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench import score_server
from bench.measure import Result, percentile
from bench.score_nodes import _child, running_echo
from gangline.aggregator.commands.job_client import JobClient
from gangline.aggregator.runs.accumulator import ActiveRun
from gangline.aggregator.runs.job_pace import WINDOWS_MAX, PaceTracker, PaceWindow
from gangline.aggregator.runs.job_windows import WINDOW_NS, HostWindow, JobRecord
from gangline.contract.client.connection import ConnectionOptions
from gangline.contract.client.score_client import ScoreClient
from gangline.contract.wire import advisory_pb2
from gangline.contract.wire.advisory_pb2_grpc import AdvisoryServiceStub

JOB = "bench"
SIZES = (32, 1000)
#: Limit of a call, by fleet size.
BUDGET_SECONDS = {32: 0.2, 1000: 1.0}
CALLS = 15


def _job(hosts: tuple[str, ...]) -> JobRecord:
    """Return a job of all hosts with five minutes of phases and pace."""
    run = ActiveRun(f"slurm/{JOB}", JOB, "slurm", time.time_ns() - 3600 * 10**9)
    run.hosts, run.gpus_max = hosts, 8 * len(hosts)
    record = JobRecord(run, PaceTracker())
    begin_ns = time.time_ns() // WINDOW_NS * WINDOW_NS - WINDOWS_MAX * WINDOW_NS
    shares = np.tile([0.7, 0.2, 0.05, 0.05, 0.0], (len(hosts), 1))
    for number in range(WINDOWS_MAX):
        at_ns = begin_ns + number * WINDOW_NS
        record.windows.append(HostWindow(at_ns, hosts, shares, is_estimated=False))
        record.pace.observe(PaceWindow(at_ns, (2.0, 0.4, 0.7), 0.5))
    return record


async def _serve(hosts: int) -> None:
    with score_server._made(hosts) as aggregator:
        await aggregator.start()
        while aggregator.snapshot_holder.snapshot is None:
            await asyncio.sleep(0.05)
        windows = aggregator.runs.windows
        # Nothing reports the job to the fleet: without this it would end with the next turn.
        windows.step = lambda *_: []  # type: ignore[method-assign]
        windows.records[f"slurm/{JOB}"] = _job(tuple(aggregator.fleet.names))
        await score_server.serve(aggregator, {"port": aggregator.port})


def _questions(port: int) -> tuple[dict[str, Callable[[], Any]], Callable[[], int]]:
    options = ConnectionOptions(f"127.0.0.1:{port}")
    scores, jobs = ScoreClient(options), JobClient(options)
    name = scores.names()[0]
    advice: Any = AdvisoryServiceStub(scores.channel)  # type: ignore[no-untyped-call]
    request = advisory_pb2.ListAdvisoriesRequest()
    return {
        "hosts": scores.hosts,
        "explain": lambda: scores.host(name),
        "job": lambda: jobs.story(JOB),
        "advise": lambda: advice.ListAdvisories(request, timeout=10),
    }, lambda: sum(score.ByteSize() for score in scores.hosts().scores)


def _times(call: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def run(seed: int) -> list[Result]:
    """Return a row per command, size and state of the aggregator."""
    results = []
    for hosts in SIZES:
        with _child("operator_answers", str(hosts)) as (stdin, output):
            questions, size = _questions(json.loads(output.readline())["port"])
            with running_echo(size()) as echo:
                for state in ("idle", "judging"):
                    stdin.write("judge\n" if state == "judging" else "rest\n")
                    stdin.flush()
                    floor = percentile(_times(partial(echo, b"")), 0.5)
                    for name, call in questions.items():
                        times = _times(call)
                        maximum = max(times)
                        notes = f"p50 {1e3 * percentile(times, 0.5):.1f} ms, target {BUDGET_SECONDS[hosts]:g} s"
                        results.append(
                            Result(f"`{name}`, {hosts} hosts, {state}: slowest of {CALLS}", maximum, "s", "echo of the table, p50", floor, notes)
                        )  # fmt: skip
    return results


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
