"""One run: an aggregator, a generator and a prober, one process each; their results by second and
in total.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import duckdb

from gangline.aggregator.config import AggregatorConfig

from .aggregator import Running, aggregator

#: A frame waits for the current commit, the time of the next commit, and that commit. A commit that
#: takes longer than its period falls behind.
RECEIPT_SECONDS_MAX = 3 * AggregatorConfig.commit_seconds
#: Minimum share of the due frames: a generator that sends fewer measures itself.
SENT_SHARE = 0.97
#: The folder that contains `bench`.
ROOT = Path(__file__).parents[2]

Progress = Callable[[int, int, dict[str, Any]], None]


@dataclass
class LoadReport:
    """The results of a run."""

    plan: list[tuple[int, int]]
    period_seconds: int = 1
    connect_seconds: float = 0.0
    connect_cpu_seconds: float = 0.0
    connections: int = 0
    memory_before_bytes: int = 0
    memory_connected_bytes: int = 0
    memory_peak_bytes: int = 0
    seconds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    last: dict[str, Any] = field(default_factory=dict[str, Any])
    probe: dict[str, Any] = field(default_factory=dict[str, Any])
    figures: dict[str, float] = field(default_factory=dict[str, float])
    stored_gpu_rows: int = -1

    def between(self, first: int, last: int) -> dict[str, float]:
        """Return rates a second over the seconds first..last of the run, inclusive."""
        one, two = self.seconds[first], self.seconds[last]
        span = two["at"] - one["at"]
        keys = (
            "frames", "rows", "gpu_rows", "receipted_rows", "cpu_seconds", "aggregator_cpu",
            "aggregator_loop_cpu", "stalls",
        )  # fmt: skip
        return {key: (two[key] - one[key]) / span for key in keys}

    def steps(self) -> list[dict[str, float]]:
        """Return one row per step of the plan: rates of its second half, and its worst second."""
        rows, at = list[dict[str, float]](), 0
        for hosts, length in self.plan:
            middle, end = at + length // 2, at + length - 1
            spans = self.seconds[middle : end + 1]
            row = self.between(max(0, middle - 1), end)
            receipts = [span["receipt"] for span in spans if span["receipt"]["count"]]
            row["hosts"] = hosts
            row["p50"] = max((receipt["p50"] for receipt in receipts), default=float("nan"))
            row["p99"] = max((receipt["p99"] for receipt in receipts), default=float("nan"))
            row["flying"] = spans[-1]["flying"] + spans[-1]["held"]
            row["memory_bytes"] = spans[-1]["memory_bytes"]
            row["sustained"] = float(is_sustained(row, hosts / self.period_seconds))
            rows.append(row)
            at += length
        return rows


def is_sustained(row: dict[str, float], due: float) -> bool:
    """Return whether receipts were in time, credit sufficed, and *due* frames/s were sent."""
    in_time = row["p99"] <= RECEIPT_SECONDS_MAX and row["flying"] <= RECEIPT_SECONDS_MAX * due
    return in_time and not row["stalls"] and row["frames"] >= SENT_SHARE * due


def run(
    plan: list[tuple[int, int]],
    seed: int,
    *,
    period_seconds: int = 1,
    warm: int = 5,
    probe: bool = True,
    settings: Sequence[str] = (),
    folder: Path | None = None,
    progress: Progress | None = None,
) -> LoadReport:
    """Run the plan against an aggregator of its own."""
    report = LoadReport(plan, period_seconds)
    length = sum(seconds for _, seconds in plan)
    with aggregator(folder, *settings) as running:
        report.memory_before_bytes = running.memory_bytes()
        cpu = running.cpu()[0]
        generator = _start(
            "generator", running.address, seed, "--plan", ",".join(f"{n}x{s}" for n, s in plan),
            "--period-seconds", str(period_seconds), "--warm", str(warm),
        )  # fmt: skip
        prober = None
        try:
            first = _line(generator)
            report.connections, report.connect_seconds = first["connected"], first["seconds"]
            report.connect_cpu_seconds = running.cpu()[0] - cpu
            report.memory_connected_bytes = running.memory_bytes()
            if probe:
                prober = _start(
                    "prober", running.address, seed, "--seconds", str(length), "--warm", str(warm)
                )
                assert prober.stdout and prober.stdout.readline() == "ready\n"
                _go(prober)
            _go(generator)
            _follow(report, running, generator, length, progress)
            report.figures = running.figures()
            report.memory_peak_bytes = running.peak_bytes()
            if prober is not None:
                report.probe = _line(prober)
        finally:
            for child in filter(None, (generator, prober)):
                _end(child)
        store = running.folder
        _stop_and_count(report, running, store)
    return report


def _start(name: str, address: str, seed: int, *rest: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"bench.load.{name}", "--address", address, "--seed", str(seed), *rest],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def _go(child: subprocess.Popen[str]) -> None:
    assert child.stdin
    child.stdin.write("go\n")
    child.stdin.flush()


def _line(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"{child.args!r} ended without a word")
    row: dict[str, Any] = json.loads(line)
    return row


def _end(child: subprocess.Popen[str]) -> None:
    assert child.stdin and child.stdout
    stdin: IO[str] = child.stdin
    stdin.close()
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()


def _follow(
    report: LoadReport,
    running: Running,
    generator: subprocess.Popen[str],
    length: int,
    progress: Progress | None,
) -> None:
    while True:
        line = _line(generator)
        if line.get("done"):
            report.last = line
            return
        all_cpu, loop_cpu = running.cpu()
        line |= {"at": time.monotonic(), "memory_bytes": running.memory_bytes()}
        line |= {"aggregator_cpu": all_cpu, "aggregator_loop_cpu": loop_cpu}
        report.seconds.append(line)
        if progress is not None:
            progress(len(report.seconds), length, line)


def _stop_and_count(report: LoadReport, running: Running, store: Path) -> None:
    os.kill(running.pid, signal.SIGTERM)
    end = time.monotonic() + 60
    while Path(f"/proc/{running.pid}/cmdline").read_bytes() and time.monotonic() < end:
        time.sleep(0.1)  # a zombie has no command line
    with duckdb.connect(str(store / "gangline.duckdb"), read_only=True) as base:
        result = base.execute(
            "SELECT count(*) FROM readings.gpu_1s WHERE host NOT LIKE 'load-7%'"
        ).fetchone()
    report.stored_gpu_rows = int(result[0]) if result else -1
