"""Clocks, passed to the daemon so that tests can move time, and a periodic schedule."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol


class Clock(Protocol):
    """Boot time orders readings; wall time is for people and may jump."""

    def boottime_ns(self) -> int:
        """Nanoseconds since boot, suspended time included. Never goes back."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 by this host's clock."""
        ...


class SystemClock:
    """The kernel's clocks."""

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def wall_ns(self) -> int:
        return time.time_ns()


class PeriodicSchedule:
    """Turns of names, each with its own period. Pure.

    Each period has a grid: its multiples since boot. A name is due once in each slot between two
    grid points, at the first `due` in the slot. Slots without a call are counted as skipped and
    never made up for. A turn may begin late in its slot, so a host that is always late is still
    sampled, but never before its grid point. The first call makes every name due.
    """

    def __init__(self, periods_ns: Mapping[str, int]) -> None:
        """*periods_ns*: name -> nanoseconds between its turns, in the order of the turns."""
        for name, period in periods_ns.items():
            if period <= 0:
                raise ValueError(f"{name}: a period must be positive, got {period} ns")
        self._periods = dict(periods_ns)
        # There are many names and few periods, so state is per period.
        self._names: dict[int, list[str]] = {}
        for name, period in self._periods.items():
            self._names.setdefault(period, []).append(name)
        self._next_ns = dict.fromkeys(self._names, 0)  # grid points; 0 before the first `due`
        self._skipped = dict.fromkeys(self._names, 0)
        self._forced_names: set[str] = set()

    @property
    def periods_ns(self) -> Mapping[str, int]:
        """Name -> nanoseconds between its turns, in the order of the turns."""
        return self._periods

    def due(self, now_ns: int) -> list[str]:
        """Return the due names; a second call in the same slot does not return them again."""
        due_periods = [period for period, next_ns in self._next_ns.items() if now_ns >= next_ns]
        for period in due_periods:
            self._advance(period, now_ns // period)
        if len(due_periods) < 2 and not self._forced_names:
            return list(self._names[due_periods[0]]) if due_periods else []
        names = self._forced_names.union(*[self._names[period] for period in due_periods])
        self._forced_names.clear()
        return [name for name in self._periods if name in names]

    def _advance(self, period: int, slot: int) -> None:
        if self._next_ns[period]:
            self._skipped[period] += slot - self._next_ns[period] // period
        self._next_ns[period] = (slot + 1) * period

    def make_due(self, name: str) -> None:
        """Make *name* due once at the next `due`; its grid stays. Unknown names are ignored."""
        if name in self._periods:
            self._forced_names.add(name)

    def next_ns(self) -> int:
        """Return the next grid point; 0 (at once) before the first `due` or after `make_due`."""
        return 0 if self._forced_names else min(self._next_ns.values(), default=0)

    def skipped(self, name: str) -> int:
        """Return how many turns of *name* were skipped. Raises KeyError for an unknown name."""
        return self._skipped[self._periods[name]]
