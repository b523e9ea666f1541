"""Alarms of the aggregator about itself: figures in, raised and cleared findings out. No I/O, no clock.

An alarm is raised when its figure has stood above `above` for `hold_seconds`, and cleared when it has
stood at or below `below` for `rest_seconds`: between the two nothing changes. A figure that is not known
changes nothing either: missing is neither well nor sick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .figures import Values

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Alarm:
    """One kind of trouble."""

    name: str  # of its finding
    watched: Callable[[Values], float | None]
    above: float
    below: float
    hold_seconds: float
    rest_seconds: float
    words: Callable[[Values], str]  # what is so, and the way out
    clears: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An alarm begins to stand."""

    name: str
    words: str
    clears: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """An alarm stands no longer."""

    name: str


@dataclass(slots=True)
class _State:
    stands: bool = False
    since_ns: int | None = None  # when the figure crossed the bound that would change `stands`


@dataclass(slots=True)
class Alarms:
    """Which stand. One thread's."""

    table: Sequence[Alarm]
    _states: dict[str, _State] = field(default_factory=dict[str, _State])
    _words: dict[str, str] = field(default_factory=dict[str, str])

    def step(self, values: Values, now_ns: int) -> list[Raised | Cleared]:
        """Return what changed at *now_ns*, by a clock that does not jump."""
        changed: list[Raised | Cleared] = []
        for alarm in self.table:
            watched = alarm.watched(values)
            if watched is not None and (change := self._step(alarm, watched, values, now_ns)):
                changed.append(change)
        return changed

    def _step(
        self, alarm: Alarm, watched: float, values: Values, now_ns: int
    ) -> Raised | Cleared | None:
        state = self._states.setdefault(alarm.name, _State())
        turning = watched <= alarm.below if state.stands else watched > alarm.above
        if not turning:
            state.since_ns = None
        elif state.since_ns is None:
            state.since_ns = now_ns
        wait_seconds = alarm.rest_seconds if state.stands else alarm.hold_seconds
        turned = state.since_ns is not None and now_ns - state.since_ns >= wait_seconds * _NS
        if turned:
            state.stands, state.since_ns = not state.stands, None
        if state.stands:
            self._words[alarm.name] = alarm.words(values)
        if not turned:
            return None
        if state.stands:
            return Raised(alarm.name, self._words[alarm.name], alarm.clears)
        del self._words[alarm.name]
        return Cleared(alarm.name)

    @property
    def words(self) -> tuple[str, ...]:
        """What stands, in words as of the last step."""
        return tuple(self._words[alarm.name] for alarm in self.table if alarm.name in self._words)

    def standing(self) -> dict[str, bool]:
        """Return every alarm, and whether it stands."""
        return {alarm.name: alarm.name in self._words for alarm in self.table}
