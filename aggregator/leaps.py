"""Our wall clock set forward: seen by one that nobody sets, so that it makes no host silent and no symptom old."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: Less makes nobody silent, and may be what passes between two looks at two clocks on a busy machine.
LEAP_NS_MIN = 5_000_000_000
#: Clocks that are read further apart than this are not compared: we were stopped between them.
APART_NS_MAX = 1_000_000_000
#: They are read again so often.
READS_MAX = 3


class Leap(NamedTuple):
    """What the wall clock says, and by how much it was set forward since the last look."""

    now_ns: int
    leapt_ns: int = 0


class Leaps:
    """Belongs to one thread."""

    def __init__(self, wall_ns: Callable[[], int], steady_ns: Callable[[], int]) -> None:
        """*steady_ns*: a clock that goes on evenly, as CLOCK_MONOTONIC."""
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._before: tuple[int, int] | None = None  # both clocks, at the last look

    def look(self) -> Leap:
        """Return what the wall clock says, and by how many nanoseconds it was set forward since the last look; 0: by none.

        Where we are stopped between clocks each time, the last look is the one before: a stop is no leap, now or next time.
        """
        now_ns = 0
        for _ in range(READS_MAX):
            steady_ns, now_ns = self._steady_ns(), self._wall_ns()
            if self._steady_ns() - steady_ns <= APART_NS_MAX:
                return Leap(now_ns, self._since_last(now_ns, steady_ns))
        return Leap(now_ns)

    def _since_last(self, now_ns: int, steady_ns: int) -> int:
        before, self._before = self._before, (now_ns, steady_ns)
        if before is None:
            return 0
        leapt_ns = (now_ns - before[0]) - (steady_ns - before[1])
        return leapt_ns if leapt_ns >= LEAP_NS_MIN else 0
