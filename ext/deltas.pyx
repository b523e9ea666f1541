# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Encodes frames of a stream as differences to earlier frames, and decodes them, byte for byte.

Both sides keep the last cells of each table, within a limit. `contract/stream.py` describes the
layout, and `deltas_cells.pxd` the encoding of cells.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from deltas_cells cimport *

cdef enum:
    HEADER = 72         # bytes of a frame before its payload (contract/frame.py)
    TABLES_MAX = 128
    ROWS_MAX = 4096
    COLUMNS_MAX = 512
    SLOTS = 126         # kept tables
    PASSING = 126       # slot number of a table that is not kept
    SEEN_MAX = 256      # remembered names
    SLOT_OVERHEAD = 512  # bytes of a kept table besides its cells and names
    DEFINED = 1
    SOME_ROWS = 2
cdef uint64_t PAYLOAD_MAX = 8 << 20
#: Rows of the slot that the current table has. Shared by all objects: its users hold the GIL.
cdef uint16_t[ROWS_MAX] CHOSEN


cdef class _Slot:
    """The last cells of a table, and its name and keys as in a frame."""

    cdef bytes name, keys
    cdef Py_ssize_t number, cost
    cdef uint64_t offset
    cdef Cells table

    def __cinit__(self, bytes name, bytes keys, Py_ssize_t rows, Py_ssize_t width, Py_ssize_t number):
        self.name, self.keys, self.number = name, keys, number
        self.table.rows, self.table.width = rows, width
        self.cost = SLOT_OVERHEAD + len(name) + len(keys) + 9 * rows * width
        self.table.cells = <uint64_t *>calloc(rows * width + 1, 9)
        if self.table.cells == NULL:
            raise MemoryError()
        self.table.valid = <uint8_t *>(self.table.cells + rows * width)

    def __dealloc__(self):
        free(self.table.cells)


cdef class _Context:
    """The state of one side of a stream, within a limit in bytes."""

    cdef dict by_name
    cdef list slots
    cdef readonly Py_ssize_t bytes_max, kept_bytes
    cdef uint64_t sequence, boottime, wall_ahead
    cdef bytes ids
    cdef bint _broken
    cdef bytearray out  # the frame under construction

    def __cinit__(self, Py_ssize_t bytes_max):
        self.by_name, self.slots, self.bytes_max = {}, [], bytes_max
        self.ids = bytes(32)

    cdef _Slot define(self, bytes name, bytes keys, Py_ssize_t rows, Py_ssize_t width, Py_ssize_t number):
        """Create a slot; it is kept unless *number* is PASSING."""
        cdef _Slot slot = _Slot(name, keys, rows, width, number), before
        if number == PASSING:
            return slot
        if number == len(self.slots):
            self.slots.append(slot)
        else:
            before = self.slots[number]
            self.kept_bytes -= before.cost
            del self.by_name[before.name]
            self.slots[number] = slot
        self.by_name[name] = slot
        self.kept_bytes += slot.cost
        return slot

    cdef bytes run(self, bytes data):
        """Encode or decode a frame. After an error the state of the other side is unknown."""
        if self._broken:
            raise ValueError("an earlier frame of this stream failed")
        self._broken, self.out = True, bytearray()
        try:
            self.code(data)
            data = bytes(self.out)
        finally:
            self.out = None
        self._broken = False
        return data

    cdef int code(self, bytes data) except -1:
        raise NotImplementedError


cdef class Encoder(_Context):
    cdef set seen  # names of earlier tables
    cdef Py_ssize_t used  # used bytes of `out`

    def __cinit__(self, Py_ssize_t bytes_max):
        self.seen = set()

    def encode(self, bytes frame not None):
        return self.run(frame)

    cdef int code(self, bytes frame) except -1:
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(frame)
        cdef const uint8_t *at = data + HEADER
        cdef const uint8_t *end = data + len(frame)
        cdef Py_ssize_t tables
        if len(frame) < HEADER or data[8] != 1 or data[9] != 0:
            raise ValueError("only a frame whose payload is not deflated can be sent as differences")
        tables = data[10] | data[11] << 8
        self.used = 0
        cdef uint8_t *begin = self._room(4 + 80)
        cdef uint8_t *to = begin
        memcpy(to, data + 4, 4)
        to = self._stamp(to + 4, data)
        self.used = put(to, tables) - begin
        for _ in range(tables):
            at = self._table(at, end)
        if at != end:
            raise ValueError("a frame with bytes past its last table")
        PyByteArray_Resize(self.out, self.used)
        return 0

    cdef uint8_t *_room(self, Py_ssize_t size) except NULL:
        """Return the position for the next *size* bytes of the frame."""
        if len(self.out) < self.used + size:
            PyByteArray_Resize(self.out, 2 * (self.used + size))
        return <uint8_t *>PyByteArray_AS_STRING(self.out) + self.used

    cdef uint8_t *_stamp(self, uint8_t *to, const uint8_t *data) except NULL:
        cdef uint64_t sequence, boottime, wall
        memcpy(&sequence, data + 48, 8)
        memcpy(&boottime, data + 56, 8)
        memcpy(&wall, data + 64, 8)
        cdef bint others = memcmp(PyBytes_AS_STRING(self.ids), data + 16, 32) != 0
        to[0] = others
        to += 1
        if others:
            memcpy(to, data + 16, 32)
            to += 32
            self.ids = PyBytes_FromStringAndSize(<const char *>data + 16, 32)
        to = put(to, zigzag(sequence - self.sequence))
        to = put(to, zigzag(boottime - self.boottime))
        to = put(to, zigzag(wall - boottime - self.wall_ahead))
        self.sequence, self.boottime, self.wall_ahead = sequence, boottime, wall - boottime
        return to

    cdef const uint8_t *_table(self, const uint8_t *at, const uint8_t *end) except NULL:
        """Append the table at *at*; return the position of the next table."""
        cdef Py_ssize_t rows = 0, width = 0
        cdef uint64_t offset
        cdef const uint8_t *offset_at = need(at, end, 9 + need(at, end, 1)[0]) + 1 + at[0]
        cdef const uint8_t *keys_at = offset_at + 8
        cdef const uint8_t *packed = keys_until(keys_at, end, &rows, &width)
        need(packed, end, (rows * width + 7) // 8 + 8 * rows * width)
        memcpy(&offset, offset_at, 8)
        cdef bytes name = PyBytes_FromStringAndSize(<const char *>at, offset_at - at)
        cdef _Slot slot = self.by_name.get(name)
        cdef bint defines = slot is None or not self._rows_of(slot, keys_at, packed - keys_at, rows, width)
        if defines:
            keys = PyBytes_FromStringAndSize(<const char *>keys_at, packed - keys_at)
            slot = self.define(name, keys, rows, width, self._number(slot, name, len(name) + len(keys) + 9 * rows * width))
            _take_all(rows)
        self._append(slot, packed, offset, rows, defines)
        return packed + (rows * width + 7) // 8 + 8 * rows * width

    cdef Py_ssize_t _number(self, _Slot before, bytes name, Py_ssize_t cost):
        """Return the slot for a table with new keys: its own, the next, or PASSING if all are full.

        Also PASSING at a table's first time: a stream begins with all tables, and the tables of
        each second must get slots before the tables of each minute.
        """
        cdef Py_ssize_t free_bytes = self.bytes_max - self.kept_bytes - cost - SLOT_OVERHEAD
        if name not in self.seen:
            if len(self.seen) < SEEN_MAX:
                self.seen.add(name)
            return PASSING
        if before is not None:
            return before.number if free_bytes + before.cost >= 0 else PASSING
        return len(self.slots) if free_bytes >= 0 and len(self.slots) < SLOTS else PASSING

    cdef bint _rows_of(self, _Slot slot, const uint8_t *keys, Py_ssize_t size, Py_ssize_t rows, Py_ssize_t width):
        """Find each of the table's rows in *slot*, in order; return whether all were found."""
        cdef const uint8_t *known = <const uint8_t *>PyBytes_AS_STRING(slot.keys)
        cdef Py_ssize_t known_size = len(slot.keys), at = 4 + 2 * width, before = at, row = 0, found = 0
        if size == known_size and not memcmp(keys, known, size):
            _take_all(rows)
            return True
        if width != slot.table.width or memcmp(keys + 4, known + 4, 2 * width):
            return False
        while found < rows and row < slot.table.rows:
            if keys[at] == known[before] and not memcmp(keys + at, known + before, 1 + keys[at]):
                CHOSEN[found] = <uint16_t>row
                found += 1
                at += 1 + keys[at]
            before += 1 + known[before]
            row += 1
        return found == rows

    cdef int _append(self, _Slot slot, const uint8_t *packed, uint64_t offset, Py_ssize_t rows, bint defines) except -1:
        cdef Py_ssize_t count = rows * slot.table.width, batches = slot.table.width * ((rows + BATCH - 1) // BATCH)
        cdef uint8_t *begin = self._room(
            64 + len(slot.name) + len(slot.keys) + (slot.table.rows + 7) // 8 + (count + 7) // 8
            + (batches + 7) // 8 + batches + 8 * count)
        cdef uint8_t *to = begin
        cdef uint8_t *flags = to + 1
        to[0] = <uint8_t>slot.number
        flags[0] = DEFINED if defines else SOME_ROWS if rows != slot.table.rows else 0
        to = put(to + 2, zigzag(offset - slot.offset))
        slot.offset = offset
        if defines:
            memcpy(to, PyBytes_AS_STRING(slot.name), len(slot.name))
            to += len(slot.name)
            memcpy(to, PyBytes_AS_STRING(slot.keys), len(slot.keys))
            to += len(slot.keys)
        elif flags[0]:
            memset(to, 0, (slot.table.rows + 7) // 8)
            for row in range(rows):
                to[CHOSEN[row] >> 3] |= <uint8_t>(1 << (CHOSEN[row] & 7))
            to += (slot.table.rows + 7) // 8
        to = put_validity(to, flags, &slot.table, packed, CHOSEN, rows)
        to = put_cells(to, &slot.table, packed, CHOSEN, rows)
        if to == NULL:
            raise ValueError("a table whose missing cells hold something")
        self.used += to - begin
        return 0


cdef class Decoder(_Context):
    def decode(self, bytes data not None):
        return self.run(data)

    cdef int code(self, bytes data) except -1:
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef const uint8_t *end = at + len(data)
        cdef uint64_t tables = 0, payload
        if len(data) < 5:
            raise ValueError("it ends early")
        PyByteArray_Resize(self.out, HEADER)
        cdef uint8_t *header = <uint8_t *>PyByteArray_AS_STRING(self.out)
        memset(header, 0, HEADER)
        memcpy(header, b"GLF1", 4)
        memcpy(header + 4, at, 4)
        header[8] = 1
        at = get(self._stamp(at + 4, end, header), end, &tables)
        if tables > TABLES_MAX:
            raise ValueError(f"{tables} tables, at most {TABLES_MAX}")
        header[10] = <uint8_t>tables
        for _ in range(tables):
            at = self._table(at, end)
        if at != end:
            raise ValueError(f"{end - at} bytes are left over after the last table")
        payload = len(self.out) - HEADER
        memcpy(<uint8_t *>PyByteArray_AS_STRING(self.out) + 12, &payload, 4)
        return 0

    cdef const uint8_t *_stamp(self, const uint8_t *at, const uint8_t *end, uint8_t *header) except NULL:
        cdef uint64_t sequence = 0, boottime = 0, ahead = 0, wall
        at = need(at, end, 1)
        if at[0] > 1:
            raise ValueError(f"ids {at[0]}: 0 (as before) or 1 (follow)")
        if at[0]:
            self.ids = PyBytes_FromStringAndSize(<const char *>need(at + 1, end, 32), 32)
        at += 33 if at[0] else 1
        at = get(at, end, &sequence)
        at = get(at, end, &boottime)
        at = get(at, end, &ahead)
        self.sequence += unzigzag(sequence)
        self.boottime += unzigzag(boottime)
        self.wall_ahead += unzigzag(ahead)
        wall = self.boottime + self.wall_ahead
        memcpy(header + 16, PyBytes_AS_STRING(self.ids), 32)
        memcpy(header + 48, &self.sequence, 8)
        memcpy(header + 56, &self.boottime, 8)
        memcpy(header + 64, &wall, 8)
        return at

    cdef const uint8_t *_table(self, const uint8_t *at, const uint8_t *end) except NULL:
        cdef Py_ssize_t number, flags, rows
        cdef uint64_t offset = 0
        cdef _Slot slot
        need(at, end, 2)
        number, flags = at[0], at[1]
        at = get(at + 2, end, &offset)
        if flags > 7 or flags & 3 == 3:
            raise ValueError(f"table flags {flags}")
        if flags & DEFINED:
            slot = self._define(at, end, number)
            at += len(slot.name) + len(slot.keys)
        elif number < len(self.slots):
            slot = self.slots[number]
        else:
            raise ValueError(f"table {number} was never defined on this stream")
        slot.offset += unzigzag(offset)
        rows = _take_all(slot.table.rows)
        if flags & SOME_ROWS:
            rows = _choose(need(at, end, (slot.table.rows + 7) // 8), slot.table.rows)
            at += (slot.table.rows + 7) // 8
        return self._fill(slot, at, end, rows, flags & VALIDITY)

    cdef _Slot _define(self, const uint8_t *at, const uint8_t *end, Py_ssize_t number):
        cdef Py_ssize_t rows = 0, width = 0, cost
        cdef const uint8_t *keys = need(at, end, 1 + need(at, end, 1)[0]) + 1 + at[0]
        cdef const uint8_t *key = keys_until(keys, end, &rows, &width)
        name = PyBytes_FromStringAndSize(<const char *>at, keys - at)
        cost = SLOT_OVERHEAD + (key - at) + 9 * rows * width
        if number < len(self.slots):
            cost -= (<_Slot>self.slots[number]).cost
            if (<_Slot>self.slots[number]).name != name:
                raise ValueError(f"table {number} changes its name")
        elif number != PASSING and (number != len(self.slots) or number >= SLOTS or name in self.by_name):
            raise ValueError(f"table {number} is not the next that can be kept")
        if number != PASSING and self.kept_bytes + cost > self.bytes_max:
            raise ValueError(f"tables to be kept exceed the {self.bytes_max} bytes of this stream")
        return self.define(name, PyBytes_FromStringAndSize(<const char *>keys, key - keys), rows, width, number)

    cdef const uint8_t *_fill(self, _Slot slot, const uint8_t *at, const uint8_t *end, Py_ssize_t rows, bint validity) except NULL:
        """Append the table to the frame, with updated cells."""
        cdef Py_ssize_t width = slot.table.width, count = rows * width, begin = len(self.out), keys_size
        cdef Py_ssize_t size = len(slot.name) + 8 + 4 + 2 * width + (count + 7) // 8 + 8 * count
        cdef const uint8_t *known = <const uint8_t *>PyBytes_AS_STRING(slot.keys)
        cdef Py_ssize_t row, found = 0, key = 4 + 2 * width
        size += len(slot.keys)  # an upper bound if the table has only some rows
        if begin - HEADER + <uint64_t>size > PAYLOAD_MAX:
            raise ValueError(f"it would restore to more than {PAYLOAD_MAX} bytes")
        PyByteArray_Resize(self.out, begin + size)
        cdef uint8_t *to = <uint8_t *>PyByteArray_AS_STRING(self.out) + begin
        memcpy(to, PyBytes_AS_STRING(slot.name), len(slot.name))
        to += len(slot.name)
        memcpy(to, &slot.offset, 8)
        to += 8
        memcpy(to, known, 4 + 2 * width)
        to[0], to[1] = <uint8_t>rows, <uint8_t>(rows >> 8)
        to += 4 + 2 * width
        for row in range(slot.table.rows):
            if found < rows and CHOSEN[found] == row:
                memcpy(to, known + key, 1 + known[key])
                to += 1 + known[key]
                found += 1
            key += 1 + known[key]
        if validity:
            at = get_validity(need(at, end, (count + 7) // 8), &slot.table, CHOSEN, rows)
        at = get_cells(at, end, &slot.table, CHOSEN, rows)
        if at == NULL:
            raise ValueError("a table ends early")
        to = pack_cells(to, &slot.table, CHOSEN, rows)
        PyByteArray_Resize(self.out, to - <uint8_t *>PyByteArray_AS_STRING(self.out))
        return at


cdef Py_ssize_t _take_all(Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t row
    for row in range(rows):
        CHOSEN[row] = <uint16_t>row
    return rows


cdef Py_ssize_t _choose(const uint8_t *bits, Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t row, found = 0
    for row in range(rows):
        if bits[row >> 3] >> (row & 7) & 1:
            CHOSEN[found] = <uint16_t>row
            found += 1
    return found


cdef const uint8_t *get(const uint8_t *at, const uint8_t *end, uint64_t *value) except NULL:
    cdef int shift = 0
    value[0] = 0
    while True:
        if at >= end or shift > 63:
            raise ValueError("it ends early, or a number is longer than 64 bits")
        value[0] |= <uint64_t>(at[0] & 127) << shift
        if at[0] < 128:
            return at + 1
        at += 1
        shift += 7


cdef const uint8_t *need(const uint8_t *at, const uint8_t *end, Py_ssize_t count) except NULL:
    if end - at < count:
        raise ValueError("it ends early")
    return at


cdef const uint8_t *keys_until(const uint8_t *at, const uint8_t *end, Py_ssize_t *rows, Py_ssize_t *width) except NULL:
    """Read a table's numbers of rows and columns; return the end of column ids and row names."""
    need(at, end, 4)
    rows[0], width[0] = at[0] | at[1] << 8, at[2] | at[3] << 8
    if rows[0] > ROWS_MAX or not 0 < width[0] <= COLUMNS_MAX or 9 * <uint64_t>(rows[0] * width[0]) > PAYLOAD_MAX:
        raise ValueError(f"a table of {rows[0]} rows and {width[0]} columns is too large")
    at = need(at + 4, end, 2 * width[0]) + 2 * width[0]
    for _ in range(rows[0]):
        at = need(at, end, 1 + need(at, end, 1)[0]) + 1 + at[0]
    return at
