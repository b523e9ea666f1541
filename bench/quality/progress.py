"""Progress of a section, shown while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
#: Called with the current task and its completed share.
Progress = Callable[[str, float], None]


class Bar:
    """A progress bar on a terminal; elsewhere a line per tenth."""

    def __init__(self) -> None:
        self._begin, self._tenth = time.monotonic(), -1

    def __call__(self, what: str, share: float) -> None:
        """Show the completed *share* of *what*."""
        seconds = time.monotonic() - self._begin
        if sys.stderr.isatty():
            full = round(30 * share)
            bar = "#" * full + "-" * (30 - full)
            line = f"\r[{bar}] {100 * share:3.0f} %  {what}, {seconds:.0f} s\033[K"
            print(line, end="", file=sys.stderr, flush=True)
        elif int(10 * share) != self._tenth:
            self._tenth = int(10 * share)
            print(f"{100 * share:3.0f} %  {what}, {seconds:.0f} s", file=sys.stderr, flush=True)


def in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], progress: Progress, what: str
) -> list[Result]:
    """Return *function* of each item, in one process per core; show the completed share."""
    results: list[Result] = []
    with ProcessPoolExecutor() as pool:
        for result in pool.map(function, items):
            results.append(result)
            progress(what, len(results) / len(items))
    return results
