"""Receipts and commits of a fleet while the hostile corpus runs through the Query call, against the
same without.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

from .commit_latency import COMMIT_SECONDS, HOSTS, OPS_SECONDS, BackgroundLoad
from .load.aggregator import Running
from .measure import Result


class Corpus:
    """Clients that send hostile queries in every other turn."""

    def __init__(self, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self._seed = seed

    def start(self, running: Running) -> Callable[[], None]:
        """Start the queries; return the function that stops them."""
        self._seed += 1
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.load.lowest", "bench.load.corpus", running.address, str(self._seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert child.stdout
        child.stdout.readline()

        def end() -> None:
            output, _ = child.communicate()
            self.answers.update(json.loads(output))

        return end


def run(seed: int) -> list[Result]:
    corpus = Corpus(seed)
    background = BackgroundLoad(corpus.start)
    settings = (f"commit_seconds={COMMIT_SECONDS}", f"ops_seconds={OPS_SECONDS}")
    background.measure(seed, settings)
    answers = ", ".join(f"{name} {count}" for name, count in sorted(corpus.answers.items()))
    notes = f"{HOSTS} hosts, {background.rows:.0f} rows/s, a commit each {COMMIT_SECONDS} s; answered {answers}"
    return background.results("while the hostile corpus runs", notes)
