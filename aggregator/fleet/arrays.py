"""Names of the array types that the fleet is made of, and how they grow."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Times = NDArray[np.int64]
Indexes = NDArray[np.intp]
Codes = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

Array = TypeVar("Array", bound=NDArray[Any])


def grown(array: Array, capacity: int) -> Array:
    """Return *array* with *capacity* places on its last axis, the new ones zero."""
    wider = np.zeros((*array.shape[:-1], capacity), dtype=array.dtype)
    wider[..., : array.shape[-1]] = array
    return wider  # type: ignore[return-value]


def room(needed: int, capacity: int) -> int:
    """Return a capacity that holds *needed*: doubling, so that growth is rare."""
    while capacity < needed:
        capacity *= 2
    return capacity
