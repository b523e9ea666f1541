# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Two levels of a signal, of computing and of waiting, learned from a histogram of time. C only.

A sample costs an addition; the levels are computed from the histogram at most once a second.
"""

from libc.math cimport NAN, exp, isfinite, log2
from libc.string cimport memset

from phases_state cimport *


cdef inline void levels_clear(Levels *l, bint is_power, double apart_max, double high_share) noexcept nogil:
    memset(l, 0, sizeof(l[0]))
    l.is_power, l.width = is_power, 32 if is_power else 128
    l.apart_max, l.high_share = apart_max, high_share
    l.low = l.high = l.wait = NAN


cdef inline void levels_add(Levels *l, double value, double seconds, bint is_resident) noexcept nogil:
    cdef int at = <int>(log2(max(value, 8.0) / 8.0) * l.width) if l.is_power else <int>(value * l.width)
    at = 0 if at < 0 else BINS - 1 if at >= BINS else at
    l.weight[at] += <float>seconds
    l.total[at] += <float>(seconds * value)
    if is_resident:
        l.resident[at] += <float>seconds
    l.seconds += seconds


cdef inline double levels_quantile(Levels *l, float *weights, int first, int end, double share) noexcept nogil:
    """Return a quantile of a class, as the mean of the bins around it."""
    cdef double whole = 0, below = 0, weight = 0, total = 0
    cdef int at, near
    for at in range(first, end):
        whole += weights[at]
    for at in range(first, end):
        below += weights[at]
        if below >= share * whole and weights[at] > 0:
            for near in range(max(at - 1, first), min(at + 2, end)):
                weight += l.weight[near]
                total += l.total[near]
            return total / weight
    return NAN


cdef inline int levels_split(Levels *l, int end) noexcept nogil:
    """Return the first bin of the upper class below *end*, by the method of Otsu (1979)."""
    cdef double whole = 0, total = 0, below = 0, below_total = 0, above, difference, variance, best = 0
    cdef int at, split = 0
    for at in range(end):
        whole += l.weight[at]
        total += l.total[at]
    for at in range(end - 1):
        if l.weight[at] <= 0:
            continue
        below += l.weight[at]
        below_total += l.total[at]
        above = whole - below
        if above <= 1e-6:
            break
        difference = below_total / below - (total - below_total) / above
        variance = below * above * difference * difference
        if variance > best:
            best, split = variance, at + 1
    return split


cdef inline void levels_learn(Levels *l, double floor) noexcept nogil:
    """Compute both levels; the low level is NaN if the classes are too close.

    If the split separates two kinds of computing, the lower part is split again. *floor*: the value
    without a job, or NaN. A reading that averages both activities lies between the levels, so a
    level is not the middle of its class, but nearer to its far end.
    """
    cdef double below, resident, low, high, middle_low, base = floor if isfinite(floor) else 0
    cdef double most = l.apart_max if base <= 0 else min(l.apart_max, 0.6)
    cdef int at, split, end = BINS, round
    l.low = l.wait = l.high = NAN
    l.spread = 0
    if l.seconds < CLASS_SECONDS_MIN:
        return
    for round in range(3):
        split = levels_split(l, end)
        if not split:
            break
        below = resident = 0
        for at in range(split):
            below += l.weight[at]
            resident += l.resident[at]
        if below < max(CLASS_SECONDS_MIN, 0.003 * l.seconds) or l.seconds - below < CLASS_SECONDS_MIN:
            break
        low = levels_quantile(l, l.weight, 0, split, 0.25)
        high = levels_quantile(l, l.weight, split, BINS, l.high_share)
        if low - base <= most * (high - base):
            l.low, l.high = low, high
            l.spread = (levels_quantile(l, l.weight, split, BINS, 0.75)
                        - levels_quantile(l, l.weight, split, BINS, 0.25)) / (high - low)
            if resident >= max(CLASS_SECONDS_MIN, 0.05 * below):
                l.wait = levels_quantile(l, l.resident, 0, split, 0.25)
                middle_low = levels_quantile(l, l.resident, 0, split, 0.5)
                if middle_low > 1.1 * l.wait:  # the waits are too short for the reading to fall
                    l.wait = NAN
            return
        end = split
    l.high = levels_quantile(l, l.weight, 0, BINS, 0.5)


cdef inline void levels_forget(Levels *l, double seconds) noexcept nogil:
    cdef float share = <float>exp(-seconds / FORGET_SECONDS)
    cdef int at
    for at in range(BINS):
        l.weight[at] *= share
        l.resident[at] *= share
        l.total[at] *= share
    l.seconds *= share
