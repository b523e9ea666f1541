"""Maintenance windows, and the active one of each set of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .problems import SourceLocation
from .selection import Selection


@dataclass(slots=True)
class ActiveWindows:
    """The active window of each set of entries, at one moment."""

    _now_ns: int
    _known: dict[int, MaintenanceWindow | None] = field(default_factory=dict)

    def active_window(self, matching: tuple[MaintenanceWindow, ...]) -> MaintenanceWindow | None:
        """Return the *matching* window that is active and ends last."""
        key = id(matching)
        if key not in self._known:
            self._known[key] = last_ending(matching, self._now_ns)
        return self._known[key]


def last_ending(matching: Sequence[MaintenanceWindow], now_ns: int) -> MaintenanceWindow | None:
    """Return the window that contains *now_ns* and ends last; None: none."""
    active = [window for window in matching if window.begin_ns <= now_ns < window.end_ns]
    return max(active, key=lambda window: window.end_ns, default=None)


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Maintenance: from *begin_ns* to before *end_ns* its hosts are MAINTENANCE."""

    selection: Selection
    begin_ns: int
    end_ns: int
    who: str
    why: str
    where: SourceLocation
