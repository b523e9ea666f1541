"""Readings of GPUs and hosts summed over a window, by device or by host."""

from __future__ import annotations

import numpy as np

from ..arrays import Floats, Indexes
from ..counter_deltas import capacity_for, grown
from .tables import DeviceTable

#: Columns averaged over a window, by table.
SAMPLED = {
    "gpu_fast_1s": ("sm_active_ratio", "tensor_active_ratio"),
    "gpu_1s": ("utilization_ratio",),
    "host_1s": (
        "pressure_cpu_some_ratio", "pressure_io_some_ratio", "cpu_steal_ratio",
    ),
}  # fmt: skip
BUSY, WORK, USED, CPU, IO, STEAL = range(6)
#: Tables with a row per GPU.
GPU_TABLES = ("gpu_fast_1s", "gpu_1s")


class WindowSums:
    """Sums of readings over a window, by device or by host; the arrays grow as needed."""

    def __init__(self, width: int) -> None:
        self._sums: Floats = np.zeros((width, 64))
        self._counts: Floats = np.zeros((width, 64))

    def add(
        self, table: DeviceTable, columns: tuple[str, ...], rows: Indexes, places: Indexes
    ) -> None:
        """Add *columns* of *rows* of *table* at the distinct indexes *places*."""
        size = int(places.max(initial=-1)) + 1
        if size > self._sums.shape[1]:
            capacity = capacity_for(size, self._sums.shape[1])
            self._sums, self._counts = grown(self._sums, capacity), grown(self._counts, capacity)
        for index, column in enumerate(columns):
            values = table.gauge_at(column, rows)
            known = np.isfinite(values)
            self._sums[index, places[known]] += values[known]
            self._counts[index, places[known]] += 1.0

    def totals(self, size: int) -> tuple[Floats, Floats]:
        """Return sums and counts of the first *size* indexes: (columns, size)."""
        padding = ((0, 0), (0, max(0, size - self._sums.shape[1])))
        sums, counts = (np.pad(a[:, :size], padding) for a in (self._sums, self._counts))
        return sums, counts

    def means(self, size: int) -> Floats:
        """Return the means of the first *size* indexes; NaN without a reading."""
        sums, counts = self.totals(size)
        return np.asarray(sums / counts)

    def clear(self) -> None:
        """Begin the next window."""
        self._sums[:] = self._counts[:] = 0.0
