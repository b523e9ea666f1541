"""Fast reads of host files each second: /proc files, their numbers, folder listings, rows of cells.

Numbers are unsigned and have 64 bits; a text that is not a number, or a number with all 32 or 64
bits set, is None.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

#: Longer files are cut. The longest file, /proc/stat of a host with many interrupts, is a tenth.
FILE_BYTES_MAX: int

class KeptFile:
    """A file of /proc that is read repeatedly through a descriptor. For one thread at a time."""

    denied: bool
    """Whether the last read failed for lack of permission."""

    def __init__(self, path: str | bytes | os.PathLike[str], *, whole: bool = False) -> None:
        """Opens nothing yet. *whole*: a single read returns all of it (`single_open`, sysfs)."""

    def read(self) -> bytes:
        """Return the file from its start; b"" if it cannot be read. Raises only MemoryError.

        After an error the next read opens the file again. A seq_file (diskstats) returns a page at
        a time, so it is read to its end, unless it is *whole*.
        """

    def close(self) -> None:
        """Close the descriptor; a later read opens it again."""

def read_file(path: str | bytes | os.PathLike[str]) -> bytes | None:
    """Return a small file's content, cut at FILE_BYTES_MAX; None if it cannot be read.

    For kernel texts with lines under 2,048 bytes. Opening a FIFO in its place does not block.
    """

class Glance:
    """Detects a changed folder by one pass over the names and inodes of its entries.

    A device that was removed and created again under its name has another inode.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        """Opens nothing yet. The folder need not exist."""

    def look(self) -> int:
        """Return a number that changes when an entry came, went or was replaced; 0: no entries."""

class Places:
    """Positions of values in a block of cells: columns are named once, each call fills a row."""

    def __init__(
        self, cells: Buffer, valid: Buffer, rows: int, columns: Sequence[tuple[int, bool]]
    ) -> None:
        """*columns*: (column, whether it is a gauge). Raises ValueError for a missing column."""

    def put(self, row: int, values: Sequence[float | None]) -> None:
        """Fill the columns of *row*, in their order; None is missing.

        A gauge is stored as a double; another value as a whole number, missing if it exceeds 64
        unsigned bits. Raises IndexError for a row, ValueError for a wrong number of values.
        """

class HostTimes(NamedTuple):
    """/proc/stat: shares of all cores' time since the last text, 0 to 1; counts since boot."""

    user: float | None
    system: float | None
    idle: float | None
    iowait: float | None
    steal: float | None
    interrupt: float | None
    busiest_core: float | None  # None, like the next two, after a change of the online cores
    busiest_core_number: int | None
    saturated_cores: int | None
    runnable: int | None
    blocked: int | None
    context_switches: int | None
    interrupts: int | None
    softirqs: int | None

class CoreShares(NamedTuple):
    """Shares of a core's time between two texts."""

    busy: float
    system: float
    interrupt: float | None
    steal: float

class CoreTimes:
    """The cores' times in /proc/stat between two checks."""

    count: int
    """Cores in the last text."""
    cores: list[int]
    """Their numbers."""

    def __init__(self, saturated_idle_share: float = 0) -> None:
        """A core that was idle for at most this share of the time counts as saturated."""

    def take(self, data: Buffer) -> HostTimes:
        """Return the values of a text, with the shares since the previous text."""

    def shares(self) -> dict[int, CoreShares]:
        """Return core number -> shares, for cores in both texts whose clock did not go back."""

def pressure(data: Buffer) -> tuple[float | None, float | None, int | None, int | None]:
    """Return /proc/pressure: shares of the last 10 s and microseconds since boot (some, full)."""

def line_numbers(
    data: Buffer, names: Sequence[bytes], *, indented: bool = False
) -> list[int | None]:
    """Return the numbers after up to 64 *names* (`Dirty:`) at a line's beginning; `kB` in bytes.

    *indented*: blanks may come before the name; a number with any unit is returned unchanged.
    """

class HostPass:
    """Reads the host's values of each second from /proc straight into the cells of a row."""

    def __init__(
        self, proc: str | os.PathLike[str], places: Places, saturated_idle_share: float = 0
    ) -> None:
        """*places*: columns for the values; raises ValueError for a wrong number of columns.

        They are: HostTimes; `some` of the CPU pressure (ratio, microseconds); `pressure` of memory
        and of io; MemAvailable and Dirty of meminfo.
        """

    def take(self) -> bool:
        """Fill the row; shares are missing the first time. False without /proc/stat."""

def task_fields(data: Buffer) -> tuple[int, int, str, str, bool] | None:
    """Return number, start in ticks, state, name and is-kernel-thread from a task's `stat` file.

    None for other texts. The name may contain `) R 1` and the like.
    """

def nfs_values(data: Buffer) -> list[int | None]:
    """Return 27 values of an NFS mount in /proc/self/mountstats, after its first line.

    Its age, bytes read and written; for reads, then for writes: calls, transmissions, major
    timeouts, milliseconds in the queue, to the response and in total, errors; calls, transmissions,
    major timeouts and errors of all operations; of all connections together: connects, sends,
    receives, bad replies, backlog, seconds since the last use of any. A sum is missing if a part of
    it is; all connection values are missing if a connection has an unknown form.
    """

def diskstats(data: Buffer, names: Mapping[bytes, str]) -> dict[str, list[int | None]]:
    """Return 14 values per named disk of /proc/diskstats, in the kernel's order, without merges.

    Sectors are in bytes. Kernels before 4.18 have no discards, before 5.5 no flushes. A line is
    left out if a column is not a count; it has no values if a number of bytes exceeds 64 bits.
    """

class DiskRows:
    """Rows of a block of disks, filled from /proc/diskstats."""

    def __init__(self, file: KeptFile, names: Sequence[bytes], places: Places) -> None:
        """*names*: a disk per row; *places*: the columns of `diskstats`, else ValueError."""

    def fill(self) -> None:
        """Fill all rows; disks that are not in the file are missing."""
