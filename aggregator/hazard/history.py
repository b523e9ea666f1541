"""State of each node at each midnight: up or down, time since return, and failure counts.

A unit is a node that is up at 00:00 of a day. Arrays are nodes x days; a day's values use nothing
later than its 00:00.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Flags, Floats, Indexes
from .events import EventsError, FaultTable
from .measured import HostDays

#: Maximum of nodes x days, the length of a column below: training and evaluation take about 2 GB.
CELLS_MAX = 4_000_000
#: A unit is positive if a fault starts within this many days.
WINDOW_DAYS = 7
#: Names of the outcomes.
ALL, HARDWARE = "all classes", "hardware"
#: Decay times of fault counts (a fault this many days ago counts 1/e).
DECAYS_DAYS = (7.0, 30.0, 90.0)
#: Decay time of the count in `fault_rank_of`.
RANK_DECAY_DAYS = 30.0
#: The only decay time of counts by class: a few hundred faults do not support several.
BY_CLASS_DAYS = 30.0


@dataclass(frozen=True, slots=True)
class UnitState:
    """The state of units at their 00:00; arrays over units."""

    since_return_days: Floats  # +inf: never failed
    count: Floats  # fault starts ever
    decayed: dict[float, Floats]  # decay in days -> decayed count of fault starts
    last_week: Floats  # fault starts within the last 7 days
    #: Measurements, units x MEASURED, NaN: unknown; None: no unit has any.
    measured: Floats | None = None
    #: Decayed counts of fault starts, units x CLASSES; None: classes are unknown.
    by_class: Floats | None = None
    #: Rank among the nodes that are up (`fault_rank_of`); None: unknown.
    fault_rank: Floats | None = None

    @property
    def has_measurements(self) -> Flags:
        """Whether each unit has any measurement."""
        if self.measured is None:
            return np.zeros(len(self.count), dtype=bool)
        return np.asarray(np.isfinite(self.measured).any(axis=1))

    def take(self, rows: Indexes | Flags) -> UnitState:
        """Return the units of *rows*."""
        return UnitState(
            since_return_days=self.since_return_days[rows],
            count=self.count[rows],
            decayed={days: counts[rows] for days, counts in self.decayed.items()},
            last_week=self.last_week[rows],
            measured=None if self.measured is None else self.measured[rows],
            by_class=None if self.by_class is None else self.by_class[rows],
            fault_rank=None if self.fault_rank is None else self.fault_rank[rows],
        )


@dataclass(frozen=True, slots=True)
class Units:
    """Units in the order of days, then nodes, with their outcomes."""

    node: Indexes
    day: Indexes
    state: UnitState
    starts: Floats  # fault starts within the window, all classes
    hardware_starts: Floats

    def take(self, rows: Indexes | Flags) -> Units:
        """Return the units of *rows*."""
        return Units(
            self.node[rows],
            self.day[rows],
            self.state.take(rows),
            self.starts[rows],
            self.hardware_starts[rows],
        )

    def positives(self, outcome: str) -> Floats:
        """Return 1 for units with a fault start of *outcome* within the window, else 0."""
        starts = self.starts if outcome == ALL else self.hardware_starts
        return (starts > 0).astype(np.float64)

    def between(self, first: int, last: int) -> Units:
        """Return the units of days *first* to *last*, inclusive."""
        return self.take((self.day >= first) & (self.day <= last))


def units_of(
    faults: FaultTable, window_days: int = WINDOW_DAYS, days_measured: HostDays | None = None
) -> Units:
    """Return all units whose window ends within the recording.

    Raises EventsError if none or too many.

    *days_measured*: measurements of the same nodes, on these days and later.
    """
    days = int(np.floor(faults.end_days - window_days)) + 1
    nodes = len(faults.nodes)
    if days < 1:
        raise EventsError(
            f"the recording ends at day {faults.end_days:g}: no window of {window_days} days fits into it"
        )
    if days * nodes > CELLS_MAX:
        raise EventsError(f"{nodes} nodes x {days} days; at most {CELLS_MAX} in all")
    up = _up_at_midnight(faults, days)
    day, node = np.nonzero(up.T)
    if not len(day):
        raise EventsError(
            "no node is up at 00:00 of any day: the next failure of a node cannot be predicted"
        )
    started = np.isfinite(faults.start)
    state = _with_ranks(_state(faults, days), up).take(np.ravel_multi_index((node, day), up.shape))
    if days_measured is not None:
        state = replace(state, measured=days_measured.at(node, day))
    return Units(
        node,
        day,
        state,
        _starts_ahead(faults, started, days, window_days)[node, day],
        _starts_ahead(faults, started & faults.hardware, days, window_days)[node, day],
    )


def state_at(faults: FaultTable, days: float) -> tuple[Flags, UnitState]:
    """Return which nodes are up at *days* (any time), and the state of each node then."""
    nodes, start, end = len(faults.nodes), faults.start - days, faults.end - days
    up = np.ones(nodes, dtype=bool)
    up[faults.node[(start <= 0.0) & (end > 0.0)]] = False
    returned = np.full(nodes, -np.inf)
    over = end <= 0.0
    np.maximum.at(returned, faults.node[over], end[over])
    past = (start < 0.0) & np.isfinite(start)
    node, age = faults.node[past], -start[past]

    def count(weight: Floats) -> Floats:
        return np.bincount(node, weight, minlength=nodes).astype(np.float64)

    decayed = {decay: count(np.exp(-age / decay)) for decay in DECAYS_DAYS}
    recent = count((age <= 7.0).astype(np.float64))
    by_class = None
    if faults.classes is not None:
        fade = np.exp(-age / BY_CLASS_DAYS)
        by_class = np.stack([count(fade * flags) for flags in faults.classes[past].T], axis=1)
    state = UnitState(-returned, count(np.ones(len(node))), decayed, recent, by_class=by_class)
    return up, replace(state, fault_rank=fault_rank_of(state, up))


def fault_rank_of(state: UnitState, up: Flags) -> Floats:
    """Return the rank of each node by its faults among the nodes that are *up*, 0 to ln(2 x nodes).

    u is the average of three ranks, scaled from 0 (a node that never failed) to 1: by time since
    return, by the count decayed over RANK_DECAY_DAYS, and by the lifetime count. A rank is the
    share of nodes below, plus half of the equal ones. The result is -ln(1 - u).
    """
    values = (1.0 / (1.0 + state.since_return_days), state.decayed[RANK_DECAY_DAYS], state.count)
    nodes = max(int(up.sum()), 1)
    halves = np.zeros(len(up) + 1, dtype=np.int64)  # the last element is a node that never failed
    for values_by_node in values:
        known, with_zero = np.sort(values_by_node[up]), np.append(values_by_node, 0.0)
        places = np.searchsorted(known, with_zero, "left") + np.searchsorted(
            known, with_zero, "right"
        )
        # A down node above all up nodes ranks like the first of them.
        halves += np.minimum(places, 2 * nodes - 1)
    above, total = np.maximum(halves[:-1] - halves[-1], 0), 2 * len(values) * nodes - halves[-1]
    return np.asarray(-np.log1p(-above / total))


def _with_ranks(state: UnitState, up: Flags) -> UnitState:
    """Return *state*, of flattened nodes x days, with the ranks of each day."""
    cells = np.arange(up.size).reshape(up.shape)
    ranks = [fault_rank_of(state.take(cells[:, day]), up[:, day]) for day in range(up.shape[1])]
    return replace(state, fault_rank=np.stack(ranks, axis=1).ravel())


def _up_at_midnight(faults: FaultTable, days: int) -> Flags:
    up = np.ones((len(faults.nodes), days), dtype=bool)
    first = _clip(np.ceil(faults.start), days)
    last = _clip(np.ceil(faults.end), days)
    for node, begin, end in zip(faults.node, first, last, strict=True):
        up[node, begin:end] = False
    return up


def _clip(day: Floats, days: int) -> Indexes:
    return np.clip(day, 0, days).astype(np.intp)


def _state(faults: FaultTable, days: int) -> UnitState:
    """Return the state of every node and day, flattened."""
    started = np.isfinite(faults.start)
    return UnitState(
        _since_return(faults, days).ravel(),
        _count(faults, started, days, None).ravel(),
        {decay: _count(faults, started, days, decay).ravel() for decay in DECAYS_DAYS},
        _recent(faults, started, days, 7.0).ravel(),
        by_class=_by_class(faults, started, days),
    )


def _by_class(faults: FaultTable, started: Flags, days: int) -> Floats | None:
    if faults.classes is None:
        return None
    counts = [_count(faults, started & flags, days, BY_CLASS_DAYS) for flags in faults.classes.T]
    return np.stack([counts_of_class.ravel() for counts_of_class in counts], axis=1)


def _since_return(faults: FaultTable, days: int) -> Floats:
    returned = np.full((len(faults.nodes), days), -np.inf)
    first = _clip(np.ceil(faults.end), days)
    for node, end, begin in zip(faults.node, faults.end, first, strict=True):
        returned[node, begin:] = np.maximum(returned[node, begin:], end)
    return np.asarray(np.arange(days, dtype=np.float64) - returned)


def _count(faults: FaultTable, which: Flags, days: int, decay_days: float | None) -> Floats:
    """Return fault starts before each day's 00:00, decayed."""
    counts = np.zeros((len(faults.nodes), days))
    day_starts = np.arange(days)
    for node, start in zip(faults.node[which], faults.start[which], strict=True):
        first = min(days, max(0, int(np.floor(start)) + 1))
        age = day_starts[first:] - start
        counts[node, first:] += 1.0 if decay_days is None else np.exp(-age / decay_days)
    return counts


def _recent(faults: FaultTable, which: Flags, days: int, window_days: float) -> Floats:
    counts = np.zeros((len(faults.nodes), days))
    for node, start in zip(faults.node[which], faults.start[which], strict=True):
        first, last = int(np.floor(start)) + 1, int(np.floor(start + window_days)) + 1
        counts[node, min(days, max(0, first)) : min(days, max(0, last))] += 1.0
    return counts


def _starts_ahead(faults: FaultTable, which: Flags, days: int, window_days: int) -> Floats:
    """Return fault starts within the window after each day's 00:00."""
    counts = np.zeros((len(faults.nodes), days))
    first = np.floor(faults.start[which]).astype(np.intp)
    for node, start_day in zip(faults.node[which], first, strict=True):
        counts[node, max(0, start_day - window_days + 1) : max(0, start_day + 1)] += 1.0
    return counts
