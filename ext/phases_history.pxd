# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The last minutes of some signals of every GPU, by sample, in preallocated memory. C only."""

from libc.math cimport NAN
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    HISTORY_POWER, HISTORY_UTILIZATION, HISTORY_SM_ACTIVE, HISTORY_TENSOR, HISTORY_BANDWIDTH, HISTORY_PCIE
    HISTORY_NVLINK, HISTORY_CLOCK, HISTORY_STATE
    HISTORY_COLUMNS = 9

cdef struct History:
    float *cells  # by row, column, sample
    int64_t *times
    int rows, samples_max
    uint64_t count


cdef inline void history_begin(History *h, int64_t now_ns) noexcept nogil:
    """Add a sample to all rows: missing until `history_put`."""
    cdef int place = h.count % h.samples_max, at
    for at in range(h.rows * HISTORY_COLUMNS):
        h.cells[<size_t>at * h.samples_max + place] = NAN
    h.times[place] = now_ns
    h.count += 1


cdef inline void history_put(History *h, int row, int column, float value) noexcept nogil:
    """Set a value of the last sample."""
    h.cells[<size_t>(row * HISTORY_COLUMNS + column) * h.samples_max + (h.count - 1) % h.samples_max] = value
