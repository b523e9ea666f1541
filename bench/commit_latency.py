"""Commit latency while operators ask, against the same without: in turns, of one aggregator under one load."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from .load.aggregator import Running
from .load.fleet_run import run as run_load
from .measure import Result

HOSTS = 100
#: Alternating: without, with, and so on. The operators' file is written twice within each turn.
TURN_SECONDS, TURNS = 8, 4
OPS_SECONDS = 4
#: More commits than usual, so that a p99 is not of ten.
COMMIT_SECONDS = 0.1

Buckets = dict[float, float]


def buckets(figures: dict[str, float]) -> Buckets:
    """Return upper bound -> commits of that bucket alone, from what /metrics said."""
    found = {
        float(name.split('"')[1]): count
        for name, count in figures.items()
        if name.startswith("commit_seconds_bucket")
    }
    alone, before = dict[float, float](), 0.0
    for bound in sorted(found):
        alone[bound], before = found[bound] - before, found[bound]
    return alone


def quantile(counts: Buckets, share: float) -> float:
    """Return the latency that *share* of the commits took at most, by straight lines within buckets."""
    wanted, seen, low = share * sum(counts.values()), 0.0, 0.0
    for bound in sorted(counts):
        count = counts[bound]
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen, low = seen + count, bound
    return low


class _Turns:
    """Starts and stops the one who asks, and takes the histogram at each change."""

    def __init__(self) -> None:
        self.without: Buckets = {}
        self.asking: Buckets = {}
        self.asked = 0

    def begin(self, running: Running) -> None:
        threading.Thread(target=self._run, args=(running,), daemon=True).start()

    def _run(self, running: Running) -> None:
        time.sleep(TURN_SECONDS / 2)  # the first frames hold all tables
        before = buckets(running.figures())
        for turn in range(TURNS):
            asks = turn % 2 == 1
            self._turn(running, asks=asks)
            now = buckets(running.figures())
            into = self.asking if asks else self.without
            for bound, count in now.items():
                into[bound] = into.get(bound, 0.0) + count - before.get(bound, 0.0)
            before = now

    def _turn(self, running: Running, *, asks: bool) -> None:
        if not asks:
            time.sleep(TURN_SECONDS)
            return
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.load.asking", str(running.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(TURN_SECONDS)
        said, _ = child.communicate("stop\n")
        self.asked += int(said)


def run(seed: int) -> list[Result]:
    """Measure p50 and p99."""
    turns = _Turns()
    length = TURN_SECONDS * TURNS + TURN_SECONDS // 2 + 2
    settings = (f"ops_seconds={OPS_SECONDS}", f"commit_seconds={COMMIT_SECONDS}")
    report = run_load([(HOSTS, length)], seed, probe=False, settings=settings, beside=turns.begin)
    (step,) = report.steps()
    notes = (
        f"{sum(turns.asking.values()):.0f} and {sum(turns.without.values()):.0f} commits at "
        f"{step['rows']:.0f} rows/s of all tables; {turns.asked} questions over the operators' file, which "
        f"is written anew each {OPS_SECONDS} s throughout"
    )
    return [
        Result(f"commit p{share * 100:.0f} while operators ask", quantile(turns.asking, share) * 1e3,
               "ms", "the same without", quantile(turns.without, share) * 1e3, notes)
        for share in (0.5, 0.99)
    ]  # fmt: skip
