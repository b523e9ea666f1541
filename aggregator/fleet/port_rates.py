"""Rates of counters of network ports: traffic and congestion per host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..arrays import Floats
from .tables import FAST_SECONDS

if TYPE_CHECKING:
    from .fleet import Fleet

TRAFFIC_COLUMNS = (("rdma_1s", "received_bytes"), ("rdma_1s", "transmitted_bytes"))


class CongestionCounter(NamedTuple):
    """A counter that rises while a port waits. Rates below `rate_min` (assumed) are ignored."""

    table: str
    column: str
    rate_min: float
    description: str


#: InfiniBand: data without credits. RoCE: notifications of DCQCN, because most fabrics that pause
#: ports mark packets first.
CONGESTION_COUNTERS = (
    CongestionCounter("rdma_1s", "transmit_wait_count", 1000.0, "wait for credits"),
    CongestionCounter("rdma_1s_changes", "congestion_notifications_handled_packets", 10.0, "are told to slow down"),
)  # fmt: skip


def traffic_rates(fleet: Fleet, now_ns: int) -> Floats:
    """Return each host's bytes per second over all ports in about the last 10 s; NaN: not read."""
    return np.asarray(sum(_rates_by_host(fleet, *source, now_ns) for source in TRAFFIC_COLUMNS))


def congestion_rates(fleet: Fleet, now_ns: int) -> Floats:
    """Return the rates of the congestion counters likewise: (counters, hosts)."""
    return np.array([_rates_by_host(fleet, c.table, c.column, now_ns) for c in CONGESTION_COUNTERS])


def port_rates(fleet: Fleet, table_name: str, column: str, now_ns: int) -> Floats:
    """Return each port's rate of a counter per second, in about the last 10 s; NaN: not read."""
    table = fleet.tables[table_name]
    age_seconds = table.age_seconds(fleet.boot, fleet.host_now_ns(now_ns))
    # A periodic table is current; a table sent on change has not changed since.
    quiet_seconds = np.where(age_seconds < 2.5 * table.period_seconds, 0.0, age_seconds)
    known = table.known(column)
    if column in table.sticky:
        known = known & ~table.saturated(column)
    return np.where(known, table.recent(column, quiet_seconds) / FAST_SECONDS, np.nan)


def _rates_by_host(fleet: Fleet, table_name: str, column: str, now_ns: int) -> Floats:
    port_rate = port_rates(fleet, table_name, column, now_ns)
    known = np.isfinite(port_rate)
    host_of_port = fleet.tables[table_name].devices.host[known]
    total = np.bincount(host_of_port, weights=port_rate[known], minlength=len(fleet))
    return np.where(np.bincount(host_of_port, minlength=len(fleet)) > 0, total, np.nan)
