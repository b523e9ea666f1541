# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Lines of /proc/diskstats. C only."""

from libc.stdint cimport uint64_t
from libc.string cimport memset

from hostfiles_texts cimport U64_MAX, Value, _blanks, _first, _is_blank, _line_end, _number

cdef enum:
    DISK_FIELDS_MOST = 17
    DISK_FIELDS_LEAST = 11
    DISK_VALUES = 14
    SECTOR_BYTES = 512  # unit of diskstats for every device
    INFLIGHT_BITS_MOST = 31  # a greater number is a negative count of the kernel

cdef struct Disk:  # a line of diskstats
    const char *name
    Py_ssize_t name_bytes
    const char *counts
    const char *end


cdef inline Py_ssize_t _disk_counts(const char *text, const char *end, Value *counts) noexcept nogil:
    """Set the known counts of a line; return their number, 0 if a column is not a count."""
    cdef Py_ssize_t count = 0
    while count < DISK_FIELDS_MOST:
        text = _blanks(text, end)
        if text == end:
            break
        counts[count] = _first(text, end)
        if not counts[count].known:
            return 0
        count += 1
        while text < end and not _is_blank(text[0]):
            text += 1
    return count


cdef inline bint _disk_values(const Disk *disk, Value *values) noexcept nogil:
    """Set a line's values in the kernel's order, without merges, with sectors in bytes.

    False: a column is not a count, or there are too few. Kernels before 4.18 have no discards,
    before 5.5 no flushes. All values are missing if a number of bytes exceeds 64 bits.
    """
    cdef Value counts[DISK_FIELDS_MOST]
    cdef Py_ssize_t count = _disk_counts(disk.counts, disk.end, counts), i, at = 0
    if count < DISK_FIELDS_LEAST:
        return False
    counts[8].known = not counts[8].whole >> INFLIGHT_BITS_MOST
    memset(values, 0, DISK_VALUES * sizeof(Value))
    for i in range(17 if count == 17 else 15 if count >= 15 else 11):
        if i in (2, 6, 13):
            if counts[i].whole > U64_MAX // SECTOR_BYTES:
                memset(values, 0, DISK_VALUES * sizeof(Value))
                return True
            counts[i].whole *= SECTOR_BYTES
        if i not in (1, 5, 12):
            values[at] = counts[i]
            at += 1
    return True


cdef inline bint _next_disk(const char **text, const char *end, Disk *disk) noexcept nogil:
    """Advance past the next line that names a disk. False at the end."""
    cdef uint64_t number
    cdef const char *at
    while text[0] < end:
        at = text[0]
        disk.end = _line_end(at, end)
        text[0] = disk.end + 1
        if _number(&at, disk.end, &number) and _number(&at, disk.end, &number):
            disk.name = at = _blanks(at, disk.end)
            while at < disk.end and not _is_blank(at[0]):
                at += 1
            disk.counts, disk.name_bytes = at, at - disk.name
            return True
    return False
