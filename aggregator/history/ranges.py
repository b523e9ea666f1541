"""Ranges of hosts: so many rows at a time, all of a host together, so that sorted pieces make one sorted file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..store.layout import BY_NAME


class Range(NamedTuple):
    """Hosts after *after* up to *last*, by name; None: no limit."""

    after: str | None
    last: str | None
    rows: int

    @property
    def where(self) -> str:
        """The condition, with as many parameters as `parameters`."""
        parts = [*(["host > ?"] if self.after is not None else [])]
        parts += ["host <= ?"] if self.last is not None else []
        return " AND ".join(parts) or "true"

    @property
    def parameters(self) -> list[str]:
        """What the condition is over."""
        return [host for host in (self.after, self.last) if host is not None]


def ranges(counts: Sequence[tuple[str, int]], rows_max: int) -> list[Range]:
    """Return consecutive ranges over all hosts, of at most *rows_max* rows where hosts allow it.

    *counts*: (host, rows), by host.
    """
    cut: list[Range] = []
    rows, after, last = 0, None, None
    for host, count in counts:
        if rows and rows + count > rows_max:
            cut.append(Range(after, last, rows))
            after, rows = last, 0
        rows, last = rows + count, host
    return [*cut, Range(after, None, rows)]


def order_of(table: str) -> str:
    """Return the columns by which a table's Parquet files are sorted."""
    return "host, device, time" + (", signal" if table == BY_NAME else "")
