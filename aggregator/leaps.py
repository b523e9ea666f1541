"""Our wall clock set forward: seen by one that nobody sets, so that it makes no host silent and no symptom old."""

from __future__ import annotations

from collections.abc import Callable

#: Less makes nobody silent, and may be what passes between two looks at two clocks on a busy machine.
LEAP_NS_MIN = 5_000_000_000


class Leaps:
    """Belongs to one thread."""

    def __init__(self, steady_ns: Callable[[], int]) -> None:
        """*steady_ns*: a clock that goes on evenly, as CLOCK_MONOTONIC."""
        self._steady_ns = steady_ns
        self._before: tuple[int, int] | None = None  # both clocks, at the last call

    def since_last(self, now_ns: int) -> int:
        """Return by how many nanoseconds the clock that says *now_ns* was set forward since the last call; 0: by none."""
        steady_ns, before = self._steady_ns(), self._before
        self._before = now_ns, steady_ns
        if before is None:
            return 0
        leapt_ns = (now_ns - before[0]) - (steady_ns - before[1])
        return leapt_ns if leapt_ns >= LEAP_NS_MIN else 0
