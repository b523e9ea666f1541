"""How fast each gang goes against its own past: the work of its host in the middle, window by window.

In a synchronous gang all hosts slow down together. A fall of its pace blames nobody; it says when to look for who did it,
and what that costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..counter_deltas import Floats

#: Windows that make a past, of which the first are forgotten. A window holds some steps and a part of one: its pace is taken
#: as the mean with those before it.
PAST_WINDOWS_MIN, WARMUP_WINDOWS, SMOOTHED_WINDOWS = 6, 2, 3
#: Windows that the usual pace is the median of, and after how many slow ones (an hour) they are what is usual.
PAST_WINDOWS, SLOW_WINDOWS, SLOW_WINDOWS_MAX = 60, 3, 360
#: A fall of less is none; nor is one within so many times what the pace scatters.
FALL_MIN, SCATTER_FACTOR = 0.015, 4.0
#: A window of less than this share of the usual pace is a checkpoint or an evaluation, unless so many come on end.
PAUSE_RATIO_MAX, PAUSE_WINDOWS_MAX = 0.7, 3


@dataclass(slots=True)
class _Past:
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=PAST_WINDOWS))
    last: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHED_WINDOWS))
    slow: deque[float] = field(default_factory=lambda: deque(maxlen=2 * SLOW_WINDOWS))
    windows: int = 0
    pauses: int = 0
    slow_windows: int = 0
    slow_since_ns: int = 0


@dataclass(frozen=True, slots=True)
class PaceFall:
    """A gang goes slower than it did: by which share of its pace, and since when."""

    ratio: float
    since_ns: int


class GangPaceMonitor:
    """The pace of all gangs. For one thread."""

    def __init__(self) -> None:
        self._pasts: dict[int, _Past] = {}

    def update(
        self, memberships: Sequence[int], paces: Floats, now_ns: int
    ) -> Mapping[int, PaceFall]:
        """Take in a window, and return the gangs that go slower than they did, by their place.

        *memberships*: which make-up of which gang each is, never used for another; *paces*: of each, NaN where it did not work.
        """
        self._pasts = {code: self._pasts.get(code) or _Past() for code in memberships}
        found: dict[int, PaceFall] = {}
        for place, (code, pace) in enumerate(zip(memberships, paces.tolist(), strict=True)):
            past = self._pasts[code]
            if pace > 0.0 and self._take(past, pace):  # not NaN
                self._observe(past, now_ns)
            if past.slow_windows >= SLOW_WINDOWS:
                ratio = 1.0 - median(past.slow) / median(past.usual)
                found[place] = PaceFall(ratio, past.slow_since_ns)
        return found

    def _take(self, past: _Past, pace: float) -> bool:
        """Put a window to the last ones, and say whether their mean is a pace."""
        past.windows += 1
        if past.windows <= WARMUP_WINDOWS:
            return False
        if past.usual and pace < PAUSE_RATIO_MAX * median(past.usual):
            past.pauses += 1
            if past.pauses <= PAUSE_WINDOWS_MAX:
                return False
        else:
            past.pauses = 0
        past.last.append(pace)
        return len(past.last) == SMOOTHED_WINDOWS

    def _observe(self, past: _Past, now_ns: int) -> None:
        pace = sum(past.last) / len(past.last)
        if len(past.usual) < PAST_WINDOWS_MIN:
            past.usual.append(pace)
            return
        usual = median(past.usual)
        scatter = median([abs(one - usual) for one in past.usual]) / usual
        if pace >= (1.0 - max(FALL_MIN, SCATTER_FACTOR * scatter)) * usual:
            past.usual.append(pace)
            past.slow.clear()
            past.slow_windows = past.slow_since_ns = 0
            return
        past.slow.append(pace)
        past.slow_windows += 1
        past.slow_since_ns = past.slow_since_ns or now_ns
        if past.slow_windows > SLOW_WINDOWS_MAX:
            past.usual.clear()
            past.slow_windows = past.slow_since_ns = 0
