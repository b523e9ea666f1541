"""Progress of a section, shown while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

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
            print(
                f"\r[{bar}] {100 * share:3.0f} %  {what}, {seconds:.0f} s\033[K",
                end="",
                file=sys.stderr,
                flush=True,
            )
        elif int(10 * share) != self._tenth:
            self._tenth = int(10 * share)
            print(f"{100 * share:3.0f} %  {what}, {seconds:.0f} s", file=sys.stderr, flush=True)
