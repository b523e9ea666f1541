"""Time from the loss of a node until all ranks run again: `gangline gang` against a requeue.

A real slurmctld and five slurmd without delays (`batch_sched_delay=0,sched_min_interval=0`). The
loss is `scontrol update state=down`, as an executor sends it; Slurm's time to notice a dead host is
not included. The requeue is the fastest of Slurm: `StartTime=now` ends its hold of 120 s as soon as
the second in which it was killed is over (before, it would fail: "Job already killed"). Both start
a program that only reports that it runs: reading a checkpoint is not included.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import Result, percentile
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm

RUNS, NODES, STEP_NODES = 20, 5, 4
WANTED_SECONDS = 1.0
RANK = 'echo "rank $SLURMD_NODENAME ${GANGLINE_RESTART:-0}${SLURM_RESTART_COUNT:-0}"; sleep 300'


def run(seed: int) -> list[Result]:
    """Return a row; nothing if Slurm is not installed."""
    if not has_slurm():
        print(MISSING, file=sys.stderr)
        return []
    source = random.Random(seed)
    spare, requeued = list[float](), list[float]()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_slurm(Path(folder), NODES) as cluster,
    ):
        for _ in range(RUNS):
            spare.append(_with_spare(cluster, source))
            requeued.append(_by_requeue(cluster, source))
    notes = (
        f"{STEP_NODES} of {NODES} nodes, {RUNS} runs each, in turns; p50 {1000 * percentile(spare, 0.5):.0f} against "
        f"{1000 * percentile(requeued, 0.5):.0f} ms; wanted: p95 at most {WANTED_SECONDS:g} s"
    )
    return [
        Result(
            "a node is lost until all ranks run, p95", percentile(spare, 0.95), "s",
            "requeue with StartTime=now, no spare", percentile(requeued, 0.95), notes,
        )
    ]  # fmt: skip


def _with_spare(cluster: SlurmCluster, source: random.Random) -> float:
    command = f"{sys.executable} -m gangline.cli gang --nodes {STEP_NODES}"
    script = f"#!/bin/bash\nexec {command} -- srun --ntasks-per-node=1 bash -c '{RANK}'\n"
    job = cluster.submit(script, f"-N{NODES}", "--no-kill", "--gpus-per-node=4")
    return _lose_a_node(cluster, source, job, "10")


def _by_requeue(cluster: SlurmCluster, source: random.Random) -> float:
    script = f"#!/bin/bash\nexec srun --ntasks-per-node=1 bash -c '{RANK}'\n"
    job = cluster.submit(
        script, f"-N{STEP_NODES}", "--requeue", "--open-mode=append", "--gpus-per-node=4"
    )
    return _lose_a_node(cluster, source, job, "01")


def _lose_a_node(cluster: SlurmCluster, source: random.Random, job: str, start: str) -> float:
    """Set a node of *job* down, and return the seconds until *start* has all ranks."""

    def ranks(which: str) -> list[str]:
        lines = (line.split() for line in cluster.output(job).splitlines())
        return [line[1] for line in lines if line[:1] == ["rank"] and line[2] == which]

    cluster.until(lambda: len(ranks("00")) == STEP_NODES, "all ranks of the first start")
    # The first node runs the batch script: its loss would end the job.
    lost = source.choice(sorted(ranks("00"))[1:])
    begin = time.perf_counter()
    cluster.command("scontrol", "update", f"nodename={lost}", "state=down", "reason=bench")
    if start == "01":
        next_second = math.floor(time.time()) + 1.05
        cluster.until(lambda: cluster.job(job)["JobState"] == "PENDING", "pending")
        cluster.until(lambda: time.time() >= next_second, "the next second")
        cluster.command("scontrol", "update", f"jobid={job}", "StartTime=now")
    cluster.until(lambda: len(ranks(start)) == STEP_NODES, "all ranks of the second start")
    seconds = time.perf_counter() - begin
    cluster.command("scancel", job)
    cluster.until(
        lambda: "JobState=CANCELLED" in f"JobState={cluster.job(job)['JobState']}", "its end"
    )
    cluster.command("scontrol", "update", f"nodename={lost}", "state=resume")
    cluster.until(lambda: len(cluster.node_states("IDLE")) == NODES, "all nodes idle")
    return seconds
