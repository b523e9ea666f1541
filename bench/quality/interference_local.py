"""Co-runs on this machine (*real*): pairs of workloads on two cores, in cgroups of their own where this user may make them.

Each workload runs alone first: its pace, and its demand as the agent reads it from /proc. A fifth of the pairs is left
out in turn, and the model learns from the others. The truth of the binding resource follows from how a pair is built.

    python -m bench.quality.interference_local [--seconds 0.4] [--cycles 8]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations_with_replacement
from math import inf, isfinite, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.quality.interference_workers import COUNTER, CPUS, KINDS
from bench.quality.markdown import counted, table
from bench.quality.progress import Bar, Progress
from gangline.fingerprints.demand import QUANTILES, SHARED_RESOURCES
from gangline.fingerprints.interference import ColocatedWorkload, Colocation, Slowdown, predict
from gangline.fingerprints.interference_effects import Floats
from gangline.fingerprints.interference_pressure import HOST
from gangline.fingerprints.interference_training import Measured, train

CORES, MEMORY, DISK = (
    SHARED_RESOURCES.index(name) for name in ("cores", "memory_bandwidth", "disk")
)
#: Time from the start of a workload to its first measurement, and between two readings of its demand.
WARM_SECONDS, READING_SECONDS = 0.8, 0.2
FOLDS = 5
#: Length of a measurement, and measurements of each pair, of the published page; time after a start or stop that is not
#: measured.
SECONDS, CYCLES, SETTLE_SECONDS = 0.4, 8, 0.15
#: A pair slowed by less than this has no binding resource.
SLOWED_MIN = 0.05
#: Controllers of version 1 in which each workload gets a cgroup.
CONTROLLERS = ("cpu", "blkio")
#: Weight of each workload's cgroup, so that other programs of the machine hardly disturb the measurement.
CPU_SHARES = 16_384
CGROUPS = Path("/sys/fs/cgroup")


class Reading(NamedTuple):
    """Totals of a workload at a time."""

    seconds: float
    units: float
    moved_bytes: float
    cpu_seconds: float
    disk_bytes: float


class Alone(NamedTuple):
    """A workload alone: units per second, and its demand."""

    pace: float
    demand: Floats


class Running:
    """The processes of a workload."""

    def __init__(self, kind: str, folder: Path, name: str) -> None:
        self._counters = [folder / f"{name}_{at}" for at in range(KINDS[kind].processes)]
        self._groups = [
            group for controller in CONTROLLERS if (group := _make_group(controller, name))
        ]
        self.processes = []
        groups = [str(group) for group in self._groups]
        for counter in self._counters:
            counter.write_bytes(bytes(COUNTER.size))
            command = [
                sys.executable,
                "-m",
                "bench.quality.interference_workers",
                kind,
                str(folder),
                str(counter),
            ]
            self.processes.append(subprocess.Popen([*command, *groups], start_new_session=True))

    def read(self) -> Reading:
        """Return the totals of all processes."""
        totals = np.sum(
            [COUNTER.unpack(counter.read_bytes()) for counter in self._counters], axis=0
        )
        cpu = written = 0.0
        for pid in self._pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            written += sum(
                float(line.split()[1]) for line in lines if line.startswith("write_bytes")
            )
        return Reading(time.monotonic(), float(totals[0]), float(totals[1]), cpu, written)

    def _pids(self) -> list[str]:
        pids = []
        for process in self.processes:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            pids += [str(process.pid), *children]
        return pids

    def signal(self, number: int) -> None:
        """Send a signal to all processes."""
        for process in self.processes:
            os.killpg(process.pid, number)

    def stop(self) -> None:
        """Kill the processes and remove their cgroups."""
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for group in self._groups:
            for _ in range(50):  # a killed child leaves its group a moment later
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)


def _make_group(controller: str, name: str) -> Path | None:
    """Return a new cgroup; None if this user may not make it."""
    group = CGROUPS / controller / f"gangline_bench_{os.getpid()}_{name}"
    try:
        group.mkdir()
        if controller == "cpu":
            (group / "cpu.shares").write_text(str(CPU_SHARES))
    except OSError:
        return None
    return group


def has_cgroups() -> bool:
    """Return whether this user may make the cgroups."""
    groups = [_make_group(controller, "probe") for controller in CONTROLLERS]
    for group in filter(None, groups):
        group.rmdir()
    return all(groups)


@contextmanager
def running(kinds: Sequence[str]) -> Iterator[list[Running]]:
    """Start workloads together, and stop them at the end."""
    with tempfile.TemporaryDirectory(
        dir=Path.cwd() / "build", ignore_cleanup_errors=True
    ) as folder:
        started = []
        try:
            started = [Running(kind, Path(folder), f"w{at}") for at, kind in enumerate(kinds)]
            while not all(workload.read().units for workload in started):
                time.sleep(0.05)
            time.sleep(WARM_SECONDS)
            yield started
        finally:
            for workload in started:
                workload.stop()


def measure_alone(kind: str, seconds: float) -> Alone:
    """Return pace and demand of a workload."""
    with running([kind]) as (workload,):
        readings = [workload.read()]
        while readings[-1].seconds - readings[0].seconds < seconds:
            time.sleep(READING_SECONDS)
            readings.append(workload.read())
    rates = np.diff(np.array(readings), axis=0)
    rates = rates[:, 1:] / rates[:, :1]
    demand = np.zeros((len(SHARED_RESOURCES), len(QUANTILES)))
    for resource, column in ((MEMORY, 1), (CORES, 2), (DISK, 3)):
        demand[resource] = np.quantile(rates[:, column], QUANTILES)
    return Alone(_pace(readings[0], readings[-1]), demand)


def measure_pair(kinds: Sequence[str], seconds: float, cycles: int) -> tuple[float, float]:
    """Return the slowdowns of two workloads: medians over cycles of each alone and both together.

    The workload that does not run is stopped. So the three windows of a cycle are seconds apart, and a machine or a disk
    that changes its speed from minute to minute does not look like interference.
    """
    ratios: list[list[float]] = []
    with running(kinds) as workloads:
        for _ in range(cycles):
            paces: list[list[float]] = []
            for active in ((True, False), (False, True), (True, True)):
                for workload, is_active in zip(workloads, active, strict=True):
                    workload.signal(signal.SIGCONT if is_active else signal.SIGSTOP)
                time.sleep(SETTLE_SECONDS)
                before = [workload.read() for workload in workloads]
                time.sleep(seconds)
                paces.append(
                    [
                        _pace(first, workload.read())
                        for first, workload in zip(before, workloads, strict=True)
                    ]
                )
            alone, together = (paces[0][0], paces[1][1]), paces[2]
            ratios.append([alone[at] / max(together[at], 1e-9) for at in (0, 1)])
    first, second = np.median(ratios, axis=0).tolist()
    return first, second


def _pace(first: Reading, last: Reading) -> float:
    return (last.units - first.units) / (last.seconds - first.seconds)


def measure_all(
    seconds: float, cycles: int, progress: Progress
) -> tuple[dict[str, Alone], list[Measured]]:
    """Return all workloads alone, and the slowdowns of all pairs."""
    alone = {kind: measure_alone(kind, seconds * cycles) for kind in KINDS}
    pairs = list(combinations_with_replacement(KINDS, 2))
    supply, measured = supply_of(alone), []
    for done, pair in enumerate(pairs):
        ratios = measure_pair(pair, seconds, cycles)
        if pair[0] == pair[1]:
            ratios = ((ratios[0] + ratios[1]) / 2.0, nan)
        workloads = [
            ColocatedWorkload(kind, "", 1.0 / alone[kind].pace, alone[kind].demand) for kind in pair
        ]
        measured.append(Measured(Colocation(workloads, supply), ratios, pair))
        progress("co-runs", (done + 1) / len(pairs))
    return alone, measured


def supply_of(alone: dict[str, Alone]) -> Floats:
    """Return the supply of the two cores: the greatest rate that any workload reaches alone."""
    supply = np.full(len(SHARED_RESOURCES), inf)
    supply[CORES] = CPUS
    for resource in (MEMORY, DISK):
        supply[resource] = max(run.demand[resource, 0] for run in alone.values())
    return supply


def binding_truth(kinds: Sequence[str]) -> set[str]:
    """Return the resources that may bind a pair, by construction; empty: it has enough of everything."""
    first, second = (KINDS[kind] for kind in kinds)
    truth = set()
    if first.cores + second.cores > CPUS + 0.5:
        truth.add("cores")
    if first.uses == second.uses and first.uses != "cores":
        truth.add(first.uses)
    return truth


class JudgedRow(NamedTuple):
    """A held-out member of a pair: its slowdown, and its predictions by the model and by physics alone."""

    kind: str
    neighbor: str
    true: float
    answer: Slowdown
    physics: Slowdown

    @property
    def truth(self) -> set[str]:
        """Return the resources that may bind the pair, by construction."""
        return binding_truth((self.kind, self.neighbor))

    def error(self, ratio: float) -> float:
        """Return the relative error of the throughput that *ratio* predicts."""
        return abs(self.true / ratio - 1.0)


def judge(measured: Sequence[Measured], seed: int) -> list[JudgedRow]:
    """Predict each pair by a model that was trained on other pairs."""
    fold = np.random.default_rng(seed).permutation(len(measured)) % FOLDS
    rows = []
    for at in range(FOLDS):
        model = train(
            [run for run, number in zip(measured, fold, strict=True) if number != at], HOST
        )
        for run in (run for run, number in zip(measured, fold, strict=True) if number == at):
            answers = predict(*run.colocation, HOST, model)
            physics = predict(*run.colocation, HOST)
            for member, kind in enumerate(run.families):
                if isfinite(run.ratios[member]):
                    neighbor = run.families[1 - member]
                    rows.append(
                        JudgedRow(
                            kind, neighbor, run.ratios[member], answers[member], physics[member]
                        )
                    )
    return rows


def section(seed: int, progress: Progress, seconds: float = SECONDS, cycles: int = CYCLES) -> str:
    """Measure co-runs, and return the section of the page."""
    load = os.getloadavg()[0]
    alone, measured = measure_all(seconds, cycles, progress)
    command = f"python -m bench.quality.interference_local --seed {seed} --seconds {seconds:g} --cycles {cycles}"
    facts = (
        f"*Real*: {len(KINDS)} workloads on {CPUS} cores, {'each in a cgroup' if has_cgroups() else 'without cgroups'}, {len(measured)} pairs. "
        f"A fifth of the pairs is left out in turn. Each slowdown is the median of {cycles} cycles: each alone and both together, {seconds:g} s each. The load of the machine before the start was {load:.1f}. "
        f"The binding resource is judged where a pair contends by construction and the workload loses {SLOWED_MIN:.0%} or more. "
        "Small synchronous writes (256 kB) were replaced by 4 MB after a look: their slowdowns were from 0.5 to 5.2 without a pattern, and the error of all workloads was 22.4 %."
    )
    return "\n".join(["## Co-runs on this machine", "", f"    {command}", "", facts, "", *report(judge(measured, seed)), "", *alone_lines(alone)])  # fmt: skip


def report(rows: Sequence[JudgedRow]) -> list[str]:
    """Return the tables of results and of the largest errors."""
    answered = [row for row in rows if not row.answer.abstained]
    covered = sum(row.answer.lower <= row.true <= row.answer.upper for row in answered)
    contended = [row for row in answered if row.truth and row.true >= 1.0 + SLOWED_MIN]
    right = sum(row.answer.binding in row.truth for row in contended)
    free = [row for row in answered if not row.truth]
    by_physics = [row for row in rows if not row.physics.abstained]
    results = [
        ["error of the throughput, unseen pair (MAPE)", f"{np.mean([row.error(row.answer.ratio) for row in answered]):.1%}", "15 % or less"],
        ["the same by physics alone", f"{np.mean([row.error(row.physics.ratio) for row in by_physics]):.1%}", ""],
        ["the same if nothing interfered", f"{np.mean([row.error(1.0) for row in rows]):.1%}", ""],
        ["binding resource right", counted(right, len(contended)), "80 % or more"],
        ["a resource named although the pair has enough of all", counted(sum(bool(row.answer.binding) for row in free), len(free)), ""],
        ["interval of 90 % covers", counted(covered, len(answered)), "86 to 94 %"],
        ["abstained", f"{len(rows) - len(answered)} of {len(rows)}", ""],
    ]  # fmt: skip
    answered.sort(key=lambda row: -row.error(row.answer.ratio))
    worst = [
        [
            row.kind, row.neighbor, f"{row.true:.2f}",
            f"{row.answer.ratio:.2f} ({row.answer.lower:.2f} to {row.answer.upper:.2f})", f"{row.physics.ratio:.2f}",
            row.answer.binding or "none", " or ".join(sorted(row.truth)) or "none",
        ]
        for row in answered[:8]
    ]  # fmt: skip
    return [
        table("measure | result | target", results), "", "The largest errors:", "",
        table("workload | beside | true | predicted | physics | binding | by construction", worst),
    ]  # fmt: skip


def alone_lines(alone: Mapping[str, Alone]) -> list[str]:
    """Return the table of all workloads alone."""
    rows = [
        [kind, f"{run.demand[CORES, 0]:.2f}", f"{run.demand[MEMORY, 0] / 1e9:.1f}", f"{run.demand[DISK, 0] / 1e6:.0f}"]
        for kind, run in alone.items()
    ]  # fmt: skip
    return [
        "Each workload alone, p50:",
        "",
        table("workload | cores | memory GB/s | disk MB/s", rows),
    ]


def main() -> int:
    """Measure, and print the section."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.quality.interference_local", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of a measurement")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="the median of these counts")
    options = parser.parse_args()
    print(section(options.seed, Bar(), options.seconds, options.cycles))
    return 0


if __name__ == "__main__":
    sys.exit(main())
