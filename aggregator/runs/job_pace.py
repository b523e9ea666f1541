"""Pace of a job, window by window, relative to its own best sustained pace or to earlier runs of its workload.

The reference lasts as long as the run: a job that lost a third of its speed an hour ago has a pace of 67 %.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median
from typing import NamedTuple

#: Measures of pace, best first: steps per second, share of time of the tensor cores, compute share.
MEASURES = ("steps", "tensor cores", "compute share")
STEPS, TENSOR, COMPUTE = range(3)
#: Windows kept per job.
WINDOWS_MAX = 30
#: A minute of windows makes a sustained pace, if at least this many of them are known.
SUSTAINED_WINDOWS, SUSTAINED_KNOWN_MIN = 6, 4
#: The first windows of a run are slow, or count steps that began before.
WARMUP_WINDOWS = 2
#: Earlier runs are the reference if they were faster than this run's best by more than this ratio.
EARLIER_RATIO_MIN = 1.02
#: A change: the medians of three windows before and after differ by this share and by this many times their scatter.
CHANGE_WINDOWS, CHANGE_MIN, CHANGE_SCATTER = 3, 0.05, 3.0

Works = tuple[float, float, float]
UNKNOWN_WORKS: Works = (nan, nan, nan)


class PaceReference(NamedTuple):
    """The work per second that is a pace of 1. `at_ns`: end of the run's best minute; 0: earlier runs."""

    measure: int
    work: float
    at_ns: int = 0

    @property
    def name(self) -> str:
        return "best minute of this run" if self.at_ns else "earlier runs of this workload"


class PaceChange(NamedTuple):
    """A change of the pace at a window, by *ratio* of the pace before."""

    window: int
    ratio: float


@dataclass(frozen=True, slots=True)
class PaceWindow:
    """Work of a job in ten seconds by each measure, NaN if unknown. `time_ns`: its beginning."""

    time_ns: int
    works: Works
    step_seconds: float = nan


class PaceTracker:
    """The pace of one run."""

    def __init__(self, references: Sequence[PaceReference] = ()) -> None:
        """*references*: restored, one per measure."""
        self.windows: deque[PaceWindow] = deque(maxlen=WINDOWS_MAX)
        self._own = {reference.measure: reference for reference in references if reference.at_ns}
        self._earlier = next((reference for reference in references if not reference.at_ns), None)
        self._windows_count = 0

    def observe(self, window: PaceWindow) -> None:
        """Add the window that has just ended."""
        self._windows_count += 1
        self.windows.append(window)
        if self._windows_count <= WARMUP_WINDOWS:
            return
        for measure in range(len(MEASURES)):
            work = self._sustained(measure)
            best = self._own.get(measure)
            if isfinite(work) and work > 0.0 and (best is None or work > best.work):
                self._own[measure] = PaceReference(measure, work, window.time_ns)

    def set_earlier(self, steps_per_second: float) -> None:
        """Set the pace of earlier runs of the same workload; NaN: unknown."""
        is_known = isfinite(steps_per_second) and steps_per_second > 0.0
        self._earlier = PaceReference(STEPS, steps_per_second) if is_known else None

    @property
    def measure(self) -> int:
        """Return the best measure that most windows have."""
        for measure in (STEPS, TENSOR):
            works = [window.works[measure] for window in self.windows]
            known = [work for work in works if isfinite(work)]
            if known and 2 * len(known) >= len(works) and max(known) > 0.0:
                return measure
        return COMPUTE

    @property
    def reference(self) -> PaceReference | None:
        """Return the reference of the current measure; None while the run is too young."""
        own = self._own.get(self.measure)
        earlier = self._earlier if self.measure == STEPS else None
        if earlier and (own is None or earlier.work > EARLIER_RATIO_MIN * own.work):
            return earlier
        return own

    @property
    def references(self) -> list[PaceReference]:
        """Return all references, for the store."""
        return [*self._own.values(), *([self._earlier] if self._earlier else [])]

    def paces(self) -> list[float]:
        """Return the pace of each window, NaN if unknown."""
        reference, measure = self.reference, self.measure
        if reference is None:
            return [nan] * len(self.windows)
        return [window.works[measure] / reference.work for window in self.windows]

    @property
    def current(self) -> float:
        """Return the median pace of the last three windows, NaN if unknown."""
        known = [pace for pace in self.paces()[-CHANGE_WINDOWS:] if isfinite(pace)]
        return median(known) if known else nan

    def changes(self) -> list[PaceChange]:
        """Return where the pace changed: the largest change within half a minute."""
        measure = self.measure
        works = [window.works[measure] for window in self.windows]
        sizes = [_change(works, index) for index in range(len(works))]
        changes: list[PaceChange] = []
        for index, (size, ratio) in enumerate(sizes):
            earlier = max(
                (other_size for other_size, _ in sizes[max(0, index - 3) : index]), default=0.0
            )
            later = max((other_size for other_size, _ in sizes[index + 1 : index + 4]), default=0.0)
            if size > 0.0 and size > earlier and size >= later:
                changes.append(PaceChange(index, ratio))
        return changes

    def _sustained(self, measure: int) -> float:
        after_start = self._windows_count - WARMUP_WINDOWS
        last = list(self.windows)[-min(SUSTAINED_WINDOWS, after_start) :]
        known = [window.works[measure] for window in last if isfinite(window.works[measure])]
        return median(known) if len(known) >= SUSTAINED_KNOWN_MIN else nan


def _change(works: Sequence[float], window: int) -> tuple[float, float]:
    """Return the change of the work at *window*, absolute and as a ratio; zeros without one."""
    before, after = works[window - CHANGE_WINDOWS : window], works[window : window + CHANGE_WINDOWS]
    is_whole = window >= CHANGE_WINDOWS and len(after) == CHANGE_WINDOWS
    if not is_whole or not all(map(isfinite, (*before, *after))):
        return 0.0, 0.0
    middles = median(before), median(after)
    scatter = max(
        median(abs(work - middle) for work in part)
        for part, middle in zip((before, after), middles, strict=True)
    )
    size = abs(middles[1] - middles[0])
    if size <= max(CHANGE_MIN * max(middles), CHANGE_SCATTER * scatter) or middles[0] <= 0.0:
        return 0.0, 0.0
    return size, middles[1] / middles[0] - 1.0
