# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads binary tables in sysfs files of amdgpu in one pass without the GIL."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CLOEXEC, O_NONBLOCK, O_RDONLY, open as c_open
from posix.unistd cimport close as c_close, pread

from place_abi cimport Place, place_enter, place_leave

import os
from collections import namedtuple

from . import place

READ, UNPLANNED, SHORT, FAILED, SPARED = range(5)
FIRST, MEAN, MAX, SUM = range(4)

cdef enum:
    S_READ = 0
    S_UNPLANNED = 1
    S_SHORT = 2
    S_FAILED = 3
    S_SPARED = 4
    R_FIRST = 0
    R_MEAN = 1
    R_MAX = 2
    R_SUM = 3
    BUFFER_BYTES = 4096
    TARGETS_MAX = 8
    SOURCES_MAX = 4
    VALUES_MAX = 1024

FILE_BYTES_MAX = BUFFER_BYTES

cdef uint64_t U64_MAX = 0xFFFFFFFFFFFFFFFF
cdef Place **_place = <Place **><uintptr_t>place.POINTER


TableValue = namedtuple("TableValue", [
    "target", "cell", "gauge", "offset", "type", "numbers", "reduce", "scale", "least", "most", "bits",
], defaults=[64])
HeldTime = namedtuple("HeldTime", ["target", "cell", "sources", "flag", "share_min"])

cdef struct Number:
    int offset
    uint8_t width
    bint signed_

cdef struct Value:
    uint64_t *bits
    uint8_t *valid
    Number at
    int count
    int reduce
    bint gauge
    double scale
    uint64_t multiplier
    double least
    double most
    uint64_t mask

cdef struct Held:
    uint64_t *bits  # NULL: no cell
    uint8_t *valid
    int sources
    Number at[SOURCES_MAX]
    uint64_t last[SOURCES_MAX]
    uint64_t total
    uint64_t flag
    double share_min

cdef struct Bits:
    uint64_t of_word
    uint64_t flag

cdef struct TableFile:
    int fd
    int number_fd
    char *number_path  # NULL: no file with a number
    double *number
    uint8_t *number_valid
    int state
    int error
    Py_ssize_t got
    uint8_t *data
    char *path
    char *device
    char *call
    bint spared
    bint planned
    int size
    int needed  # bytes at the beginning that contain everything planned
    int mark_count
    int *mark_offset
    int *mark_bytes
    uint8_t *marks
    int value_count
    Value *values
    int held_count
    Held *held
    bint has_cycles
    Number cycles
    uint64_t last_cycles
    bint has_time
    Number time
    uint64_t time_ns
    uint64_t last_time
    bint begun
    uint64_t *flags
    uint8_t *flags_valid
    bint has_status
    Number status
    int status_count
    Bits *status_bits


cdef uint64_t _raw(const uint8_t *data, Number *at) noexcept nogil:
    cdef uint64_t value = 0
    memcpy(&value, data + at.offset, at.width)  # little-endian, like all hosts of these GPUs
    return value


cdef inline uint64_t _ones(int width) noexcept nogil:
    return U64_MAX >> (64 - 8 * width)


cdef inline double _as_double(uint64_t raw, Number *at) noexcept nogil:
    if at.signed_ and at.width < 8 and raw >> (8 * at.width - 1):
        return <double><int64_t>(raw | ~_ones(at.width))
    return <double><int64_t>raw if at.signed_ else <double>raw


cdef bint _take(const uint8_t *data, Value *value) noexcept nogil:
    """Put a value into its cell; False if it is missing."""
    cdef Number at = value.at
    cdef uint64_t raw, first = 0, total = 0
    cdef double number, sum_ = 0, most = 0
    cdef int known = 0, i
    for i in range(value.count):
        raw = _raw(data, &at)
        at.offset += at.width
        if raw == _ones(at.width):
            if value.reduce == R_FIRST:
                return False
            continue
        number = _as_double(raw, &at)
        if not value.least <= number <= value.most:
            if value.reduce == R_FIRST:
                return False
            continue
        most = number if not known or number > most else most
        first = raw if not known else first
        sum_ += number
        total += raw
        known += 1
        if value.reduce == R_FIRST:
            break
    if not known:
        return False
    if value.gauge:
        number = sum_ / known if value.reduce == R_MEAN else most if value.reduce == R_MAX else sum_
        number *= value.scale
        memcpy(value.bits, &number, sizeof(double))
    else:
        value.bits[0] = ((total if value.reduce == R_SUM else first) * value.multiplier) & value.mask
    return True


cdef void _blank(TableFile *file) noexcept nogil:
    cdef int i
    for i in range(file.value_count):
        file.values[i].valid[0] = 0
    for i in range(file.held_count):
        if file.held[i].bits != NULL:
            file.held[i].valid[0] = 0
    if file.flags != NULL:
        file.flags_valid[0] = 0


cdef void _take_held(TableFile *file) noexcept nogil:
    """Add the held times since the last table, and set the flags of the present causes."""
    cdef uint64_t cycles = 0, now = 0, step, steps, flags = 0, raw = 0
    cdef double passed_ns = 0, all_cycles = 0
    cdef bint is_next = False
    cdef Held *held
    cdef int i, k
    if file.has_cycles and file.has_time:
        cycles, now = _raw(file.data, &file.cycles), _raw(file.data, &file.time)
        if cycles == _ones(file.cycles.width) or now == _ones(file.time.width):
            _blank_held(file)
            return
        # A counter of 32 bits wraps around at 0; a step over half its range is ignored.
        steps = (cycles - file.last_cycles) & _ones(file.cycles.width)
        is_next = file.begun and now > file.last_time and 0 < steps <= _ones(file.cycles.width) >> 1
        all_cycles = <double>steps
        passed_ns = <double>(now - file.last_time) * <double>file.time_ns
    for i in range(file.held_count):
        held = &file.held[i]
        step = 0
        for k in range(held.sources):
            raw = _raw(file.data, &held.at[k])
            steps = (raw - held.last[k]) & _ones(held.at[k].width)
            if is_next and raw != _ones(held.at[k].width) and <double>steps <= all_cycles:
                step = steps if steps > step else step
            held.last[k] = raw
        if is_next:
            held.total += <uint64_t>(<double>step / all_cycles * passed_ns)
            if <double>step >= held.share_min * all_cycles:
                flags |= held.flag
        if held.bits != NULL:
            held.bits[0], held.valid[0] = held.total, 1
    if file.has_cycles and not (file.begun and now == file.last_time):
        file.last_cycles, file.last_time, file.begun = cycles, now, True
    elif file.flags != NULL and file.has_cycles and not file.has_status:
        return  # the same table as before: its flags remain
    if file.has_status:
        raw = _raw(file.data, &file.status)
        for i in range(file.status_count):
            if raw & file.status_bits[i].of_word:
                flags |= file.status_bits[i].flag
    if file.flags != NULL:
        file.flags[0] = flags
        file.flags_valid[0] = is_next or (file.has_status and raw != U64_MAX)


cdef void _blank_held(TableFile *file) noexcept nogil:
    cdef int i
    for i in range(file.held_count):
        if file.held[i].bits != NULL:
            file.held[i].valid[0] = 0
    if file.flags != NULL:
        file.flags_valid[0] = 0


cdef int _is_planned(TableFile *file) noexcept nogil:
    """Return S_READ if the table is the planned one."""
    cdef int i, at = 0
    if not file.planned:
        return S_UNPLANNED
    for i in range(file.mark_count):
        if file.got < file.mark_offset[i] + file.mark_bytes[i]:
            return S_SHORT
        if memcmp(file.data + file.mark_offset[i], file.marks + at, file.mark_bytes[i]) != 0:
            return S_UNPLANNED
        at += file.mark_bytes[i]
    return S_READ if file.got >= file.needed else S_SHORT


cdef Py_ssize_t _pread(TableFile *file, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t got = pread(file.fd, file.data, size, 0)
    while got < 0 and errno == EINTR:
        got = pread(file.fd, file.data, size, 0)
    return got


cdef bint _read_number(TableFile *file) noexcept nogil:
    """Put the whole number of a file, below 10^18, into its cell; False if it is invalid."""
    cdef char text[32]
    cdef Py_ssize_t size, i = 0
    cdef uint64_t value = 0
    if file.number_fd < 0:
        file.number_fd = c_open(file.number_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        if file.number_fd < 0:
            return False
    size = pread(file.number_fd, text, sizeof(text), 0)
    if size < 0:
        c_close(file.number_fd)
        file.number_fd = -1
        return False
    while i < size and i < 18 and c"0" <= text[i] <= c"9":
        value = 10 * value + <uint64_t>(text[i] - c"0")
        i += 1
    if i == 0 or (i < size and text[i] != c"\n"):
        return False
    file.number[0] = <double>value
    return True


cdef void _read(TableFile *file) noexcept nogil:
    """Read the planned bytes, or all bytes of a table that is not the planned one."""
    cdef Py_ssize_t got = -1
    cdef int i
    if file.spared:
        file.state, file.got = S_SPARED, 0
        _blank(file)
        if file.number_path != NULL:
            file.number_valid[0] = 0
        return
    if file.device[0]:
        place_enter(_place[0], file.device, file.call)
    if file.fd < 0:
        file.fd = c_open(file.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    if file.fd >= 0:
        got = _pread(file, file.needed if file.planned else BUFFER_BYTES)
        file.got = got if got > 0 else 0
        if got >= 0 and file.planned and _is_planned(file) != S_READ:
            got = _pread(file, BUFFER_BYTES)
    file.error = errno if got < 0 else 0
    if got < 0 and file.fd >= 0:  # the descriptor may be of a removed device
        c_close(file.fd)
        file.fd = -1
    if file.number_path != NULL:
        file.number_valid[0] = _read_number(file)
    if file.device[0]:
        place_leave(_place[0])
    file.got = got if got > 0 else 0
    file.state = S_FAILED if got < 0 else _is_planned(file)
    if file.state != S_READ:
        _blank(file)
        return
    for i in range(file.value_count):
        file.values[i].valid[0] = _take(file.data, &file.values[i])
    if file.held_count or file.has_status:
        _take_held(file)


cdef char *_text(bytes text) except NULL:
    cdef char *copy = <char *>calloc(len(text) + 1, 1)
    if copy == NULL:
        raise MemoryError
    memcpy(copy, <const char *>text, len(text))
    return copy


cdef void *_room(Py_ssize_t count, size_t bytes_each) except NULL:
    cdef void *room = calloc(count + 1, bytes_each)
    if room == NULL:
        raise MemoryError
    return room


cdef class TableFiles:
    cdef TableFile *files
    cdef int count
    cdef list views
    cdef bint busy
    cdef uint64_t *bits[TARGETS_MAX]
    cdef uint8_t *valid[TARGETS_MAX]
    cdef Py_ssize_t sizes[TARGETS_MAX]

    def __init__(self, targets):
        if self.views is not None:
            raise RuntimeError("TableFiles is made once")
        if not 0 < len(targets) <= TARGETS_MAX:
            raise ValueError(f"targets: expected 1 to {TARGETS_MAX} pairs of buffers, got {len(targets)}")
        self.views = []
        for number, (cells, valid) in enumerate(targets):
            self._bind(number, cells, valid)

    cdef _bind(self, int number, cells, valid):
        cdef uint8_t[::1] cell_bytes = memoryview(cells).cast("B")
        cdef uint8_t[::1] valid_bytes = memoryview(valid).cast("B")
        if cell_bytes.shape[0] != 8 * valid_bytes.shape[0]:
            raise ValueError(
                f"target {number}: {valid_bytes.shape[0]} cells need {8 * valid_bytes.shape[0]} bytes, "
                f"got {cell_bytes.shape[0]}"
            )
        self.views.append((cell_bytes, valid_bytes))
        self.sizes[number] = valid_bytes.shape[0]
        if valid_bytes.shape[0]:
            self.bits[number] = <uint64_t *>&cell_bytes[0]
            self.valid[number] = &valid_bytes[0]

    def add_file(self, path, str device=""):
        self._must_be_idle()
        cdef void *grown = realloc(self.files, (self.count + 1) * sizeof(TableFile))
        if grown == NULL:
            raise MemoryError
        self.files = <TableFile *>grown
        cdef TableFile *file = &self.files[self.count]
        memset(file, 0, sizeof(TableFile))
        file.fd, file.number_fd, file.state = -1, -1, S_UNPLANNED
        self.count += 1
        raw = os.fsencode(path)
        file.path = _text(raw)
        file.device = _text(device.encode())
        file.call = _text(b"read " + raw.rpartition(b"/")[2])
        file.data = <uint8_t *>_room(BUFFER_BYTES, 1)
        return self.count - 1

    def add_number(self, int file, path, int target, Py_ssize_t index):
        self._must_be_idle()
        cdef TableFile *one = self._file(file)
        if one.number_path != NULL:
            raise ValueError(f"file {file} has a number beside it already")
        self._check_cell(target, index)
        one.number, one.number_valid = <double *>(self.bits[target] + index), self.valid[target] + index
        one.number_path = _text(os.fsencode(path))

    def plan(self, int file, int size, marks, values, held=(), cycles=None, time=None, flags=None, status=None, int least_bytes=0):
        self._must_be_idle()
        cdef TableFile *one = self._file(file)
        if not 0 < size <= BUFFER_BYTES:
            raise ValueError(f"a table of {size} bytes: expected 1 to {BUFFER_BYTES}")
        if len(values) > VALUES_MAX or len(held) > VALUES_MAX or len(marks) > VALUES_MAX:
            raise ValueError(f"a plan has at most {VALUES_MAX} values, marks and held times each")
        if least_bytes > size:
            raise ValueError(f"{least_bytes} bytes of a table of {size}")
        _blank(one)
        _forget(one)
        one.size, one.needed = size, max(least_bytes, 1)
        self._plan_marks(one, marks)
        one.values = <Value *>_room(len(values), sizeof(Value))
        for value in values:
            self._plan_value(one, value)
        one.held = <Held *>_room(len(held), sizeof(Held))
        for each in held:
            self._plan_held(one, each)
        if cycles is not None:
            one.cycles, one.has_cycles = self._number(one, cycles[0], cycles[1], 1), True
        if time is not None:
            one.time, one.has_time, one.time_ns = self._number(one, time[0], time[1], 1), True, time[2]
        if flags is not None:
            self._check_cell(flags[0], flags[1])
            one.flags, one.flags_valid = self.bits[<int>flags[0]] + <Py_ssize_t>flags[1], self.valid[<int>flags[0]] + <Py_ssize_t>flags[1]
        if status is not None:
            one.status, one.has_status = self._number(one, status[0], "Q", 1), True
            one.status_bits = <Bits *>_room(len(status[1]), sizeof(Bits))
            for of_word, flag in status[1]:
                one.status_bits[one.status_count].of_word, one.status_bits[one.status_count].flag = of_word, flag
                one.status_count += 1
        one.planned = True

    cdef _plan_marks(self, TableFile *one, marks):
        cdef int at = 0
        one.mark_offset = <int *>_room(len(marks), sizeof(int))
        one.mark_bytes = <int *>_room(len(marks), sizeof(int))
        one.marks = <uint8_t *>_room(sum(len(text) for _, text in marks), 1)
        for offset, text in marks:
            if offset < 0 or offset + len(text) > one.size:
                raise ValueError(f"a mark at {offset} lies outside a table of {one.size} bytes")
            memcpy(one.marks + at, <const char *><bytes>text, len(text))
            one.mark_offset[one.mark_count], one.mark_bytes[one.mark_count] = offset, len(text)
            one.mark_count += 1
            one.needed = max(one.needed, <int>(offset + len(text)))
            at += len(text)

    cdef _plan_value(self, TableFile *one, value):
        cdef Value *it = &one.values[one.value_count]
        cdef int bits = value.bits
        self._check_cell(value.target, value.cell)
        if not FIRST <= value.reduce <= SUM or not 1 <= bits <= 64 or value.numbers < 1:
            raise ValueError(f"a value of {value.numbers} numbers, reduced by {value.reduce}, cut to {bits} bits")
        it.at = self._number(one, value.offset, value.type, value.numbers)
        it.bits, it.valid = self.bits[<int>value.target] + <Py_ssize_t>value.cell, self.valid[<int>value.target] + <Py_ssize_t>value.cell
        it.count, it.reduce, it.gauge, it.scale = value.numbers, value.reduce, value.gauge, value.scale
        it.multiplier = 1 if value.gauge else int(value.scale)
        it.least, it.most = value.least, value.most
        it.mask = U64_MAX >> (64 - bits)
        one.value_count += 1

    cdef _plan_held(self, TableFile *one, each):
        cdef Held *it = &one.held[one.held_count]
        if not 1 <= len(each.sources) <= SOURCES_MAX:
            raise ValueError(f"a held time has 1 to {SOURCES_MAX} counters, got {len(each.sources)}")
        for offset, type_ in each.sources:
            it.at[it.sources] = self._number(one, offset, type_, 1)
            it.sources += 1
        if each.cell >= 0:
            self._check_cell(each.target, each.cell)
            it.bits, it.valid = self.bits[<int>each.target] + <Py_ssize_t>each.cell, self.valid[<int>each.target] + <Py_ssize_t>each.cell
        it.flag, it.share_min = each.flag, each.share_min
        one.held_count += 1

    cdef Number _number(self, TableFile *one, int offset, str type_, int count) except *:
        cdef Number at
        widths = {"B": 1, "b": 1, "H": 2, "h": 2, "I": 4, "i": 4, "Q": 8, "q": 8}
        if type_ not in widths:
            raise ValueError(f"type {type_!r}: expected one of {', '.join(widths)}")
        at.offset, at.width, at.signed_ = offset, widths[type_], type_.islower()
        if offset < 0 or offset + count * at.width > one.size:
            raise ValueError(f"{count} numbers of {at.width} bytes at {offset} lie outside a table of {one.size} bytes")
        one.needed = max(one.needed, offset + count * at.width)
        return at

    cdef _check_cell(self, int target, Py_ssize_t index):
        if not 0 <= target < len(self.views) or not 0 <= index < self.sizes[target]:
            raise ValueError(f"cell {index} of target {target} is outside its buffers")

    cdef TableFile *_file(self, int file) except NULL:
        if not 0 <= file < self.count:
            raise ValueError(f"file {file}: there are {self.count}")
        return &self.files[file]

    cdef int _must_be_idle(self) except -1:
        if self.busy:
            raise RuntimeError("a pass is under way in another thread")
        return 0

    def spare(self, devices):
        cdef int i
        self._must_be_idle()
        for i in range(self.count):
            self.files[i].spared = self.files[i].device[0] != 0 and (<bytes>self.files[i].device).decode() in devices
            if self.files[i].spared:  # another device may be there later
                _close(&self.files[i])

    def read(self):
        cdef int i, others = 0
        self._must_be_idle()
        self.busy = True
        with nogil:
            for i in range(self.count):
                _read(&self.files[i])
                others += self.files[i].state != S_READ
        self.busy = False
        return others

    def state(self, int file):
        return self._file(file).state

    def error(self, int file):
        return self._file(file).error

    def data(self, int file):
        cdef TableFile *one = self._file(file)
        return (<const char *>one.data)[:one.got]

    def close(self):
        cdef int i
        self._must_be_idle()
        for i in range(self.count):
            _close(&self.files[i])

    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            _close(&self.files[i])
            _forget(&self.files[i])
            free(self.files[i].path)
            free(self.files[i].number_path)
            free(self.files[i].device)
            free(self.files[i].call)
            free(self.files[i].data)
        free(self.files)


cdef void _close(TableFile *file) noexcept:
    if file.fd >= 0:
        c_close(file.fd)
    if file.number_fd >= 0:
        c_close(file.number_fd)
    file.fd = file.number_fd = -1


cdef void _forget(TableFile *file) noexcept:
    """Free the plan. Counters and held times start again."""
    free(file.mark_offset)
    free(file.mark_bytes)
    free(file.marks)
    free(file.values)
    free(file.held)
    free(file.status_bits)
    file.mark_offset = file.mark_bytes = NULL
    file.marks, file.values, file.held, file.status_bits = NULL, NULL, NULL, NULL
    file.mark_count = file.value_count = file.held_count = file.status_count = 0
    file.planned = file.has_cycles = file.has_time = file.has_status = file.begun = False
    file.flags, file.flags_valid = NULL, NULL
