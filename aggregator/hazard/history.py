"""State of each node at each midnight: up or down, since when, and its number of failures.

A unit is a node that is up at 00:00 of a day. Arrays are nodes x days; a day's values use nothing later than its 00:00.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .events import (
    EventsError,
    FaultTable,
    Flags,
    Floats,
    Indexes,
)
from .measured import HostDays

#: Nodes x days; a column of the tables below is as long. This many take about 2 GB to learn from and to judge.
CELLS_MAX = 4_000_000
#: A positive unit has a fault start within this many days.
WINDOW_DAYS = 7
#: Names of the two outcomes.
ALL, HARDWARE = "all classes", "hardware"
#: Decay times of the counts of faults (a fault of this many days ago counts 1/e).
DECAYS_DAYS = (7.0, 30.0, 90.0)
#: The one of them that a node is ranked by, beside the time since return and the lifetime count.
RANK_DECAY_DAYS = 30.0
#: And of those by class: the middle one alone, for a few hundred faults tell no more of seven classes.
BY_CLASS_DAYS = 30.0


@dataclass(frozen=True, slots=True)
class UnitState:
    """What is known of units at their 00:00; arrays over units."""

    since_return_days: Floats  # +inf: never failed
    count: Floats  # of fault starts, ever
    decayed: dict[float, Floats]  # decay in days -> decayed count of fault starts
    last_week: Floats  # starts within the last 7 days
    #: What was measured then, units x MEASURED, NaN: not known; None: nothing was, of any unit.
    measured: Floats | None = None
    #: Decayed counts of fault starts of each class, units x CLASSES; None: of no fault is its class known.
    by_class: Floats | None = None
    #: How each ranks among the nodes that were up then (`fault_rank_of`); None: not known.
    fault_rank: Floats | None = None

    @property
    def has_measurements(self) -> Flags:
        """Of which units anything was measured."""
        if self.measured is None:
            return np.zeros(len(self.count), dtype=bool)
        return np.asarray(np.isfinite(self.measured).any(axis=1))

    def take(self, rows: Indexes | Flags) -> UnitState:
        """Return some of the units."""
        return UnitState(
            self.since_return_days[rows],
            self.count[rows],
            {days: one[rows] for days, one in self.decayed.items()},
            self.last_week[rows],
            None if self.measured is None else self.measured[rows],
            None if self.by_class is None else self.by_class[rows],
            None if self.fault_rank is None else self.fault_rank[rows],
        )


@dataclass(frozen=True, slots=True)
class Units:
    """Units in the order of days, then nodes, with what came of them."""

    node: Indexes
    day: Indexes
    state: UnitState
    starts: Floats  # fault starts within the window, all classes
    hardware_starts: Floats

    def take(self, rows: Indexes | Flags) -> Units:
        """Return some of the units."""
        return Units(
            self.node[rows], self.day[rows], self.state.take(rows),
            self.starts[rows], self.hardware_starts[rows],
        )  # fmt: skip

    def positives(self, outcome: str) -> Floats:
        """Return 1 where a fault of *outcome* starts within the units' window, else 0."""
        starts = self.starts if outcome == ALL else self.hardware_starts
        return (starts > 0).astype(np.float64)

    def between(self, first: int, last: int) -> Units:
        """Return the units of days *first* to *last*, both included."""
        return self.take((self.day >= first) & (self.day <= last))


def units_of(
    faults: FaultTable, window_days: int = WINDOW_DAYS, days_measured: HostDays | None = None
) -> Units:
    """Return all units whose window ends within the recording. Raises EventsError if there are too many or none.

    *days_measured*: what was measured of the same nodes, on these days and later ones.
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
    """Return which nodes are up at *days* (any moment), and what is known of each node then."""
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
        by_class = np.stack([count(fade * one) for one in faults.classes[past].T], axis=1)
    state = UnitState(-returned, count(np.ones(len(node))), decayed, recent, by_class=by_class)
    return up, replace(state, fault_rank=fault_rank_of(state, up))


def fault_rank_of(state: UnitState, up: Flags) -> Floats:
    """Return how high each node of *state* ranks by its faults among those that are *up*, at one moment: 0 to ln(2 x nodes).

    The average of three ranks: by time since return, by the count decayed over RANK_DECAY_DAYS, and by the lifetime count,
    each the share of nodes below, and half of those alike. u is that average from 0 (a node that never failed) to 1, and what is
    returned is -ln(1 - u): ln of one over the share of the way that is left to the top.
    """
    values = (
        1.0 / (1.0 + state.since_return_days),
        state.decayed[RANK_DECAY_DAYS],
        state.count,
    )
    nodes = max(int(up.sum()), 1)
    halves = np.zeros(len(up) + 1, dtype=np.int64)  # the last one never failed
    for each in values:
        known, at = np.sort(each[up]), np.append(each, 0.0)
        places = np.searchsorted(known, at, "left") + np.searchsorted(known, at, "right")
        # One that is down may be above all that are up: as the first of them.
        halves += np.minimum(places, 2 * nodes - 1)
    above, total = np.maximum(halves[:-1] - halves[-1], 0), 2 * len(values) * nodes - halves[-1]
    return np.asarray(-np.log1p(-above / total))


def _with_ranks(state: UnitState, up: Flags) -> UnitState:
    """Return *state*, which is of nodes x days, ravelled, with the ranks of each day."""
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


def _clip(at: Floats, days: int) -> Indexes:
    return np.clip(at, 0, days).astype(np.intp)


def _state(faults: FaultTable, days: int) -> UnitState:
    """Return the state of every node and day, ravelled."""
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
    counts = [_count(faults, started & one, days, BY_CLASS_DAYS) for one in faults.classes.T]
    return np.stack([one.ravel() for one in counts], axis=1)


def _since_return(faults: FaultTable, days: int) -> Floats:
    returned = np.full((len(faults.nodes), days), -np.inf)
    first = _clip(np.ceil(faults.end), days)
    for node, end, begin in zip(faults.node, faults.end, first, strict=True):
        returned[node, begin:] = np.maximum(returned[node, begin:], end)
    return np.asarray(np.arange(days, dtype=np.float64) - returned)


def _count(faults: FaultTable, which: Flags, days: int, decay_days: float | None) -> Floats:
    """Return starts before each day's 00:00, decayed."""
    counts = np.zeros((len(faults.nodes), days))
    at = np.arange(days)
    for node, start in zip(faults.node[which], faults.start[which], strict=True):
        first = min(days, max(0, int(np.floor(start)) + 1))
        age = at[first:] - start
        counts[node, first:] += 1.0 if decay_days is None else np.exp(-age / decay_days)
    return counts


def _recent(faults: FaultTable, which: Flags, days: int, window_days: float) -> Floats:
    counts = np.zeros((len(faults.nodes), days))
    for node, start in zip(faults.node[which], faults.start[which], strict=True):
        first, last = int(np.floor(start)) + 1, int(np.floor(start + window_days)) + 1
        counts[node, min(days, max(0, first)) : min(days, max(0, last))] += 1.0
    return counts


def _starts_ahead(faults: FaultTable, which: Flags, days: int, window_days: int) -> Floats:
    """Return starts from each day's 00:00 on, within the window."""
    counts = np.zeros((len(faults.nodes), days))
    first = np.floor(faults.start[which]).astype(np.intp)
    for node, at in zip(faults.node[which], first, strict=True):
        counts[node, max(0, at - window_days + 1) : max(0, at + 1)] += 1.0
    return counts
