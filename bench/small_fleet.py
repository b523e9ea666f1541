"""CPU and memory of all aggregator processes with 33 simulated hosts, against a budget.

The packer moves readings to Parquet every five minutes: the run includes this once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from statistics import median

from .load.aggregator import Running, aggregator
from .measure import Result, cpu_seconds, family, pss_bytes

HOSTS = 33
#: Hosts register, send all their tables, and are judged.
WARM_SECONDS = 60
SECONDS, POLL_SECONDS = 300, 5
#: Budget on a machine with other tasks.
CPU_SHARE, MEMORY_BYTES = 0.06, 250e6


def run(seed: int) -> list[Result]:
    """Measure without clients; only this bench reads /proc."""
    with tempfile.TemporaryDirectory() as folder, aggregator() as running:
        fleet = subprocess.Popen(
            [sys.executable, "-m", "gangline.cli", "simulate", "--hosts", str(HOSTS), "--seed", str(seed),
             "--aggregator", running.address, "--data", folder],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return _measured(running)
        finally:
            fleet.terminate()
            fleet.wait()


def _measured(running: Running) -> list[Result]:
    time.sleep(WARM_SECONDS)
    begin, cpu, memory = time.monotonic(), _cpu(running), list[int]()
    while (now := time.monotonic()) < begin + SECONDS:
        memory.append(_memory(running))
        time.sleep(POLL_SECONDS)
    share = (_cpu(running) - cpu) / (now - begin)
    figures = running.figures()
    notes = (
        f"{HOSTS} simulated hosts of 8 GPUs, {now - begin:.0f} s, nobody asks; commits "
        f"{figures.get('commits_total', 0):.0f}; with the packer and what queries are forked from"
    )
    at_most = f"median of {len(memory)} looks; at most {max(memory) / 1e6:.0f} MB, while readings leave for Parquet"
    return [
        Result("small fleet: the aggregator's CPU", 100 * share, "% of a core", "budget",
               100 * CPU_SHARE, notes),
        Result("small fleet: memory, PSS of all its processes", median(memory) / 1e6, "MB", "budget",
               MEMORY_BYTES / 1e6, at_most),
    ]  # fmt: skip


def _cpu(running: Running) -> float:
    """Return the CPU seconds of its processes, including ended processes."""
    total = 0.0
    for pid in family(running.pid):
        try:
            total += cpu_seconds(pid)
        except OSError:
            continue  # ended: the next pass counts it among the reaped
    return total


def _memory(running: Running) -> int:
    total = 0
    for pid in family(running.pid):
        try:
            total += pss_bytes([pid])
        except OSError:
            continue
    return total
