# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads many small counter files through open descriptors in one pass without the GIL."""

from libc.errno cimport EINTR, EINVAL, EMFILE, ENFILE, ENODEV, ENOENT, ENXIO, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CLOEXEC, O_NONBLOCK, O_RDONLY, open as c_open
from posix.unistd cimport close as c_close, pread

from place_abi cimport Place, place_enter, place_leave

import os

from . import place

NUMBER, SIGNED, CODE, KEYED, DECIMAL, WORD, DIGEST = range(7)

cdef enum:
    SHAPE_NUMBER = 0
    SHAPE_SIGNED = 1
    SHAPE_CODE = 2
    SHAPE_KEYED = 3
    SHAPE_DECIMAL = 4
    SHAPE_WORD = 5
    SHAPE_DIGEST = 6
    # A sysfs attribute has one page at most; a text that fills the buffer is incomplete.
    BUFFER_BYTES = 4096
    TARGETS_MAX = 8
    WRAP_SHARE_MAX = 8  # as in contract.counters
    # Results of a file.
    ANSWERED = 0
    GONE = 1
    REFUSED = 2
    WAITING = 3

cdef uint64_t U64_MAX = 0xFFFFFFFFFFFFFFFF
cdef uint64_t U32_MAX = 0xFFFFFFFF
cdef uint64_t FNV_BASIS = 0xCBF29CE484222325
cdef uint64_t FNV_PRIME = 0x100000001B3
# DCGM's blanks, as in contract.counters.
cdef uint64_t BLANK_FROM = 0x7FFFFFFFFFFFFFF0
cdef uint64_t BLANK_TO = 0x7FFFFFFFFFFFFFFF
cdef uint64_t BLANK_31_FROM = 0x7FFFFFF0
cdef uint64_t BLANK_31_TO = 0x7FFFFFFF
cdef Place **_place = <Place **><uintptr_t>place.POINTER

cdef struct Cell:
    uint64_t *bits
    uint8_t *valid
    int shape
    bint gauge
    uint64_t multiplier
    double scale
    uint64_t most
    Py_ssize_t key
    Py_ssize_t key_bytes
    Py_ssize_t meter  # index of the meter that adds up a counter; -1: no meter

cdef struct Counted:
    uint64_t span  # maximum, after which the counter starts again at 0; 0: unknown
    uint64_t last
    uint64_t total
    bint begun

cdef struct File:
    int fd
    bint keep
    Py_ssize_t path
    Py_ssize_t call  # the read's name in the place
    Py_ssize_t first
    Py_ssize_t end
    uint32_t wait
    uint32_t interval
    int refusal  # errno if the kernel refused the last read, else 0

cdef struct Group:
    Py_ssize_t first
    Py_ssize_t end
    Py_ssize_t probe
    Py_ssize_t device  # the device whose driver its files call; -1: no driver
    bint spared
    bint trusted
    uint32_t wait
    uint32_t interval


cdef class CounterFiles:
    cdef File *files
    cdef Cell *cells
    cdef Group *groups
    cdef Counted *meters
    cdef char *text  # paths and keys, each ended by a zero byte
    cdef Py_ssize_t file_count, cell_count, group_count, meter_count, text_bytes
    cdef uint32_t wait_passes_max
    cdef Py_ssize_t kept_max
    cdef bint busy, closed
    cdef int flags
    cdef list views
    cdef uint64_t *bits[TARGETS_MAX]
    cdef uint8_t *valid[TARGETS_MAX]
    cdef Py_ssize_t sizes[TARGETS_MAX]
    cdef object group_name
    cdef readonly Py_ssize_t missing_cells
    cdef readonly uint64_t read_errors

    def __init__(self, targets, *, Py_ssize_t kept_max=160, uint32_t wait_passes_max=0, bint only_files=False):
        if self.views is not None:
            raise RuntimeError("CounterFiles is made once")
        if not 0 < len(targets) <= TARGETS_MAX:
            raise ValueError(f"targets: expected 1 to {TARGETS_MAX} pairs of buffers, got {len(targets)}")
        self.views = []
        self.kept_max = kept_max
        self.flags = O_RDONLY | O_CLOEXEC | (O_NONBLOCK if only_files else 0)
        self.wait_passes_max = wait_passes_max
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

    def add_file(self, path, *, group=None, str device=""):
        self._must_be_idle()
        if self.group_count == 0 or group is None or (group, device) != self.group_name:
            _grow(<void **>&self.groups, self.group_count, sizeof(Group))
            memset(&self.groups[self.group_count], 0, sizeof(Group))
            self.groups[self.group_count].first = self.file_count
            self.groups[self.group_count].device = self._keep_text(device.encode()) if device else -1
            self.group_count += 1
        self.group_name = group, device
        _grow(<void **>&self.files, self.file_count, sizeof(File))
        cdef File *file = &self.files[self.file_count]
        memset(file, 0, sizeof(File))
        file.fd = -1
        file.keep = self.file_count < self.kept_max
        path = os.fsencode(path)
        file.path = self._keep_text(path)
        if device:
            folder, _, name = path.rpartition(b"/")
            file.call = self._keep_text(b"read " + folder.rpartition(b"/")[2] + b"/" + name)
        file.first = file.end = self.cell_count
        self.file_count += 1
        self.groups[self.group_count - 1].end = self.file_count

    def add_cell(self, Py_ssize_t index, *, int target=0, int shape=SHAPE_NUMBER, bytes key=b"",
                 scale=1, bint gauge=False, uint64_t most=U64_MAX, span=None):
        self._must_be_idle()
        if not self.file_count:
            raise ValueError("a cell belongs to the file added last, and there is none yet")
        if not 0 <= target < len(self.views) or not 0 <= index < self.sizes[target]:
            raise ValueError(f"cell {index} of target {target} is outside its buffers")
        _grow(<void **>&self.cells, self.cell_count, sizeof(Cell))
        cdef Cell *cell = &self.cells[self.cell_count]
        _fill(cell, shape, scale, gauge, most)
        if span is not None and not (gauge and shape == SHAPE_NUMBER):
            raise ValueError("what a counter has counted is a gauge, and its file a number")
        cell.bits = self.bits[target] + index
        cell.valid = self.valid[target] + index
        cell.key_bytes = len(key)
        cell.key = self._keep_text(key)
        cell.meter = -1 if span is None else self._add_meter(span)
        self.cell_count += 1
        self.files[self.file_count - 1].end = self.cell_count

    cdef Py_ssize_t _add_meter(self, uint64_t span) except -1:
        _grow(<void **>&self.meters, self.meter_count, sizeof(Counted))
        memset(&self.meters[self.meter_count], 0, sizeof(Counted))
        self.meters[self.meter_count].span = span
        self.meter_count += 1
        return self.meter_count - 1

    cdef Py_ssize_t _keep_text(self, bytes text) except -1:
        cdef Py_ssize_t at = self.text_bytes, size = len(text) + 1
        cdef void *grown = realloc(self.text, at + size)
        if grown == NULL:
            raise MemoryError()
        self.text = <char *>grown
        memcpy(self.text + at, <const char *>text, size)
        self.text_bytes = at + size
        return at

    def spare(self, devices):
        cdef Py_ssize_t k
        cdef bint spared
        self._must_be_idle()
        for k in range(self.group_count):
            if self.groups[k].device >= 0:
                spared = (<bytes>(self.text + self.groups[k].device)).decode() in devices
                if self.groups[k].spared and not spared:
                    self.groups[k].wait = self.groups[k].interval = 0  # read at once
                self.groups[k].spared = spared

    cdef int _must_be_idle(self) except -1:
        if self.busy:
            raise RuntimeError("a pass is under way in another thread")
        if self.closed:
            raise ValueError("these counter files are closed")
        return 0

    def read(self):
        self._must_be_idle()
        self.busy = True
        with nogil:
            self._pass()
        self.busy = False
        if self.closed:
            self._close_all()
        return self.missing_cells

    cdef void _pass(self) noexcept nogil:
        cdef Py_ssize_t i
        self.missing_cells = 0
        for i in range(self.group_count):
            if self.groups[i].spared:
                self._blank_files(self.groups[i].first, self.groups[i].end)
            elif self.groups[i].wait:
                self.groups[i].wait -= 1
                self._blank_files(self.groups[i].first, self.groups[i].end)
            else:
                self._read_group(&self.groups[i])

    cdef void _read_group(self, Group *group) noexcept nogil:
        """Read a device's files; a group that only refuses is probed by one file, then skipped.

        Each refused read may log a line in the kernel log. So a group without an answer is probed
        by a single file, a different one each time, after a growing delay.
        """
        cdef Py_ssize_t count = group.end - group.first, k, i
        cdef Py_ssize_t start = 0 if group.trusted else group.probe % count
        cdef Py_ssize_t answered = 0, refused = 0
        cdef int answer
        cdef const char *device = NULL if group.device < 0 else self.text + group.device
        for k in range(count):
            i = group.first + (start + k) % count
            answer = self._read_file(&self.files[i], device)
            answered += answer == ANSWERED
            refused += answer == REFUSED
            if refused and not answered and not group.trusted and self.wait_passes_max:
                self.files[i].wait = self.files[i].interval = 0  # it waits with its group
                for k in range(k + 1, count):
                    i = group.first + (start + k) % count
                    self._blank_files(i, i + 1)
                break
        if device:
            place_leave(_place[0])
        if answered:
            group.trusted = True
            group.interval = 0
        elif refused and self.wait_passes_max:
            group.trusted = False
            group.probe += 1
            self._longer(&group.wait, &group.interval)

    cdef int _read_file(self, File *file, const char *device) noexcept nogil:
        cdef char buffer[BUFFER_BYTES]
        cdef Py_ssize_t got = -1, mark = 0, i
        cdef int error = 0
        if file.wait:
            file.wait -= 1
            self._blank_files_of(file)
            return WAITING
        if device:
            place_enter(_place[0], device, self.text + file.call)
        if file.fd < 0:
            file.fd = c_open(self.text + file.path, self.flags)
            error = errno if file.fd < 0 else 0
        if file.fd >= 0:
            got = pread(file.fd, buffer, BUFFER_BYTES, 0)
            while got < 0 and errno == EINTR:
                got = pread(file.fd, buffer, BUFFER_BYTES, 0)
            error = errno if got < 0 else 0
            # EINVAL is the file's answer (an interface that is down). After other errors the
            # descriptor may be of a removed device, so the file is opened again.
            if not file.keep or (error and error != EINVAL):
                c_close(file.fd)
                file.fd = -1
        if got < 0:
            self.read_errors += 1
            self._blank_files_of(file)
            self._longer(&file.wait, &file.interval)
            if error in (ENOENT, ENODEV, ENXIO, EMFILE, ENFILE):
                file.refusal = 0
                return GONE
            file.refusal = error
            return REFUSED
        file.interval = 0
        file.refusal = 0
        for i in range(file.first, file.end):
            self.cells[i].valid[0] = self._fill_cell(&self.cells[i], buffer, got, &mark)
            self.missing_cells += not self.cells[i].valid[0]
        return ANSWERED

    cdef bint _fill_cell(self, Cell *cell, const char *text, Py_ssize_t size, Py_ssize_t *mark) noexcept nogil:
        cdef const char *key = self.text + cell.key
        if cell.meter < 0:
            return _parse(text, size, cell, key, mark, cell.bits)
        return _measure(text, size, cell, key, &self.meters[cell.meter])

    cdef void _longer(self, uint32_t *wait, uint32_t *interval) noexcept nogil:
        interval[0] = min(2 * interval[0] + 1, self.wait_passes_max)
        wait[0] = interval[0]

    cdef void _blank_files(self, Py_ssize_t first, Py_ssize_t end) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(first, end):
            self._blank_files_of(&self.files[i])

    cdef void _blank_files_of(self, File *file) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(file.first, file.end):
            self.cells[i].valid[0] = 0
            self.missing_cells += 1

    def reopen(self):
        self._must_be_idle()
        self._close_all()

    def close(self):
        self.closed = True
        if not self.busy:  # otherwise the running pass closes them when it returns
            self._close_all()

    cdef void _close_all(self) noexcept:
        cdef Py_ssize_t i
        for i in range(self.file_count):
            if self.files[i].fd >= 0:
                c_close(self.files[i].fd)
                self.files[i].fd = -1

    def __dealloc__(self):
        self._close_all()
        free(self.files)
        free(self.cells)
        free(self.groups)
        free(self.meters)
        free(self.text)

    @property
    def refusals(self):
        cdef Py_ssize_t i, k
        found = []
        for k in range(self.group_count):
            if self.groups[k].trusted:
                continue
            for i in range(self.groups[k].first, self.groups[k].end):
                if self.files[i].refusal:
                    path = <bytes>(self.text + self.files[i].path)
                    found.append((os.fsdecode(path), self.files[i].refusal))
                    break
        return found

    @property
    def kept_descriptors(self):
        cdef Py_ssize_t i, count = 0
        for i in range(self.file_count):
            count += self.files[i].fd >= 0
        return count


cdef class Meter:
    cdef Counted counted

    def __init__(self, uint64_t span=0):
        self.counted.span = span

    def add(self, value):
        if value is None or not _add(&self.counted, value):
            return None
        return self.counted.total


cdef bint _add(Counted *meter, uint64_t now) noexcept nogil:
    """Count up to this reading, as contract.counters.counted does. False: not a reading."""
    cdef uint64_t wrapped
    if now == U32_MAX or now == U64_MAX or BLANK_FROM <= now <= BLANK_TO or BLANK_31_FROM <= now <= BLANK_31_TO:
        return False
    if meter.span and now > meter.span:
        return False
    if meter.begun and now >= meter.last:
        _rise(meter, now - meter.last)
    elif meter.begun and meter.last < meter.span:
        wrapped = meter.span - meter.last + now
        if wrapped <= meter.span // WRAP_SHARE_MAX:
            _rise(meter, wrapped)
    meter.last = now
    meter.begun = True
    return True


cdef inline void _rise(Counted *meter, uint64_t step) noexcept nogil:
    if step <= U64_MAX - meter.total:
        meter.total += step


cdef bint _measure(const char *text, Py_ssize_t size, Cell *cell, const char *key, Counted *meter) noexcept nogil:
    """Put the scaled count since the first reading into the cell."""
    cdef Cell whole = cell[0]
    cdef Py_ssize_t mark = 0
    cdef uint64_t now = 0
    cdef double number
    whole.gauge, whole.multiplier = False, 1
    if not _parse(text, size, &whole, key, &mark, &now) or not _add(meter, now):
        return False
    number = <double>meter.total * cell.scale
    memcpy(cell.bits, &number, sizeof(double))
    return True


def parse(const uint8_t[::1] text not None, int shape=SHAPE_NUMBER, *, bytes key=b"", scale=1, bint gauge=False, uint64_t most=U64_MAX):
    cdef Cell cell
    cdef uint64_t bits = 0
    cdef Py_ssize_t mark = 0
    cdef double number
    _fill(&cell, shape, scale, gauge, most)
    cell.key_bytes = len(key)
    if not text.shape[0] or not _parse(<const char *>&text[0], min(text.shape[0], BUFFER_BYTES), &cell, key, &mark, &bits):
        return None
    if not gauge:
        return bits
    memcpy(&number, &bits, sizeof(double))
    return number


cdef int _fill(Cell *cell, int shape, scale, bint gauge, uint64_t most) except -1:
    if not SHAPE_NUMBER <= shape <= SHAPE_DIGEST:
        raise ValueError(f"shape: expected NUMBER, SIGNED, CODE, KEYED, DECIMAL, WORD or DIGEST, got {shape}")
    if not gauge and (shape in (SHAPE_SIGNED, SHAPE_DECIMAL) or int(scale) != scale or scale < 1):
        raise ValueError("a cell of whole numbers cannot be signed or decimal, and is multiplied by 1 or more")
    if gauge and shape in (SHAPE_WORD, SHAPE_DIGEST):
        raise ValueError("the number of a word or a text is a state, not a gauge")
    cell.shape = shape
    cell.gauge = gauge
    cell.scale = scale
    cell.multiplier = 1 if gauge else scale
    cell.most = most
    return 0


cdef int _grow(void **array, Py_ssize_t count, Py_ssize_t item_bytes) except -1:
    cdef void *grown = realloc(array[0], (count + 1) * item_bytes)
    if grown == NULL:
        raise MemoryError()
    array[0] = grown
    return 0


cdef inline bint _is_space(char c) noexcept nogil:
    return c == c" " or c == c"\n" or c == c"\t" or c == c"\r"


cdef bint _digits(const char *text, Py_ssize_t size, Py_ssize_t *at, uint64_t *value) noexcept nogil:
    """Read digits from *at*. False without a digit, or beyond 64 bits."""
    cdef Py_ssize_t i = at[0]
    cdef uint64_t total = 0, digit
    while i < size and c"0" <= text[i] <= c"9":
        digit = <uint64_t>(text[i] - c"0")
        if total > (U64_MAX - digit) // 10:
            return False
        total = 10 * total + digit
        i += 1
    if i == at[0]:
        return False
    at[0] = i
    value[0] = total
    return True


cdef Py_ssize_t _after_key(
    const char *text, Py_ssize_t size, const char *key, Py_ssize_t key_bytes, Py_ssize_t first
) noexcept nogil:
    """Return the end of the word *key*, or -1. It must be a whole word: not `hit` in `numa_hit`.

    The search starts at *first*, then at 0: usually a key follows the previously found key.
    """
    cdef Py_ssize_t k, i = first, count = size - key_bytes
    for k in range(count):
        i = i if i < count else 0
        if (i == 0 or _is_space(text[i - 1])) and _is_space(text[i + key_bytes]) and memcmp(text + i, key, key_bytes) == 0:
            return i + key_bytes
        i += 1
    return -1


cdef Py_ssize_t _word_number(const char *text, Py_ssize_t size, const char *words, Py_ssize_t words_bytes) noexcept nogil:
    """Return the text's position, from 0, in the blank-separated *words*, or -1."""
    cdef Py_ssize_t begin = 0, end, number = 0
    while size and _is_space(text[size - 1]):
        size -= 1
    while begin < words_bytes:
        end = begin
        while end < words_bytes and words[end] != c" ":
            end += 1
        if size and size == end - begin and memcmp(text, words + begin, size) == 0:
            return number
        begin = end + 1
        number += 1
    return -1


cdef uint64_t _digest(const char *text, Py_ssize_t size) noexcept nogil:
    """Return a hash (FNV-1a) of a text."""
    cdef uint64_t mixed = FNV_BASIS
    cdef Py_ssize_t i
    for i in range(size):
        mixed = (mixed ^ <uint8_t>text[i]) * FNV_PRIME
    return mixed


cdef bint _ends(const char *text, Py_ssize_t size, Py_ssize_t at, Cell *cell, const char *key) noexcept nogil:
    """Return whether the text after the number fits the shape. A cut-off number is invalid."""
    if size == BUFFER_BYTES and at == size:
        return False
    if cell.shape == SHAPE_CODE:
        return at < size and text[at] == c":"
    if cell.shape == SHAPE_KEYED:
        return at == size or _is_space(text[at])
    if cell.shape == SHAPE_DECIMAL:
        if at >= size or text[at] != c" " or size - at - 1 < cell.key_bytes:
            return False
        at += 1 + cell.key_bytes
        return memcmp(text + at - cell.key_bytes, key, cell.key_bytes) == 0 and (at == size or _is_space(text[at]))
    while at < size and _is_space(text[at]):
        at += 1
    return at == size


cdef bint _parse(
    const char *text, Py_ssize_t size, Cell *cell, const char *key, Py_ssize_t *mark, uint64_t *bits
) noexcept nogil:
    """Put the cell's scaled value into *bits*. False: the text has another shape, or is too large.

    *mark*: start of the search for a key; set to the end of the key found.
    """
    cdef Py_ssize_t at = 0, begin
    cdef uint64_t value = 0, fraction = 0
    cdef bint negative = False
    cdef double number
    cdef Py_ssize_t places = 0
    if cell.shape == SHAPE_WORD:
        at = _word_number(text, size, key, cell.key_bytes)
        bits[0] = <uint64_t>max(at, 0)
        return at >= 0
    if cell.shape == SHAPE_DIGEST:
        bits[0] = _digest(text, size) if size < BUFFER_BYTES else bits[0] + 1
        return True
    if cell.shape == SHAPE_KEYED:
        at = _after_key(text, size, key, cell.key_bytes, mark[0])
        if at < 0:
            return False
        mark[0] = at
    while at < size and _is_space(text[at]):
        at += 1
    if cell.shape == SHAPE_SIGNED and at < size and text[at] == c"-":
        negative = True
        at += 1
    if not _digits(text, size, &at, &value) or value > cell.most:
        return False
    if cell.shape == SHAPE_DECIMAL and at < size and text[at] == c".":
        at += 1
        begin = at
        if not _digits(text, size, &at, &fraction):
            return False
        places = at - begin
    if not _ends(text, size, at, cell, key):
        return False
    if not cell.gauge:
        # All 32 bits set means "no value", or a 32-bit counter at its maximum: after scaling it
        # would look like any reading.
        if value > U64_MAX // cell.multiplier or (cell.multiplier > 1 and value == U32_MAX):
            return False
        bits[0] = value * cell.multiplier
        return True
    # The same for a gauge of 32 or 64 bits: no sensor has this value, and no later check exists.
    if value == U32_MAX or value == U64_MAX:
        return False
    number = <double>fraction
    while places > 0:
        number /= 10
        places -= 1
    number = (<double>value + number) * cell.scale
    if negative:
        number = -number
    memcpy(bits, &number, sizeof(double))
    return True
