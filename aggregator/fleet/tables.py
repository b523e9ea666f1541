"""The latest value of every signal: a row per device, a column per signal."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from ...contract.counters import CounterSpec, StepOutcome
from ...contract.signal import PERIOD_SECONDS, Kind, Signal
from ...ext.intake import Cells
from .. import counter_deltas
from ..arrays import Codes, Flags, Floats, Indexes, Times
from ..counter_deltas import Boots, Sums, Uint64s, grown, write_changed
from ..rule_catalogue import COUNTERS, SIGNALS_READ
from .devices import Devices

#: Signals used by runs of jobs but not by rules (`aggregator/runs/`, `service/job.py`).
_RUN_SIGNALS = """
    gpu_fast.checkpoint_interval_seconds gpu_fast.checkpoint_ratio gpu_fast.compute_ratio
    gpu_fast.compute_watts gpu_fast.host_stall_ratio gpu_fast.idle_ratio
    gpu_fast.memory_bandwidth_ratio gpu_fast.nvlink_received_bytes_per_second
    gpu_fast.next_checkpoint_seconds gpu_fast.nvlink_transmitted_bytes_per_second
    gpu_fast.phase_confidence_ratio gpu_fast.power_mean_watts gpu_fast.step_backward_ratio
    gpu_fast.step_confidence_ratio gpu_fast.step_data_loading_ratio
    gpu_fast.step_forward_backward_ratio gpu_fast.step_forward_ratio gpu_fast.step_optimizer_ratio
    gpu_fast.step_parts_confidence_ratio gpu_fast.step_seconds gpu_fast.wait_ratio
    gpu.memory_total_bytes gpu.memory_used_bytes gpu_fast.pcie_received_bytes_per_second
    gpu_fast.pcie_transmitted_bytes_per_second gpu_fast.sm_active_ratio gpu_fast.tensor_active_ratio
    gpu_fast.wait_watts host.cores_count host.cpu_system_ratio host.cpu_user_ratio host.file_cache_active_bytes
    host.memory_available_bytes job_group.file_cache_active_bytes step.since_seconds step.spread_seconds
    step.step_seconds step.steps_count
"""
RUN_SIGNALS = frozenset(_RUN_SIGNALS.split())

#: Counters whose rates are the demand of a run (`aggregator/runs/demand.py`).
_DEMAND_COUNTERS = """
    disk.read_bytes disk.written_bytes job_group.cpu_nanoseconds job_group.read_bytes job_group.written_bytes l3.memory_bytes lustre.read_bytes lustre.written_bytes nfs.read_bytes nfs.written_bytes
    rdma.received_bytes rdma.transmit_wait_count rdma.transmitted_bytes
"""
DEMAND_COUNTERS = frozenset(_DEMAND_COUNTERS.split())
TRACKED_COUNTERS = COUNTERS | DEMAND_COUNTERS
TRACKED_SIGNALS = SIGNALS_READ | RUN_SIGNALS | DEMAND_COUNTERS

#: Limit of valid gauges: an exabyte, a gigawatt-century. Larger values are driver errors.
GAUGE_MAX = 1e18

#: Time constants of the two leaky sums per counter: current, and usual.
FAST_SECONDS = 10.0
SLOW_SECONDS = 600.0


class DeviceTable:
    """The readings of a catalogue table. Cells are kept raw; `advance` evaluates the counters.

    Arrays are column by row. `recent` uses two leaky sums per counter, so the memory does not
    depend on the rate of frames.
    """

    def __init__(
        self,
        name: str,
        signals: Sequence[Signal],
        devices: Devices,
        tracked_counters: Container[str] | None = None,
        tracked: Container[str] | None = None,
    ) -> None:
        """*tracked*: names of the signals to keep; None: all.

        *tracked_counters*: names of the counters among them that `recent` needs; None: all.
        """
        self.on_change = signals[0].on_change
        self.period_seconds = float(PERIOD_SECONDS[signals[0].pace])
        signals = [s for s in signals if tracked is None or s.name in tracked]
        self.name, self.signals, self.devices = name, tuple(signals), devices
        self.column = {s.column: i for i, s in enumerate(signals)}
        #: Whether anything is stored. For GPUs even an empty table shows that they were read.
        self.is_tracked = bool(signals) or devices.kind == "gpu"
        counters = [
            i
            for i, s in enumerate(signals)
            if s.kind is Kind.COUNTER and (tracked_counters is None or s.name in tracked_counters)
        ]
        self.counter_columns: Indexes = np.array(counters, dtype=np.intp)
        self.counter = {signals[i].column: k for k, i in enumerate(counters)}
        chosen = [signals[i] for i in counters]
        self._natures = [counter_deltas.nature_of(signal) for signal in chosen]
        #: Column of a counter that stays at its ceiling -> ceiling.
        self.sticky = {s.column: (1 << s.width_bits) - 1 for s in signals if s.sticks}
        self.shape = counter_deltas.Shape.of(self._natures)
        #: The latest cells, where frames are stored (`ext/intake.pyx`).
        self.cells = Cells()
        self._allocate(devices.capacity if self.is_tracked else 1)
        self._bind()

    def _allocate(self, capacity: int) -> None:
        width, counters = len(self.signals), len(self.counter_columns)
        self._bits: Uint64s = np.zeros((width, capacity), dtype=np.uint64)
        self._valid: Flags = np.zeros((width, capacity), dtype=bool)
        self._touched: Flags = np.zeros(capacity, dtype=bool)
        self._boottime_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._boot: Boots = np.zeros(capacity, dtype=np.uint16)  # 0: never read
        if self.on_change:
            #: The longest since `advance`.
            self._gap_seconds: Sums = np.zeros(capacity, dtype=np.float32)
        if not counters:
            return
        self._base: Uint64s = np.zeros((counters, capacity), dtype=np.uint64)
        self._base_usable: Flags = np.zeros((counters, capacity), dtype=bool)
        self._elapsed_seconds: Sums = np.zeros(capacity, dtype=np.float32)  # since the base
        self._base_boot: Boots = np.zeros(capacity, dtype=np.uint16)
        self._base_epoch: Codes = np.zeros(capacity, dtype=np.int32)
        #: Per cell: time spanned by readings since its base that lacked the cell. Per row: whether
        #: any cell has such a time.
        self._skipped_seconds: Sums = np.zeros((counters, capacity), dtype=np.float32)
        self._has_skipped: Flags = np.zeros(capacity, dtype=bool)
        self._fast: Sums = np.zeros((counters, capacity), dtype=np.float32)
        self._slow: Sums = np.zeros((counters, capacity), dtype=np.float32)
        if self.devices.kind == "gpu":  # not used for other kinds
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

    def ensure_rows(self, host: int, names: Sequence[str]) -> Indexes:
        """Return the rows of these devices, new ones if necessary; -1: no row is free."""
        rows = np.array([self.devices.row(host, name) for name in names], dtype=np.intp)
        self._fit()
        return rows

    def forget(self, row: int) -> None:
        """Clear all data of *row*, which is being reassigned."""
        if not self.is_tracked:
            return
        self._fit()
        for name, array in vars(self).items():
            if name.startswith("_") and isinstance(array, np.ndarray):
                array[..., row] = 0

    def last_ns(self, rows: Codes, boot: int) -> Times:
        """Return the CLOCK_BOOTTIME of each row's last reading in *boot*; 0: none."""
        self._fit()
        return np.where(self._boot[rows] == boot, self._boottime_ns[rows], 0)

    def pending_rows(self) -> Indexes:
        """Return the rows with readings since they were last in `advance`."""
        if not self.is_tracked:
            return np.zeros(0, dtype=np.intp)
        self._fit()
        return self._touched.nonzero()[0]

    def advance(self, rows: Indexes) -> None:
        """Evaluate all counters of *rows*, a part of `pending_rows`, since the last time."""
        self._touched[rows] = False
        if rows.size and self.counter_columns.size:
            self._count(rows)

    def _count(self, rows: Indexes) -> None:
        places = np.ix_(self.counter_columns, rows)
        newer, valid = self._bits[places], self._valid[places]
        epoch = self.devices.epoch[rows]
        same = (self._base_boot[rows] == self._boot[rows]) & (self._base_epoch[rows] == epoch)
        seconds = np.where(same, self._elapsed_seconds[rows], 0.0)
        skipped_seconds = self._skipped_at(rows)
        elapsed_ns = np.rint((seconds + skipped_seconds) * 1e9).astype(np.int64)
        before = self._base_usable[:, rows]
        steps = counter_deltas.compare(
            self._base[:, rows], before, newer, valid, same, elapsed_ns, self.shape
        )
        span = self._span(rows, seconds)
        span = np.where(skipped_seconds > 0.0, skipped_seconds + seconds, span)
        self._integrate(rows, steps.counts.astype(np.float64), same, seconds, span)
        # A missing cell keeps its base: the next value spans the gap.
        usable = steps.outcome <= StepOutcome.RESET
        write_changed(self._base, rows, np.where(usable, newer, self._base[:, rows]))
        saturated = steps.outcome == StepOutcome.SATURATED
        skipped = before & same & ~(usable | saturated)
        write_changed(self._base_usable, rows, usable | skipped)
        self._note_skipped(rows, skipped, span)
        if self.devices.kind == "gpu":
            reset = (steps.outcome == StepOutcome.RESET) & before & same
            write_changed(self._resets, rows, self._resets[:, rows] + reset)
        self._elapsed_seconds[rows] = 0.0
        if self.on_change:
            self._gap_seconds[rows] = 0.0
        write_changed(self._base_boot, rows, self._boot[rows])
        write_changed(self._base_epoch, rows, epoch)

    def _skipped_at(self, rows: Indexes) -> Sums:
        """Return how long each cell was missing; a single zero if none was, the usual case."""
        if not self._has_skipped[rows].any():
            return np.zeros(1, dtype=np.float32)
        return np.asarray(self._skipped_seconds[:, rows])

    def _note_skipped(self, rows: Indexes, cells: Flags, span: Floats) -> None:
        """Record only *cells* (columns x rows) of *rows* as missing over *span* seconds."""
        has_cell = cells.any(axis=0)
        changed = has_cell | self._has_skipped[rows]
        if changed.any():
            skipped_seconds = np.where(cells, span, 0.0).astype(np.float32)
            write_changed(self._skipped_seconds, rows, skipped_seconds)
            self._has_skipped[rows] = has_cell

    def _span(self, rows: Indexes, seconds: Floats) -> Floats:
        """Return the seconds in which a step of *rows* can have happened.

        A row of an on-change table was unchanged at the host's previous frame and one period ago;
        otherwise it would have been sent.
        """
        if not self.on_change:
            return seconds
        gap_seconds = self._gap_seconds[rows].astype(np.float64)
        return np.minimum(seconds, np.maximum(gap_seconds, self.period_seconds))

    def _integrate(
        self, rows: Indexes, count: Floats, same: Flags, seconds: Floats, span: Floats
    ) -> None:
        """Add *count* to the leaky sums, spread over *span*."""
        continues = same.astype(np.float64)
        for sums, constant in ((self._fast, FAST_SECONDS), (self._slow, SLOW_SECONDS)):
            decayed = sums[:, rows] * (continues * np.exp(-seconds / constant))
            now = decayed + count * counter_deltas.spread(span, constant)
            write_changed(sums, rows, now.astype(np.float32))

    def age_seconds(self, boot: Codes, now_ns: Times) -> Floats:
        """Return the seconds since each row was read in the current boot; else infinite."""
        self._fit()
        host, count = self.devices.host, self.devices.count
        age = (now_ns[host] - self._boottime_ns[:count]) / 1e9
        return np.where(self._boot[:count] == boot[host], age, np.inf)

    def age_seconds_at(self, rows: Indexes, boot: Codes, now_ns: Times) -> Floats:
        """Return the same for *rows* only."""
        self._fit()
        host = self.devices.host[rows]
        age = (now_ns[host] - self._boottime_ns[rows]) / 1e9
        return np.where(self._boot[rows] == boot[host], age, np.inf)

    def gauge(self, column: str) -> Floats:
        """Return the values of a gauge; NaN if missing or invalid."""
        self._fit()
        return self.gauge_at(column, slice(0, self.devices.count))

    def gauge_at(self, column: str, rows: Indexes | slice) -> Floats:
        """Return the same for *rows* only."""
        self._fit()
        index = self.column[column]
        values = self._bits[index, rows].view(np.float64)
        sane = self._valid[index, rows] & (np.abs(values) <= GAUGE_MAX)
        return np.where(sane, values, np.nan)

    def cells_where(self, column: str, condition: Callable[[Any], Flags]) -> Indexes:
        """Return the rows whose last value, of any age, meets *condition*."""
        self._fit()
        index, count = self.column[column], self.devices.count
        valid = self._valid[index, :count]
        if not valid.any():  # most rules read a column that no device of the fleet has
            return np.zeros(0, dtype=np.intp)
        cells = self._bits[index, :count]
        with np.errstate(invalid="ignore"):  # cells that were never read may have any bits
            meets_condition = condition(cells.view(np.float64) if self.is_gauge(column) else cells)
        rows = (meets_condition & valid).nonzero()[0]
        if self.is_gauge(column):
            rows = rows[np.abs(cells[rows].view(np.float64)) <= GAUGE_MAX]
        return rows

    def state(self, column: str, missing: int = 0) -> Uint64s:
        """Return a state's codes or a counter's raw values; *missing* if there is none."""
        self._fit()
        index, count = self.column[column], self.devices.count
        valid = self._valid[index, :count]
        return np.where(valid, self._bits[index, :count], np.uint64(missing))

    def raw(self, column: str) -> Floats:
        """Return the cells of a gauge, valid or not."""
        self._fit()
        cells = self._bits[self.column[column], : self.devices.count]
        return np.asarray(cells.view(np.float64))

    def state_at(self, column: str, rows: Indexes | slice) -> Uint64s:
        """Return a state's codes or a counter's raw values at *rows*, valid or not."""
        self._fit()
        return np.asarray(self._bits[self.column[column], rows])

    def values_at(self, column: str, rows: Indexes) -> Floats:
        """Return a gauge or state at *rows* as numbers, valid or not."""
        cells: Uint64s = self._bits[self.column[column], rows]
        return cells.view(np.float64) if self.is_gauge(column) else cells.astype(np.float64)

    def nature(self, column: str) -> CounterSpec:
        """Return the specification of a counter."""
        return self._natures[self.counter[column]]

    def is_gauge(self, column: str) -> bool:
        """Return whether the signal is a gauge."""
        return self.signals[self.column[column]].kind is Kind.GAUGE

    def known(self, column: str) -> Flags:
        """Return where the signal has a value."""
        self._fit()
        return self._valid[self.column[column], : self.devices.count]

    @property
    def boot(self) -> Boots:
        """Return the boot number of each row's last reading; 0: never read."""
        self._fit()
        return self._boot[: self.devices.count]

    @property
    def read_ns(self) -> Times:
        """Return the host's CLOCK_BOOTTIME of each row's last reading."""
        self._fit()
        return self._boottime_ns[: self.devices.count]

    def recent(
        self, column: str, age_seconds: Floats, *, slow: bool = False, rows: Indexes | None = None
    ) -> Floats:
        """Return a counter's recent events, for all rows or *rows*, of age *age_seconds*; 0: never
        read.

        Events 10 s (slow: 600 s) ago have weight 1/e.
        """
        self._fit()
        constant = SLOW_SECONDS if slow else FAST_SECONDS
        sums = self._sums(column, slow=slow)
        sums = sums if rows is None else sums[rows]
        known = np.isfinite(age_seconds)
        return np.where(known, sums * np.exp(-np.where(known, age_seconds, 0.0) / constant), 0.0)

    def counting(self, column: str, least: float, *, slow: bool = False) -> Indexes:
        """Return the rows whose events may reach *least*; most devices never count an error."""
        self._fit()
        sums = self._sums(column, slow=slow)
        return (sums >= least * (1.0 - 1e-6) if least > 0.0 else sums).nonzero()[0]

    def _sums(self, column: str, *, slow: bool) -> Sums:
        sums = self._slow if slow else self._fast
        return np.asarray(sums[self.counter[column], : self.devices.count])

    def saturated(self, column: str) -> Flags:
        """Return where a counter is at its ceiling and stopped counting."""
        self._fit()
        index, count = self.column[column], self.devices.count
        at_ceiling = self._bits[index, :count] == np.uint64(self.sticky[column])
        return np.asarray(at_ceiling & self._valid[index, :count], dtype=bool)

    def resets(self, column: str) -> Codes:
        """Return how often a counter of GPUs decreased within the same boot and device."""
        self._fit()
        return self._resets[self.counter[column], : self.devices.count]
