"""Ranges of hosts: so many rows at a time, all of a device together, so that sorted pieces make one sorted file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..store.layout import BY_NAME

#: Values of a piece, keys among them: of wide tables a piece has fewer rows. Sorted and rolled up they take
#: some five times their 8 bytes each.
CELLS_MAX = 1 << 22

Counts = Sequence[tuple[str, int]]


class Range(NamedTuple):
    """Hosts after *after* up to *last*, by name, and so of their devices; None: no limit.

    Limits of devices stand only where that is one host: one that has more rows than a piece.
    """

    after: str | None
    last: str | None
    rows: int
    after_device: str | None = None
    last_device: str | None = None

    @property
    def where(self) -> str:
        """The condition, with as many parameters as `parameters`."""
        limits = zip(
            ("host > ?", "host <= ?", "device > ?", "device <= ?"), self._limits, strict=True
        )
        return " AND ".join(words for words, limit in limits if limit is not None) or "true"

    @property
    def parameters(self) -> list[str]:
        """What the condition is over."""
        return [limit for limit in self._limits if limit is not None]

    @property
    def _limits(self) -> tuple[str | None, ...]:
        return self.after, self.last, self.after_device, self.last_device


def rows_within(rows_max: int, columns: int) -> int:
    """Return of how many rows a piece is when each has so many *columns*: *rows_max* at most, one at least."""
    return max(1, min(rows_max, CELLS_MAX // columns))


def ranges(
    counts: Counts, rows_max: int, devices: Callable[[str], Counts] | None = None
) -> list[Range]:
    """Return consecutive ranges over all hosts, of at most *rows_max* rows where hosts allow it.

    *counts*: (host, rows), by host. *devices* tells (device, rows), by device, of a host with more than that: it
    is cut between its devices.
    """
    cut: list[Range] = []
    rows, after, last = 0, None, None
    for host, count in counts:
        if rows and rows + count > rows_max:
            cut.append(Range(after, last, rows))
            after, rows = last, 0
        rows, last = rows + count, host
        if devices is not None and rows > rows_max:
            cut += _within(after, host, ranges(devices(host), rows_max))
            after, rows = host, 0
    return [*cut, Range(after, None, rows)] if rows or not cut else cut


def _within(before: str | None, host: str, cut: Sequence[Range]) -> list[Range]:
    """Return the ranges of one host's devices; *before*: the host before it, if any."""
    return [Range(before, host, one.rows, one.after, one.last) for one in cut]


def order_of(table: str) -> str:
    """Return the columns by which a table's Parquet files are sorted."""
    return "host, device, time" + (", signal" if table == BY_NAME else "")
