"""Reads binary tables in sysfs files (`gpu_metrics` of amdgpu) in one pass without the GIL.

A file's plan says where each value is and which cell it fills. A pass reads each file once (pread
from its start), checks that the table is the planned one, and fills the cells. It allocates
nothing. Unreadable values are missing.
"""

import os
from collections.abc import Container, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

#: Bytes read of a file at most.
FILE_BYTES_MAX: int
#: Result of a file in the last pass: READ, UNPLANNED (no plan, or another table), SHORT (fewer
#: bytes than planned), FAILED (`error`), SPARED.
READ: int
UNPLANNED: int
SHORT: int
FAILED: int
SPARED: int
#: Reductions of several numbers to a value. A number with all bits set is missing.
FIRST: int
MEAN: int
MAX: int
SUM: int

class TableValue(NamedTuple):
    """A number of the table for a cell; missing below *least* or above *most* (before scaling).

    A gauge is scaled; a whole number is multiplied by *scale* and cut to *bits*.
    """

    target: int
    cell: int
    gauge: bool
    offset: int
    type: str
    numbers: int
    reduce: int
    scale: float
    least: float
    most: float
    bits: int = 64

class HeldTime(NamedTuple):
    """Counters of cycles in which a cause held the device, as nanoseconds in a cell (-1: no cell).

    The greatest step of several counters is used: they may run at the same time. If the step is at
    least *share_min* of all cycles, *flag* is set in the file's flags.
    """

    target: int
    cell: int
    sources: Sequence[tuple[int, str]]
    flag: int
    share_min: float

class TableFiles:
    """Files and their plans. Not thread-safe."""

    def __init__(self, targets: Sequence[tuple[Buffer, Buffer]]) -> None:
        """Bind to pairs of (cells of 8 bytes, valid bytes). Raises ValueError when a pair's sizes disagree."""

    def add_file(self, path: str | bytes | os.PathLike[str], device: str = "") -> int:
        """Add a file; return its number. *device*: its name in `ext.place` during a read."""

    def add_number(
        self, file: int, path: str | bytes | os.PathLike[str], target: int, index: int
    ) -> None:
        """Read also a file with a whole number, below 10^18, into a gauge of the same device.

        Raises ValueError for a cell outside the buffers, or a second number of a file.
        """

    def plan(
        self,
        file: int,
        size: int,
        marks: Sequence[tuple[int, bytes]],
        values: Sequence[TableValue],
        held: Sequence[HeldTime] = (),
        cycles: tuple[int, str] | None = None,
        time: tuple[int, str, int] | None = None,
        flags: tuple[int, int] | None = None,
        status: tuple[int, Sequence[tuple[int, int]]] | None = None,
        least_bytes: int = 0,
    ) -> None:
        """Set the plan of a file: a table of *size* bytes that has the *marks*.

        *cycles*: the counter of all cycles, for `held`. *time*: the table's creation time as
        (offset, type, nanoseconds per unit). *flags*: the cell (target, index) of the flags.
        *status*: a word of 64 bits, and (bits, flag) pairs. A pass reads the planned bytes, at
        least *least_bytes*.
        Raises ValueError for an item outside the table or the cells.
        """

    def spare(self, devices: Container[str]) -> None:
        """Make no call for files of *devices* until the next `spare`; their cells are missing."""

    def read(self) -> int:
        """Read all files once; return how many have no planned table."""

    def state(self, file: int) -> int: ...
    def error(self, file: int) -> int:
        """Return errno of a FAILED file."""

    def data(self, file: int) -> bytes:
        """Return the file's bytes of the last pass."""

    def close(self) -> None:
        """Close the descriptors; the next pass opens the files again."""
