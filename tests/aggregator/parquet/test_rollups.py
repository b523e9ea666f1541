"""Rollups by minute and by hour: gauges, and counters by the algebra of `contract.counters`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.counter_deltas import nature_of
from gangline.aggregator.store.layout import COLUMNS
from gangline.aggregator.store.parquet.rollup import (
    IS_TAIL,
    MINUTE_US,
    STEP_MAX,
    merge_query,
    roll,
    rollup_columns,
    rollup_spec,
    rollup_view,
)
from gangline.contract.counters import Observation, StepOutcome, classify, compare
from gangline.contract.signals import BY_NAME

COUNTERS = rollup_spec("gpu_1s").counters
TABLE, COUNTER = "gpu_1s", "violation_power_nanoseconds"
NATURE = nature_of(BY_NAME["gpu.violation_power_nanoseconds"])
_ARROW = {"VARCHAR": pa.string(), "TIMESTAMP": pa.timestamp("us"), "UBIGINT": pa.uint64(),
          "DOUBLE": pa.float64()}  # fmt: skip

#: (seconds after the reading before, value, whether the host booted between)
readings = st.lists(
    st.tuples(
        st.integers(1, 90),
        st.none() | st.integers(0, 10**11) | st.sampled_from([2**64 - 1, 2**32 - 1, 2**63 - 1]),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def chunk(rows: list[dict[str, Any]]) -> Any:
    """Return a sorted chunk of gpu_1s with these cells."""
    columns = [*COLUMNS[TABLE]]
    rows = sorted(rows, key=lambda r: (r["host"], r["device"], r["time"], r.get(IS_TAIL, False)))
    arrays = {
        name: pa.array([row.get(name) for row in rows], _ARROW[kind]) for name, kind in columns
    }
    return pa.table(arrays | {IS_TAIL: pa.array([bool(row.get(IS_TAIL)) for row in rows])})


def row(time_us: int, boot_us: int, **cells: Any) -> dict[str, Any]:
    return {"host": "a", "device": "G", "time": time_us, "boottime_ns": boot_us * 1000, **cells}


def by_hand(rows: list[tuple[int, int, int | None]]) -> int:
    """Return the sum that `contract.counters.compare` counts over the usable readings."""
    usable = [
        reading
        for reading in rows
        if classify(reading[2], NATURE) not in (StepOutcome.UNSUPPORTED, StepOutcome.BLANK)
    ]
    total = 0
    for (time_a, boot_a, older), (time_b, boot_b, newer) in pairwise(usable):
        boot = boot_b > boot_a and abs((time_b - time_a) - (boot_b - boot_a)) < 300_000_000
        step = compare(
            Observation(older, time_a * 1000, b"0"),
            Observation(newer, time_b * 1000, b"0" if boot else b"1"),
            NATURE,
        )
        total += step.count
    return total


@settings(max_examples=60, deadline=None)
@given(readings, st.integers(1, 6))
def test_increases_are_those_of_the_algebra_however_they_are_cut(
    steps: list[tuple[int, int | None, bool]], pieces: int
) -> None:
    """A rollup showed 2**64 errors after a GPU's reset, and counted a step twice at each seam."""
    time_us, boot_us, rows = 1_795_168_800_000_000, 10**12, []
    for seconds, value, is_boot in steps:
        time_us += seconds * 1_000_000
        boot_us = 5_000_000 if is_boot else boot_us + seconds * 1_000_000
        rows.append((time_us, boot_us, value))
    cuts = np.array_split(np.arange(len(rows)), pieces)
    tail: list[dict[str, Any]] = []
    total = 0
    for cut in cuts:
        cells = [row(rows[index][0], rows[index][1], **{COUNTER: rows[index][2]}) for index in cut]
        if not cells:
            continue
        rolled = roll(chunk([*cells, *tail]), TABLE)
        total += sum(rolled.minutes[f"{COUNTER}_increase"].drop_null().to_pylist())
        assert sum(rolled.minutes["readings_count"].to_pylist()) == len(cells)
        tail = [
            {**tail_row, "time": _us(tail_row["time"]), IS_TAIL: True}
            for tail_row in rolled.tail.to_pylist()
        ]
        assert 1 <= len(tail) <= 1 + len(COUNTERS)
    assert total == by_hand(rows)


def _us(time: Any) -> int:
    return int(np.datetime64(time, "us").astype(np.int64))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 600), st.none() | st.floats(allow_nan=True, width=32)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 4),
)
def test_gauges_put_together_from_pieces_are_those_of_the_whole(
    values: list[tuple[int, float | None]], pieces: int
) -> None:
    """Half of a minute arrived an hour later: its mean was the mean of two means."""
    begin = 1_795_168_800_000_000
    rows = [row(begin + s * 1_000_000 + index, 10**12 + s * 1_000_000, power_watts=v)
            for index, (s, v) in enumerate(values)]  # fmt: skip
    finite_rows = [
        r for r in rows if r["power_watts"] is not None and np.isfinite(r["power_watts"])
    ]
    with duckdb.connect() as connection:
        names = []
        for index in range(pieces):
            if part := rows[index::pieces]:
                connection.register(f"piece_{index}", roll(chunk(part), TABLE).minutes)
                names.append(f"piece_{index}")
        rolled_rows = connection.execute(
            f"SELECT epoch_us(time), readings_count, power_watts_count, power_watts_mean, "
            f"power_watts_min, power_watts_max, power_watts_last "
            f"FROM ({rollup_view(TABLE, dict.fromkeys(names))})"
        ).fetchall()
    assert sum(minute_row[1] for minute_row in rolled_rows) == len(rows)
    for minute, _, count, mean, low, high, last in rolled_rows:
        readings_of_minute = [
            r for r in finite_rows if r["time"] // MINUTE_US * MINUTE_US == minute
        ]
        numbers = [r["power_watts"] for r in readings_of_minute]
        assert count == len(readings_of_minute)
        if readings_of_minute:
            rounding = 1e-9 * max(map(abs, numbers))  # large numbers cancel each other
            assert mean == pytest.approx(float(np.mean(numbers)), rel=1e-6, abs=rounding + 1e-30)
            assert (low, high) == (min(numbers), max(numbers))
            assert last in [r["power_watts"] for r in readings_of_minute]  # the last piece's last
        else:
            assert (mean, low, high, last) == (None, None, None, None)


def test_what_comes_late_is_counted_once() -> None:
    """An hour from a spool arrived after newer readings: its errors were counted twice."""
    begin = 1_795_168_800_000_000

    def reading_at(second: int, value: int) -> dict[str, Any]:
        return row(begin + second * 10**6, 10**12 + second * 10**6, **{COUNTER: value})

    def increases(rows: list[dict[str, Any]]) -> list[int | None]:
        out: list[int | None] = roll(chunk(rows), TABLE).minutes[f"{COUNTER}_increase"].to_pylist()
        return out

    assert increases([reading_at(0, 100), reading_at(1, 110), reading_at(3000, 500)]) == [10, 390]
    tail = {**reading_at(3000, 500), IS_TAIL: True}
    assert increases([reading_at(600, 200), reading_at(601, 210), tail]) == [None]
    assert increases([reading_at(600, 200), reading_at(3001, 507), tail]) == [None, 7]


def test_another_gpu_in_the_slot_s_counters_counts_nothing() -> None:
    """The GPU was reset: its counters restarted above their old values."""
    rows = [
        row(10**15, 10**12, counter_epoch_count=1, **{COUNTER: 5}),
        row(10**15 + 10**6, 10**12 + 10**6, counter_epoch_count=2, **{COUNTER: 900}),
        row(10**15 + 2 * 10**6, 10**12 + 2 * 10**6, counter_epoch_count=2, **{COUNTER: 907}),
    ]
    minutes = roll(chunk(rows), TABLE).minutes
    assert minutes[f"{COUNTER}_increase"].to_pylist() == [7]
    assert minutes[f"{COUNTER}_seconds"].to_pylist() == [1.0]
    assert minutes[f"{COUNTER}_last"].to_pylist() == [907]


def test_what_a_hostile_host_counts_stays_within_64_bits() -> None:
    """A counter of 2**63 a second: a minute's sum overflowed to a small number."""
    name = "calls_failed_errors"
    rows = [
        row(10**15 + second * 10**6, 10**12 + second * 10**6, **{name: second * 2**62})
        for second in range(3)
    ]
    minutes = roll(chunk(rows), TABLE).minutes
    assert minutes[f"{name}_increase"].to_pylist() == [2 * STEP_MAX]
    with duckdb.connect() as connection:
        connection.register("minutes", minutes)
        names = [column for column, _ in rollup_columns(TABLE)]
        assert minutes.column_names == names
        hour = connection.sql(
            merge_query(TABLE, ["(SELECT m.* FROM minutes AS m, range(1100))"], "hour")
        ).to_arrow_table()
    assert hour[f"{name}_increase"].to_pylist() == [2**64 - 1]


def test_flags_of_any_reading_show_in_the_minute() -> None:
    """Heat lowered the clock for three seconds of the minute, and not in its last one."""
    values = [0, 0x40, 0x8, None, 0]
    rows = [
        row(second * 10**6, 10**12 + second * 10**6, clock_event_reasons_flags=v)
        for second, v in enumerate(values)
    ]
    minutes = roll(chunk(rows), TABLE).minutes
    parts = {
        part: minutes[f"clock_event_reasons_flags_{part}"].to_pylist()
        for part in ("any", "min", "max", "last")
    }
    assert parts == {"any": [0x48], "min": [0], "max": [0x40], "last": [0]}
