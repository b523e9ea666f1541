"""Detects forward jumps of the wall clock by the monotonic clock, so that no host seems silent and no symptom old.

A suspended machine is one such case: its monotonic clock stopped while time passed. A virtual machine whose clocks all
stopped, until its wall clock was corrected, looks the same as one whose clock was set forward. A stopped process is not
detected here, because its monotonic clock continued.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: Less makes nobody silent, and may be what passes between two checks at two clocks on a busy machine.
JUMP_NS_MIN = 5_000_000_000
#: Clocks that are read further apart than this are not compared: we were stopped between them.
READ_SPREAD_NS_MAX = 1_000_000_000
#: They are read again so often.
READS_MAX = 3


class ClockJump(NamedTuple):
    """What the wall clock says, by how much it was set forward since the last look, and for how long we stood still."""

    now_ns: int
    jump_ns: int = 0
    suspended_ns: int = 0


class ClockJumpDetector:
    """Belongs to one thread."""

    def __init__(
        self,
        wall_ns: Callable[[], int],
        steady_ns: Callable[[], int],
        boottime_ns: Callable[[], int] | None = None,
    ) -> None:
        """*steady_ns*: a clock that continues evenly, as CLOCK_MONOTONIC. *boottime_ns*: one that does so also while the machine
        is suspended, as CLOCK_BOOTTIME; None: it never is."""
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._boottime_ns = boottime_ns or steady_ns
        self._before: tuple[int, ...] | None = None  # the clocks, at the last look

    def check(self) -> ClockJump:
        """Return what the wall clock says, and what it leapt by since the last look; 0: it did not.

        Where we are stopped between clocks each time, the last look is the one before: a stop is no leap, now or next time.
        """
        now_ns = 0
        for _ in range(READS_MAX):
            begin_ns = self._boottime_ns()
            steady_ns, now_ns, boottime_ns = self._steady_ns(), self._wall_ns(), self._boottime_ns()
            if boottime_ns - begin_ns <= READ_SPREAD_NS_MAX:
                return self._since_last(now_ns, steady_ns, boottime_ns)
        return ClockJump(now_ns)

    def _since_last(self, *clocks: int) -> ClockJump:
        before, self._before = self._before, clocks
        if before is None:
            return ClockJump(clocks[0])
        wall_ns, steady_ns, boottime_ns = (
            now - then for now, then in zip(clocks, before, strict=True)
        )
        suspended_ns = _significant_ns(min(boottime_ns, wall_ns) - steady_ns)
        return ClockJump(
            clocks[0], _significant_ns(wall_ns - steady_ns - suspended_ns), suspended_ns
        )


def _significant_ns(ns: int) -> int:
    return ns if ns >= JUMP_NS_MIN else 0
