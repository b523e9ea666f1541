# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Cells of a block as few bytes, and back.

Packed: one validity bit per cell, then the cells as differences to the row before, by byte plane (all
lowest bytes first): neighbouring devices read alike, so that the upper planes are runs of zeros, which
deflate takes to nearly nothing. A cell that is not valid repeats the one before it.
"""

from libc.stdint cimport uint8_t, uint64_t


def packed_size(Py_ssize_t width, Py_ssize_t rows):
    return (width * rows + 7) // 8 + 8 * width * rows


def pack(const uint8_t[::1] cells not None, const uint8_t[::1] valid not None, Py_ssize_t width, Py_ssize_t rows):
    cdef Py_ssize_t count = width * rows
    _check(cells.shape[0], valid.shape[0], count)
    out = bytearray(packed_size(width, rows))
    cdef uint8_t[::1] target = out
    if count:
        with nogil:
            _pack(<const uint64_t *>&cells[0], &valid[0], &target[0], width, rows)
    return bytes(out)


def unpack(const uint8_t[::1] packed not None, uint8_t[::1] cells not None, uint8_t[::1] valid not None, Py_ssize_t width, Py_ssize_t rows):
    cdef Py_ssize_t count = width * rows
    _check(cells.shape[0], valid.shape[0], count)
    if packed.shape[0] != packed_size(width, rows):
        raise ValueError(f"packed cells: {packed.shape[0]} bytes, wanted {packed_size(width, rows)}")
    if count:
        with nogil:
            _unpack(&packed[0], <uint64_t *>&cells[0], &valid[0], width, rows)


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
