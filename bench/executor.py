"""CPU and latency of an executor: real Slurm, real advice over gRPC, and the executor's own loop.

Peer of a failover: the same commands by a script that knows node and job beforehand (hold, requeue,
`StartTime=now` in the next second). A controller of 10,000 nodes serves the other measurements.
"""

from __future__ import annotations

import math
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.measure import Result, percentile
from gangline.aggregator.advisories.advisory import Action
from gangline.executors.context import ExecutorContext
from gangline.executors.executor import Executor
from gangline.executors.ledger import ExecutorLedger
from gangline.executors.model import PlaceHold, Requeue, StartNow, Step
from gangline.executors.scheduler_command import run_command
from gangline.executors.settings import ExecutorConfig, NodeNames
from gangline.executors.slurm.scheduler import Slurm
from tests.executors.advice_server import LIMITS, AdviceServer, connected_client, serving_advice
from tests.slurm.plugin_cluster import running_cluster
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm

RUNS, NODES, JOB_NODES = 20, 8, 3
LARGE_NODES, ADVISORIES = 10_000, 100
QUIET_SECONDS = 30.0
#: Nodes without slurmd are down, and nodes out of service get no advisories.
LARGE = (
    f"NodeName=host[0-{LARGE_NODES - 1}] NodeHostname=localhost NodeAddr=127.0.0.1 "
    f"Port=[20000-{20_000 + LARGE_NODES - 1}] State=DOWN"
)
SCRIPT = "#!/bin/bash\nsleep 600\n"


class TimedSlurm(Slurm):
    """Records when commands were answered."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(partial(run_command, environment=cluster.environment))
        self.answered: list[tuple[type[Step], float]] = []

    def apply(self, steps: Iterable[Step]) -> dict[Step, str]:
        listed = list(steps)
        errors = super().apply(listed)
        self.answered += [(type(step), time.perf_counter()) for step in listed]
        return errors

    def last(self, kind: type[Step]) -> float:
        """Return when the last step of *kind* was answered; 0 if never."""
        return max((when for step, when in self.answered if step is kind), default=0.0)


@contextmanager
def executing(
    advice: AdviceServer, slurm: Slurm, folder: Path, **settings: object
) -> Iterator[Executor]:
    """Run an executor in a thread of its own."""
    config = ExecutorConfig(ledger=str(folder), **settings)  # type: ignore[arg-type]
    wake = threading.Event()
    with connected_client(advice, config.actor, wake.set) as client:
        ledger = ExecutorLedger(folder / "ledger.json")
        executor = Executor(ExecutorContext(config, slurm, client, ledger, NodeNames()), wake=wake)
        thread = threading.Thread(target=executor.run)
        thread.start()
        try:
            yield executor
        finally:
            executor.stop()
            thread.join()


def run(seed: int) -> list[Result]:
    """Return the rows; no rows if Slurm is not installed."""
    if not has_slurm():
        print(MISSING, file=sys.stderr)
        return []
    return [*_failover(random.Random(seed)), *_large()]


def _until(condition: object, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f"never: {what}")
        time.sleep(0.005)


def _failover(source: random.Random) -> list[Result]:
    commands, elsewhere, floors = list[float](), list[float](), list[float]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "slurm").mkdir()
        (folder / "ledger").mkdir()
        cluster = stack.enter_context(running_slurm(folder / "slurm", NODES))
        advice = stack.enter_context(serving_advice())
        slurm = TimedSlurm(cluster)
        stack.enter_context(executing(advice, slurm, folder / "ledger"))
        for _ in range(RUNS):
            first, second = _one_failover(cluster, advice, slurm, source)
            commands.append(first)
            elsewhere.append(second)
            floors.append(_by_hand(cluster, source))
    detail = f"{RUNS} runs of {JOB_NODES} of {NODES} nodes, in turns with the script"
    return [
        Result(
            "PROPOSED until hold and requeue are answered, p95", percentile(commands, 0.95), "s",
            "target", 0.1, f"p50 {1000 * percentile(commands, 0.5):.0f} ms; {RUNS} runs",
        ),
        Result(
            "PROPOSED until the job runs elsewhere, p50", percentile(elsewhere, 0.5), "s",
            "the same commands by a script", percentile(floors, 0.5),
            f"p95 {percentile(elsewhere, 0.95):.2f} against {percentile(floors, 0.95):.2f} s; {detail}; Slurm starts a requeued job in the "
            "next second of its clock at the earliest",
        ),
    ]  # fmt: skip


def _runs(cluster: SlurmCluster, job: str, restarts: str) -> bool:
    fields = cluster.job(job)
    return fields["JobState"] == "RUNNING" and fields["Restarts"] == restarts


def _start_job(cluster: SlurmCluster, source: random.Random) -> tuple[str, str]:
    job = cluster.submit(SCRIPT, f"-N{JOB_NODES}", "--requeue", "--gpus-per-node=4")
    cluster.until(lambda: _runs(cluster, job, "0"), "the job runs")
    listed = cluster.command("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    nodes = cluster.command("scontrol", "show", "hostnames", listed).split()
    return job, source.choice(nodes)


def _end(cluster: SlurmCluster, job: str) -> None:
    cluster.command("scancel", job)
    cluster.until(lambda: len(cluster.node_states("IDLE")) == NODES, "all nodes idle")


def _one_failover(
    cluster: SlurmCluster, advice: AdviceServer, slurm: TimedSlurm, source: random.Random
) -> tuple[float, float]:
    job, node = _start_job(cluster, source)
    _until(lambda: job in advice.gangs(), "the gang is reported")
    time.sleep(source.random())  # at any time within a second of Slurm's clock
    advice.fault(node, Action.EVICT_NOW, job=job)
    begin = time.perf_counter()
    _until(lambda: slurm.last(Requeue) > begin, "requeued")
    commands = max(slurm.last(Requeue), slurm.last(PlaceHold)) - begin
    cluster.until(lambda: _runs(cluster, job, "1"), "it runs elsewhere")
    elsewhere = time.perf_counter() - begin
    _until(lambda: slurm.last(StartNow) > begin, "started")
    advice.heal(node)
    _until(lambda: not slurm.read_holds(), "the hold is gone")
    _end(cluster, job)
    return commands, elsewhere


def _by_hand(cluster: SlurmCluster, source: random.Random) -> float:
    job, node = _start_job(cluster, source)
    time.sleep(source.random())
    begin = time.perf_counter()
    cluster.command(
        "scontrol", "create", "reservation", "reservationname=bench", f"nodes={node}", "starttime=now", "duration=10",
        "users=root", "flags=ignore_jobs",
    )  # fmt: skip
    cluster.command("scontrol", "requeue", job)
    next_second = math.floor(time.time()) + 1.05
    cluster.until(lambda: cluster.job(job)["JobState"] == "PENDING", "pending")
    cluster.until(lambda: time.time() >= next_second, "the next second")
    cluster.command("scontrol", "update", f"jobid={job}", "starttime=now")
    cluster.until(lambda: _runs(cluster, job, "1"), "it runs elsewhere")
    seconds = time.perf_counter() - begin
    cluster.command("scontrol", "delete", "reservationname=bench")
    _end(cluster, job)
    return seconds


def _large() -> list[Result]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "slurm").mkdir()
        (folder / "ledger").mkdir()
        cluster = stack.enter_context(running_cluster(folder / "slurm", 1, LARGE))
        advice = stack.enter_context(serving_advice(replace(LIMITS, hold_seconds=7200.0)))
        slurm = TimedSlurm(cluster)
        with executing(
            advice, slurm, folder / "ledger", marks_max=1000, report_unavailable=False
        ) as executor:
            _until(lambda: executor.step_log.figures.turns > 2, "it turns")
            share, count = _rpc_share(cluster)
            for index in range(ADVISORIES):
                advice.fault(f"host{index}", Action.AVOID, tell=False)
            begin = time.perf_counter()
            advice.tick()
            _until(lambda: len(slurm.answered) >= ADVISORIES, "all holds are set")
            all_set = slurm.last(PlaceHold) - begin
        begin = time.perf_counter()
        with executing(
            advice, slurm, folder / "ledger", marks_max=1000, report_unavailable=False
        ) as executor:
            _until(lambda: executor.step_log.figures.turns > 0, "it turns")
            start = time.perf_counter() - begin
    return [
        Result(
            f"{ADVISORIES} advisories at one time, {LARGE_NODES} nodes, until all holds are answered", all_set, "s",
            "target", 1.0, f"{ADVISORIES} reservations, one command each",
        ),
        Result(
            f"start and bring {ADVISORIES} marks into line, {LARGE_NODES} nodes", start, "s", "target", 2.0, "the first turn",
        ),
        Result(
            f"slurmctld's time in RPCs of the executor, {LARGE_NODES} nodes", 100 * share, "%", "target", 2.0,
            f"{count} RPCs in {QUIET_SECONDS:g} s, by sdiag",
        ),
    ]  # fmt: skip


def _rpc_share(cluster: SlurmCluster) -> tuple[float, int]:
    """Return the share of time that slurmctld spends in RPCs, and their number."""
    cluster.command("sdiag", "--reset")
    begin = time.perf_counter()
    time.sleep(QUIET_SECONDS)
    text = cluster.command("sdiag")
    seconds = time.perf_counter() - begin
    return share_of_rpcs(text, seconds)


def share_of_rpcs(text: str, seconds: float) -> tuple[float, int]:
    """Return share and number from the output of `sdiag`, which counts microseconds by user."""
    users = text.partition("statistics by user")[2].partition("\n\n")[0]
    rows = re.findall(r"count:([0-9]+)\s+ave_time:[0-9]+\s+total_time:([0-9]+)", users)
    microseconds = sum(int(total) for _, total in rows)
    return microseconds / 1e6 / seconds, sum(int(count) for count, _ in rows)
