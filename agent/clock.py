"""Time, as a thing that is handed in."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Boot time orders readings; wall time is for people and may jump."""

    def boottime_ns(self) -> int:
        """Nanoseconds since boot, suspended time included. Never goes back."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 as this host believes."""
        ...


class SystemClock:
    """The kernel's clocks."""

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def wall_ns(self) -> int:
        return time.time_ns()
