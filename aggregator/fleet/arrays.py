"""Names of the array types that the fleet is made of, and how they grow."""

from __future__ import annotations

import math
import mmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.float64]
#: Of events and the like; seven digits are more than a rule needs.
Sums = NDArray[np.float32]
Words = NDArray[np.uint64]
Times = NDArray[np.int64]
Indexes = NDArray[np.intp]
Codes = NDArray[np.int32]
Boots = NDArray[np.uint16]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

Array = TypeVar("Array", bound=NDArray[Any])

#: Arrays from this size on have memory of their own.
MAPPED_BYTES_MIN = 1 << 20
#: Cells that are copied, or left alone for they are zero, at a time: some pages.
_BLOCK_CELLS = 4096


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros; of a large one only what is written takes memory, and all goes with it.

    From malloc it would be cleared memory that others had, and stay after it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < MAPPED_BYTES_MIN:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(shape)


def grown(array: Array, capacity: int) -> Array:
    """Return *array* with *capacity* places on its last axis, the new ones zero."""
    wider = zeros((*array.shape[:-1], capacity), array.dtype)
    rows = array.reshape(-1, array.shape[-1])
    for to, row in zip(wider.reshape(-1, capacity), rows, strict=True):
        for begin in range(0, row.shape[0], _BLOCK_CELLS):
            block = row[begin : begin + _BLOCK_CELLS]
            if block.any():
                to[begin : begin + block.shape[0]] = block
    return wider  # type: ignore[return-value]


def put(array: Array, rows: Indexes, values: Array) -> None:
    """Set *rows* (the last axis) of *array*, but write to no cell that has its value.

    What is zero from the beginning on, as the errors of most devices are, has no memory then.
    """
    flat = array.reshape(-1, array.shape[-1])
    for to, column in zip(flat, values.reshape(flat.shape[0], -1), strict=True):
        changed = to[rows] != column
        if changed.any():
            to[rows[changed]] = column[changed]


def room(needed: int, capacity: int) -> int:
    """Return a capacity that holds *needed*: doubling, so that growth is rare."""
    while capacity < needed:
        capacity *= 2
    return capacity
