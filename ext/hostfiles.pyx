# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What is read of the host each second: files of /proc whole, their numbers, folders at a glance, rows of cells."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.errno cimport EACCES, EINTR, EPERM, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen
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
    # The kernel breaks a text off only where its next line would not fit; so what is this short is at its end.
    SHORT_BYTES = FIRST_BYTES // 2
    FILE_MOST_BYTES = 1 << 20
    ENTRIES_BYTES = 8192
    CORES_MOST = 65536
    TICKS_BITS_MOST = 56  # a thousand cores for a million years; sums of these fit 64 bits
    TIMES = 8  # user nice system idle iowait irq softirq steal
    DISK_FIELDS_MOST = 17
    DISK_FIELDS_LEAST = 11
    DISK_VALUES = 14
    HOST_VALUES = 14  # of HostTimes
    PRESSURE_VALUES = 10
    MEMORY_VALUES = 2
    NAMES_MOST = 64
    NFS_COLUMNS = 12
    NFS_CALLS = 3  # behind age and bytes: reads and writes, 7 values each, and the sums of all, 4
    NFS_TRANSPORT = 21
    NFS_VALUES = 27
    # Of /proc/PID/stat, behind the name (proc(5) counts them from 3), and of its flags that of a thread of the kernel
    # (include/linux/sched.h).
    FLAGS_FIELD = 6
    START_FIELD = 19
    PF_KTHREAD = 0x00200000
    SECTOR_BYTES = 512  # the unit of diskstats, whatever the device's own

FILE_BYTES_MAX = FILE_MOST_BYTES

cdef uint64_t U64_MAX = 0xFFFFFFFFFFFFFFFF
cdef uint64_t U32_MAX = 0xFFFFFFFF
cdef uint64_t SECTORS_MOST = U64_MAX // SECTOR_BYTES + 1  # more bytes than 64 bits hold
cdef uint64_t INFLIGHT_MOST = 1 << 31  # above this it is the kernel's own count gone below zero
cdef uint64_t FNV_BASIS = 0xCBF29CE484222325
cdef uint64_t FNV_PRIME = 0x100000001B3


cdef class KeptFile:
    cdef bytes path
    cdef int fd
    cdef char *buffer
    cdef size_t room
    cdef bint whole
    cdef readonly bint denied

    def __cinit__(self):
        self.fd = -1

    def __init__(self, path, *, bint whole=False):
        self.path = os.fsencode(path)
        self.whole = whole

    def read(self):
        cdef Py_ssize_t size = self._fill()
        return PyBytes_FromStringAndSize(self.buffer, size)

    cdef Py_ssize_t _fill(self) except -1:
        """Read the file into the buffer; return how many bytes it has, 0 when it cannot be read."""
        cdef size_t size = 0
        cdef ssize_t got = 1
        cdef const char *path = self.path
        cdef int error = 0
        while got > 0 and size < FILE_MOST_BYTES and not (self.whole and 0 < size < self.room):
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
            return 0
        self.denied = False
        return size

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
        if got < SHORT_BYTES:
            break
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


cdef struct Value:  # of a cell
    bint known
    bint gauge  # a number, else a whole one
    double number
    uint64_t whole


cdef inline Value _whole(uint64_t whole) noexcept nogil:
    """Return a whole number; none for all ones of 32 or 64 bits."""
    cdef Value value
    value.known, value.gauge, value.number, value.whole = whole != U32_MAX and whole != U64_MAX, False, 0, whole
    return value


cdef inline Value _gauge(double number) noexcept nogil:
    cdef Value value
    value.known, value.gauge, value.number, value.whole = True, True, number, 0
    return value


cdef list _objects(const Value *values, Py_ssize_t count):
    return [
        None if not values[i].known else values[i].number if values[i].gauge else values[i].whole for i in range(count)
    ]


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

    cdef void _put(self, Py_ssize_t row, const Value *values) noexcept nogil:
        """Fill the columns of a row that is there, with as many values."""
        cdef Py_ssize_t i, at
        cdef double number
        for i in range(self.count):
            at = self.first[i] + row
            self.valid[at] = values[i].known
            if not self.gauge[i]:
                memcpy(&self.cells[8 * at], &values[i].whole, 8)
            else:
                number = values[i].number if values[i].gauge else <double>values[i].whole
                memcpy(&self.cells[8 * at], &number, 8)

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
        cdef Value values[HOST_VALUES]
        cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
        self._take(text, text + data.shape[0], values)
        return HostTimes(*_objects(values, HOST_VALUES))

    cdef int _take(self, const char *text, const char *end, Value *values) except -1:
        """Take a text of /proc/stat; *values* are those of HostTimes, in their order."""
        cdef const char *line_end
        memset(values, 0, HOST_VALUES * sizeof(Value))
        self._begin()
        while text < end:
            line_end = _line_end(text, end)
            if _begins(text, line_end, b"cpu "):
                self.known_now = _take_times(text + 4, line_end, &self.all_now)
            elif _begins(text, line_end, b"cpu"):
                self._take_core(text + 3, line_end)
            elif _begins(text, line_end, b"procs_running "):
                values[9] = _first(text + 14, line_end)
            elif _begins(text, line_end, b"procs_blocked "):
                values[10] = _first(text + 14, line_end)
            elif _begins(text, line_end, b"ctxt "):
                values[11] = _first(text + 5, line_end)
            elif _begins(text, line_end, b"intr "):
                values[12] = _first(text + 5, line_end)
            elif _begins(text, line_end, b"softirq "):
                values[13] = _first(text + 8, line_end)
            text = line_end + 1
        self._of_all(values)
        return 0

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

    cdef void _of_all(self, Value *values) noexcept nogil:
        cdef Shares shares
        if not self.known_before or not self.known_now:
            return
        shares = _shares(&self.all_before, &self.all_now)
        if not shares.total:
            return
        values[0], values[1], values[2] = _gauge(shares.user), _gauge(shares.system), _gauge(shares.idle)
        values[3], values[4] = _gauge(shares.iowait), _gauge(shares.steal)
        if shares.interrupt >= 0:
            values[5] = _gauge(shares.interrupt)
        self._busiest(shares.total, values + 6)

    cdef void _busiest(self, double total, Value *values) noexcept nogil:
        """Put the busiest core's share and number, and how many have no room left.

        All cores' clocks run alike, so a core's time is the total by the number of cores.
        """
        cdef Py_ssize_t i, busiest = 0, saturated = 0
        cdef double ticks, idled, least = 0
        cdef Times *old
        cdef Times *new
        if not self.now_count or self.now_count != self.before_count:
            return
        ticks = total / self.now_count
        for i in range(self.now_count):
            if self.now[i].number != self.before[i].number:
                return
            old, new = &self.before[i].times, &self.now[i].times
            idled = <double>(new.idle + new.iowait) - <double>(old.idle + old.iowait)
            saturated += idled <= ticks * self.saturated_share
            if i == 0 or idled < least:
                busiest, least = i, idled
        values[0] = _gauge(min(1.0, max(0.0, 1 - max(0.0, least) / ticks)))
        values[1], values[2] = _whole(self.now[busiest].number), _whole(saturated)

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
    cdef Value values[4]
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    _pressure(text, text + data.shape[0], values)
    return tuple(_objects(values, 4))


cdef void _pressure(const char *text, const char *end, Value *values) noexcept nogil:
    """Put shares (some, full), then microseconds (some, full)."""
    cdef const char *line_end
    memset(values, 0, 4 * sizeof(Value))
    while text < end:
        line_end = _line_end(text, end)
        if _begins(text, line_end, b"some "):
            _shares_of_line(text, line_end, &values[0], &values[2])
        elif _begins(text, line_end, b"full "):
            _shares_of_line(text, line_end, &values[1], &values[3])
        text = line_end + 1


cdef void _shares_of_line(const char *text, const char *end, Value *ratio, Value *total) noexcept nogil:
    """Put the share of the last 10 s and the microseconds of `some avg10=1.84 ... total=4498343`."""
    cdef const char *at = _behind(text, end, b" avg10=")
    cdef const char *mark
    cdef uint64_t whole = 0, fraction = 0
    cdef double share, part
    ratio.known = total.known = False
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
        if share <= 1:
            ratio[0] = _gauge(share)
    at = _behind(text, end, b" total=")
    if at != NULL:
        total[0] = _first(at, end)


def line_numbers(const uint8_t[::1] data not None, names, *, bint indented=False):
    cdef Value values[NAMES_MOST]
    cdef const char *words[NAMES_MOST]
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    cdef Py_ssize_t i
    if len(names) > NAMES_MOST:
        raise ValueError(f"names: at most {NAMES_MOST} of them, got {len(names)}")
    for i, name in enumerate(names):
        words[i] = <bytes>name
    _line_numbers(text, text + data.shape[0], words, len(names), indented, values)
    return _objects(values, len(names))


cdef void _line_numbers(
    const char *text, const char *end, const char **names, Py_ssize_t count, bint indented, Value *values
) noexcept nogil:
    cdef const char *line_end
    cdef Py_ssize_t i, left = count
    cdef uint64_t seen = 0
    memset(values, 0, count * sizeof(Value))
    while text < end and left:
        line_end = _line_end(text, end)
        text = _blanks(text, line_end) if indented else text
        for i in range(count):
            if not seen >> i & 1 and _begins(text, line_end, names[i]):
                text += strlen(names[i])
                values[i] = _first(text, line_end) if indented else _in_bytes(text, line_end)
                seen |= <uint64_t>1 << i
                left -= 1
                break
        text = line_end + 1


cdef Value _in_bytes(const char *text, const char *end) noexcept nogil:
    """Return the number of `  1234 kB` in bytes, or of `  1234` as it is; none with another unit."""
    cdef Value value = _first(text, end)
    cdef uint64_t number
    _number(&text, end, &number)
    text = _blanks(text, end)
    while end > text and _is_blank((end - 1)[0]):
        end -= 1
    if end - text == 2 and text[0] == c"k" and text[1] == c"B" and value.whole < <uint64_t>1 << 54:
        value.whole *= 1024
    elif text < end:
        value.known = False
    return value


cdef class HostPass:
    cdef KeptFile stat, meminfo
    cdef tuple pressures
    cdef CoreTimes times
    cdef Places places

    def __init__(self, proc, Places places not None, double saturated_idle_share=0):
        proc = os.fspath(proc)
        if places.count != HOST_VALUES + PRESSURE_VALUES + MEMORY_VALUES or not places.rows:
            raise ValueError(f"the values of a host are not {places.count}")
        self.stat, self.meminfo = KeptFile(f"{proc}/stat", whole=True), KeptFile(f"{proc}/meminfo", whole=True)
        self.pressures = tuple(KeptFile(f"{proc}/pressure/{kind}", whole=True) for kind in ("cpu", "memory", "io"))
        self.times = CoreTimes(saturated_idle_share)
        self.places = places

    def take(self):
        cdef Value values[HOST_VALUES + PRESSURE_VALUES + MEMORY_VALUES]
        cdef Value cpu[4]
        cdef Value *at = values + HOST_VALUES
        cdef const char *names[MEMORY_VALUES]
        cdef Py_ssize_t size = self.stat._fill()
        if not size:
            return False
        self.times._take(self.stat.buffer, self.stat.buffer + size, values)
        self._press(0, cpu)
        at[0], at[1] = cpu[0], cpu[2]  # of the host as a whole the kernel says 0 for `full` of cpu
        self._press(1, at + 2)
        self._press(2, at + 6)
        names[0], names[1] = b"MemAvailable:", b"Dirty:"
        size = self.meminfo._fill()
        _line_numbers(self.meminfo.buffer, self.meminfo.buffer + size, names, MEMORY_VALUES, False, at + PRESSURE_VALUES)
        self.places._put(0, values)
        return True

    cdef int _press(self, Py_ssize_t kind, Value *values) except -1:
        cdef KeptFile file = self.pressures[kind]
        cdef Py_ssize_t size = file._fill()
        _pressure(file.buffer, file.buffer + size, values)
        return 0


def task_fields(const uint8_t[::1] data not None):
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    cdef const char *end = text + data.shape[0]
    cdef const char *at = text
    cdef const char *behind = end
    cdef const char *name
    cdef const char *state = NULL
    cdef uint64_t number, flags = 0, start
    cdef int field
    while behind > text and (behind - 1)[0] != c")":  # the last one: the name may hold others
        behind -= 1
    if not _number(&at, end, &number) or not _begins(at, behind, b" (") or number >= U32_MAX:
        return None
    name, at = at + 2, behind
    for field in range(START_FIELD + 1):
        at = _blanks(at, end)
        if field == 0:
            state = at
        elif field in (FLAGS_FIELD, START_FIELD):
            if not _number(&at, end, &start):
                return None
            flags = start if field == FLAGS_FIELD else flags
        while at < end and not _is_blank(at[0]) and at[0] != c"\n":
            at += 1
        if field == 0 and at - state != 1:
            return None
    words = name[:behind - 1 - name] if behind - 1 > name else b""
    return number, start, chr(<uint8_t>state[0]), words.decode(errors="replace"), flags & PF_KTHREAD != 0


def nfs_values(const uint8_t[::1] data not None):
    cdef Value values[NFS_VALUES]
    cdef Value columns[NFS_COLUMNS]
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    cdef const char *end = text + data.shape[0]
    cdef const char *line_end
    cdef const char *name
    cdef const char *at
    cdef Py_ssize_t size, count, operations = 0, transports = 0
    cdef bint whole = True  # every transport is of a form that is known
    memset(values, 0, sizeof(values))
    while text < end:
        line_end = _line_end(text, end)
        name = at = _blanks(text, line_end)
        while at < line_end and not _is_blank(at[0]) and at[0] != c":":
            at += 1
        size = at - name
        if name > text and at + 1 < line_end and at[0] == c":" and _is_blank(at[1]):
            if _is_word(name, size, b"xprt"):
                whole = _add_transport(at + 1, line_end, values + NFS_TRANSPORT, transports == 0) and whole
                transports += 1
            else:
                count = _columns(at + 1, line_end, columns)
                if _is_word(name, size, b"age"):
                    values[0] = columns[0]
                elif _is_word(name, size, b"bytes"):
                    values[1], values[2] = columns[4], columns[5]
                elif _is_upper(name, size):
                    _add_operation(name, size, columns, count, values + NFS_CALLS, operations == 0)
                    operations += 1
        text = line_end + 1
    if not whole:
        memset(values + NFS_TRANSPORT, 0, (NFS_VALUES - NFS_TRANSPORT) * sizeof(Value))
    return _objects(values, NFS_VALUES)


cdef inline bint _is_word(const char *text, Py_ssize_t size, const char *word) noexcept nogil:
    return <size_t>size == strlen(word) and memcmp(text, word, size) == 0


cdef bint _is_upper(const char *text, Py_ssize_t size) noexcept nogil:
    """Say whether it is the name of an operation: capitals, and `_` or digits between them."""
    cdef Py_ssize_t i
    cdef bint has_letter = False
    for i in range(size):
        if c"A" <= text[i] <= c"Z":
            has_letter = True
        elif text[i] != c"_" and not c"0" <= text[i] <= c"9":
            return False
    return has_letter


cdef Py_ssize_t _columns(const char *text, const char *end, Value *columns) noexcept nogil:
    """Put the numbers of a line, as many as are wanted of any; return how many columns it has, of these.

    What is no number is none, and what is as large as a negative one would seem: no such sum ever is.
    """
    cdef Py_ssize_t count = 0
    memset(columns, 0, NFS_COLUMNS * sizeof(Value))
    text = _blanks(text, end)
    while text < end and count < NFS_COLUMNS:
        columns[count] = _first(text, end)
        columns[count].known = columns[count].known and not columns[count].whole >> 63
        count += 1
        while text < end and not _is_blank(text[0]):
            text += 1
        text = _blanks(text, end)
    return count


cdef void _add(Value *total, const Value *part, bint is_first) noexcept nogil:
    """Add to a total that is known only as long as all of its parts are, lest it seem to fall."""
    if is_first:
        total[0] = part[0]
    elif not part.known or part.whole > U64_MAX - total.whole:
        total.known = False
    else:
        total.whole += part.whole


cdef void _add_operation(
    const char *name, Py_ssize_t size, const Value *columns, Py_ssize_t count, Value *calls, bint is_first
) noexcept nogil:
    """Take a kind of call: calls, transmissions, major timeouts, three times, errors; reads, writes, the sums of all.

    Columns: calls, transmissions, major timeouts, bytes sent, bytes received, three times, errors (Linux 5.3).
    """
    cdef Value wanted[7]
    cdef Value *sums = calls + 14
    cdef Py_ssize_t i
    memset(wanted, 0, sizeof(wanted))
    if count >= 8:
        for i in range(7):
            wanted[i] = columns[i if i < 3 else i + 2]
    if _is_word(name, size, b"READ"):
        memcpy(calls, wanted, sizeof(wanted))
    elif _is_word(name, size, b"WRITE"):
        memcpy(calls + 7, wanted, sizeof(wanted))
    for i in range(4):
        _add(&sums[i], &wanted[i if i < 3 else 6], is_first)


cdef bint _add_transport(const char *text, const char *end, Value *sums, bint is_first) noexcept nogil:
    """Add a connection's connects, sends, receives, bad replies and backlog, and take the least of the idle seconds.

    False: it is of a kind or form that is not known.
    """
    cdef Value columns[NFS_COLUMNS]
    cdef Value wanted[6]
    cdef Py_ssize_t size, i, first
    cdef bint is_udp
    text = _blanks(text, end)
    size = 0
    while text + size < end and not _is_blank(text[size]):
        size += 1
    is_udp = _is_word(text, size, b"udp")
    if not is_udp and not _is_word(text, size, b"tcp") and not _is_word(text, size, b"rdma"):
        return False
    _columns(text + size, end, columns)
    memset(wanted, 0, sizeof(wanted))
    first = 2 if is_udp else 5
    wanted[1], wanted[2], wanted[3], wanted[4] = columns[first], columns[first + 1], columns[first + 2], columns[first + 4]
    if not is_udp:  # it has no connection
        wanted[0], wanted[5] = columns[2], columns[4]
    for i in range(1, 5):
        if not wanted[i].known:
            return False
    for i in range(5):
        _add(&sums[i], &wanted[i], is_first)
    if wanted[5].known and (not sums[5].known or wanted[5].whole < sums[5].whole):
        sums[5] = wanted[5]
    return True


def diskstats(const uint8_t[::1] data not None, names):
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    cdef const char *end = text + data.shape[0]
    cdef Value values[DISK_VALUES]
    cdef Disk disk
    found = {}
    while _next_disk(&text, end, &disk):
        name = names.get(disk.name[:disk.name_bytes])
        if name is not None and _disk_values(&disk, values):
            found[name] = _objects(values, DISK_VALUES)
    return found


cdef struct Disk:  # a line of diskstats
    const char *name
    Py_ssize_t name_bytes
    const char *counts
    const char *end


cdef bint _next_disk(const char **text, const char *end, Disk *disk) noexcept nogil:
    """Go to the next line that names a disk, and behind it. False: there is none."""
    cdef uint64_t number
    cdef const char *at
    while text[0] < end:
        at = text[0]
        disk.end = _line_end(at, end)
        text[0] = disk.end + 1
        if _number(&at, disk.end, &number) and _number(&at, disk.end, &number):
            disk.name = at = _blanks(at, disk.end)
            while at < disk.end and not _is_blank(at[0]):
                at += 1
            disk.counts, disk.name_bytes = at, at - disk.name
            return True
    return False


cdef bint _disk_values(const Disk *disk, Value *values) noexcept nogil:
    """Put a line's values in the order in which the kernel has them, without what was merged, sectors as bytes.

    False: a column is no count, or there are too few. Kernels before 4.18 have no discards, those before 5.5 no
    flushes. All are missing when the bytes of one are more than 64 bits hold.
    """
    cdef Value counts[DISK_FIELDS_MOST]
    cdef Py_ssize_t count = _disk_counts(disk.counts, disk.end, counts), i, at = 0
    if count < DISK_FIELDS_LEAST:
        return False
    counts[8].known = counts[8].whole < INFLIGHT_MOST
    memset(values, 0, DISK_VALUES * sizeof(Value))
    for i in range(17 if count == 17 else 15 if count >= 15 else 11):
        if i in (2, 6, 13):
            if counts[i].whole >= SECTORS_MOST:
                memset(values, 0, DISK_VALUES * sizeof(Value))
                return True
            counts[i].whole *= SECTOR_BYTES
        if i not in (1, 5, 12):
            values[at] = counts[i]
            at += 1
    return True


cdef Py_ssize_t _disk_counts(const char *text, const char *end, Value *counts) noexcept nogil:
    """Put the counts of a line, the most that are known; return how many, 0 when one is none."""
    cdef Py_ssize_t count = 0
    while count < DISK_FIELDS_MOST:
        text = _blanks(text, end)
        if text == end:
            break
        counts[count] = _first(text, end)
        if not counts[count].known:
            return 0
        count += 1
        while text < end and not _is_blank(text[0]):
            text += 1
    return count


cdef class DiskRows:
    cdef list names
    cdef KeptFile file
    cdef Places places
    cdef bytearray found

    def __init__(self, KeptFile file not None, names, Places places not None):
        self.names, self.file, self.places = [bytes(name) for name in names], file, places
        self.found = bytearray(len(self.names))
        if places.count != DISK_VALUES or places.rows != len(self.names):
            raise ValueError(f"{len(self.names)} disks have {DISK_VALUES} values each")

    def fill(self):
        cdef Py_ssize_t size = self.file._fill(), row = -1, count = len(self.names)
        cdef const char *text = self.file.buffer
        cdef const char *end = text + size
        cdef Value values[DISK_VALUES]
        cdef uint8_t *found = <uint8_t *><char *>self.found
        cdef Disk disk
        memset(found, 0, count)
        while _next_disk(&text, end, &disk):
            row = self._row_of(&disk, row + 1)
            if row >= 0 and _disk_values(&disk, values):
                self.places._put(row, values)
                found[row] = True
        memset(values, 0, sizeof(values))
        for row in range(count):
            if not found[row]:
                self.places._put(row, values)

    cdef Py_ssize_t _row_of(self, const Disk *disk, Py_ssize_t first):
        """Return the row of a disk, or -1. The kernel names them mostly in the order of the rows, from *first* on."""
        cdef Py_ssize_t k, row, count = len(self.names)
        cdef bytes name
        for k in range(count):
            row = (first + k) % count
            name = <bytes>self.names[row]
            if len(name) == disk.name_bytes and memcmp(<const char *>name, disk.name, disk.name_bytes) == 0:
                return row
        return -1


cdef inline bint _is_blank(char c) noexcept nogil:
    return c == c" " or c == c"\t" or c == c"\r"


cdef inline const char *_blanks(const char *text, const char *end) noexcept nogil:
    while text < end and _is_blank(text[0]):
        text += 1
    return text


cdef inline const char *_line_end(const char *text, const char *end) noexcept nogil:
    cdef const char *found = <const char *>memchr(text, c"\n", end - text)
    return found if found != NULL else end


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


cdef Value _first(const char *text, const char *end) noexcept nogil:
    """Return the number that a text begins with, if a blank or the end follows; none too for all ones."""
    cdef uint64_t number
    cdef bint is_number = _number(&text, end, &number) and (text == end or _is_blank(text[0]))
    return _whole(number if is_number else U64_MAX)


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
