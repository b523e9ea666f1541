"""Reads arriving frames in place: into the fleet's latest cells, and into the columns of a commit."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Stored times are held within 1970 to 2200: a host's clock may say anything.
TIME_NS_MAX: int

class Columns:
    """Where the columns of one table of some agents belong."""

    table: str
    signal_ids: tuple[int, ...]
    stored_in: int
    kept_in: int
    #: A signal here, or all of it, has no column in the store.
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
        """*stored*, *kept*: by signal, its column in the store's and the fleet's table of that number; -1: none.

        *row_bytes*: what a row of it takes in a commit.
        """

class Catalogue:
    """What is known of the tables of all agents."""

    def __init__(self, plan: Callable[[str, tuple[int, ...]], tuple[Any, ...]]) -> None:
        """*plan*: (table name, signal ids) -> the arguments of `Columns`."""

class Shape:
    """What a table begins with."""

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
        """Put frames into these arrays from now on: cells are columns by *capacity* rows. ValueError.

        *gap_seconds*: the longest given to `put`; *elapsed_seconds*: what boot time continued by since they were set to 0.
        """

class Received:
    """A frame that was found whole."""

    run_id: bytes
    boot_id: bytes
    sequence: int
    boottime_ns: int
    wall_ns: int
    rows: int
    #: About what it takes in memory: itself, or its rows in a commit if that is more.
    size_bytes: int
    #: Signals whose places were not known yet: each costs about as much as a row.
    looked_up: int
    #: Some signal of it has no column in the store.
    strange: bool
    #: Of each table.
    shapes: list[Shape]

    def offset_ns(self, table: int) -> int:
        """Return when a table's readings were, from the frame's time. IndexError."""
    def devices(self, table: int) -> tuple[str, ...]:
        """Return the names of a table's devices. IndexError."""
    def packed_cells(self, table: int) -> bytes:
        """Return what `columns.unpack` reads. IndexError."""
    def put(
        self,
        cells: list[Cells],
        host: int,
        boot: int,
        gap_ns: int,
        places: Callable[[int, int, tuple[str, ...]], NDArray[np.intp]],
        reused: NDArray[np.int32] | None = None,
    ) -> None:
        """Take over the cells of every table that the fleet keeps; boot time is at most 2**62 ns.

        *places* gives (host, number of the table, devices) their rows, for which there is then room; -1: left out. It is
        asked again once the number of *reused* rows of the host is another: rows that it gave may be others' by then.
        """

class Reader:
    """Reads the frames of one stream."""

    def __init__(self, catalogue: Catalogue, decode: Callable[[bytes], object]) -> None:
        """*decode*: raises with words for what is no frame."""
    def read(self, data: bytes) -> Received:
        """Return the frame. Raises what *decode* raises for anything that is not one."""

class Rows:
    """The rows of one of the store's tables in a commit: what its Arrow columns are made of."""

    count: int
    #: Of the validity bits of a column.
    bytes_a_column: int
    cells: bytearray
    valid: bytearray
    hosts: bytearray
    devices: bytearray
    times_us: bytearray
    boottimes: bytearray

    def devices_arrow(self) -> tuple[bytearray, bytearray]:
        """Return (offsets, bytes) of the devices' names, which *devices* are indexes of."""

def build(frames: list[tuple[Received, int, int]], widths: Sequence[int]) -> list[Rows | None]:
    """Return the rows by number of the store's tables, whose columns are *widths*; None where there are none.

    *frames*: (frame, number of its host, what to add to boot time for the time in ns).
    """
