# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Fast reads of host files each second: whole /proc files, their numbers, folder listings, rows of cells."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.errno cimport EACCES, EINTR, EPERM, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset, strlen
from posix.fcntl cimport O_CLOEXEC, O_DIRECTORY, O_NONBLOCK, O_RDONLY, open as c_open
from posix.unistd cimport SEEK_SET, close as c_close, lseek, pread, read as c_read

from hostfiles_cores cimport Core, Shares, Times, _shares, _take_times
from hostfiles_disks cimport DISK_VALUES, Disk, _disk_values, _next_disk
from hostfiles_nfs cimport NFS_VALUES, _nfs_values
from hostfiles_texts cimport (
    U32_MAX, U64_MAX, Value, _begins, _blanks, _first, _gauge, _is_blank, _line_end, _line_numbers,
    _number, _pressure, _whole,
)

import os
from collections import namedtuple

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
    # The kernel ends a read early only if the next line does not fit; a shorter read is at the end.
    SHORT_BYTES = FIRST_BYTES // 2
    FILE_MOST_BYTES = 1 << 20
    ENTRIES_BYTES = 8192
    CORES_MOST = 65536
    HOST_VALUES = 14  # fields of HostTimes
    PRESSURE_VALUES = 10
    MEMORY_VALUES = 2
    NAMES_MOST = 64
    # Fields of /proc/PID/stat after the name (proc(5) counts from 3), and the flag of a kernel
    # thread (include/linux/sched.h).
    FLAGS_FIELD = 6
    START_FIELD = 19
    PF_KTHREAD = 0x00200000

FILE_BYTES_MAX = FILE_MOST_BYTES

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
        """Read the file into the buffer; return its size, 0 if it cannot be read."""
        cdef size_t size = 0
        cdef ssize_t got = 1
        cdef const char *path = self.path
        cdef int error = 0
        while got > 0 and size < FILE_MOST_BYTES and not (self.whole and 0 < size < self.room):
            if size == self.room:
                self._grow()
            with nogil:
                if self.fd < 0:
                    # O_NONBLOCK: a FIFO in its place must not block.
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
                if not seen:  # the folder is empty, or was replaced
                    c_close(self.fd)
                    self.fd = -1
        return seen

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)


cdef uint64_t _entries(int fd) noexcept nogil:
    """Return a sum over a folder's names and inodes, independent of their order; 0 if empty."""
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


HostTimes = namedtuple("HostTimes", [
    "user", "system", "idle", "iowait", "steal", "interrupt", "busiest_core", "busiest_core_number",
    "saturated_cores", "runnable", "blocked", "context_switches", "interrupts", "softirqs",
])
CoreShares = namedtuple("CoreShares", ["busy", "system", "interrupt", "steal"])


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
        """Process a text of /proc/stat; *values* are those of HostTimes, in their order."""
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
        """Set the busiest core's share and number, and the number of saturated cores.

        All cores' clocks advance alike, so a core's time is the total by the number of cores.
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
        for i in range(self.now_count):  # the kernel lists cores in ascending order
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


def pressure(const uint8_t[::1] data not None):
    cdef Value values[4]
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    _pressure(text, text + data.shape[0], values)
    return tuple(_objects(values, 4))


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
        at[0], at[1] = cpu[0], cpu[2]  # for the whole host the kernel reports `full` of cpu as 0
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
    while behind > text and (behind - 1)[0] != c")":  # the last `)`: the name may contain others
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
    cdef const char *text = <const char *>&data[0] if data.shape[0] else NULL
    _nfs_values(text, text + data.shape[0], values)
    return _objects(values, NFS_VALUES)


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
        """Return the row of a disk, or -1. Usually the kernel lists disks in the rows' order."""
        cdef Py_ssize_t k, row, count = len(self.names)
        cdef bytes name
        for k in range(count):
            row = (first + k) % count
            name = <bytes>self.names[row]
            if len(name) == disk.name_bytes and memcmp(<const char *>name, disk.name, disk.name_bytes) == 0:
                return row
        return -1
