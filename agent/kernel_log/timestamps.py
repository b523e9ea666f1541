"""Boot time of a kernel log record, from the kernel's local clock in its stamp."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MICROSECOND_NS = 1_000
#: The smallest drift of this many live records is used: each is too large by the time to read it.
DRIFTS_MAX = 16
#: Only drifts learned within this time before the last one: at 50 ppm they differ by 30 ms.
DRIFTS_NS = 600_000_000_000


def never_suspended() -> int:
    return 0


class TimestampConverter:
    """Converts records' timestamps to boot time.

    A record has the kernel's local clock in microseconds (local_clock, kernel/printk/printk.c):
    time since boot without suspended time, never corrected by NTP. It differs from CLOCK_BOOTTIME
    by the suspended time and a drift of some tens of ppm, seconds after a few days.

    A record that is read as it is written shows the drift, plus the time to read it (about a
    millisecond). Before the first such record the drift is taken as zero: at 50 ppm that is wrong
    by 4 s per day. A record from before a suspension is dated too late by that suspension; hosts
    with GPUs are rarely suspended.
    """

    def __init__(self, suspended_ns: Callable[[], int] = never_suspended) -> None:
        """*suspended_ns*: returns the time of suspension since boot."""
        self._suspended_ns = suspended_ns
        self._drifts: deque[tuple[int, int]] = deque(maxlen=DRIFTS_MAX)  # (time, drift)

    def learn(self, microseconds: int, boottime_ns: int) -> None:
        """Learn the drift from a record that was written just now and read at *boottime_ns*."""
        drift_ns = boottime_ns - microseconds * MICROSECOND_NS - self._suspended_ns()
        while self._drifts and boottime_ns - self._drifts[0][0] > DRIFTS_NS:
            self._drifts.popleft()
        self._drifts.append((boottime_ns, drift_ns))

    def boottime_ns(self, microseconds: int, now_ns: int) -> int:
        """Return when the record was written, at most *now_ns*, when it was read."""
        drift_ns = min((drift_ns for _, drift_ns in self._drifts), default=0)
        written_ns = microseconds * MICROSECOND_NS + drift_ns + self._suspended_ns()
        return max(0, min(written_ns, now_ns))
