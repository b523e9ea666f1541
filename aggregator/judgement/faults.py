"""Which faults each host had, so far back as models look: findings merged into incidents as training merges them.

Immutable: each judgement makes the next one from it, by the findings that stand then. What a restart forgets, the
store's findings restore. Hosts are known by name: one that comes back after months has its record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ..fleet.arrays import Flags, Floats, Indexes
from ..hazard import classes, events
from ..hazard.history import State, state_at
from ..hazard.recorded import DAY_US, DAYS_BACK_MAX, Incident, extend

#: Faults of others count as of one cause for so long: 27 % begin within ten minutes of another host's.
NEAR_US = 600_000_000

#: Host, since when (us), class.
Standing = frozenset[tuple[str, int, str]]


@dataclass(frozen=True)
class Faults:
    """The incidents of each host, by name, and of those in the fleet as arrays."""

    incidents: Mapping[str, tuple[Incident, ...]] = field(default_factory=dict)
    #: Findings that are faults, and stand.
    standing: Standing = frozenset()
    hosts: int = 0  # of the fleet
    #: Of each incident of a host of the fleet: its node index, when it began and ended.
    node: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    spans_us: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    classes: Flags = field(default_factory=lambda: classes.flags(()))

    @staticmethod
    def of(found: Mapping[str, Sequence[Incident]]) -> Faults:
        """Return what is on record, before any host is known to the fleet."""
        return Faults({host: tuple(each) for host, each in found.items()})

    def after(self, index: Mapping[str, int], standing: Standing, now_us: int) -> Faults:
        """Return what is known at *now_us*, when the findings *standing* stand. *index*: node indexes by name."""
        oldest_us = now_us - DAYS_BACK_MAX * DAY_US
        is_old = bool(self.spans_us.size) and self.spans_us[:, 0].min() < oldest_us
        if standing == self.standing and len(index) == self.hosts and not is_old:
            return self
        changed: dict[str, list[Incident]] = {}
        new = sorted((since_us, host, of) for host, since_us, of in standing - self.standing)
        for since_us, host, of in new:
            if since_us >= oldest_us:
                own = changed.setdefault(host, list(self.incidents.get(host, ())))
                extend(own, since_us, inf, of)
        incidents = {**self.incidents, **{host: tuple(each) for host, each in changed.items()}}
        ill = {host for host, _, _ in standing}
        for host, each in incidents.items():
            if each[-1].end_us == inf and host not in ill:
                last = each[-1]
                over = last._replace(end_us=max(last.start_us, now_us))
                incidents[host] = (*each[:-1], over)
        if is_old:
            young = {
                h: tuple(one for one in each if one.start_us >= oldest_us)
                for h, each in incidents.items()
            }
            incidents = {host: each for host, each in young.items() if each}
        return Faults(incidents, standing, len(index), *_arrays(incidents, index))

    def state(self, names: Sequence[str], now_us: float) -> State:
        """Return what models look at, of each host of the fleet, at *now_us*."""
        start, end = (self.spans_us.T - now_us) / DAY_US
        hardware = np.ones(len(start), dtype=bool)
        faults = events.Faults(
            tuple(names), self.node, start, end, hardware, 0.0, classes=self.classes
        )
        return state_at(faults, 0.0)[1]

    def of_others(self, now_us: int) -> Floats:
        """Return how many faults of other hosts began within the last ten minutes, of each host of the fleet."""
        near = self.node[np.abs(now_us - self.spans_us[:, 0]) <= NEAR_US]
        own = np.bincount(near, minlength=self.hosts)
        return np.asarray(len(near) - own, dtype=np.float64)


def _arrays(
    incidents: Mapping[str, tuple[Incident, ...]], index: Mapping[str, int]
) -> tuple[Indexes, Floats, Flags]:
    known = [(index[host], each) for host, each in incidents.items() if host in index]
    node = np.repeat(
        np.array([at for at, _ in known], dtype=np.intp), [len(each) for _, each in known]
    )
    faults = [fault for _, each in known for fault in each]
    spans = np.array([fault[:2] for fault in faults], dtype=np.float64).reshape(-1, 2)
    return node, spans, classes.flags([fault.classes for fault in faults])
