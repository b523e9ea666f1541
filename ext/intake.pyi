"""Reads arriving frames in place: into the fleet's latest cells, and into the columns of a commit."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Stored times are clamped to 1970 to 2200, because a host's clock may be wrong by any amount.
TIME_NS_MAX: int

class Columns:
    """Destinations of the columns of a table of some agents."""

    table: str
    signal_ids: tuple[int, ...]
    stored_in: int
    kept_in: int
    #: At least one signal has no column in the store.
    strange: bool

    def __init__(
        self,
        table: str,
        signal_ids: tuple[int, ...],
        stored_in: int,
        stored: Sequence[int],
        kept_in: int,
        kept: Sequence[int],
        strange: bool,
        row_bytes: int,
    ) -> None:
        """*stored*, *kept*: per signal its column in the store's and the fleet's table; -1: none.

        *row_bytes*: size of a row in a commit.
        """

class Catalogue:
    """Cache of the column destinations of all agents' tables."""

    def __init__(self, plan: Callable[[str, tuple[int, ...]], tuple[Any, ...]]) -> None:
        """*plan*: (table name, signal ids) -> arguments of `Columns`."""

class Shape:
    """The header of a table."""

    columns: Columns
    rows: int

class Cells:
    """The latest cells of one of the fleet's tables."""

    capacity: int

    def bind(
        self,
        bits: NDArray[np.uint64],
        valid: NDArray[np.uint8],
        touched: NDArray[np.uint8],
        boottime_ns: NDArray[np.int64],
        boot: NDArray[np.uint16],
        gap_seconds: NDArray[np.float32] | None,
        elapsed_seconds: NDArray[np.float32] | None,
    ) -> None:
        """Write frames to these arrays: columns of *capacity* rows. Raises ValueError.

        *gap_seconds*: the longest gap passed to `put`; *elapsed_seconds*: boot time since they were
        0.
        """

class Received:
    """A valid frame."""

    run_id: bytes
    boot_id: bytes
    sequence: int
    boottime_ns: int
    wall_ns: int
    rows: int
    #: Approximate memory: of the frame, or of its rows in a commit if that is more.
    size_bytes: int
    #: Signals without known places; each costs about as much as a row.
    looked_up: int
    #: At least one signal has no column in the store.
    strange: bool
    #: Headers of the tables.
    shapes: list[Shape]

    def offset_ns(self, table: int) -> int:
        """Return the time of a table's readings minus the frame's time. Raises IndexError."""
    def devices(self, table: int) -> tuple[str, ...]:
        """Return the names of a table's devices. Raises IndexError."""
    def packed_cells(self, table: int) -> bytes:
        """Return the input of `columns.unpack`. Raises IndexError."""
    def put(
        self,
        cells: list[Cells],
        host: int,
        boot: int,
        gap_ns: int,
        places: Callable[[int, int, tuple[str, ...]], NDArray[np.intp]],
        reused: NDArray[np.int32] | None = None,
    ) -> None:
        """Store the cells of every table that the fleet keeps; boot time is at most 2**62 ns.

        *places* returns the rows for (host, table number, devices), with reserved memory; -1: left
        out. It is called again when the host's number of *reused* rows changes: its earlier rows
        may belong to other devices.
        """

class Reader:
    """Reads the frames of a stream."""

    def __init__(self, catalogue: Catalogue, decode: Callable[[bytes], object]) -> None:
        """*decode*: raises an error with a message for an invalid frame."""
    def read(self, data: bytes) -> Received:
        """Return the frame. Raises the error of *decode* for an invalid frame."""

class Rows:
    """The rows of one of the store's tables in a commit, as buffers of its Arrow columns."""

    count: int
    #: Size of a column's validity bits.
    bytes_a_column: int
    cells: bytearray
    valid: bytearray
    hosts: bytearray
    devices: bytearray
    times_us: bytearray
    boottimes: bytearray

    def devices_arrow(self) -> tuple[bytearray, bytearray]:
        """Return (offsets, bytes) of the devices' names, which *devices* indexes."""

def build(frames: list[tuple[Received, int, int]], widths: Sequence[int]) -> list[Rows | None]:
    """Return the rows by table number of the store, whose columns are *widths*; None without rows.

    *frames*: (frame, host number, difference of time and boot time in ns).
    """
