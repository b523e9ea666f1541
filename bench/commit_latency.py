"""Latency of commits and receipts with and without operators' queries, alternating under one load."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable

from .load.aggregator import Running
from .load.fleet_run import run as run_load
from .measure import Result
from .turns import MeasuredTurns, Sample, results

#: About an eighth of this machine's capacity (`make load`), so that the load itself causes no
#: queue.
HOSTS = 50
OPS_SECONDS = 4
#: Shorter than in production, for enough commits for a p99.
COMMIT_SECONDS = 0.1
#: Excludes the first frames, which hold all tables.
WARM_SECONDS = 6
#: Seconds to start and stop the background load on a busy machine.
CHANGE_SECONDS = 8

Buckets = dict[float, float]


def buckets(figures: dict[str, float]) -> Buckets:
    """Return upper bound -> commits in that bucket alone, from the figures of /metrics."""
    result = {
        float(name.split('"')[1]): count
        for name, count in figures.items()
        if name.startswith("commit_seconds_bucket")
    }
    alone, before = dict[float, float](), 0.0
    for bound in sorted(result):
        alone[bound], before = result[bound] - before, result[bound]
    return alone


def spread_out(counts: Buckets) -> list[float]:
    """Return seconds per commit; the commits of a bucket are spread evenly over it."""
    seconds, low = list[float](), 0.0
    for bound in sorted(counts):
        count = round(counts[bound])
        high = low if math.isinf(bound) else bound
        seconds += [low + (high - low) * (index + 0.5) / count for index in range(count)]
        low = high
    return seconds


class BackgroundLoad:
    """One load; turns alternate between without and with *start*; collects times of commits and
    receipts.
    """

    def __init__(self, start: Callable[[Running], Callable[[], None]], hosts: int = HOSTS) -> None:
        self.rows = 0.0
        self._start, self._hosts = start, hosts
        self._marks: list[Buckets] = []
        self._receipts: list[Sample] = []
        self._turns = MeasuredTurns(lambda: lambda: None)

    def measure(self, seed: int, settings: tuple[str, ...]) -> None:
        length = (
            math.ceil(self._turns.whole_seconds) + WARM_SECONDS + CHANGE_SECONDS * self._turns.pairs
        )
        report = run_load(
            [(self._hosts, length)], seed, probe=False, settings=settings, background=self._begin
        )
        (step,) = report.steps()
        self.rows = step["rows"]
        for line in report.seconds:
            for milliseconds, count in line["receipt_milliseconds"]:
                self._receipts += [(line["at"], milliseconds / 1e3)] * count

    def _begin(self, running: Running) -> None:
        threading.Thread(target=self._run, args=(running,), daemon=True).start()

    def _run(self, running: Running) -> None:
        threading.Event().wait(WARM_SECONDS)
        self._turns.start = lambda: self._start(running)
        self._turns.each = lambda: self._marks.append(buckets(running.figures()))
        self._turns.run()

    def results(self, what: str, notes: str) -> list[Result]:
        """Return the results; *what* names the background load."""
        turns = self._turns.done
        assert len(turns) == 2 * self._turns.pairs, "the load was over before the turns were"
        ends = zip(self._marks[::2], self._marks[1::2], strict=True)
        commits = [spread_out({b: two[b] - one.get(b, 0) for b in two}) for one, two in ends]
        receipts = [turn.of(self._receipts) for turn in turns]
        return [
            *results(f"a commit {what}", self._turns, commits, notes),
            *results(f"a receipt {what}", self._turns, receipts),
        ]


class _Operator:
    """A client that sends operators' queries in every other turn."""

    def __init__(self) -> None:
        self.queries = 0

    def start(self, running: Running) -> Callable[[], None]:
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.load.asking", str(running.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

        def end() -> None:
            output, _ = child.communicate("stop\n")
            self.queries += int(output)

        return end


def run(seed: int) -> list[Result]:
    operator = _Operator()
    background = BackgroundLoad(operator.start)
    background.measure(seed, (f"ops_seconds={OPS_SECONDS}", f"commit_seconds={COMMIT_SECONDS}"))
    notes = (
        f"{HOSTS} hosts, {background.rows:.0f} rows/s of all tables; {operator.queries} questions over the "
        f"operators' file, which is rewritten every {OPS_SECONDS} s throughout"
    )
    return background.results("while operators ask", notes)
