"""The clock of retention: age is time that the aggregator has run, whatever the wall clock does.

Rows and files are stamped by the wall clock. A forward jump of that clock, or a month without the aggregator, would make all of
them old. Anchors record which wall-clock time belongs to which run time, and translate an age into a cutoff among the stamps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

#: A wall clock that deviates less (a slewed clock, a restart) needs no anchor. A cutoff is earlier by this much, so that the
#: deviation deletes nothing too soon.
DEVIATION_NS_MAX = 60_000_000_000
#: Minimum run time between anchors of a wall clock that moves ahead. Without an anchor, data is only kept for longer.
ANCHOR_NS_MIN = 3600 * 1_000_000_000
#: A further anchor removes the oldest; data from before the oldest anchor is kept for longer.
ANCHORS_MAX = 1000


class Anchor(NamedTuple):
    """The wall clock showed `wall_ns` after `run_ns` of run time."""

    run_ns: int
    wall_ns: int


class RetentionClock:
    """Thread-safe. Anchors ascend in both run time and wall clock, so a cutoff never moves back across a jump."""

    def __init__(self, steady_ns: Callable[[], int], anchors: Iterable[Anchor] = ()) -> None:
        """*steady_ns*: a clock that cannot be set; *anchors*: `anchors()` of the last run."""
        self._steady_ns = steady_ns
        self._lock = threading.Lock()
        self._anchors: list[Anchor] = []
        for anchor in anchors:
            self._append(anchor)
        self._latest = self._anchors[-1] if self._anchors else None
        self._started_ns = steady_ns() - (self._latest.run_ns if self._latest else 0)

    @property
    def run_ns(self) -> int:
        """Return the total time that the aggregator has run on this store."""
        return self._steady_ns() - self._started_ns

    def observe(self, wall_ns: int) -> None:
        """Compare the current wall-clock time with the run time."""
        with self._lock:
            self._latest = latest = Anchor(self.run_ns, wall_ns)
            if not self._anchors:
                self._append(latest)
                return
            run_ns, anchored_ns = self._anchors[-1]
            ahead_ns = wall_ns - anchored_ns - (latest.run_ns - run_ns)
            is_due = latest.run_ns - run_ns >= ANCHOR_NS_MIN
            if ahead_ns < -DEVIATION_NS_MAX or (ahead_ns > DEVIATION_NS_MAX and is_due):
                self._append(latest)

    def cutoff_ns(self, age_ns: int) -> int:
        """Return the wall-clock time before which all stamps are older than *age_ns*; 0 if no stamp is."""
        with self._lock:
            before_ns = self.run_ns - age_ns
            cutoff_ns = 0
            for anchor in self._anchors:
                if anchor.run_ns > before_ns:
                    cutoff_ns = min(cutoff_ns, anchor.wall_ns)
                    break
                cutoff_ns = anchor.wall_ns + before_ns - anchor.run_ns
            return max(0, cutoff_ns - DEVIATION_NS_MAX)

    def anchors(self) -> list[Anchor]:
        """Return the state for the next run, ending with the latest observation."""
        with self._lock:
            if self._latest is None or self._latest == self._anchors[-1]:
                return list(self._anchors)
            return [*self._anchors, self._latest]

    def _append(self, anchor: Anchor) -> None:
        """Add *anchor*; a wall clock that went back replaces the anchors that it is behind."""
        while self._anchors and self._anchors[-1].wall_ns >= anchor.wall_ns:
            self._anchors.pop()
        self._anchors.append(anchor)
        del self._anchors[:-ANCHORS_MAX]
