# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A core's times in /proc/stat, and its shares between two readings. C only."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from hostfiles_texts cimport U32_MAX, _is_blank, _number

cdef enum:
    TICKS_BITS_MOST = 56  # a thousand cores for a million years; sums still fit into 64 bits
    TIMES = 8  # user nice system idle iowait irq softirq steal

cdef struct Times:  # ticks since boot, of one core or of all together
    uint64_t user  # with nice
    uint64_t system  # with interrupts
    uint64_t idle
    uint64_t iowait
    uint64_t steal
    uint64_t interrupt  # hard and soft, also within `system`

cdef struct Core:
    uint32_t number
    Times times

cdef struct Shares:
    double total  # elapsed ticks; 0: unknown
    double user
    double system
    double idle
    double iowait
    double steal
    double interrupt  # negative: unknown


cdef inline Shares _shares(const Times *old, const Times *new) noexcept nogil:
    cdef Shares shares
    cdef uint64_t idle, iowait
    memset(&shares, 0, sizeof(Shares))
    if new.user < old.user or new.system < old.system or new.steal < old.steal:
        return shares
    # The kernel may decrease idle and iowait (proc(5)): a decrease counts as 0.
    idle = new.idle - old.idle if new.idle > old.idle else 0
    iowait = new.iowait - old.iowait if new.iowait > old.iowait else 0
    shares.total = <double>(new.user - old.user + new.system - old.system + idle + iowait + new.steal - old.steal)
    if not shares.total:
        return shares
    shares.user, shares.system = (new.user - old.user) / shares.total, (new.system - old.system) / shares.total
    shares.idle, shares.iowait = idle / shares.total, iowait / shares.total
    shares.steal = (new.steal - old.steal) / shares.total
    shares.interrupt = -1 if new.interrupt < old.interrupt else (new.interrupt - old.interrupt) / shares.total
    return shares


cdef inline bint _take_times(const char *text, const char *end, Times *times) noexcept nogil:
    cdef uint64_t ticks[TIMES]
    cdef int i
    for i in range(TIMES):
        if not _number(&text, end, &ticks[i]) or (text < end and not _is_blank(text[0])):
            return False
        if ticks[i] == U32_MAX or ticks[i] >> TICKS_BITS_MOST:
            return False
    times.user, times.idle, times.iowait, times.steal = ticks[0] + ticks[1], ticks[3], ticks[4], ticks[7]
    times.interrupt = ticks[5] + ticks[6]
    times.system = ticks[2] + times.interrupt
    return True
