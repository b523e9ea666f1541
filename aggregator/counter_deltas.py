"""Vectorized `contract.counters.compare` for whole tables, and array types and growth.

A property test compares both implementations.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..contract import counters
from ..contract.signal import Signal
from .arrays import Bytes, Flags, Floats, Indexes, Times

#: Sums of events and similar; seven digits are enough for every rule.
Sums = NDArray[np.float32]
Uint64s = NDArray[np.uint64]
Boots = NDArray[np.uint16]

Array = TypeVar("Array", bound=NDArray[Any])

#: Arrays of this size or more get their own mapping.
MAPPED_BYTES_MIN = 1 << 20
#: Cells per block that is copied, or skipped if all are zero: a few pages.
_BLOCK_CELLS = 4096

#: Physical limits of counters per second: a GPU's clock is throttled, or a disk busy, for at most a
#: second. Sixteen lanes of PCIe 6 carry 128 GB/s: a 32-bit byte counter wraps thirty times per
#: second, so that its differences are meaningless.
RATES_MAX = {
    "disk.busy_milliseconds": 1e3,
    "gpu.pcie_transmitted_bytes": 1.28e11,
    "gpu.pcie_received_bytes": 1.28e11,
}
THROTTLE_COUNTER_AFFIXES = ("gpu.violation_", "_nanoseconds")
#: Limits of counts: more spare memory rows (all ones, from an absent register) are impossible.
VALUES_MAX = {"gpu.remapped_correctable_rows": 0xFFFE, "gpu.remapped_uncorrectable_rows": 0xFFFE}


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros.

    A large array uses memory only where written, and releases it completely. malloc would instead
    clear reused memory, and keep it after the array is freed.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < MAPPED_BYTES_MIN:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(shape)


def grown(array: Array, capacity: int) -> Array:
    """Return *array* with *capacity* elements on its last axis, the new ones zero."""
    wider = zeros((*array.shape[:-1], capacity), array.dtype)
    rows = array.reshape(-1, array.shape[-1])
    for to, row in zip(wider.reshape(-1, capacity), rows, strict=True):
        for begin in range(0, row.shape[0], _BLOCK_CELLS):
            block = row[begin : begin + _BLOCK_CELLS]
            if block.any():
                to[begin : begin + block.shape[0]] = block
    return wider  # type: ignore[return-value]


def write_changed(array: Array, rows: Indexes, values: Array) -> None:
    """Set *rows* (the last axis) of *array*, without writing to cells that already have the value.

    Cells that were always zero, such as the errors of most devices, then use no memory.
    """
    flat = array.reshape(-1, array.shape[-1])
    for to, column in zip(flat, values.reshape(flat.shape[0], -1), strict=True):
        changed = to[rows] != column
        if changed.any():
            to[rows[changed]] = column[changed]


def capacity_for(needed: int, capacity: int) -> int:
    """Return a capacity of at least *needed*, doubled so that growth is rare."""
    while capacity < needed:
        capacity *= 2
    return capacity


def nature_of(signal: Signal) -> counters.CounterSpec:
    """Return the properties of the counter behind *signal*."""
    begin, end = THROTTLE_COUNTER_AFFIXES
    is_throttle_counter = signal.name.startswith(begin) and signal.name.endswith(end)
    return counters.CounterSpec(
        signal.width_bits,
        signal.sticks,
        value_max=VALUES_MAX.get(signal.name, counters.BLANK_64),
        rate_max=1e9 if is_throttle_counter else RATES_MAX.get(signal.name, float("inf")),
    )


class Steps(NamedTuple):
    """Outcome and count of every cell; the count is 0 unless it is a delta."""

    outcome: Bytes
    counts: Uint64s


class Shape(NamedTuple):
    """The properties of counter columns, as column vectors."""

    ceiling: Uint64s  # 2**width - 1
    sticks: Flags
    turn: Uint64s  # 0: does not wrap
    value_max: Uint64s
    rate_max: Floats

    @staticmethod
    def of(natures: Sequence[counters.CounterSpec]) -> Shape:
        """Return the shape of counters with *natures*."""

        def column(values: list[int]) -> Uint64s:
            return np.array(values, dtype=np.uint64).reshape(-1, 1)

        narrow = [n.sticks and n.width_bits < 64 for n in natures]
        return Shape(
            column([(1 << n.width_bits) - 1 for n in natures]),
            np.array(narrow, dtype=bool).reshape(-1, 1),
            column([n.modulus for n in natures]),
            column([n.value_max for n in natures]),
            np.array([n.rate_max for n in natures], dtype=np.float64).reshape(-1, 1),
        )


def unusable(value: Uint64s, valid: Flags, shape: Shape) -> Bytes:
    """Return per cell why the value alone is unusable (a StepOutcome), or DELTA if it is usable."""
    result = np.zeros(value.shape, dtype=np.uint8)
    blank = (
        (value == counters.BLANK_32)
        | (value == np.uint64(counters.BLANK_64))
        | (value > shape.value_max)
    )
    blank |= (value >= counters.BLANK_FROM) & (value <= counters.BLANK_TO)
    blank |= (value >= counters.BLANK_31_FROM) & (value <= counters.BLANK_31_TO)
    result[blank] = counters.StepOutcome.BLANK
    result[shape.sticks & (value == shape.ceiling)] = counters.StepOutcome.SATURATED
    result[~valid] = counters.StepOutcome.UNSUPPORTED
    return result


def compare(
    older: Uint64s,
    older_usable: Flags,
    newer: Uint64s,
    newer_valid: Flags,
    same: Flags,
    elapsed_ns: Times,
    shape: Shape,
) -> Steps:
    """Return the steps of counters (columns x rows).

    *older_usable*: `unusable` returned DELTA for the older cell. *same*, *elapsed_ns*: a value per
    row.
    """
    outcome = unusable(newer, newer_valid, shape)
    usable = outcome == counters.StepOutcome.DELTA
    start_over = usable & ~(same & older_usable)
    stale = usable & ~start_over & (elapsed_ns <= 0)
    live = usable & ~start_over & ~stale
    bounded, reach = _reach(elapsed_ns, shape)
    turns = shape.turn > 0
    fell = newer < older
    step = newer - older  # unsigned: wraps at 64 bits; a narrower wrap is added below
    turned = step + shape.turn
    limit = np.where(bounded, reach, shape.turn // np.uint64(counters.WRAP_SHARE_MAX))
    once = ~(bounded & turns & (reach >= shape.turn))
    wrapped = live & once & fell & turns & (older < shape.turn) & (turned <= limit)
    rose = live & once & ~fell & (~bounded | (step <= reach))
    outcome[start_over | (live & ~rose & ~wrapped)] = counters.StepOutcome.RESET
    outcome[stale] = counters.StepOutcome.STALE
    outcome[wrapped] = counters.StepOutcome.WRAPPED
    return Steps(outcome, np.where(rose, step, np.where(wrapped, turned, np.uint64(0))))


def _reach(elapsed_ns: Times, shape: Shape) -> tuple[Flags, Uint64s]:
    """Return per cell whether the count is bounded, and the bound (`CounterSpec.reach`)."""
    bounded = np.isfinite(shape.rate_max)
    seconds = np.maximum(elapsed_ns, 0) / 1e9 + counters.TIME_SLACK_SECONDS
    bound = np.where(bounded, shape.rate_max, 0.0) * seconds
    return np.broadcast_to(bounded, bound.shape), np.minimum(bound, 2.0**63).astype(np.uint64)


def spread(seconds: Floats, time_constant_seconds: float) -> Floats:
    """Return the share of a count, spread evenly over *seconds*, that remains in a leaky sum."""
    ratio = np.maximum(seconds, 1e-9) / time_constant_seconds
    return -np.expm1(-ratio) / ratio


def smoothing(seconds: Floats, time_constant_seconds: float) -> Floats:
    """Return the weight of a new value after *seconds* in an exponential mean."""
    return 1.0 - np.exp(-np.maximum(seconds, 0.0) / time_constant_seconds)
