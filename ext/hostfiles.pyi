"""Fast reads of host files each second: whole /proc files, their numbers, folder listings, rows of cells.

Numbers are whole, unsigned and of 64 bits; what is none, or all ones of 32 or 64 bits, is None.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

#: What is longer is cut here; the longest file read, /proc/stat of a host with many interrupts, is a tenth.
FILE_BYTES_MAX: int

class KeptFile:
    """A file of /proc that is read again and again through one descriptor. For one thread at a time."""

    denied: bool
    """Whether the last read failed for want of permission."""

    def __init__(self, path: str | bytes | os.PathLike[str], *, whole: bool = False) -> None:
        """Opens nothing yet. *whole*: the kernel gives all of it at once, where there is room (`single_open`, sysfs)."""

    def read(self) -> bytes:
        """Return the file from its start; empty when it cannot be read. Raises nothing but MemoryError.

        After an error it is opened afresh next time. A seq_file (diskstats) gives a page at a time: it is
        read to its end, unless it is known to come as a whole.
        """

    def close(self) -> None:
        """Close the descriptor; a later read opens it again."""

def read_file(path: str | bytes | os.PathLike[str]) -> bytes | None:
    """Return a small file's content, cut at FILE_BYTES_MAX; None when it cannot be read.

    For texts of the kernel whose lines are shorter than 2,048 bytes.

    What is no file (a FIFO in its place) does not hold the caller.
    """

class Glance:
    """Whether a folder's entries are others than before, by one pass over their names and inodes.

    A device that was taken away and made again under its name has another inode.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        """Opens nothing yet. The folder need not be there."""

    def look(self) -> int:
        """Return a number that is another one when an entry came, went or was replaced; 0: there is none."""

class Places:
    """Where values go in a block of cells: columns named once, a row filled in one call."""

    def __init__(
        self, cells: Buffer, valid: Buffer, rows: int, columns: Sequence[tuple[int, bool]]
    ) -> None:
        """*columns*: each with whether it is a gauge. ValueError for one that the cells do not have."""

    def put(self, row: int, values: Sequence[float | None]) -> None:
        """Fill the columns of *row*, in their order; None is missing.

        A gauge is set as a double, anything else as a whole number, and is missing when that does not fit 64
        unsigned bits. IndexError for a row, ValueError for a number of values that is not there.
        """

class HostTimes(NamedTuple):
    """What /proc/stat says: shares of all cores' time since the text before, 0 to 1, and counts since boot."""

    user: float | None
    system: float | None
    idle: float | None
    iowait: float | None
    steal: float | None
    interrupt: float | None
    busiest_core: (
        float | None
    )  # None, as the two that follow, when other cores are online than before
    busiest_core_number: int | None
    saturated_cores: int | None
    runnable: int | None
    blocked: int | None
    context_switches: int | None
    interrupts: int | None
    softirqs: int | None

class CoreShares(NamedTuple):
    """Shares of one core's time between two texts."""

    busy: float
    system: float
    interrupt: float | None
    steal: float

class CoreTimes:
    """The cores' times of /proc/stat between two checks."""

    count: int
    """Cores in the text that was taken last."""
    cores: list[int]
    """Their numbers."""

    def __init__(self, saturated_idle_share: float = 0) -> None:
        """A core that was idle for this share of the time or less had no room left."""

    def take(self, data: Buffer) -> HostTimes:
        """Return what one text says, and what passed since the one before."""

    def shares(self) -> dict[int, CoreShares]:
        """Return the shares of each core's time by its number, of cores that both texts name and whose clock continued."""

def pressure(data: Buffer) -> tuple[float | None, float | None, int | None, int | None]:
    """Return shares of the last 10 s (some, full) and microseconds since boot (some, full) of /proc/pressure."""

def line_numbers(
    data: Buffer, names: Sequence[bytes], *, indented: bool = False
) -> list[int | None]:
    """Return the number behind each of at most 64 *names* (`Dirty:`) at a line's begin; with `kB` behind it in bytes.

    *indented*: blanks may stand before the name, and any unit behind the number, which is given as it is.
    """

class HostPass:
    """What /proc says of the host each second, from its files straight into the cells of a row."""

    def __init__(
        self, proc: str | os.PathLike[str], places: Places, saturated_idle_share: float = 0
    ) -> None:
        """*places*: the values of HostTimes, `some` of the cores' pressure (ratio, microseconds), what `pressure`
        returns of memory and of io, MemAvailable and Dirty of meminfo. ValueError for another number of columns."""

    def take(self) -> bool:
        """Fill the first row; shares are missing the first time. False, and nothing done, without /proc/stat."""

def task_fields(data: Buffer) -> tuple[int, int, str, str, bool] | None:
    """Return number, start in ticks, state, name and whether it is a thread of the kernel, of a task's `stat` file.

    None for anything else. The name may hold `) R 1` and the like.
    """

def nfs_values(data: Buffer) -> list[int | None]:
    """Return what /proc/self/mountstats says of an NFS mount, behind its first line: 27 values.

    Its age, bytes read and written; of reads, then of writes: calls, transmissions, major timeouts, milliseconds in the
    queue, to the response and in all, errors; calls, transmissions, major timeouts and errors of all kinds; of its
    connections together: connects, sends, receives, bad replies, backlog, seconds since one was used.
    A sum is missing if a part of it is; the connections all if one is of a kind or form not known here.
    """

def diskstats(data: Buffer, names: Mapping[bytes, str]) -> dict[str, list[int | None]]:
    """Return the values of each named disk of /proc/diskstats: 14 in the kernel's order, without what was merged.

    Sectors come as bytes. Kernels before 4.18 have no discards, those before 5.5 no flushes. A line is left out
    when a column is no count, and has no value when a number of bytes does not fit 64 bits.
    """

class DiskRows:
    """The rows of a block of disks, filled from /proc/diskstats."""

    def __init__(self, file: KeptFile, names: Sequence[bytes], places: Places) -> None:
        """*names*: a disk for each row; *places*: the columns of `diskstats`. ValueError when they are others."""

    def fill(self) -> None:
        """Fill all rows; what is not in the file is missing."""
