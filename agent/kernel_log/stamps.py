"""From a record's stamp to boot time.

A record bears the kernel's local clock in microseconds (`local_clock`, kernel/printk/printk.c): time since
boot, without the time suspended, and never corrected by NTP. Against CLOCK_BOOTTIME it is therefore off by
the time suspended and by a drift of some tens of parts in a million, seconds after a few days up.

A record that was read the moment it was written shows the drift, to within what poll and read took
(about a millisecond, and never to the other side: a record is written before it is read). Until such a
one came, the drift is taken to be none: at 50 ppm that is wrong by 4 s a day. A record of before a
suspension is put too late by that suspension: hosts with GPUs are seldom suspended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MICROSECOND_NS = 1_000
#: The least drift of so many records just written is taken: each is too large by what reading took.
DRIFTS_KEPT = 16
#: Of those only what was learned within this time before the last: at 50 ppm, 30 ms of drift.
DRIFTS_NS = 600_000_000_000


def never_suspended() -> int:
    """Return 0: no time is missing from the log's clock."""
    return 0


class Stamps:
    """Turns stamps into boot time. Learns from records that are read as they are written."""

    def __init__(self, suspended_ns: Callable[[], int] = never_suspended) -> None:
        """*suspended_ns*: how long the machine has been suspended since boot, as of now."""
        self._suspended_ns = suspended_ns
        self._drifts: deque[tuple[int, int]] = deque(maxlen=DRIFTS_KEPT)  # (learned at, drift)

    def learn(self, microseconds: int, boottime_ns: int) -> None:
        """A record that was written just now was read at *boottime_ns*."""
        drift_ns = boottime_ns - microseconds * MICROSECOND_NS - self._suspended_ns()
        while self._drifts and boottime_ns - self._drifts[0][0] > DRIFTS_NS:
            self._drifts.popleft()
        self._drifts.append((boottime_ns, drift_ns))

    def boottime_ns(self, microseconds: int, now_ns: int) -> int:
        """Return when the record was written; never later than *now_ns*, when it was read."""
        drift_ns = min((drift_ns for _, drift_ns in self._drifts), default=0)
        written_ns = microseconds * MICROSECOND_NS + drift_ns + self._suspended_ns()
        return max(0, min(written_ns, now_ns))
