"""Ranges of hosts that fit into memory, for sorting and searching readings piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..layout import BY_NAME

#: Limit of the values in a piece, keys included. Sorting and rolling up take about five times their
#: 8 bytes each.
CELLS_MAX = 1 << 22
Counts = Sequence[tuple[str, int]]


class HostRange(NamedTuple):
    """A half-open range of hosts by name, after *after* up to *last*; None: unlimited.

    Device limits are set only if the range is a part of a single host with too many rows.
    """

    after: str | None
    last: str | None
    rows: int
    after_device: str | None = None
    last_device: str | None = None

    @property
    def where(self) -> str:
        """Return the SQL condition; its placeholders match `parameters`."""
        limits = zip(
            ("host > ?", "host <= ?", "device > ?", "device <= ?"), self._limits, strict=True
        )
        return " AND ".join(condition for condition, limit in limits if limit is not None) or "true"

    @property
    def parameters(self) -> list[str]:
        """Return the values of the condition's placeholders."""
        return [limit for limit in self._limits if limit is not None]

    @property
    def _limits(self) -> tuple[str | None, ...]:
        return self.after, self.last, self.after_device, self.last_device


def rows_within(rows_max: int, columns: int) -> int:
    """Return the rows of a piece with *columns* columns: 1 to *rows_max*."""
    return max(1, min(rows_max, CELLS_MAX // columns))


def ranges(
    counts: Counts, rows_max: int, devices: Callable[[str], Counts] | None = None
) -> list[HostRange]:
    """Return consecutive ranges over all hosts, of at most *rows_max* rows if hosts allow it.

    *counts*: (host, rows), by host. *devices* returns (device, rows), by device, for a host with
    more rows, which is then split between devices.
    """
    cut: list[HostRange] = []
    rows, after, last = 0, None, None
    for host, count in counts:
        if rows and rows + count > rows_max:
            cut.append(HostRange(after, last, rows))
            after, rows = last, 0
        rows, last = rows + count, host
        if devices is not None and rows > rows_max:
            cut += _within(after, host, ranges(devices(host), rows_max))
            after, rows = host, 0
    return [*cut, HostRange(after, None, rows)] if rows or not cut else cut


def _within(before: str | None, host: str, cut: Sequence[HostRange]) -> list[HostRange]:
    """Return the ranges *cut* of a host's devices; *before*: the previous host, if any."""
    return [HostRange(before, host, devices.rows, devices.after, devices.last) for devices in cut]


def order_of(table: str) -> str:
    """Return the sort order of a table's Parquet files."""
    return "host, device, time" + (", signal" if table == BY_NAME else "")
