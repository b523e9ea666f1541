"""What was known of each node at each midnight: is it up, since when, and how often it has failed.

A unit is a node that is up at 00:00 of a day. Arrays are nodes x days; nothing at a day is of later than its 00:00.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .events import EventsError, Faults, Flags, Floats, Indexes
from .hostdays import HostDays

#: Nodes x days; a column of the tables below is as long. So many take about 2 GB to learn from and to judge.
CELLS_MAX = 4_000_000
#: A positive unit has a fault start within so many days.
WINDOW_DAYS = 7
#: Names of the two outcomes.
ALL, HARDWARE = "all classes", "hardware"
#: Decay times of the counts of faults (a fault of so many days ago counts 1/e).
DECAYS_DAYS = (7.0, 30.0, 90.0)
#: And of those by class: the middle one alone, for a few hundred faults tell no more of seven classes.
BY_CLASS_DAYS = 30.0


@dataclass(frozen=True, slots=True)
class State:
    """What is known of units at their 00:00; arrays over units."""

    since_return_days: Floats  # +inf: never failed
    count: Floats  # of fault starts, ever
    decayed: dict[float, Floats]  # decay in days -> decayed count of fault starts
    last_week: Floats  # starts within the last 7 days
    #: What was measured then, units x MEASURED, NaN: not known; None: nothing was, of any unit.
    measured: Floats | None = None
    #: Decayed counts of fault starts of each class, units x CLASSES; None: of no fault is its class known.
    by_class: Floats | None = None

    @property
    def known(self) -> Flags:
        """Of which units anything was measured."""
        if self.measured is None:
            return np.zeros(len(self.count), dtype=bool)
        return np.asarray(np.isfinite(self.measured).any(axis=1))

    def take(self, rows: Indexes | Flags) -> State:
        """Return some of the units."""
        return State(
            self.since_return_days[rows],
            self.count[rows],
            {days: one[rows] for days, one in self.decayed.items()},
            self.last_week[rows],
            None if self.measured is None else self.measured[rows],
            None if self.by_class is None else self.by_class[rows],
        )


@dataclass(frozen=True, slots=True)
class Units:
    """Units in the order of days, then nodes, with what came of them."""

    node: Indexes
    day: Indexes
    state: State
    starts: Floats  # fault starts within the window, all classes
    hardware_starts: Floats

    def take(self, rows: Indexes | Flags) -> Units:
        """Return some of the units."""
        return Units(
            self.node[rows], self.day[rows], self.state.take(rows),
            self.starts[rows], self.hardware_starts[rows],
        )  # fmt: skip

    def came(self, outcome: str) -> Floats:
        """Return 1 where a fault of *outcome* starts within the units' window, else 0."""
        starts = self.starts if outcome == ALL else self.hardware_starts
        return (starts > 0).astype(np.float64)

    def between(self, first: int, last: int) -> Units:
        """Return the units of days *first* to *last*, both included."""
        return self.take((self.day >= first) & (self.day <= last))


def units_of(
    faults: Faults, window_days: int = WINDOW_DAYS, days_measured: HostDays | None = None
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
    up = _up(faults, days)
    day, node = np.nonzero(up.T)
    if not len(day):
        raise EventsError(
            "no node is up at 00:00 of any day: nothing can be told of who fails next"
        )
    started = np.isfinite(faults.start)
    state = _state(faults, days).take(np.ravel_multi_index((node, day), up.shape))
    if days_measured is not None:
        state = replace(state, measured=days_measured.at(node, day))
    return Units(
        node,
        day,
        state,
        _ahead(faults, started, days, window_days)[node, day],
        _ahead(faults, started & faults.hardware, days, window_days)[node, day],
    )


def state_at(faults: Faults, days: float) -> tuple[Flags, State]:
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
    return up, State(-returned, count(np.ones(len(node))), decayed, recent, by_class=by_class)


def _up(faults: Faults, days: int) -> Flags:
    up = np.ones((len(faults.nodes), days), dtype=bool)
    first = _clip(np.ceil(faults.start), days)
    last = _clip(np.ceil(faults.end), days)
    for node, begin, end in zip(faults.node, first, last, strict=True):
        up[node, begin:end] = False
    return up


def _clip(at: Floats, days: int) -> Indexes:
    return np.clip(at, 0, days).astype(np.intp)


def _state(faults: Faults, days: int) -> State:
    """Return the state of every node and day, ravelled."""
    started = np.isfinite(faults.start)
    return State(
        _since_return(faults, days).ravel(),
        _count(faults, started, days, None).ravel(),
        {decay: _count(faults, started, days, decay).ravel() for decay in DECAYS_DAYS},
        _recent(faults, started, days, 7.0).ravel(),
        by_class=_by_class(faults, started, days),
    )


def _by_class(faults: Faults, started: Flags, days: int) -> Floats | None:
    if faults.classes is None:
        return None
    counts = [_count(faults, started & one, days, BY_CLASS_DAYS) for one in faults.classes.T]
    return np.stack([one.ravel() for one in counts], axis=1)


def _since_return(faults: Faults, days: int) -> Floats:
    returned = np.full((len(faults.nodes), days), -np.inf)
    first = _clip(np.ceil(faults.end), days)
    for node, end, begin in zip(faults.node, faults.end, first, strict=True):
        returned[node, begin:] = np.maximum(returned[node, begin:], end)
    return np.asarray(np.arange(days, dtype=np.float64) - returned)


def _count(faults: Faults, which: Flags, days: int, decay_days: float | None) -> Floats:
    """Return starts before each day's 00:00, decayed."""
    counts = np.zeros((len(faults.nodes), days))
    at = np.arange(days)
    for node, start in zip(faults.node[which], faults.start[which], strict=True):
        first = min(days, max(0, int(np.floor(start)) + 1))
        age = at[first:] - start
        counts[node, first:] += 1.0 if decay_days is None else np.exp(-age / decay_days)
    return counts


def _recent(faults: Faults, which: Flags, days: int, window_days: float) -> Floats:
    counts = np.zeros((len(faults.nodes), days))
    for node, start in zip(faults.node[which], faults.start[which], strict=True):
        first, last = int(np.floor(start)) + 1, int(np.floor(start + window_days)) + 1
        counts[node, min(days, max(0, first)) : min(days, max(0, last))] += 1.0
    return counts


def _ahead(faults: Faults, which: Flags, days: int, window_days: int) -> Floats:
    """Return starts from each day's 00:00 on, within the window."""
    counts = np.zeros((len(faults.nodes), days))
    first = np.floor(faults.start[which]).astype(np.intp)
    for node, at in zip(faults.node[which], first, strict=True):
        counts[node, max(0, at - window_days + 1) : max(0, at + 1)] += 1.0
    return counts
