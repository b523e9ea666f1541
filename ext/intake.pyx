# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads arriving frames in place: into the fleet's latest cells, and into the columns of a commit.

Most tables of a stream have the same names and devices each second. A table's header (7 KB on a
host with many links) is parsed once, not kept, and then recognized by its digest. Cells are
unpacked directly into their destination. `contract/frame.py` describes the layout; a test compares
the two readers. A frame that this module rejects is given to the other reader, which raises the
error.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from planes cimport take_column

cimport cython

import os
import zlib

cdef enum:
    HEADER = 72
    TABLES_MAX = 128
    ROWS_MAX = 4096
    COLUMNS_MAX = 512
    TABLE_NAME_BYTES_MAX = 64
    DEVICE_BYTES_MAX = 96
    #: Memory for a stream's known headers; further headers are parsed each time. A host with eight
    #: GPUs has 40 tables.
    KEPT_BYTES_MAX = 12 << 10
    #: Approximate memory for all agents' column lists, enough for dozens of agent versions. Further
    #: lists are not kept: they would be an attack.
    COLUMNS_KEPT_BYTES_MAX = 8 << 20
cdef Py_ssize_t FRAME_MAX = 1 << 20
cdef Py_ssize_t PAYLOAD_MAX = 8 << 20
cdef int64_t DAY_NS = 86_400_000_000_000
#: The sum of three times below this limit fits 64 bits.
cdef int64_t SAFE_NS = <int64_t>1 << 61
#: Stored times are clamped to 1970 to 2200, because a host's clock may be wrong by any amount.
cdef int64_t STORED_NS_MAX = 7_258_118_400_000_000_000
TIME_NS_MAX = STORED_NS_MAX
#: Secrets of the digest: agents choose the headers, but do not know these numbers.
cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")
cdef uint64_t FACTOR = int.from_bytes(os.urandom(8), "little") | 1

cdef extern from *:
    """
    /* Both halves of the product, XORed: the upper half depends on all bits of the factor. */
    static inline unsigned long long gangline_product(unsigned long long a, unsigned long long b) {
        unsigned __int128 whole = (unsigned __int128)a * b;
        return (unsigned long long)whole ^ (unsigned long long)(whole >> 64);
    }
    """
    uint64_t product "gangline_product"(uint64_t a, uint64_t b) noexcept nogil


cdef class Columns:
    """Destinations of the columns of one table of some agents: by signal; -1: none."""

    cdef readonly str table
    cdef bytes name  # as encoded in a frame
    cdef readonly tuple signal_ids
    cdef readonly Py_ssize_t stored_in, kept_in  # table numbers in the store and in the fleet; -1: none
    cdef readonly bint strange  # at least one signal has no column in the store
    cdef Py_ssize_t width, row_bytes  # row_bytes: size of a row in a commit
    cdef int32_t *stored
    cdef int32_t *kept

    def __cinit__(self, str table not None, tuple signal_ids not None, Py_ssize_t stored_in, stored, Py_ssize_t kept_in, kept,
                  bint strange, Py_ssize_t row_bytes):
        self.table, self.signal_ids, self.strange, self.row_bytes = table, signal_ids, strange, row_bytes
        self.stored_in, self.kept_in, self.width = stored_in, kept_in, len(signal_ids)
        self.stored = _places(stored, self.width)
        self.kept = _places(kept, self.width)

    def __dealloc__(self):
        PyMem_Free(self.stored)
        PyMem_Free(self.kept)


cdef int32_t *_places(places, Py_ssize_t width) except NULL:
    """Return a copy of *places*; if a place occurs twice only its last column has it."""
    cdef dict last = {place: i for i, place in enumerate(places)}
    cdef list found = [place if last[place] == i else -1 for i, place in enumerate(places)]
    if len(found) != width:
        raise ValueError(f"{len(found)} places for {width} columns")
    cdef int32_t *at = <int32_t *>PyMem_Malloc(4 * width + 4)
    cdef Py_ssize_t i
    if at == NULL:
        raise MemoryError()
    for i in range(width):
        at[i] = found[i]
    return at


cdef class Received


cdef class Catalogue:
    """Cache of the results of *plan*: per (table name, signal ids) the arguments of `Columns`."""

    cdef object plan
    cdef dict known
    cdef Py_ssize_t kept_bytes

    def __cinit__(self, plan not None):
        self.plan, self.known = plan, {}

    cdef Columns columns(self, bytes name, bytes ids, Received frame):
        cdef Py_ssize_t cost
        cdef Columns found = self.known.get((name, ids))
        if found is None:
            words = memoryview(ids).cast("H")
            frame.looked_up += len(words)
            found = Columns(*self.plan(name[1:].decode(), tuple(words)))
            found.name = name
            cost = 1024 + 25 * len(ids)  # per signal: a number, its object, its two places
            if self.kept_bytes + cost <= COLUMNS_KEPT_BYTES_MAX:
                self.kept_bytes += cost
                self.known[name, ids] = found
        return found


@cython.no_gc
cdef class Shape:
    """The header of a table: its name, its columns, its devices."""

    cdef readonly Columns columns
    cdef uint64_t digest     # of its keys, the bytes between a table's offset and its cells
    cdef int32_t *places     # rows of the devices in the fleet, -1: left out; NULL: consecutive rows from `first` on
    cdef int32_t keys_size, first
    cdef int32_t top         # the highest of the places
    cdef int32_t reused      # the count of reused rows of its host when the places were assigned
    cdef int32_t batch       # the commit that has its device names
    cdef int32_t begin       # index of the first of these names
    cdef readonly uint16_t rows
    cdef int16_t last        # index of the last table with this header in the current frame
    cdef bint placed

    def __cinit__(self, Columns columns not None, Py_ssize_t rows, Py_ssize_t keys_size, uint64_t digest):
        self.columns, self.rows, self.keys_size, self.digest = columns, <uint16_t>rows, <int32_t>keys_size, digest

    def __dealloc__(self):
        PyMem_Free(self.places)

    cdef int place(self, rows) except -1:
        cdef const int64_t[::1] found = rows
        cdef Py_ssize_t i
        cdef bint scattered = False
        if found.shape[0] != self.rows:
            raise ValueError(f"{found.shape[0]} places for {self.rows} devices")
        self.top, self.first = -1, <int32_t>found[0]
        for i in range(self.rows):
            self.top = max(self.top, <int32_t>found[i])
            scattered = scattered or found[i] != found[0] + i
        PyMem_Free(self.places)
        self.places = NULL
        if scattered or self.first < 0:
            self.places = <int32_t *>PyMem_Malloc(4 * self.rows)
            if self.places == NULL:
                raise MemoryError()
            for i in range(self.rows):
                self.places[i] = <int32_t>found[i]
        self.placed = True
        return 0


cdef class Cells:
    """The latest cells of one of the fleet's tables; keeps the arrays alive."""

    cdef tuple arrays
    cdef readonly Py_ssize_t capacity
    cdef uint64_t *bits
    cdef uint8_t *valid
    cdef uint8_t *touched
    cdef int64_t *boottime
    cdef uint16_t *boot
    cdef float *gap
    cdef float *elapsed

    def bind(self, uint64_t[:, ::1] bits not None, uint8_t[:, ::1] valid not None, uint8_t[::1] touched not None,
             int64_t[::1] boottime not None, uint16_t[::1] boot not None, float[::1] gap, float[::1] elapsed):
        cdef Py_ssize_t capacity = boot.shape[0]
        if not (bits.shape[1] == valid.shape[1] == touched.shape[0] == boottime.shape[0] == capacity > 0
                and bits.shape[0] == valid.shape[0] and (gap is None or gap.shape[0] == capacity)
                and (elapsed is None or elapsed.shape[0] == capacity)):
            raise ValueError("arrays of different lengths, or none")
        self.arrays = (bits.base, valid.base, touched.base, boottime.base, boot.base, gap, elapsed)
        self.capacity = capacity
        self.touched = &touched[0]
        self.bits = &bits[0, 0] if bits.shape[0] else NULL
        self.valid = &valid[0, 0] if bits.shape[0] else NULL
        self.boottime, self.boot = &boottime[0], &boot[0]
        self.gap = NULL if gap is None else &gap[0]
        self.elapsed = NULL if elapsed is None else &elapsed[0]


cdef class Received:
    """A valid frame."""

    cdef readonly bytes run_id, boot_id
    cdef readonly uint64_t sequence, boottime_ns, wall_ns
    cdef readonly Py_ssize_t rows, size_bytes, looked_up
    cdef readonly bint strange
    cdef readonly list shapes
    cdef bytes payload
    cdef int64_t *offsets
    cdef Py_ssize_t *packed

    def __dealloc__(self):
        PyMem_Free(self.offsets)

    def offset_ns(self, Py_ssize_t table):
        if not 0 <= table < len(self.shapes):
            raise IndexError(table)
        return self.offsets[table]

    def devices(self, Py_ssize_t table):
        """Decode the names on each call: most tables are asked for them at most once."""
        if not 0 <= table < len(self.shapes):
            raise IndexError(table)
        cdef Shape shape = self.shapes[table]
        cdef const uint8_t *name = self.names(table)
        cdef list found = []
        for _ in range(shape.rows):
            name = self.name(name, table)
            found.append((<const char *>name)[1 : 1 + name[0]].decode())
            name += 1 + name[0]
        return tuple(found)

    cdef const uint8_t *names(self, Py_ssize_t table) noexcept:
        """Return the address of the first device name of a table; the names are consecutive."""
        cdef Shape shape = <Shape>self.shapes[table]
        cdef Py_ssize_t at = self.packed[table] - shape.keys_size + 4 + 2 * shape.columns.width
        return <const uint8_t *>PyBytes_AS_STRING(self.payload) + at

    cdef inline const uint8_t *name(self, const uint8_t *at, Py_ssize_t table) except NULL:
        """Return *at* if a complete name begins there: a digest is not a proof of the names."""
        cdef const uint8_t *end = <const uint8_t *>PyBytes_AS_STRING(self.payload) + self.packed[table]
        if end - at < 1 or end - at < 1 + at[0]:
            raise ValueError("a table begins with other names than were read")
        return at

    def packed_cells(self, Py_ssize_t table):
        if not 0 <= table < len(self.shapes):
            raise IndexError(table)
        cdef Shape shape = self.shapes[table]
        cdef Py_ssize_t count = shape.rows * shape.columns.width
        return self.payload[self.packed[table] : self.packed[table] + (count + 7) // 8 + 8 * count]

    def put(self, list cells not None, Py_ssize_t host, uint16_t boot, int64_t gap_ns, places not None,
            const int32_t[::1] reused=None):
        cdef Py_ssize_t i
        cdef Shape shape
        cdef Cells to
        if reused is not None and not 0 <= host < reused.shape[0]:
            raise IndexError(f"host {host} of {reused.shape[0]}")
        for i in range(len(self.shapes)):
            (<Shape>self.shapes[i]).last = <int16_t>i
        for i in range(len(self.shapes)):
            shape = <Shape>self.shapes[i]
            if shape.last != i or not shape.rows or shape.columns.kept_in < 0:
                continue
            to = cells[shape.columns.kept_in]
            if not shape.placed or shape.top >= to.capacity or reused is not None and shape.reused != reused[host]:
                shape.place(places(host, shape.columns.kept_in, self.devices(i)))
                if reused is not None:
                    shape.reused = reused[host]
            if shape.top >= to.capacity:
                raise ValueError(f"row {shape.top} of {to.capacity}")
            _put(to, shape, <const uint8_t *>PyBytes_AS_STRING(self.payload) + self.packed[i],
                 _when(<int64_t>self.boottime_ns, self.offsets[i]), boot, <float>(gap_ns / 1e9))


cdef inline int64_t _when(int64_t boottime, int64_t offset) noexcept nogil:
    """Return the boot time of a reading: not after its frame, and at most a day before."""
    offset = min(<int64_t>0, max(offset, -DAY_NS))
    return max(<int64_t>1, boottime + offset)


cdef void _put(Cells to, Shape shape, const uint8_t *packed, int64_t boottime, uint16_t boot, float gap) noexcept nogil:
    cdef Py_ssize_t rows = shape.rows, width = shape.columns.width, count = rows * width, column, row, i, at
    cdef const uint8_t *plane = packed + (count + 7) // 8
    cdef uint64_t[ROWS_MAX] now
    cdef int32_t[ROWS_MAX] following
    cdef const int32_t *places = shape.places
    cdef uint64_t *bits
    cdef uint8_t *valid
    if places == NULL:
        for row in range(rows):
            following[row] = shape.first + <int32_t>row
        places = following
    for column in range(width):
        if shape.columns.kept[column] < 0:
            continue
        take_column(plane + column * rows, count, rows, now)
        bits = to.bits + shape.columns.kept[column] * to.capacity
        valid = to.valid + shape.columns.kept[column] * to.capacity
        for row in range(rows):
            at = places[row]
            if at >= 0:
                i = column * rows + row
                # Write only changes: a page that is never written takes no RAM, for example columns
                # of signals that no device has, or of errors that never occurred.
                if packed[i >> 3] >> (i & 7) & 1:
                    valid[at] = 1
                    if bits[at] != now[row]:
                        bits[at] = now[row]
                elif valid[at]:
                    valid[at] = 0
    for row in range(rows):
        at = places[row]
        if at >= 0:
            if to.elapsed != NULL:
                to.elapsed[at] += <float>((boottime - to.boottime[at]) / 1e9)
            to.boottime[at], to.boot[at], to.touched[at] = boottime, boot, 1
            if to.gap != NULL:
                to.gap[at] = max(to.gap[at], gap)


cdef class Reader:
    """Reads the frames of one stream."""

    cdef Catalogue catalogue
    cdef object decode
    cdef list known  # one shape per table name, mostly in the order of a frame
    cdef Py_ssize_t kept_bytes, following  # following: index of the shape that is most likely next
    cdef bytes run_id, boot_id

    def __cinit__(self, Catalogue catalogue not None, decode not None):
        self.catalogue, self.decode, self.known = catalogue, decode, []
        self.run_id = self.boot_id = bytes(16)

    def read(self, bytes data not None):
        cdef Received frame = self._read(data)
        if frame is None:
            self.decode(data)  # raises an error with a message
            raise RuntimeError("a frame that only one of its two readers takes")
        return frame

    cdef Received _read(self, bytes data):
        """Return the frame; None if the bytes are invalid."""
        cdef const uint8_t *head = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef Py_ssize_t begin = HEADER, length, tables, i
        cdef uint32_t crc, size
        if not HEADER <= len(data) <= FRAME_MAX or memcmp(head, b"GLF1", 4) or head[8] != 1 or head[9] > 1:
            return None
        memcpy(&crc, head + 4, 4)
        memcpy(&size, head + 12, 4)
        tables, length = head[10] | head[11] << 8, size
        if tables > TABLES_MAX or length > PAYLOAD_MAX or zlib.crc32(memoryview(data)[8:]) != crc:
            return None
        cdef Received frame = Received.__new__(Received)
        frame.payload = data
        if head[9]:
            frame.payload, begin = _inflated(data, length), 0
            if frame.payload is None:
                return None
        if len(frame.payload) - begin != length:
            return None
        self._stamp(frame, head)
        frame.shapes = []
        frame.offsets = <int64_t *>PyMem_Malloc(tables * (sizeof(int64_t) + sizeof(Py_ssize_t)) + 8)
        if frame.offsets == NULL:
            raise MemoryError()
        frame.packed = <Py_ssize_t *>(frame.offsets + tables)
        cdef Py_ssize_t stored_bytes = 0
        frame.size_bytes = 512 + 64 * tables
        for i in range(tables):
            begin = self._table(frame, i, begin)
            if begin < 0:
                return None
            stored_bytes += (<Shape>frame.shapes[i]).rows * (<Shape>frame.shapes[i]).columns.row_bytes
        # A few cells of many devices are small here but large in a commit, whose rows have every column.
        frame.size_bytes += max(<Py_ssize_t>len(frame.payload), stored_bytes)
        return frame if begin == len(frame.payload) else None

    cdef int _stamp(self, Received frame, const uint8_t *head) except -1:
        if memcmp(PyBytes_AS_STRING(self.run_id), head + 16, 16):
            self.run_id = PyBytes_FromStringAndSize(<const char *>head + 16, 16)
        if memcmp(PyBytes_AS_STRING(self.boot_id), head + 32, 16):
            self.boot_id = PyBytes_FromStringAndSize(<const char *>head + 32, 16)
        frame.run_id, frame.boot_id = self.run_id, self.boot_id
        memcpy(&frame.sequence, head + 48, 8)
        memcpy(&frame.boottime_ns, head + 56, 8)
        memcpy(&frame.wall_ns, head + 64, 8)
        return 0

    cdef Py_ssize_t _table(self, Received frame, Py_ssize_t number, Py_ssize_t begin) except -2:
        """Read the table at *begin*. Return the end of the table; -1 if it is invalid."""
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(frame.payload)
        cdef Py_ssize_t size = len(frame.payload), keys, keys_end, count, end, number_known
        cdef Shape shape = None
        if begin >= size or data[begin] > TABLE_NAME_BYTES_MAX or size - begin < 1 + data[begin] + 12:
            return -1
        keys = begin + 1 + data[begin] + 8
        number_known = self._find(data + begin)
        if number_known >= 0:
            shape = self.known[number_known]
        if (shape is None or size - keys < shape.keys_size
                or _digest(data + keys, shape.keys_size) != shape.digest):
            shape = self._shape(frame, begin, keys, number_known)
            if shape is None:
                return -1
            frame.size_bytes += _cost(shape)
        keys_end = keys + shape.keys_size
        count = shape.rows * shape.columns.width
        end = keys_end + (count + 7) // 8 + 8 * count
        if end > size:
            return -1
        memcpy(&frame.offsets[number], data + keys - 8, 8)
        frame.packed[number] = keys_end
        frame.shapes.append(shape)
        frame.rows += shape.rows
        frame.strange = frame.strange or shape.columns.strange
        return end

    cdef Py_ssize_t _find(self, const uint8_t *name) noexcept:
        """Return the index of the known shape with this table name, or -1."""
        cdef Py_ssize_t i, at, count = len(self.known)
        cdef bytes known
        for i in range(count):
            at = (self.following + i) % count
            known = (<Shape>self.known[at]).columns.name
            if len(known) == 1 + name[0] and not memcmp(PyBytes_AS_STRING(known), name, 1 + name[0]):
                self.following = at + 1
                return at
        return -1

    cdef Shape _shape(self, Received frame, Py_ssize_t begin, Py_ssize_t keys, Py_ssize_t before):
        """Parse a table's header, and keep it if there is room. Return None if it is invalid."""
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(frame.payload)
        cdef Py_ssize_t rows = data[keys] | data[keys + 1] << 8, width = data[keys + 2] | data[keys + 3] << 8
        cdef Py_ssize_t at = keys + 4 + 2 * width, row, size = len(frame.payload)
        if rows > ROWS_MAX or not 0 < width <= COLUMNS_MAX or at > size:
            return None
        cdef bytes name = PyBytes_FromStringAndSize(<const char *>data + begin, 1 + data[begin])
        try:
            name[1:].decode()
            for row in range(rows):
                if at >= size or data[at] > DEVICE_BYTES_MAX or size - at < 1 + data[at]:
                    return None
                if not _is_ascii(data + at + 1, data[at]):
                    data[at + 1 : at + 1 + data[at]].decode()
                at += 1 + data[at]
        except UnicodeDecodeError:
            return None
        cdef bytes ids = PyBytes_FromStringAndSize(<const char *>data + keys + 4, 2 * width)
        cdef Shape shape = Shape(self.catalogue.columns(name, ids, frame), rows, at - keys, _digest(data + keys, at - keys))
        self._keep(shape, before)
        return shape

    cdef int _keep(self, Shape shape, Py_ssize_t before) except -1:
        """Keep a header in place of *before* (index; -1: none); drop the first headers if needed.

        The list is mostly in the order of arrival, so tables of each minute displace few tables of
        each second.
        """
        cdef Py_ssize_t cost = _cost(shape), place = len(self.known)
        if before >= 0:
            self.kept_bytes -= _cost(self.known.pop(before))
            place = before
        if cost > KEPT_BYTES_MAX:
            return 0
        while self.kept_bytes + cost > KEPT_BYTES_MAX:
            self.kept_bytes -= _cost(self.known.pop(0))
            place -= 1
        self.kept_bytes += cost
        self.known.insert(max(<Py_ssize_t>0, place), shape)
        return 0


cdef Py_ssize_t _cost(Shape shape):
    return 128 + 4 * shape.rows


cdef uint64_t _digest(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """Return a keyed digest: 8 bytes at a time, each multiplied with a secret factor.

    With a public factor, flipped highest bits cancel out in the next 8 bytes for every seed, and an
    unchecked header would pass for a checked one.
    """
    cdef uint64_t found = SEED ^ <uint64_t>size, word
    cdef Py_ssize_t at = 0
    while at < size:
        word = 0
        memcpy(&word, text + at, min(<Py_ssize_t>8, size - at))
        found = product(found ^ word, FACTOR)
        at += 8
    return found


cdef bint _is_ascii(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if text[i] > 127:
            return False
    return True


cdef bytes _inflated(bytes data, Py_ssize_t length):
    try:
        return zlib.decompressobj(-15).decompress(memoryview(data)[HEADER:], length + 1)
    except zlib.error:
        return None


cdef class Rows:
    """The rows of one of the store's tables in a commit, as buffers of its Arrow columns."""

    cdef readonly Py_ssize_t count, bytes_a_column
    cdef readonly bytearray cells, valid, hosts, devices, times_us, boottimes
    cdef list names  # (frame, table index) of the tables whose device names `devices` indexes, in this order
    cdef Py_ssize_t at, names_count

    def __cinit__(self):
        self.names = []

    cdef int make(self, Py_ssize_t width) except -1:
        self.bytes_a_column = (self.count + 63) // 64 * 8
        self.cells, self.valid = bytearray(8 * width * self.count), bytearray(width * self.bytes_a_column)
        self.hosts, self.devices = bytearray(4 * self.count), bytearray(4 * self.count)
        self.times_us, self.boottimes = bytearray(8 * self.count), bytearray(8 * self.count)
        return 0

    def devices_arrow(self):
        cdef Py_ssize_t size = 0, at = 0, i = 0, row, table
        cdef Received frame
        cdef Shape shape
        cdef const uint8_t *name
        for frame, table in self.names:
            shape = frame.shapes[table]
            size += shape.keys_size - 4 - 2 * shape.columns.width - shape.rows
        cdef bytearray offsets = bytearray(4 * (self.names_count + 1)), text = bytearray(size)
        cdef int32_t *to = <int32_t *><char *>offsets
        cdef char *into = text
        for frame, table in self.names:
            shape = frame.shapes[table]
            name = frame.names(table)
            for row in range(shape.rows):
                name = frame.name(name, table)
                memcpy(into + at, name + 1, name[0])
                at += name[0]
                name += 1 + name[0]
                i += 1
                to[i] = <int32_t>at
        return offsets, text


cdef int32_t BATCHES = 0


def build(list frames not None, widths not None):
    """Return a `Rows` per table of the store (None: no rows). *widths*: number of columns of each table.

    *frames*: (Received, number of the host, nanoseconds to add to boot time).
    """
    global BATCHES
    BATCHES += 1
    cdef list tables = [None] * len(widths)
    cdef Received frame
    cdef Shape shape
    cdef Rows rows
    cdef Py_ssize_t i
    for one in frames:
        frame = one[0]
        for shape in frame.shapes:
            if shape.columns.stored_in >= 0 and shape.rows:
                rows = tables[shape.columns.stored_in]
                if rows is None:
                    rows = tables[shape.columns.stored_in] = Rows()
                rows.count += shape.rows
    for i in range(len(tables)):
        if tables[i] is not None:
            (<Rows>tables[i]).make(widths[i])
    for one in frames:
        frame = one[0]
        for i in range(len(frame.shapes)):
            shape = frame.shapes[i]
            if shape.columns.stored_in >= 0 and shape.rows:
                _append(tables[shape.columns.stored_in], frame, i, shape, one[1], one[2])
    return tables


cdef int _append(Rows to, Received frame, Py_ssize_t number, Shape shape, int32_t host, offset_ns) except -1:
    cdef Py_ssize_t rows = shape.rows, row
    cdef int64_t *times = <int64_t *><char *>to.times_us + to.at
    cdef uint64_t *boottimes = <uint64_t *><char *>to.boottimes + to.at
    cdef int32_t *hosts = <int32_t *><char *>to.hosts + to.at
    cdef int32_t *devices = <int32_t *><char *>to.devices + to.at
    cdef int64_t time_us, time_ns
    cdef uint64_t boottime
    if shape.batch != BATCHES:
        shape.batch, shape.begin = BATCHES, <int32_t>to.names_count
        to.names_count += rows
        to.names.append((frame, number))
    if frame.boottime_ns < SAFE_NS and -SAFE_NS < frame.offsets[number] < SAFE_NS and -SAFE_NS < offset_ns < SAFE_NS:
        time_ns = <int64_t>frame.boottime_ns + frame.offsets[number]
        boottime = <uint64_t>max(<int64_t>0, time_ns)
        time_us = max(<int64_t>0, min(time_ns + <int64_t>offset_ns, STORED_NS_MAX)) // 1000
    else:
        boottime_ns = frame.boottime_ns + <object>frame.offsets[number]
        boottime = max(0, min(boottime_ns, 0xFFFFFFFFFFFFFFFF))
        time_us = max(0, min(boottime_ns + offset_ns, TIME_NS_MAX)) // 1000
    for row in range(rows):
        times[row], boottimes[row], hosts[row], devices[row] = time_us, boottime, host, shape.begin + <int32_t>row
    _columns(to, shape, <const uint8_t *>PyBytes_AS_STRING(frame.payload) + frame.packed[number],
             <uint64_t *><char *>to.cells, <uint8_t *><char *>to.valid)
    to.at += rows
    return 0


cdef void _columns(Rows to, Shape shape, const uint8_t *packed, uint64_t *cells, uint8_t *valid) noexcept nogil:
    cdef Py_ssize_t rows = shape.rows, width = shape.columns.width, count = rows * width, column, place
    cdef const uint8_t *plane = packed + (count + 7) // 8
    for column in range(width):
        place = shape.columns.stored[column]
        if place >= 0:
            take_column(plane + column * rows, count, rows, cells + place * to.count + to.at)
            _put_bits(valid + place * to.bytes_a_column, to.at, packed, column * rows, rows)


cdef void _put_bits(uint8_t *to, Py_ssize_t to_bit, const uint8_t *source, Py_ssize_t bit, Py_ssize_t count) noexcept nogil:
    """Copy *count* bits into zeroed bits."""
    cdef Py_ssize_t size
    cdef unsigned int word
    while count > 0:
        size = min(count, 8 - (to_bit & 7))
        word = source[bit >> 3] >> (bit & 7)
        if (bit & 7) + size > 8:
            word |= <unsigned int>source[(bit >> 3) + 1] << (8 - (bit & 7))
        to[to_bit >> 3] |= <uint8_t>((word & ((1 << size) - 1)) << (to_bit & 7))
        to_bit += size
        bit += size
        count -= size
