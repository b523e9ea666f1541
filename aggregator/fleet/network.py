"""What the ports of each host move, and how they say that the network makes them wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .arrays import Floats
from .tables import FAST_SECONDS

if TYPE_CHECKING:
    from .fleet import Fleet


class Sign(NamedTuple):
    """A counter that rises while a port has to wait. `least`: a second, of a whole host; less is nothing (assumed)."""

    table: str
    column: str
    least: float
    words: str


#: InfiniBand: data to send and no credit. RoCE: notifications by DCQCN; most fabrics that pause ports mark packets first.
SIGNS = (
    Sign("rdma_1s", "transmit_wait_count", 1000.0, "wait for credits"),
    Sign("rdma_1s_changes", "congestion_notifications_handled_packets", 10.0, "are told to slow down"),
)  # fmt: skip
MOVED = (("rdma_1s", "received_bytes"), ("rdma_1s", "transmitted_bytes"))


def moved(fleet: Fleet, now_ns: int) -> Floats:
    """Return the bytes a second that all ports of each host moved in about the last ten; NaN where none is read."""
    return np.asarray(sum(_by_host(fleet, *one, now_ns) for one in MOVED))


def waited(fleet: Fleet, now_ns: int) -> Floats:
    """Return the same of each sign: (signs, hosts)."""
    return np.array([_by_host(fleet, one.table, one.column, now_ns) for one in SIGNS])


def rates(fleet: Fleet, table_name: str, column: str, now_ns: int) -> Floats:
    """Return how much a second a counter rose, of each port, in about the last ten seconds; NaN: not read."""
    table = fleet.tables[table_name]
    heard = table.heard(fleet.boot, fleet.host_now_ns(now_ns))
    # What comes every second is of now; what comes on change alone did not change since.
    quiet = np.where(heard < 2.5 * table.period_seconds, 0.0, heard)
    known = table.known(column)
    if column in table.sticky:
        known = known & ~table.saturated(column)
    return np.where(known, table.recent(column, quiet) / FAST_SECONDS, np.nan)


def _by_host(fleet: Fleet, table_name: str, column: str, now_ns: int) -> Floats:
    each = rates(fleet, table_name, column, now_ns)
    known = np.isfinite(each)
    of = fleet.tables[table_name].devices.host[known]
    total = np.bincount(of, weights=each[known], minlength=len(fleet))
    return np.where(np.bincount(of, minlength=len(fleet)) > 0, total, np.nan)
