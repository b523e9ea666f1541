# cython: language_level=3
"""Converts cells to byte planes and back, eight at a time, as a transposed square of bytes. C only.

A column's cells are differences to the previous row, all lowest bytes first: byte b of row i is at
`plane[b * count + i]`; `count` is the number of cells of the whole table. Little endian.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset


cdef inline void turn(uint64_t *w) noexcept nogil:
    """Transpose eight words of eight bytes."""
    cdef uint64_t t
    cdef int i
    for i in range(0, 8, 2):
        t = ((w[i] >> 8) ^ w[i + 1]) & 0x00FF00FF00FF00FFu
        w[i + 1] ^= t
        w[i] ^= t << 8
    for i in range(8):
        if i & 2:
            continue
        t = ((w[i] >> 16) ^ w[i + 2]) & 0x0000FFFF0000FFFFu
        w[i + 2] ^= t
        w[i] ^= t << 16
    for i in range(4):
        t = ((w[i] >> 32) ^ w[i + 4]) & 0x00000000FFFFFFFFu
        w[i + 4] ^= t
        w[i] ^= t << 32


cdef inline void take_column(const uint8_t *plane, Py_ssize_t count, Py_ssize_t rows, uint64_t *cells) noexcept nogil:
    """Read a column of *rows* cells, whose first byte is at *plane*."""
    cdef uint64_t[8] w
    cdef uint64_t value = 0
    cdef Py_ssize_t row = 0, size, i
    while row < rows:
        size = rows - row if rows - row < 8 else 8
        if size == 8:
            for i in range(8):
                memcpy(&w[i], plane + i * count + row, 8)
        else:
            memset(w, 0, sizeof(w))
            for i in range(8):
                memcpy(&w[i], plane + i * count + row, size)
        turn(w)
        for i in range(size):
            value += w[i]
            cells[row + i] = value
        row += size

