# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Encodes the cells of a block compactly, and decodes them.

Encoding: one validity bit per cell, then the cells as differences to the previous row, by byte
plane (all lowest bytes first). Neighboring devices have similar values, so the upper planes are
runs of zeros, which deflate compresses to almost nothing. An invalid cell repeats the previous
cell.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from planes cimport take_column

from zlib import crc32

cdef enum:
    CRC_AT = 4    # position in a frame (contract/frame.py); covers all bytes from CRC_FROM
    CRC_FROM = 8


def packed_size(Py_ssize_t width, Py_ssize_t rows):
    return (width * rows + 7) // 8 + 8 * width * rows


cdef class _Known:
    """A table's constant first bytes and its keys, cached."""

    cdef object devices, signal_ids
    cdef bytes head, keys
    cdef Py_ssize_t rows, width, size

    def __cinit__(self, devices not None, signal_ids not None, bytes head not None, bytes keys not None):
        self.devices, self.signal_ids, self.head, self.keys = devices, signal_ids, head, keys
        self.rows, self.width = len(devices), len(signal_ids)
        if self.rows > 0xFFFF or self.width > 0xFFFF:
            raise ValueError(f"{self.rows} rows of {self.width} columns: at most 65535 of each")
        self.size = len(head) + 12 + len(keys) + packed_size(self.width, self.rows)


cdef class Tables:
    cdef object constant
    cdef dict known
    cdef list blocks, tables  # for the next frame

    def __cinit__(self, constant not None):
        self.constant, self.known, self.blocks, self.tables = constant, {}, [], []

    def take(self, blocks not None):
        cdef Py_ssize_t size = 0
        cdef _Known known
        self.blocks, self.tables = list(blocks), []
        for block in self.blocks:
            known = self._of(block)
            self.tables.append(known)
            size += known.size
        return size

    cdef _Known _of(self, block):
        table, devices, signal_ids = block.table, block.devices, block.signal_ids
        cdef _Known known = self.known.get(table)
        if known is not None and known.devices is devices and known.signal_ids is signal_ids:
            return known
        if known is None or known.devices != devices or known.signal_ids != signal_ids:
            head, keys = self.constant(table, signal_ids, devices)
            known = self.known[table] = _Known(devices, signal_ids, head, keys)
        known.devices, known.signal_ids = devices, signal_ids  # usually the same objects next time
        return known

    def frame(self, bytes header not None):
        cdef Py_ssize_t size = len(header), i
        cdef _Known known
        for known in self.tables:
            size += known.size
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(frame)
        cdef uint8_t *to = begin
        memcpy(begin, PyBytes_AS_STRING(header), len(header))
        to = begin + len(header)
        for i in range(len(self.blocks)):
            to = _put_table(to, self.blocks[i], <_Known>self.tables[i])
        self.blocks, self.tables = [], []
        cdef uint32_t checksum = crc32(PyMemoryView_FromMemory(<char *>begin + CRC_FROM, size - CRC_FROM, PyBUF_READ))
        memcpy(begin + CRC_AT, &checksum, 4)
        return frame


cdef uint8_t *_put_table(uint8_t *to, block, _Known known) except NULL:
    cdef bytearray cells = block.cells, valid = block.valid
    cdef int64_t offset = block.offset_ns
    cdef Py_ssize_t count = known.width * known.rows, head = len(known.head), keys = len(known.keys)
    cdef uint16_t[2] shape
    _check(len(cells), len(valid), count)
    shape[0], shape[1] = <uint16_t>known.rows, <uint16_t>known.width
    memcpy(to, PyBytes_AS_STRING(known.head), head)
    memcpy(to + head, &offset, 8)
    memcpy(to + head + 8, shape, 4)
    memcpy(to + head + 12, PyBytes_AS_STRING(known.keys), keys)
    to += head + 12 + keys
    memset(to, 0, (count + 7) // 8)
    _pack(<const uint64_t *>PyByteArray_AS_STRING(cells), <const uint8_t *>PyByteArray_AS_STRING(valid), to, known.width, known.rows)
    return to + (count + 7) // 8 + 8 * count


def unpack(const uint8_t[::1] packed not None, uint8_t[::1] cells not None, uint8_t[::1] valid not None, Py_ssize_t width, Py_ssize_t rows):
    cdef Py_ssize_t count = width * rows
    _check(cells.shape[0], valid.shape[0], count)
    if packed.shape[0] != packed_size(width, rows):
        raise ValueError(f"packed cells: {packed.shape[0]} bytes, wanted {packed_size(width, rows)}")
    if count:
        with nogil:
            _unpack(&packed[0], <uint64_t *>&cells[0], &valid[0], width, rows)


def names(const uint8_t[::1] data not None, Py_ssize_t at, Py_ssize_t count, Py_ssize_t bytes_max):
    cdef Py_ssize_t size = data.shape[0], length
    cdef list found = []
    if at < 0:
        raise ValueError(f"names from byte {at} on: 0 or more")
    for _ in range(count):
        length = data[at] if 0 <= at < size else 0
        if at + 1 + length > size:
            raise ValueError(f"names end early: {count} wanted, {len(found)} there")
        if length > bytes_max:
            raise ValueError(f"a name of {length} bytes: at most {bytes_max}")
        found.append(PyUnicode_DecodeUTF8(<const char *>&data[at] + 1, length, NULL))
        at += 1 + length
    return tuple(found), at


def changed_rows(const uint8_t[::1] cells not None, const uint8_t[::1] valid not None,
                 const uint8_t[::1] cells_before not None, const uint8_t[::1] valid_before not None,
                 Py_ssize_t width, Py_ssize_t rows):
    cdef Py_ssize_t count = width * rows, row, column, i
    _check(cells.shape[0], valid.shape[0], count)
    _check(cells_before.shape[0], valid_before.shape[0], count)
    if not count:
        return []
    cdef const uint64_t *now = <const uint64_t *>&cells[0]
    cdef const uint64_t *before = <const uint64_t *>&cells_before[0]
    changed = []
    for row in range(rows):
        for column in range(width):
            i = column * rows + row
            if valid[i] != valid_before[i] or (valid[i] and now[i] != before[i]):
                changed.append(row)
                break
    return changed


cdef int _check(Py_ssize_t cell_bytes, Py_ssize_t valid_bytes, Py_ssize_t count) except -1:
    if count < 0 or cell_bytes != 8 * count or valid_bytes != count:
        raise ValueError(f"{count} cells need {8 * count} and {count} bytes, got {cell_bytes} and {valid_bytes}")
    return 0


cdef void _pack(const uint64_t *cells, const uint8_t *valid, uint8_t *out, Py_ssize_t width, Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t count = width * rows, i, column, row
    cdef uint8_t *plane = out + (count + 7) // 8
    cdef uint64_t before, value, step
    cdef int byte
    for column in range(width):
        before = 0
        for row in range(rows):
            i = column * rows + row
            if valid[i]:
                out[i >> 3] |= <uint8_t>(1 << (i & 7))
                value = cells[i]
            else:
                value = before
            step = value - before
            before = value
            for byte in range(8):
                plane[byte * count + i] = <uint8_t>(step >> (8 * byte))


cdef void _unpack(const uint8_t *packed, uint64_t *cells, uint8_t *valid, Py_ssize_t width, Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t count = width * rows, i, column
    cdef const uint8_t *plane = packed + (count + 7) // 8
    for column in range(width):
        take_column(plane + column * rows, count, rows, cells + column * rows)
    for i in range(count):
        valid[i] = (packed[i >> 3] >> (i & 7)) & 1
