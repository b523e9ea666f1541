"""Time from a kernel log line until the job runs elsewhere: agent, aggregator, executor and Slurm.

Each round has new processes of all four. The job runs on three of eight nodes; the agent is one of
these hosts, and reads a FIFO as /dev/kmsg. Slurm has the settings that docs/slurm.md recommends.
Slurm alone needs 149 s (28 s to notice a dead slurmd with SlurmdTimeout=15, and 121 s of delay),
measured once by `kill -9` of slurmd.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.executor import JOB_NODES, NODES, SCRIPT
from bench.fault_to_advice import LINE, WARM_SECONDS, AdviceWatch, agent_process, text_of, wait_for
from bench.load.aggregator import aggregator
from bench.measure import Result, percentile
from tests.hosts import unpack
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm

ROUNDS = 20
SLURM_ALONE_SECONDS = 149.0


def run(seed: int) -> list[Result]:
    """Return the rows; no rows if Slurm is not installed."""
    if not has_slurm():
        print(MISSING, file=sys.stderr)
        return []
    moments = random.Random(seed)
    proposed, running = list[float](), list[float]()
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            seconds = _round(Path(folder), moments.random())
        proposed.append(seconds[0])
        running.append(seconds[1])
        print(
            f"  {number + 1} of {ROUNDS}: {seconds[0]:.3f} {seconds[1]:.3f}",
            file=sys.stderr,
            flush=True,
        )
    notes = (
        f"{ROUNDS} rounds, {JOB_NODES} of {NODES} nodes; p95 {sorted(running)[-2]:.2f}, worst {max(running):.2f} s; PROPOSED after "
        f"{percentile(proposed, 0.5):.2f} s (p50); wanted: 1.0 s median, 1.5 s p95"
    )
    return [
        Result(
            "kernel's line until the job runs elsewhere, p50", percentile(running, 0.5), "s",
            "Slurm alone, measured once on 2026-11-23", SLURM_ALONE_SECONDS, notes,
        )
    ]  # fmt: skip


def _round(folder: Path, wait_seconds: float) -> tuple[float, float]:
    """Return the seconds from the line to PROPOSED, and to RUNNING on other nodes."""
    host = unpack("h100-ib", folder / "host")
    dev = folder / "dev"
    dev.mkdir()
    os.mkfifo(dev / "kmsg")
    log = os.open(dev / "kmsg", os.O_RDWR)  # held open: else the agent reads end of file
    (folder / "slurm").mkdir()
    try:
        with ExitStack() as stack:
            cluster = stack.enter_context(running_slurm(folder / "slurm", NODES))
            job = cluster.submit(SCRIPT, f"-N{JOB_NODES}", "--requeue", "--gpus-per-node=4")
            cluster.until(lambda: cluster.job(job)["JobState"] == "RUNNING", "the job runs")
            listed = cluster.command("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
            node = cluster.command("scontrol", "show", "hostnames", listed).split()[0]
            service = stack.enter_context(aggregator(folder / "aggregator"))
            watch = AdviceWatch(service.address)
            stack.callback(watch.close)
            status = folder / "run" / "status.json"
            agent = agent_process(folder, service, dev, host.roots.sys, host.roots.proc, node)
            stack.enter_context(agent)
            stack.callback(_end, _executor(cluster, service.address, folder))
            wait_for(lambda: '"connected": true' in text_of(status), "the agent is connected")
            time.sleep(WARM_SECONDS + wait_seconds)
            stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            begin = time.perf_counter()
            os.write(log, f"3,1,{stamp},-;{LINE}\n".encode())
            cluster.until(
                lambda: (fields := cluster.job(job))["JobState"] == "RUNNING" and fields["Restarts"] == "1",
                "it runs elsewhere",
            )  # fmt: skip
            running = time.perf_counter() - begin
            again = cluster.command("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
            assert node not in cluster.command("scontrol", "show", "hostnames", again).split()
            return watch.proposed_at - begin, running
    finally:
        os.close(log)


def _executor(cluster: SlurmCluster, address: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "gangline.cli", "executor", "slurm", "--aggregator", address,
        "--set", f"ledger={folder / 'ledger'}",
    ]  # fmt: skip
    with open(folder / "executor.log", "wb") as log:
        return subprocess.Popen(
            command, env=cluster.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(30)
