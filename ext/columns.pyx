# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Cells of a block as few bytes, and back.

Packed: one validity bit per cell, then the cells as differences to the row before, by byte plane (all
lowest bytes first): neighbouring devices read alike, so that the upper planes are runs of zeros, which
deflate takes to nearly nothing. A cell that is not valid repeats the one before it.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memset


def packed_size(Py_ssize_t width, Py_ssize_t rows):
    return (width * rows + 7) // 8 + 8 * width * rows


def append_table(bytearray out not None, bytes head not None, int64_t offset, bytes keys not None,
                 const uint8_t[::1] cells not None, const uint8_t[::1] valid not None, Py_ssize_t width, Py_ssize_t rows):
    cdef Py_ssize_t count = width * rows, begin = len(out), size = (count + 7) // 8 + 8 * count
    cdef uint16_t[2] shape
    _check(cells.shape[0], valid.shape[0], count)
    if not (0 <= width <= 0xFFFF and 0 <= rows <= 0xFFFF):
        raise ValueError(f"{rows} rows of {width} columns: at most 65535 of each")
    shape[0], shape[1] = <uint16_t>rows, <uint16_t>width
    PyByteArray_Resize(out, begin + len(head) + 12 + len(keys) + size)
    cdef uint8_t *to = <uint8_t *>PyByteArray_AS_STRING(out) + begin
    memcpy(to, <const char *>head, len(head))
    to += len(head)
    memcpy(to, &offset, 8)
    memcpy(to + 8, shape, 4)
    memcpy(to + 12, <const char *>keys, len(keys))
    to += 12 + len(keys)
    memset(to, 0, (count + 7) // 8)
    if count:
        with nogil:
            _pack(<const uint64_t *>&cells[0], &valid[0], to, width, rows)


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
    cdef Py_ssize_t count = width * rows, i, column, row
    cdef const uint8_t *plane = packed + (count + 7) // 8
    cdef uint64_t value, step
    cdef int byte
    for column in range(width):
        value = 0
        for row in range(rows):
            i = column * rows + row
            step = 0
            for byte in range(8):
                step |= <uint64_t>plane[byte * count + i] << (8 * byte)
            value += step
            cells[i] = value
            valid[i] = (packed[i >> 3] >> (i & 7)) & 1
