"""When each collector's turn is: a pure schedule on a grid of boot time."""

from __future__ import annotations

from collections.abc import Mapping


class Schedule:
    """Each name at its own period. Its turns stand on multiples of the period since boot.

    A name is due once in each slot between two grid points, at the first `due` in that slot; slots
    that passed without a call are left out and counted, never made up for in a burst. A turn may so
    begin late in its slot (a host that is always late is still sampled), but never before its grid
    point. The first call starts every name at once.
    """

    def __init__(self, periods_ns: Mapping[str, int]) -> None:
        """*periods_ns*: name -> nanoseconds between its turns, in the order they are to be taken."""
        for name, period in periods_ns.items():
            if period <= 0:
                raise ValueError(f"{name}: a period must be positive, got {period} ns")
        self._periods = dict(periods_ns)
        self._slots: dict[str, int] = {}
        self._skipped = dict.fromkeys(self._periods, 0)

    def due(self, now_ns: int) -> list[str]:
        """Return the names whose turn it is; asked again in the same slot, it is nobody's."""
        return [
            name for name, period in self._periods.items() if self._enter(name, now_ns // period)
        ]

    def _enter(self, name: str, slot: int) -> bool:
        before = self._slots.get(name)
        if before is not None:
            if slot <= before:  # the clock was handed in; should it go back, nobody is due
                return False
            self._skipped[name] += slot - before - 1
        self._slots[name] = slot
        return True

    def hasten(self, name: str) -> None:
        """Make *name* due at the next `due`, once; its grid stays. An unknown name is nobody."""
        if name in self._slots:
            self._slots[name] -= 1

    def next_ns(self) -> int:
        """Return the next grid point at which someone is due; 0 (at once) before the first `due`."""
        return min(
            ((self._slots.get(name, -1) + 1) * period for name, period in self._periods.items()),
            default=0,
        )

    def skipped(self, name: str) -> int:
        """Return how many turns of *name* were left out. KeyError for an unknown name."""
        return self._skipped[name]
