"""Reads many small counter files through open descriptors in one pass without the GIL.

A file is added with the cells it fills; a pass reads each file once (pread from its start) and
parses all of its cells straight into the bound buffers. A pass allocates nothing. An unreadable
value, or a text of another shape, is missing (its `valid` byte is 0): never zero, never an
exception.
"""

import os
from collections.abc import Container, Sequence

from typing_extensions import Buffer

#: `1234`, with only white space around. Not negative, no unit, no `N/A (no PMA)`; at most 2^64 - 1.
NUMBER: int
#: As NUMBER, or `-1234`; gauges only.
SIGNED: int
#: `4: ACTIVE`: the number before the colon.
CODE: int
#: `... key 1234 ...`: the number after the word *key*, as in `TOTAL_ERR_COR 0`, `MemTotal: 1 kB`.
KEYED: int
#: `2.5 unit ...`: a number with the unit *key*, as in `400 Gb/sec (4X NDR)`; gauges only.
DECIMAL: int
#: `up`: the text's position, from 0, in the blank-separated words of *key*; no gauges.
WORD: int
#: Any text: a hash of the text; for 4,096 bytes or more a new number each time. No gauges.
DIGEST: int

class CounterFiles:
    """Files and the cells they fill. Not thread-safe."""

    missing_cells: int
    """Cells that the last pass left missing."""
    read_errors: int
    """Opens and reads that the kernel refused so far."""

    def __init__(
        self,
        targets: Sequence[tuple[Buffer, Buffer]],
        *,
        kept_max: int = 160,
        wait_passes_max: int = 0,
        only_files: bool = False,
    ) -> None:
        """Bind to pairs of (cells of 8 bytes, valid bytes); both stay bound and must not be resized.

        Only the first *kept_max* files keep their descriptor; others are opened in each pass. After
        an error a file is skipped for 1, 3, 7 ... passes, at most *wait_passes_max* (0: never
        skipped); so is a whole group that answers only errors, probed by a single file each time.
        Raises ValueError if a pair's sizes disagree.
        """

    def add_file(
        self, path: str | bytes | os.PathLike[str], *, group: object = None, device: str = ""
    ) -> None:
        """Add a file, absent or not. Files added one after another with an equal *group* are one device.

        *device*: the name under which `ext.place` shows the read; empty: reading the file calls no
        driver.
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

        The number in the file times *scale* is the value; above *most* (before scaling) it is
        missing, as is a gauge with all 32 or 64 bits set, by which drivers report no value. *span*:
        the number is a counter that starts again at 0 after this value (0: unknown); the cell has
        the count since the first pass (`Meter`). Raises ValueError for a cell outside the buffers,
        or a shape that a whole number cannot have.
        """

    def spare(self, devices: Container[str]) -> None:
        """Make no call for files of *devices* until the next `spare`; their cells are missing."""

    def read(self) -> int:
        """Read all files once; return `missing_cells`. RuntimeError during another pass."""

    def reopen(self) -> None:
        """Open all files again in the next pass: others may have their names."""

    def close(self) -> None:
        """Close all descriptors; during another thread's pass, as soon as it returns."""

    @property
    def refusals(self) -> list[tuple[str, int]]:
        """(path, errno) of a refused file of each group that has never answered."""

    @property
    def kept_descriptors(self) -> int:
        """Number of open descriptors."""

class Meter:
    """Counts a counter's increase since the first reading, over wrap-arounds.

    An undecidable step (back within an unknown range, or perhaps over the range) counts as zero. So
    the sum may be too small, never too large. Its steps are those of `contract.counters.counted`.
    """

    def __init__(self, span: int = 0) -> None:
        """*span*: the counter's maximum, after which it starts again at 0; 0: unknown."""

    def add(self, value: int | None) -> int | None:
        """Add a reading (None: no reading); return the sum so far, None without a reading.

        A value with all 32 or 64 bits set, or beyond the span, is not a reading.
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
    """Return the value of a cell whose file has *text* (its first 4,096 bytes); None: missing."""
