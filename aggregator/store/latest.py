"""The latest reading of every device per table, in memory: what the operators' file shows first."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .layout import LAYOUTS, Layout
from .rows import Batch, Cells, Rows, Valid

#: Of devices of one host in one table beyond this those go from here that were heard of longest ago (processes on GPUs
#: come and go); of a frame that has more, those that are too many are left out. Their readings are stored.
DEVICES_PER_HOST_MAX = 1024


@dataclass(slots=True)
class _Table:
    """Arrays with a row per device, doubled when they are full."""

    layout: Layout
    rows: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    keys: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # by row
    of_host: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    cells: Cells = field(init=False)
    valid: Valid = field(init=False)
    times_ns: npt.NDArray[np.int64] = field(init=False)
    _full: set[str] = field(
        default_factory=set[str]
    )  # hosts of which nothing more can go, in one update
    boottimes_ns: Cells = field(init=False)

    def __post_init__(self) -> None:
        width = len(self.layout.signals)
        self.cells = np.zeros((width, 64), np.uint64)
        self.valid = np.zeros((width, 64), np.uint8)
        self.times_ns = np.full(64, -1, np.int64)
        self.boottimes_ns = np.zeros(64, np.uint64)

    def row_of(self, host: str, device: str, before_ns: int) -> int:
        """Return the device's row, a new one if need be, or that of one not heard of since *before_ns*; -1 when the
        host has too many."""
        row = self.rows.get((host, device))
        if row is not None:
            return row
        mine = self.of_host.setdefault(host, [])
        if len(mine) < DEVICES_PER_HOST_MAX:
            row = len(self.keys)
            mine.append(row)
            self.keys.append((host, device))
            if row >= len(self.times_ns):
                self._double()
        else:
            row = self._stalest(host, before_ns)
            if row < 0:
                return -1
            del self.rows[self.keys[row]]
            self.keys[row] = host, device
        self.rows[host, device] = row
        self.times_ns[row] = before_ns  # until it is filled
        return row

    def _stalest(self, host: str, before_ns: int) -> int:
        mine = self.of_host[host]
        row = -1 if host in self._full else mine[int(np.argmin(self.times_ns[mine]))]
        if row >= 0 and self.times_ns[row] < before_ns:
            return row
        self._full.add(host)
        return -1

    def _double(self) -> None:
        more = len(self.times_ns)
        self.cells = np.pad(self.cells, ((0, 0), (0, more)))
        self.valid = np.pad(self.valid, ((0, 0), (0, more)))
        self.times_ns = np.pad(self.times_ns, (0, more), constant_values=-1)
        self.boottimes_ns = np.pad(self.boottimes_ns, (0, more))

    def update(self, new: Rows) -> None:
        """Take what is not older than what is there."""
        keys = zip(new.hosts, new.devices, strict=True)
        before_ns = int(new.times_ns.min()) if new.devices else 0
        self._full.clear()
        at = np.array([self.row_of(host, device, before_ns) for host, device in keys], np.int64)
        order = np.argsort(new.times_ns, kind="stable")  # of two, the later is assigned last
        order = order[(at[order] >= 0) & (new.times_ns[order] >= self.times_ns[at[order]])]
        at = at[order]
        self.cells[:, at] = new.cells[:, order]
        self.valid[:, at] = new.valid[:, order]
        self.times_ns[at] = new.times_ns[order]
        self.boottimes_ns[at] = new.boottimes_ns[order]

    def copy(self) -> Rows:
        """Return all rows."""
        count = len(self.keys)
        hosts = [host for host, _ in self.keys]
        devices = [device for _, device in self.keys]
        return Rows(
            self.layout,
            hosts,
            devices,
            self.times_ns[:count].copy(),
            self.boottimes_ns[:count].copy(),
            self.cells[:, :count].copy(),
            self.valid[:, :count].copy(),
        )


class Latest:
    """Fed by the writer after each commit, copied by whoever writes the operators' file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}

    def update(self, batch: Batch) -> None:
        """Take the rows of a commit."""
        with self._lock:
            for rows in batch.known:
                name = rows.layout.table
                if name not in self._tables:
                    self._tables[name] = _Table(rows.layout)
                self._tables[name].update(rows)

    def copy(self) -> dict[str, Rows]:
        """Return the rows of every catalogue table, also of those without any."""
        with self._lock:
            return {
                name: self._tables[name].copy() if name in self._tables else _Table(layout).copy()
                for name, layout in LAYOUTS.items()
            }
