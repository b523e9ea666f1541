"""Faults and measurements in a store, for training.

Faults are findings that cost a host its state, merged into incidents. Measurements are those at the
start of each day.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from ..rule_catalogue import FAULTS
from .events import DAYS_MAX, NODES_MAX, EventsError, FaultTable
from .fault_classes import class_flags
from .measured import HostDays, read_host_days

DAY_US = 86_400_000_000
#: Days of findings that are kept and read, fewer if hosts x days would exceed the second limit.
DAYS_BACK_MAX, HOST_DAYS_MAX = 400, 1_500_000
#: A host's findings that begin within this time of each other, or during another, are an incident.
INCIDENT_US = 600_000_000
#: Maximum incidents of a host; the oldest are dropped.
INCIDENTS_MAX = 1_000
#: Maximum findings that are read.
ROWS_MAX = 1_000_000
_FIRST = (
    "SELECT epoch_us(min(time)) FROM (SELECT host, time FROM scores UNION ALL SELECT host, time FROM host_days) "
    "SEMI JOIN (FROM hosts WHERE simulated = ?) USING (host) WHERE time >= make_timestamp(?)"
)
_HOSTS = "SELECT host FROM hosts WHERE simulated = ? ORDER BY node_index, host"
_FINDINGS = (
    "SELECT host, name, epoch_us(since), epoch_us(cleared) FROM (SELECT host, name, since, cleared FROM findings "
    "UNION ALL FROM past_findings) WHERE (since >= make_timestamp($back) {or_stood}) "
    "AND since < make_timestamp($now) AND list_contains($names, name) ORDER BY since "
    f"LIMIT {ROWS_MAX + 1}"
)
_OR_OPEN = "OR cleared IS NULL OR cleared > make_timestamp($back)"


class FaultIncident(NamedTuple):
    """A fault of a host, in microseconds since 1970."""

    start_us: float
    end_us: float  # +inf: still active
    classes: frozenset[str] = frozenset()  # classes of its findings


class Recording(NamedTuple):
    """Faults since the 00:00 (UTC) at `first_us`, and the measurements of these days."""

    faults: FaultTable
    first_us: int
    last_us: int
    days_measured: HostDays | None = None


def add_finding(
    incidents: list[FaultIncident], since_us: float, end_us: float, class_name: str
) -> None:
    """Add a finding of *class_name* to the last of its host's *incidents*, or as a new incident.

    All *incidents* began before the finding.
    """
    last = incidents[-1] if incidents else None
    if last is not None and since_us <= max(last.end_us, last.start_us + INCIDENT_US):
        incidents[-1] = FaultIncident(
            last.start_us, max(last.end_us, end_us), last.classes | {class_name}
        )
        return
    incidents.append(FaultIncident(since_us, end_us, frozenset((class_name,))))
    del incidents[:-INCIDENTS_MAX]


def read_incidents(
    connection: Any, now_us: int, back_us: int | None = None, *, with_older: bool = False
) -> dict[str, list[FaultIncident]]:
    """Return the incidents of each affected host, in order, with the knowledge at *now_us*.

    *back_us*: only those that began later, or *with_older* were active then. Raises EventsError if
    there are too many.
    """
    if back_us is None:
        back_us = now_us - DAYS_BACK_MAX * DAY_US
    query = _FINDINGS.format(or_stood=_OR_OPEN if with_older else "")
    parameters = {"back": back_us, "now": now_us, "names": list(FAULTS)}
    rows: list[tuple[str, str, int, int | None]] = connection.execute(query, parameters).fetchall()
    if len(rows) > ROWS_MAX:
        raise EventsError(f"more than {ROWS_MAX} findings are on record")
    incidents: dict[str, list[FaultIncident]] = {}
    for host, name, since, cleared in rows:
        is_open = cleared is None or cleared > now_us
        end = inf if is_open else max(since, cleared or 0)
        add_finding(incidents.setdefault(host, []), since, end, FAULTS[name])
    return incidents


def days_back(hosts: int) -> int:
    """Return how many days are read for this many hosts."""
    return min(DAYS_BACK_MAX, HOST_DAYS_MAX // max(1, hosts))


def read_recording(connection: Any, now_us: int, *, simulated: bool) -> Recording:
    """Return the faults of real or *simulated* hosts up to *now_us*.

    Raises EventsError if too many. The recording begins with the day of the first kept score or
    finding.
    """
    hosts = [host for (host,) in connection.execute(_HOSTS, [simulated]).fetchall()]
    if len(hosts) > NODES_MAX:
        raise EventsError(f"more than {NODES_MAX} hosts are on record")
    back_us = now_us - days_back(len(hosts)) * DAY_US
    by_host = read_incidents(connection, now_us, back_us, with_older=True)
    incidents = [(node, i) for node, host in enumerate(hosts) for i in by_host.get(host, ())]
    incidents.sort(key=lambda fault: fault[1].start_us)
    ((scored,),) = connection.execute(_FIRST, [simulated, back_us]).fetchall()
    start, end = np.array([i[:2] for _, i in incidents], dtype=np.float64).reshape(-1, 2).T
    # The host was down from the first day; the fault began before the days that are read.
    start[start < back_us] = -inf
    first_us = int(np.min(start[np.isfinite(start)], initial=now_us))
    if scored is not None:
        first_us = min(first_us, scored)
    first_us -= first_us % DAY_US  # measurements are of 00:00, like units
    faults = FaultTable(
        tuple(hosts),
        np.array([node for node, _ in incidents], dtype=np.intp),
        (start - first_us) / DAY_US,
        (end - first_us) / DAY_US,
        np.ones(len(incidents), dtype=bool),
        min(DAYS_MAX, (now_us - first_us) / DAY_US),
        classes=class_flags([incident.classes for _, incident in incidents]),
    )
    days_measured = read_host_days(connection, faults, first_us, now_us)
    return Recording(faults, first_us, now_us, days_measured)
