"""Reads binary tables in sysfs files (`gpu_metrics` of amdgpu) in one pass without the GIL.

A file's plan says where each value is and which cell it fills. A pass reads each file once (pread from its start), checks
that the table is still the planned one, and fills the cells. It allocates nothing. What cannot be read is missing.
"""

import os
from collections.abc import Container, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

#: Bytes of a file that are looked at.
FILE_BYTES_MAX: int
#: What a file answered in the last pass: READ, UNPLANNED (no plan, or another table than the planned one), SHORT (fewer
#: bytes than planned), FAILED (`error`), SPARED.
READ: int
UNPLANNED: int
SHORT: int
FAILED: int
SPARED: int
#: Which of several numbers counts; all ones of their width are none.
FIRST: int
MEAN: int
MAX: int
SUM: int

class TableValue(NamedTuple):
    """A number of the table for a cell. Below *least* or above *most* (before scaling) it is missing.

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
    """Counters of cycles in which something held the device, as nanoseconds for a cell of whole numbers (cell -1: none).

    Of several the greatest step counts: they may run at the same time. Where the step is *share_min* of all cycles or more,
    *flag* is set in the file's flags.
    """

    target: int
    cell: int
    sources: Sequence[tuple[int, str]]
    flag: int
    share_min: float

class TableFiles:
    """Files and their plans. One pass at a time; not for two threads at once."""

    def __init__(self, targets: Sequence[tuple[Buffer, Buffer]]) -> None:
        """Bind to pairs of (cells of 8 bytes, valid bytes). Raises ValueError when a pair's sizes disagree."""

    def add_file(self, path: str | bytes | os.PathLike[str], device: str = "") -> int:
        """Add a file, and return its number. *device*: by this name `ext.place` shows whose driver a pass is in."""

    def add_number(
        self, file: int, path: str | bytes | os.PathLike[str], target: int, index: int
    ) -> None:
        """Let a pass also read a file of one whole number, below 2^59, into a gauge: of the same device, in the same stay.

        Raises ValueError for a cell outside the buffers, or a second number of one file.
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
        """Say what to take of a table of *size* bytes that has the *marks*, in place of what was said before.

        *cycles*: the counter that `held` are shares of. *time*: when the table was made, (offset, type, nanoseconds each).
        *flags*: the cell (target, index) of the flags. *status*: a word of 64 bits, and (bits of it, flag) for each flag.
        A pass reads as much of the file as all this needs, *least_bytes* at least. Raises ValueError for what lies outside the table or the cells.
        """

    def spare(self, devices: Container[str]) -> None:
        """Make no call for the files of these devices until they are no longer named; their cells are missing."""

    def read(self) -> int:
        """Read all files once; return how many did not answer with a planned table."""

    def state(self, file: int) -> int: ...
    def error(self, file: int) -> int:
        """Return errno of a file that is FAILED."""

    def data(self, file: int) -> bytes:
        """Return what was read of the file in the last pass."""

    def close(self) -> None:
        """Close the descriptors; the next pass opens them again."""
