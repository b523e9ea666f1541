"""Rollups: aggregates of a device's readings by minute, in parts that can be merged.

Readings come late and in parts, so a row holds sums, not means, and rows of one minute can be merged. Counters go through
`aggregator/counter_deltas.py`, from each usable reading to the next; the first of a chunk is compared with the device's last
before it (its *tail*). A reading older than the tail is ignored, because the step across it is already counted. So late readings
never make the sum of increases count anything twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....contract.counters import StepOutcome
from ....contract.signal import Kind, Signal
from ...counter_deltas import Shape, compare, nature_of, unusable
from ..layout import LAYOUTS, Column, Layout, typed_empty

MINUTE_US = 60_000_000
#: A larger difference between boot time and time means another boot.
BOOT_SLACK_US = 300_000_000
#: Limit of a step, so that a minute of steps fits 64 bits.
STEP_MAX = 1 << 54
#: If a table has this column, a change of it means that counters restarted.
EPOCH = "counter_epoch_count"
#: The column that marks rows of a tail.
IS_TAIL = "is_tail"

Times = npt.NDArray[np.int64]
Indexes = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
UInts = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_KEYS: tuple[Column, ...] = (
    ("host", "VARCHAR"),
    ("device", "VARCHAR"),
    ("time", "TIMESTAMP"),
    ("first_time", "TIMESTAMP"),
    ("last_time", "TIMESTAMP"),
    ("readings_count", "UINTEGER"),
)
_UINT64_MAX = 2**64 - 1


class RollupTables(NamedTuple):
    """Two `pyarrow.Table`s: a row per device and minute; each device's last readings (mostly one row)."""

    minutes: Any
    tail: Any


@dataclass(frozen=True, slots=True)
class RollupSpec:
    """The signals of a table by how they are rolled up."""

    gauges: tuple[Signal, ...]
    counters: tuple[Signal, ...]
    states: tuple[Signal, ...]
    has_epoch: bool

    @property
    def tail_columns(self) -> tuple[tuple[str, str], ...]:
        """Columns of a tail and their DuckDB types."""
        counter_columns = [signal.column for signal in self.counters]
        numbers = ["boottime_ns", *([EPOCH] if self.has_epoch else []), *counter_columns]
        keys = ("host", "VARCHAR"), ("device", "VARCHAR"), ("time", "TIMESTAMP")
        return (*keys, *((name, "UBIGINT") for name in numbers))


@cache
def rollup_spec(table: str) -> RollupSpec:
    """Return how *table* is rolled up. Raises KeyError if it is not in the catalogue."""
    layout: Layout = LAYOUTS[table]

    def of(kind: Kind) -> tuple[Signal, ...]:
        return tuple(signal for signal in layout.signals if signal.kind is kind)

    states = of(Kind.STATE)
    has_epoch = any(signal.column == EPOCH for signal in states)
    return RollupSpec(of(Kind.GAUGE), of(Kind.COUNTER), states, has_epoch)


def roll(chunk: Any, table: str) -> RollupTables:
    """Roll up *chunk*, a `pyarrow.Table` with IS_TAIL, sorted by host, device, time and IS_TAIL."""
    spec = rollup_spec(table)
    rows = _Chunk(chunk)
    readings = chunk.filter(pa.array(~rows.is_tail)) if rows.is_tail.any() else chunk
    groups = _Groups(rows)
    out: dict[str, Any] = groups.keys(readings)
    for signal in spec.gauges:
        out |= groups.gauge(signal.column, readings[signal.column])
    lasts: dict[str, Indexes] = {}
    for signal in spec.counters:
        steps, lasts[signal.column] = rows.steps(chunk[signal.column], signal)
        out |= groups.counter(signal.column, steps)
    for signal in spec.states:
        out |= groups.state(signal, readings[signal.column])
    return RollupTables(pa.table(out), rows.tail(chunk, spec, lasts))


class _CounterSteps(NamedTuple):
    """Increase, duration and value per reading (not for tails), with flags where they are valid."""

    counts: UInts
    is_counted: Flags
    seconds: Floats
    value: UInts
    is_value: Flags


class _Chunk:
    """A sorted chunk that includes tails: limits of devices, and the order of rows."""

    def __init__(self, chunk: Any) -> None:
        count = chunk.num_rows
        self.is_tail: Flags = chunk[IS_TAIL].to_numpy().astype(bool)
        self.time_us: Times = chunk["time"].cast(pa.int64()).to_numpy()
        self.boot_us: Times = (_uints(chunk["boottime_ns"])[0] // np.uint64(1000)).astype(np.int64)
        self.epoch: tuple[UInts, Flags] | None = None
        if EPOCH in chunk.column_names:
            self.epoch = _uints(chunk[EPOCH])
        self.new_device = _changes(chunk["host"]) | _changes(chunk["device"])
        self.starts: Indexes = np.flatnonzero(self.new_device)
        self.ends: Indexes = np.append(self.starts[1:], count) - 1
        self.index: Indexes = np.arange(count)
        lengths = self.ends - self.starts + 1
        self.begin: Indexes = np.repeat(self.starts, lengths)
        tails = np.maximum.reduceat(np.where(self.is_tail, self.index, -1), self.starts)
        self.late: Flags = ~self.is_tail & (self.index < np.repeat(tails, lengths))

    def steps(self, column: Any, signal: Signal) -> tuple[_CounterSteps, Indexes]:
        """Return the steps between readings, and each device's last row with a usable value.

        For a device without a usable value that row is less than its first row.
        """
        shape = Shape.of([nature_of(signal)])
        value, valid = _uints(column)
        outcome = unusable(value[None], valid[None], shape)[0]
        has_value = (outcome != StepOutcome.UNSUPPORTED) & (outcome != StepOutcome.BLANK)
        last = np.maximum.accumulate(np.where(has_value & ~self.late, self.index, -1))
        before = np.append(-1, last[:-1])
        known = (before >= self.begin) & ~self.late & ~self.is_tail
        before = np.where(known, before, 0)
        elapsed_us = self.time_us - self.time_us[before]
        comparison = compare(
            value[before][None],
            (known & (outcome[before] == StepOutcome.DELTA))[None],
            value[None],
            valid[None],
            self._same(before),
            elapsed_us * 1000,
            shape,
        )
        counted = (comparison.outcome[0] == StepOutcome.DELTA) | (
            comparison.outcome[0] == StepOutcome.WRAPPED
        )
        counted &= known
        keep = ~self.is_tail
        count = np.minimum(np.where(counted, comparison.counts[0], 0), STEP_MAX).astype(np.uint64)
        seconds = np.where(counted, elapsed_us / 1e6, 0.0)
        readings = _CounterSteps(
            count[keep], counted[keep], seconds[keep], value[keep], has_value[keep]
        )
        return readings, last[self.ends]

    def _same(self, before: Indexes) -> Flags:
        """Return per row whether the previous row has the same boot and the same counters."""
        boot_us = self.boot_us - self.boot_us[before]
        apart = np.abs(self.time_us - self.time_us[before] - boot_us)
        same: Flags = (boot_us > 0) & (apart < BOOT_SLACK_US)
        if self.epoch is not None:
            epoch, known = self.epoch
            same &= ~(known & known[before]) | (epoch == epoch[before])
        return same

    def tail(self, chunk: Any, spec: RollupSpec, lasts: dict[str, Indexes]) -> Any:
        """Return each device's last row, and earlier rows with a counter's last value."""
        row_sets = [self.ends, *(last[last >= self.starts] for last in lasts.values())]
        rows: Indexes = np.unique(np.concatenate(row_sets))
        tail_rows = chunk.select([name for name, _ in spec.tail_columns]).take(pa.array(rows))
        columns = dict(zip(tail_rows.column_names, tail_rows.columns, strict=True))
        for name, last in lasts.items():
            values, valid = _uints(columns[name])
            columns[name] = pa.array(values, mask=~(valid & np.isin(rows, last)))
        return pa.table(columns)


class _Groups:
    """Groups of readings of the same device and minute."""

    def __init__(self, rows: _Chunk) -> None:
        keep = ~rows.is_tail
        time_us = rows.time_us[keep]
        device = np.cumsum(rows.new_device)[keep]
        minute = time_us // MINUTE_US
        new = np.append(True, (np.diff(device) != 0) | (np.diff(minute) != 0))[: len(time_us)]
        self.starts: Indexes = np.flatnonzero(new)
        self.ends: Indexes = np.append(self.starts[1:], len(time_us))
        self.time_us = time_us
        self.index: Indexes = np.arange(len(time_us))

    def keys(self, readings: Any) -> dict[str, Any]:
        """Return the first columns of a rollup."""
        first = readings.select(["host", "device"]).take(pa.array(self.starts))
        begin_us = self.time_us[self.starts]
        stamp = pa.timestamp("us")
        return {
            "host": first["host"],
            "device": first["device"],
            "time": pa.array(begin_us // MINUTE_US * MINUTE_US).cast(stamp),
            "first_time": pa.array(begin_us).cast(stamp),
            "last_time": pa.array(self.time_us[self.ends - 1]).cast(stamp),
            "readings_count": pa.array((self.ends - self.starts).astype(np.uint32)),
        }

    def gauge(self, name: str, column: Any) -> dict[str, Any]:
        """Return count, sum, minimum, maximum and last value, without NaN and infinite values."""
        value, valid = _floats(column)
        count = self._sum(valid.astype(np.uint32))
        none = count == 0
        with np.errstate(over="ignore"):
            total = self._sum(np.where(valid, value, 0.0))
        parts = {
            "sum": total,
            "min": self._reduce(np.minimum, np.where(valid, value, np.inf)),
            "max": self._reduce(np.maximum, np.where(valid, value, -np.inf)),
            "last": value[self._last(valid)],
        }
        columns = {f"{name}_{part}": pa.array(values, mask=none) for part, values in parts.items()}
        return {f"{name}_count": pa.array(count)} | columns

    def counter(self, name: str, counted: _CounterSteps) -> dict[str, Any]:
        """Return the increase, its duration in seconds, and the last value."""
        none = self._sum(counted.is_counted.astype(np.uint32)) == 0
        unknown = self._sum(counted.is_value.astype(np.uint32)) == 0
        return {
            f"{name}_increase": pa.array(self._sum(counted.counts), mask=none),
            f"{name}_seconds": pa.array(self._sum(counted.seconds), mask=none),
            f"{name}_last": pa.array(counted.value[self._last(counted.is_value)], mask=unknown),
        }

    def state(self, signal: Signal, column: Any) -> dict[str, Any]:
        """Return minimum, maximum and last value; for flags also the union."""
        value, valid = _uints(column)
        none = self._sum(valid.astype(np.uint32)) == 0
        high = np.uint64(2**64 - 1)
        parts = {
            "min": self._reduce(np.minimum, np.where(valid, value, high)),
            "max": self._reduce(np.maximum, np.where(valid, value, np.uint64(0))),
            "last": value[self._last(valid)],
        }
        if signal.unit == "flags":
            parts["any"] = self._reduce(np.bitwise_or, np.where(valid, value, np.uint64(0)))
        return {f"{signal.column}_{part}": pa.array(v, mask=none) for part, v in parts.items()}

    def _sum(self, values: Any) -> Any:
        return self._reduce(np.add, values)

    def _reduce(self, how: Any, values: Any) -> Any:
        return how.reduceat(values, self.starts) if len(values) else values

    def _last(self, valid: Flags) -> Indexes:
        """Return per group the last valid row; an arbitrary row if none is valid."""
        if valid.all():
            return self.ends - 1
        rows: Indexes = self._reduce(np.maximum, np.where(valid, self.index, 0))
        return rows


def _changes(column: Any) -> Flags:
    """Return per row whether the text differs from the previous row; true for the first."""
    codes = column.combine_chunks().dictionary_encode().indices.to_numpy()
    return np.append(True, np.diff(codes) != 0)[: len(codes)]


def _uints(column: Any) -> tuple[UInts, Flags]:
    """Return a column's values (0 if missing), and flags of existing values."""
    array = column.combine_chunks()
    valid: Flags = np.ones(len(array), bool)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        array = array.fill_null(0)
    values: UInts = array.to_numpy(zero_copy_only=False).astype(np.uint64, copy=False)
    return values, valid


def _floats(column: Any) -> tuple[Floats, Flags]:
    """Return a gauge's values, and flags of finite values."""
    array = column.combine_chunks()
    if array.null_count:
        array = array.fill_null(float("nan"))
    values: Floats = array.to_numpy(zero_copy_only=False)
    return values, np.isfinite(values)


def rollup_columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a rollup file, in the order of `roll`."""
    spec = rollup_spec(table)
    columns = list(_KEYS)
    for signal in spec.gauges:
        columns.append((f"{signal.column}_count", "UINTEGER"))
        columns += [(f"{signal.column}_{part}", "DOUBLE") for part in ("sum", "min", "max", "last")]
    for signal in spec.counters:
        parts = ("increase", "UBIGINT"), ("seconds", "DOUBLE"), ("last", "UBIGINT")
        columns += [(f"{signal.column}_{part}", kind) for part, kind in parts]
    for signal in spec.states:
        state_parts = ("min", "max", "last", *(("any",) if signal.unit == "flags" else ()))
        columns += [(f"{signal.column}_{part}", "UBIGINT") for part in state_parts]
    return tuple(columns)


def merge_query(table: str, sources: Iterable[str], bucket: str) -> str:
    """Return the query that merges pieces of a device and *bucket* (minute, hour) into a row."""
    spec = rollup_spec(table)
    out = ["min(first_time) AS first_time", "max(last_time) AS last_time"]
    out.append("sum(readings_count)::UINTEGER AS readings_count")
    for signal in spec.gauges:
        c = signal.column
        out.append(f'sum("{c}_count")::UINTEGER AS "{c}_count"')
        out.append(f'sum("{c}_sum") AS "{c}_sum"')
        out += _extremes(c)
    for signal in spec.counters:
        c = signal.column
        total = (
            f'if(sum("{c}_increase") > {_UINT64_MAX}, {_UINT64_MAX}, sum("{c}_increase"))::UBIGINT'
        )
        out.append(f'{total} AS "{c}_increase"')
        out.append(f'sum("{c}_seconds") AS "{c}_seconds"')
        out.append(_last(c))
    out += _states(spec)
    return _grouped(table, sources, f"date_trunc('{bucket}', time)", out)


def rollup_view(table: str, sources: Mapping[str, object]) -> str:
    """Return the body of `rollups.TABLE_1m` or `_1h`: means and rates per device and time."""
    spec = rollup_spec(table)
    out = ["sum(readings_count)::UBIGINT AS readings_count"]
    for signal in spec.gauges:
        c = signal.column
        out.append(f'sum("{c}_sum") / nullif(sum("{c}_count"), 0) AS "{c}_mean"')
        out += _extremes(c)
        out.append(f'coalesce(sum("{c}_count"), 0)::UBIGINT AS "{c}_count"')
    for signal in spec.counters:
        c = signal.column
        out.append(f'sum("{c}_increase") AS "{c}_increase"')
        rate = f'sum("{c}_increase") / nullif(sum("{c}_seconds"), 0)'
        out.append(f'{rate} AS "{c}_rate"')
        out.append(_last(c))
    out += _states(spec)
    return _grouped(table, sources, "time", out)


def _extremes(column: str) -> list[str]:
    return [
        f'min("{column}_min") AS "{column}_min"',
        f'max("{column}_max") AS "{column}_max"',
        _last(column),
    ]


def _last(column: str) -> str:
    return f'arg_max("{column}_last", last_time) AS "{column}_last"'


def _states(spec: RollupSpec) -> list[str]:
    out: list[str] = []
    for signal in spec.states:
        out += _extremes(signal.column)
        if signal.unit == "flags":
            out.append(f'bit_or("{signal.column}_any") AS "{signal.column}_any"')
    return out


def _grouped(table: str, sources: Iterable[str], time: str, out: list[str]) -> str:
    parts = [typed_empty(rollup_columns(table)), *(f"SELECT * FROM {source}" for source in sources)]
    return (
        f"SELECT host, device, {time} AS time, {', '.join(out)} "
        f"FROM ({' UNION ALL BY NAME '.join(parts)}) GROUP BY ALL"
    )
