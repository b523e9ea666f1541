"""Reads many small counter files through open descriptors in one pass without the GIL.

A file is added with the cells it fills; a pass reads each file once (pread from its start) and parses
all of its cells straight into the buffers they were bound to. A pass allocates nothing. What cannot be
read or is not of the expected shape is missing (its `valid` byte is 0): never zero, never an exception.
"""

import os
from collections.abc import Container, Sequence

from typing_extensions import Buffer

#: `1234` and nothing else but white space. Not negative, no unit, no `N/A (no PMA)`; at most 2^64 - 1.
NUMBER: int
#: The same, or `-1234`; gauges only.
SIGNED: int
#: `4: ACTIVE`: the number before the colon.
CODE: int
#: `... key 1234 ...`: the number after the word *key*, as in `TOTAL_ERR_COR 0` or `MemTotal: 1024 kB`.
KEYED: int
#: `2.5 unit ...`: a number with the unit *key*, as in `400 Gb/sec (4X NDR)`; gauges only.
DECIMAL: int
#: `up`: which of the words of *key*, apart by blanks, the text is, counted from 0; no gauges.
WORD: int
#: Any text: a number that is another one when the text is; of 4,096 bytes or more another one each time. No gauges.
DIGEST: int

class CounterFiles:
    """Files and the cells they fill. One pass at a time; not for two threads at once."""

    missing_cells: int
    """Cells that the last pass left missing."""
    read_errors: int
    """Opens and reads that the kernel refused, since this was made."""

    def __init__(
        self,
        targets: Sequence[tuple[Buffer, Buffer]],
        *,
        kept_max: int = 160,
        wait_passes_max: int = 0,
        only_files: bool = False,
    ) -> None:
        """Bind to pairs of (cells of 8 bytes, valid bytes); both stay bound and must not be resized.

        Of the files, the first *kept_max* keep their descriptor, the others are opened each pass. After
        an error a file is skipped for 1, 3, 7 ... passes, at most *wait_passes_max* (0: never left
        alone); a whole group that answers nothing but errors likewise, probed by one file each time.
        Raises ValueError when a pair's sizes disagree.
        """

    def add_file(
        self, path: str | bytes | os.PathLike[str], *, group: object = None, device: str = ""
    ) -> None:
        """Add a file, absent or not. Files added one after another with an equal *group* are one device.

        *device*: by this name `ext.place` shows whose driver a pass is in, and by which file; empty: the
        file enters none.
        """

    def add_cell(
        self,
        index: int,
        *,
        target: int = 0,
        shape: int = ...,
        key: bytes = b"",
        scale: float = 1,
        gauge: bool = False,
        most: int = ...,
        span: int | None = None,
    ) -> None:
        """Let the file added last fill cell *index* of *target*, as a whole number or a double (*gauge*).

        The number in the file times *scale* is the value; above *most* (before scaling) it is missing, and
        so is a gauge of all ones in 32 or 64 bits: drivers say so that they have no value.
        *span*: the number counts and begins again after this many (0: nobody knows); the value is what it has
        counted since the first pass (`Meter`).
        Raises ValueError for a cell outside the buffers, or a shape that a whole number cannot have.
        """

    def spare(self, devices: Container[str]) -> None:
        """Make no call for the files of these devices until they are no longer named; their cells are missing."""

    def read(self) -> int:
        """Read all files once; return `missing_cells`. RuntimeError while another thread's pass runs."""

    def reopen(self) -> None:
        """Let the next pass open all files again: there may be others under their names."""

    def close(self) -> None:
        """Close all descriptors; during another thread's pass, as soon as it returns."""

    @property
    def refusals(self) -> list[tuple[str, int]]:
        """(path, errno) of one file of each group that has been refused and answers nothing at all."""

    @property
    def kept_descriptors(self) -> int:
        """Descriptors open now."""

class Meter:
    """What a counter has counted since the first reading, over the ends of its range.

    What cannot be told (a step back of an unknown range, one so long that it may be more than the range) counts
    as nothing. So the sum may miss some, and never invents any; its steps are those of `contract.counters.counted`.
    """

    def __init__(self, span: int = 0) -> None:
        """*span*: the counter's greatest value, after which it begins again at 0; 0: not known."""

    def add(self, value: int | None) -> int | None:
        """Take a reading (None: there was none) and return the sum so far; None without one.

        Neither all ones of 32 or 64 bits nor what is beyond the span is a reading.
        """

def parse(
    text: Buffer,
    shape: int = ...,
    *,
    key: bytes = b"",
    scale: float = 1,
    gauge: bool = False,
    most: int = ...,
) -> int | float | None:
    """Return what a cell would hold if its file read *text* (its first 4,096 bytes); None is missing."""
