# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What is read of the host each second: files of /proc whole, their numbers, folders at a glance, rows of cells."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.errno cimport EACCES, EINTR, EPERM, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset, strlen
from posix.fcntl cimport O_CLOEXEC, O_DIRECTORY, O_NONBLOCK, O_RDONLY, open as c_open
from posix.unistd cimport SEEK_SET, close as c_close, lseek, pread, read as c_read

import os
from typing import NamedTuple

cdef extern from "<sys/syscall.h>" nogil:
    enum: SYS_getdents64

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)

cdef extern from *:
    """
    #include <stdint.h>
    typedef struct {
        uint64_t ino, off;
        uint16_t bytes;
        uint8_t type;
        char name[];
    } Entry;  /* struct linux_dirent64 */
    """
    ctypedef struct Entry:
        uint64_t ino
        uint16_t bytes
        char *name

cdef enum:
    FIRST_BYTES = 4096
    FILE_MOST_BYTES = 1 << 20
    ENTRIES_BYTES = 8192
    CORES_MOST = 65536
    TICKS_BITS_MOST = 56  # a thousand cores for a million years; sums of these fit 64 bits
    TIMES = 8  # user nice system idle iowait irq softirq steal
    DISK_FIELDS_MOST = 17
    DISK_FIELDS_LEAST = 11

FILE_BYTES_MAX = FILE_MOST_BYTES

cdef uint64_t U64_MAX = 0xFFFFFFFFFFFFFFFF
cdef uint64_t U32_MAX = 0xFFFFFFFF
cdef uint64_t FNV_BASIS = 0xCBF29CE484222325
cdef uint64_t FNV_PRIME = 0x100000001B3


cdef class KeptFile:
    cdef bytes path
    cdef int fd
    cdef char *buffer
    cdef size_t room
    cdef readonly bint denied

    def __cinit__(self):
        self.fd = -1

    def __init__(self, path):
        self.path = os.fsencode(path)

    def read(self):
        cdef size_t size = 0
        cdef ssize_t got = 1
        cdef const char *path = self.path
        cdef int error = 0
        while got > 0 and size < FILE_MOST_BYTES:
            if size == self.room:
                self._grow()
            with nogil:
                if self.fd < 0:
                    # What is no file (a FIFO in its place) must not hold us.
                    self.fd = c_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
                got = -1 if self.fd < 0 else pread(self.fd, self.buffer + size, self.room - size, size)
                while got < 0 and errno == EINTR:
                    got = pread(self.fd, self.buffer + size, self.room - size, size)
                error = errno
            size += max(got, 0)
        if got < 0:
            self.denied = error in (EACCES, EPERM)
            self.close()
            return b""
        self.denied = False
        return PyBytes_FromStringAndSize(self.buffer, size)

    cdef int _grow(self) except -1:
        cdef size_t room = max(2 * self.room, FIRST_BYTES)
        cdef void *grown = realloc(self.buffer, room)
        if grown == NULL:
            raise MemoryError()
        self.buffer, self.room = <char *>grown, room
        return 0

    def close(self):
        if self.fd >= 0:
            c_close(self.fd)
            self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)
        free(self.buffer)


def read_file(path):
    cdef char buffer[FIRST_BYTES]
    cdef bytes name
    cdef const char *text
    cdef ssize_t got
    cdef Py_ssize_t left = FILE_MOST_BYTES
    cdef int fd
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        return None
    if b"\0" in name:
        return None
    text = name
    with nogil:
        fd = c_open(text, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        got = -1 if fd < 0 else _read(fd, buffer)
    if fd < 0:
        return None
    parts = []
    while got > 0 and left > 0:
        parts.append(PyBytes_FromStringAndSize(buffer, got))
        left -= got
        with nogil:
            got = _read(fd, buffer)
    c_close(fd)
    return None if got < 0 else b"".join(parts)


cdef ssize_t _read(int fd, char *buffer) noexcept nogil:
    cdef ssize_t got = c_read(fd, buffer, FIRST_BYTES)
    while got < 0 and errno == EINTR:
        got = c_read(fd, buffer, FIRST_BYTES)
    return got


cdef class Glance:
    cdef bytes path
    cdef int fd

    def __cinit__(self):
        self.fd = -1

    def __init__(self, path):
        self.path = os.fsencode(path)

    def look(self):
        cdef uint64_t seen = 0
        cdef const char *path = self.path
        with nogil:
            if self.fd < 0:
                self.fd = c_open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NONBLOCK)
            if self.fd >= 0:
                seen = _entries(self.fd)
                if not seen:  # nothing is in it, or it is no longer the folder of that name
                    c_close(self.fd)
                    self.fd = -1
        return seen

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)


cdef uint64_t _entries(int fd) noexcept nogil:
    """Return a sum over the names and inodes of a folder, whatever their order; 0 when there is none."""
    cdef char buffer[ENTRIES_BYTES]
    cdef uint64_t seen = 0
    cdef long got, at
    cdef Entry *entry
    if lseek(fd, 0, SEEK_SET) < 0:
        return 0
    while True:
        got = syscall(SYS_getdents64, fd, buffer, ENTRIES_BYTES)
        if got <= 0:
            return seen
        at = 0
        while at < got:
            entry = <Entry *>(buffer + at)
            if entry.name[0] != c"." or (entry.name[1] and (entry.name[1] != c"." or entry.name[2])):
                seen += _mixed(entry)
            at += entry.bytes


cdef uint64_t _mixed(Entry *entry) noexcept nogil:
    """Return a hash (FNV-1a) of an entry's inode and name, never 0."""
    cdef uint64_t mixed = (FNV_BASIS ^ entry.ino) * FNV_PRIME
    cdef size_t i
    for i in range(strlen(entry.name)):
        mixed = (mixed ^ <uint8_t>entry.name[i]) * FNV_PRIME
    return mixed | 1


cdef class Places:
    cdef uint8_t[::1] cells
    cdef uint8_t[::1] valid
    cdef Py_ssize_t rows, count
    cdef Py_ssize_t *first  # the cell of a column's first row
    cdef uint8_t *gauge

    def __init__(self, cells, valid, Py_ssize_t rows, columns):
        cdef Py_ssize_t i, column
        if self.first != NULL:
            raise RuntimeError("Places are made once")
        self.cells, self.valid = memoryview(cells).cast("B"), memoryview(valid).cast("B")
        if self.cells.shape[0] != 8 * self.valid.shape[0]:
            raise ValueError(f"{self.valid.shape[0]} cells need 8 bytes each, got {self.cells.shape[0]}")
        self.rows = rows
        self.first = <Py_ssize_t *>realloc(NULL, (len(columns) + 1) * sizeof(Py_ssize_t))
        self.gauge = <uint8_t *>realloc(NULL, len(columns) + 1)
        if self.first == NULL or self.gauge == NULL:
            raise MemoryError()
        for i, (column, is_gauge) in enumerate(columns):
            if column < 0 or (column + 1) * rows > self.valid.shape[0]:
                raise ValueError(f"column {column} of {rows} rows is outside {self.valid.shape[0]} cells")
            self.first[i], self.gauge[i] = column * rows, is_gauge
        self.count = len(columns)

    def put(self, Py_ssize_t row, values):
        cdef Py_ssize_t i = 0, at
        cdef double number
        cdef uint64_t whole
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} is none of {self.rows}")
        if len(values) != self.count:
            raise ValueError(f"{self.count} columns need as many values, got {len(values)}")
        for value in values:
            at = self.first[i] + row
            self.valid[at] = 0
            if value is not None and self.gauge[i]:
                number = value
                memcpy(&self.cells[8 * at], &number, 8)
                self.valid[at] = 1
            elif value is not None and 0 <= value <= U64_MAX:
                whole = PyLong_AsUnsignedLongLong(value if type(value) is int else int(value))
                memcpy(&self.cells[8 * at], &whole, 8)
                self.valid[at] = 1
            i += 1

    def __dealloc__(self):
        free(self.first)
        free(self.gauge)


class HostTimes(NamedTuple):
    user: float | None
    system: float | None
    idle: float | None
    iowait: float | None
    steal: float | None
    interrupt: float | None
    busiest_core: float | None
    busiest_core_number: int | None
    saturated_cores: int | None
    runnable: int | None
    blocked: int | None
    context_switches: int | None
    interrupts: int | None
    softirqs: int | None


class CoreShares(NamedTuple):
    busy: float
    system: float
    interrupt: float | None
    steal: float


cdef struct Times:  # ticks since boot, of one core or of all together
    uint64_t user  # with nice
    uint64_t system  # with interrupts
    uint64_t idle
    uint64_t iowait
    uint64_t steal
    uint64_t interrupt  # hard and soft, also within `system`

cdef struct Core:
    uint32_t number
    Times times

cdef struct Shares:
    double total  # ticks that passed; 0: nothing is known
    double user
    double system
    double idle
    double iowait
    double steal
    double interrupt  # below 0: not known


cdef class CoreTimes:
    cdef Core *before
    cdef Core *now
    cdef Py_ssize_t before_count
    cdef Py_ssize_t now_count
    cdef Py_ssize_t before_room
    cdef Py_ssize_t now_room
    cdef Times all_before
    cdef Times all_now
    cdef bint known_before
    cdef bint known_now
    cdef double saturated_share

    def __init__(self, double saturated_idle_share=0):
        self.saturated_share = saturated_idle_share

    @property
    def count(self):
        return self.now_count

    def take(self, const uint8_t[::1] data not None):
        cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
        cdef const char *end = text + data.shape[0]
        cdef const char *line_end
        cdef object running = None, blocked = None, switches = None, interrupts = None, soft = None
        self._begin()
        while text < end:
            line_end = _line_end(text, end)
            if _begins(text, line_end, b"cpu "):
                self.known_now = _take_times(text + 4, line_end, &self.all_now)
            elif _begins(text, line_end, b"cpu"):
                self._take_core(text + 3, line_end)
            elif _begins(text, line_end, b"procs_running "):
                running = _first(text + 14, line_end)
            elif _begins(text, line_end, b"procs_blocked "):
                blocked = _first(text + 14, line_end)
            elif _begins(text, line_end, b"ctxt "):
                switches = _first(text + 5, line_end)
            elif _begins(text, line_end, b"intr "):
                interrupts = _first(text + 5, line_end)
            elif _begins(text, line_end, b"softirq "):
                soft = _first(text + 8, line_end)
            text = line_end + 1
        return HostTimes(*self._of_all(), running, blocked, switches, interrupts, soft)

    cdef void _begin(self) noexcept:
        self.before, self.now = self.now, self.before
        self.before_room, self.now_room = self.now_room, self.before_room
        self.before_count, self.now_count = self.now_count, 0
        self.all_before, self.known_before, self.known_now = self.all_now, self.known_now, False

    cdef int _take_core(self, const char *text, const char *end) except -1:
        cdef uint64_t number = 0
        cdef Times times
        if not _number(&text, end, &number) or number >= CORES_MOST or not _take_times(text, end, &times):
            return 0
        if self.now_count == self.now_room:
            self._grow()
        self.now[self.now_count].number, self.now[self.now_count].times = <uint32_t>number, times
        self.now_count += 1
        return 0

    cdef int _grow(self) except -1:
        cdef Py_ssize_t room = max(2 * self.now_room, 16)
        cdef void *grown = NULL if room > 2 * CORES_MOST else realloc(self.now, room * sizeof(Core))
        if grown == NULL:
            raise MemoryError()
        self.now, self.now_room = <Core *>grown, room
        return 0

    cdef tuple _of_all(self):
        cdef Shares shares
        if self.known_before and self.known_now:
            shares = _shares(&self.all_before, &self.all_now)
            if shares.total:
                return (
                    shares.user, shares.system, shares.idle, shares.iowait, shares.steal,
                    None if shares.interrupt < 0 else shares.interrupt, *self._busiest(shares.total),
                )
        return (None,) * 9

    cdef tuple _busiest(self, double total):
        """Return the busiest core's share and number, and how many have no room left.

        All cores' clocks run alike, so a core's time is the total by the number of cores.
        """
        cdef Py_ssize_t i, busiest = 0, saturated = 0
        cdef double ticks, idled, least = 0
        cdef Times *old
        cdef Times *new
        if not self.now_count or self.now_count != self.before_count:
            return None, None, None
        ticks = total / self.now_count
        for i in range(self.now_count):
            if self.now[i].number != self.before[i].number:
                return None, None, None
            old, new = &self.before[i].times, &self.now[i].times
            idled = <double>(new.idle + new.iowait) - <double>(old.idle + old.iowait)
            saturated += idled <= ticks * self.saturated_share
            if i == 0 or idled < least:
                busiest, least = i, idled
        return min(1.0, max(0.0, 1 - max(0.0, least) / ticks)), self.now[busiest].number, saturated

    def shares(self):
        cdef Py_ssize_t i, k = 0
        cdef Shares shares
        found = {}
        for i in range(self.now_count):  # the kernel names them in the order of their numbers
            while k < self.before_count and self.before[k].number < self.now[i].number:
                k += 1
            if k == self.before_count or self.before[k].number != self.now[i].number:
                continue
            shares = _shares(&self.before[k].times, &self.now[i].times)
            if shares.total:
                found[self.now[i].number] = CoreShares(
                    max(0.0, 1 - shares.idle - shares.iowait), shares.system,
                    None if shares.interrupt < 0 else shares.interrupt, shares.steal,
                )
        return found

    @property
    def cores(self):
        return [self.now[i].number for i in range(self.now_count)]

    def __dealloc__(self):
        free(self.before)
        free(self.now)


cdef Shares _shares(const Times *old, const Times *new) noexcept nogil:
    cdef Shares shares
    cdef uint64_t idle, iowait
    memset(&shares, 0, sizeof(Shares))
    if new.user < old.user or new.system < old.system or new.steal < old.steal:
        return shares
    # A kernel may let idle and iowait fall (proc(5)): a step back counts as none.
    idle = new.idle - old.idle if new.idle > old.idle else 0
    iowait = new.iowait - old.iowait if new.iowait > old.iowait else 0
    shares.total = <double>(new.user - old.user + new.system - old.system + idle + iowait + new.steal - old.steal)
    if not shares.total:
        return shares
    shares.user, shares.system = (new.user - old.user) / shares.total, (new.system - old.system) / shares.total
    shares.idle, shares.iowait = idle / shares.total, iowait / shares.total
    shares.steal = (new.steal - old.steal) / shares.total
    shares.interrupt = -1 if new.interrupt < old.interrupt else (new.interrupt - old.interrupt) / shares.total
    return shares


def pressure(const uint8_t[::1] data not None):
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    cdef const char *end = text + data.shape[0]
    cdef const char *line_end
    some, full = (None, None), (None, None)
    while text < end:
        line_end = _line_end(text, end)
        if _begins(text, line_end, b"some "):
            some = _shares_of_line(text, line_end)
        elif _begins(text, line_end, b"full "):
            full = _shares_of_line(text, line_end)
        text = line_end + 1
    return some[0], full[0], some[1], full[1]


cdef tuple _shares_of_line(const char *text, const char *end):
    """Return the share of the last 10 s and the microseconds of `some avg10=1.84 ... total=4498343`."""
    cdef const char *at = _behind(text, end, b" avg10=")
    cdef uint64_t whole = 0, fraction = 0
    cdef double share, part
    ratio = total = None
    if at != NULL and _number(&at, end, &whole):
        part = 0
        if at < end and at[0] == c".":
            at += 1
            mark = at
            if _number(&at, end, &fraction):
                part = <double>fraction
                while mark < at:
                    part /= 10
                    mark += 1
        share = (<double>whole + part) / 100
        ratio = share if share <= 1 else None
    at = _behind(text, end, b" total=")
    if at != NULL:
        total = _first(at, end)
    return ratio, total


def line_numbers(const uint8_t[::1] data not None, names):
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    cdef const char *end = text + data.shape[0]
    cdef const char *line_end
    cdef const char *colon
    cdef Py_ssize_t i, left = len(names)
    cdef uint64_t number, seen = 0
    found = [None] * left
    if left > 64:
        raise ValueError(f"names: at most 64 of them, got {left}")
    while text < end and left:
        line_end = _line_end(text, end)
        for i, name in enumerate(names):
            if not seen >> i & 1 and _begins(text, line_end, name):
                text += len(<bytes>name)
                value = _first(text, line_end)
                _number(&text, line_end, &number)
                unit = text[:line_end - text].strip()
                if value is not None and unit in (b"", b"kB"):
                    found[i] = value if not unit else value * 1024 if value < 1 << 54 else None
                seen |= <uint64_t>1 << i
                left -= 1
                break
        text = line_end + 1
    return found


def diskstats(const uint8_t[::1] data not None, names):
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    cdef const char *end = text + data.shape[0]
    cdef const char *line_end
    cdef const char *word
    cdef uint64_t number
    found = {}
    while text < end:
        line_end = _line_end(text, end)
        if _number(&text, line_end, &number) and _number(&text, line_end, &number):
            text = _blanks(text, line_end)
            word = text
            while text < line_end and not _is_blank(text[0]):
                text += 1
            name = names.get(word[:text - word])
            if name is not None:
                fields = _fields(text, line_end)
                if fields is not None:
                    found[name] = fields
        text = line_end + 1
    return found


cdef list _fields(const char *text, const char *end):
    """Return the counts of a line, or None when one is no count, or there are too few."""
    cdef list fields = []
    while len(fields) < DISK_FIELDS_MOST:
        text = _blanks(text, end)
        if text == end:
            break
        value = _first(text, end)
        if value is None:
            return None
        fields.append(value)
        while text < end and not _is_blank(text[0]):
            text += 1
    return fields if len(fields) >= DISK_FIELDS_LEAST else None


cdef inline bint _is_blank(char c) noexcept nogil:
    return c == c" " or c == c"\t" or c == c"\r"


cdef inline const char *_blanks(const char *text, const char *end) noexcept nogil:
    while text < end and _is_blank(text[0]):
        text += 1
    return text


cdef const char *_line_end(const char *text, const char *end) noexcept nogil:
    while text < end and text[0] != c"\n":
        text += 1
    return text


cdef inline bint _begins(const char *text, const char *end, const char *beginning) noexcept nogil:
    cdef size_t size = strlen(beginning)
    return <size_t>(end - text) >= size and memcmp(text, beginning, size) == 0


cdef const char *_behind(const char *text, const char *end, const char *word) noexcept nogil:
    """Return what follows *word* in the line; NULL when it is not there."""
    while text < end:
        if _begins(text, end, word):
            return text + strlen(word)
        text += 1
    return NULL


cdef bint _number(const char **text, const char *end, uint64_t *value) noexcept nogil:
    """Read blanks and one or more digits. False when there is none, or they exceed 64 bits."""
    cdef const char *at = _blanks(text[0], end)
    cdef uint64_t total = 0, digit
    cdef const char *begin = at
    while at < end and c"0" <= at[0] <= c"9":
        digit = <uint64_t>(at[0] - c"0")
        if total > (U64_MAX - digit) // 10:
            return False
        total = 10 * total + digit
        at += 1
    text[0], value[0] = at, total
    return at > begin


cdef object _first(const char *text, const char *end):
    """Return the number that a text begins with, if a blank or the end follows; None too for all ones."""
    cdef uint64_t value
    if not _number(&text, end, &value) or (text < end and not _is_blank(text[0])):
        return None
    return None if value == U32_MAX or value == U64_MAX else value


cdef bint _take_times(const char *text, const char *end, Times *times) noexcept nogil:
    cdef uint64_t ticks[TIMES]
    cdef int i
    for i in range(TIMES):
        if not _number(&text, end, &ticks[i]) or (text < end and not _is_blank(text[0])):
            return False
        if ticks[i] == U32_MAX or ticks[i] >> TICKS_BITS_MOST:
            return False
    times.user, times.idle, times.iowait, times.steal = ticks[0] + ticks[1], ticks[3], ticks[4], ticks[7]
    times.interrupt = ticks[5] + ticks[6]
    times.system = ticks[2] + times.interrupt
    return True
