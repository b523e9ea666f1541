"""The latest of every signal, in arrays: a row per device of all hosts, a column per signal."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from ...ext.intake import Cells
from ...fingerprints.catalogue import PERIOD_SECONDS, Kind, Signal
from ...fingerprints.counters import Nature, Outcome
from . import counting
from .arrays import Boots, Codes, Flags, Floats, Indexes, Sums, Times, Words, grown, put
from .devices import Devices

#: No gauge of ours is larger: an exabyte, a gigawatt-century. What is, a driver made up.
GAUGE_MAX = 1e18

#: Time constants of the two leaky sums kept per counter: what happens now, and what is usual.
FAST_SECONDS = 10.0
SLOW_SECONDS = 600.0


class DeviceTable:
    """One catalogue table. Cells are kept raw; counters are read through counter algebra in `advance`.

    Arrays are column by row. `rates` and `recent` come from two leaky sums per counter, so the memory
    is bounded whatever the pace of frames.
    """

    def __init__(
        self,
        name: str,
        signals: Sequence[Signal],
        devices: Devices,
        counted: Container[str] | None = None,
        kept: Container[str] | None = None,
    ) -> None:
        """*kept*: names of the signals that are kept here; *counted*: of the counters among them that are
        read through `rates` and `recent`; None: all.
        """
        self.on_change = signals[0].on_change
        self.period_seconds = float(PERIOD_SECONDS[signals[0].pace])
        signals = [s for s in signals if kept is None or s.name in kept]
        self.name, self.signals, self.devices = name, tuple(signals), devices
        self.column = {s.column: i for i, s in enumerate(signals)}
        #: Nothing is put here else. Of GPUs it tells something that anything was read at all.
        self.is_kept = bool(signals) or devices.kind == "gpu"
        counters = [
            i
            for i, s in enumerate(signals)
            if s.kind is Kind.COUNTER and (counted is None or s.name in counted)
        ]
        self.counter_columns: Indexes = np.array(counters, dtype=np.intp)
        self.counter = {signals[i].column: k for k, i in enumerate(counters)}
        chosen = [signals[i] for i in counters]
        self._natures = [counting.nature_of(signal) for signal in chosen]
        #: Columns that stay at their ceiling once they reach it -> that ceiling.
        self.sticky = {s.column: (1 << s.width_bits) - 1 for s in signals if s.sticks}
        self.shape = counting.Shape.of(self._natures)
        #: The latest cells, as frames are put there (`ext/intake.pyx`).
        self.cells = Cells()
        self._make(devices.capacity if self.is_kept else 1)
        self._bind()

    def _make(self, capacity: int) -> None:
        width, counters = len(self.signals), len(self.counter_columns)
        self._bits: Words = np.zeros((width, capacity), dtype=np.uint64)
        self._valid: Flags = np.zeros((width, capacity), dtype=bool)
        self._touched: Flags = np.zeros(capacity, dtype=bool)
        self._boottime_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._boot: Boots = np.zeros(capacity, dtype=np.uint16)  # 0: never heard
        if self.on_change:
            #: The longest since `advance`.
            self._gap_seconds: Sums = np.zeros(capacity, dtype=np.float32)
        if not counters:
            return
        self._base: Words = np.zeros((counters, capacity), dtype=np.uint64)
        self._base_usable: Flags = np.zeros((counters, capacity), dtype=bool)
        self._elapsed_seconds: Sums = np.zeros(capacity, dtype=np.float32)  # since the base
        self._base_boot: Boots = np.zeros(capacity, dtype=np.uint16)
        self._base_epoch: Codes = np.zeros(capacity, dtype=np.int32)
        #: Of a cell that the readings since its base left out: the time that they span. And the rows with such a cell.
        self._left_out_seconds: Sums = np.zeros((counters, capacity), dtype=np.float32)
        self._left_out: Flags = np.zeros(capacity, dtype=bool)
        self._fast: Sums = np.zeros((counters, capacity), dtype=np.float32)
        self._slow: Sums = np.zeros((counters, capacity), dtype=np.float32)
        if self.devices.kind == "gpu":  # nobody asks it of others
            self._resets: Codes = np.zeros((counters, capacity), dtype=np.int32)

    def _fit(self) -> None:
        if self._boot.shape[-1] < self.devices.capacity:
            for name, array in vars(self).items():
                if name.startswith("_") and isinstance(array, np.ndarray):
                    setattr(self, name, grown(array, self.devices.capacity))
            self._bind()

    def _bind(self) -> None:
        gap_seconds = self._gap_seconds if self.on_change else None
        elapsed_seconds = self._elapsed_seconds if self.counter_columns.size else None
        flags = self._valid.view(np.uint8), self._touched.view(np.uint8)
        self.cells.bind(
            self._bits, *flags, self._boottime_ns, self._boot, gap_seconds, elapsed_seconds
        )

    def places(self, host: int, names: Sequence[str]) -> Indexes:
        """Return the rows of these devices, made if need be, with room for them; -1: left out."""
        rows = np.array([self.devices.row(host, name) for name in names], dtype=np.intp)
        self._fit()
        return rows

    def waiting(self) -> Indexes:
        """Return the rows that were heard of since `advance` had them."""
        if not self.is_kept:
            return np.zeros(0, dtype=np.intp)
        self._fit()
        return np.flatnonzero(self._touched)

    def advance(self, rows: Indexes) -> None:
        """Count the steps of all counters of *rows*, some of those `waiting`, since they were here last."""
        self._touched[rows] = False
        if rows.size and self.counter_columns.size:
            self._count(rows)

    def _count(self, rows: Indexes) -> None:
        places = np.ix_(self.counter_columns, rows)
        newer, valid = self._bits[places], self._valid[places]
        epoch = self.devices.epoch[rows]
        same = (self._base_boot[rows] == self._boot[rows]) & (self._base_epoch[rows] == epoch)
        seconds = np.where(same, self._elapsed_seconds[rows], 0.0)
        left_out_seconds = self._left_out_at(rows)
        elapsed_ns = np.rint((seconds + left_out_seconds) * 1e9).astype(np.int64)
        before = self._base_usable[:, rows]
        steps = counting.compare(
            self._base[:, rows], before, newer, valid, same, elapsed_ns, self.shape
        )
        span = self._span(rows, seconds)
        span = np.where(left_out_seconds > 0.0, left_out_seconds + seconds, span)
        self._integrate(rows, steps.counts.astype(np.float64), same, seconds, span)
        # A cell that was left out keeps its base: the next value spans the gap.
        usable = steps.outcome <= Outcome.RESET
        put(self._base, rows, np.where(usable, newer, self._base[:, rows]))
        saturated = steps.outcome == Outcome.SATURATED
        left_out = before & same & ~(usable | saturated)
        put(self._base_usable, rows, usable | left_out)
        self._leave_out(rows, left_out, span)
        if self.devices.kind == "gpu":
            reset = (steps.outcome == Outcome.RESET) & before & same
            put(self._resets, rows, self._resets[:, rows] + reset)
        self._elapsed_seconds[rows] = 0.0
        if self.on_change:
            self._gap_seconds[rows] = 0.0
        put(self._base_boot, rows, self._boot[rows])
        put(self._base_epoch, rows, epoch)

    def _left_out_at(self, rows: Indexes) -> Sums:
        """Return for how long each cell of *rows* was left out; where none was, which is nearly always, one zero."""
        if not self._left_out[rows].any():
            return np.zeros(1, dtype=np.float32)
        return np.asarray(self._left_out_seconds[:, rows])

    def _leave_out(self, rows: Indexes, cells: Flags, span: Floats) -> None:
        """Note that *cells* (columns x rows) were left out of readings over *span* (seconds), and no others of *rows*."""
        some = cells.any(axis=0)
        changed = some | self._left_out[rows]
        if changed.any():
            left_out_seconds = np.where(cells, span, 0.0).astype(np.float32)
            put(self._left_out_seconds, rows, left_out_seconds)
            self._left_out[rows] = some

    def _span(self, rows: Indexes, seconds: Floats) -> Floats:
        """Return the seconds in which a step of *rows* can have happened.

        The row of an on-change table was the same at the host's frame before and one period ago,
        or it would have come then.
        """
        if not self.on_change:
            return seconds
        gap_seconds = self._gap_seconds[rows].astype(np.float64)
        return np.minimum(seconds, np.maximum(gap_seconds, self.period_seconds))

    def _integrate(
        self, rows: Indexes, count: Floats, same: Flags, seconds: Floats, span: Floats
    ) -> None:
        """Add *count* to the leaky sums, spread over *span*."""
        kept = same.astype(np.float64)
        for sums, constant in ((self._fast, FAST_SECONDS), (self._slow, SLOW_SECONDS)):
            decayed = sums[:, rows] * (kept * np.exp(-seconds / constant))
            now = decayed + count * counting.spread(span, constant)
            put(sums, rows, now.astype(np.float32))

    # What rules read. Every array has a value per row of `devices`.

    def heard(self, boot: Codes, now_ns: Times) -> Floats:
        """Return the seconds since each row was heard, infinite for another boot or never."""
        self._fit()
        host, count = self.devices.host, self.devices.count
        age = (now_ns[host] - self._boottime_ns[:count]) / 1e9
        return np.where(self._boot[:count] == boot[host], age, np.inf)

    def heard_at(self, rows: Indexes, boot: Codes, now_ns: Times) -> Floats:
        """Return the same for *rows* alone."""
        self._fit()
        host = self.devices.host[rows]
        age = (now_ns[host] - self._boottime_ns[rows]) / 1e9
        return np.where(self._boot[rows] == boot[host], age, np.inf)

    def gauge(self, column: str) -> Floats:
        """Return the values of a gauge, NaN where there is none that can be."""
        self._fit()
        return self.gauge_at(column, slice(0, self.devices.count))

    def gauge_at(self, column: str, rows: Indexes | slice) -> Floats:
        """Return the same for *rows* alone."""
        self._fit()
        index = self.column[column]
        values = self._bits[index, rows].view(np.float64)
        sane = self._valid[index, rows] & (np.abs(values) <= GAUGE_MAX)
        return np.where(sane, values, np.nan)

    def cells_where(self, column: str, wrong: Callable[[Any], Flags]) -> Indexes:
        """Return the rows whose last value *wrong* speaks of, however old it is."""
        self._fit()
        index, count = self.column[column], self.devices.count
        cells = self._bits[index, :count]
        with np.errstate(invalid="ignore"):  # what was never read may be any bits
            found = wrong(cells.view(np.float64) if self.is_gauge(column) else cells)
        rows = np.flatnonzero(found & self._valid[index, :count])
        if self.is_gauge(column):
            rows = rows[np.abs(cells[rows].view(np.float64)) <= GAUGE_MAX]
        return rows

    def state(self, column: str, missing: int = 0) -> Words:
        """Return a state's codes or a counter's raw values; *missing* where there is none."""
        self._fit()
        index, count = self.column[column], self.devices.count
        valid = self._valid[index, :count]
        return np.where(valid, self._bits[index, :count], np.uint64(missing))

    def raw(self, column: str) -> Floats:
        """Return the cells of a gauge as they are, whether they are valid or not."""
        self._fit()
        cells = self._bits[self.column[column], : self.devices.count]
        return np.asarray(cells.view(np.float64))

    def state_at(self, column: str, rows: Indexes | slice) -> Words:
        """Return a state's codes or a counter's raw values at *rows*, whether they are valid or not."""
        self._fit()
        return np.asarray(self._bits[self.column[column], rows])

    def values_at(self, column: str, rows: Indexes) -> Floats:
        """Return a gauge or a state at *rows* as numbers, whether it is valid or not."""
        cells: Words = self._bits[self.column[column], rows]
        return cells.view(np.float64) if self.is_gauge(column) else cells.astype(np.float64)

    def nature(self, column: str) -> Nature:
        """Return what is known of a counter."""
        return self._natures[self.counter[column]]

    def is_gauge(self, column: str) -> bool:
        """Say whether the signal is a gauge."""
        return self.signals[self.column[column]].kind is Kind.GAUGE

    def known(self, column: str) -> Flags:
        """Say where the signal has a value."""
        self._fit()
        return self._valid[self.column[column], : self.devices.count]

    @property
    def boot(self) -> Boots:
        """The number of the boot that each row's last reading is of; 0: never read."""
        self._fit()
        return self._boot[: self.devices.count]

    @property
    def read_ns(self) -> Times:
        """When each row was read last, by its host's CLOCK_BOOTTIME."""
        self._fit()
        return self._boottime_ns[: self.devices.count]

    def recent(
        self, column: str, heard: Floats, *, slow: bool = False, rows: Indexes | None = None
    ) -> Floats:
        """Return a counter's events, of all rows or of *rows*, given `heard` of them; 0 if never heard.

        Those of 10 s (or 600 s) ago weigh 1/e.
        """
        self._fit()
        constant = SLOW_SECONDS if slow else FAST_SECONDS
        held = self._sums(column, slow=slow)
        held = held if rows is None else held[rows]
        known = np.isfinite(heard)
        return np.where(known, held * np.exp(-np.where(known, heard, 0.0) / constant), 0.0)

    def counting(self, column: str, least: float, *, slow: bool = False) -> Indexes:
        """Return the rows whose events may still be *least* or more: most devices count no error ever."""
        self._fit()
        held = self._sums(column, slow=slow)
        return np.flatnonzero(held >= least * (1.0 - 1e-6) if least > 0.0 else held)

    def _sums(self, column: str, *, slow: bool) -> Sums:
        sums = self._slow if slow else self._fast
        return np.asarray(sums[self.counter[column], : self.devices.count])

    def saturated(self, column: str) -> Flags:
        """Say where a counter stands at its ceiling and so sees nothing."""
        self._fit()
        index, count = self.column[column], self.devices.count
        stands = self._bits[index, :count] == np.uint64(self.sticky[column])
        return np.asarray(stands & self._valid[index, :count], dtype=bool)

    def resets(self, column: str) -> Codes:
        """Return how often a counter of GPUs was set back, though boot and device were the same."""
        self._fit()
        return self._resets[self.counter[column], : self.devices.count]
