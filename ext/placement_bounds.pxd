# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The relaxed problem: fewest domains, least hazards and speeds bound any gang's price. C only."""

from libc.math cimport INFINITY
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from placement_work cimport BUCKETS, HAZARD_BUCKETS, SMALL, SPEEDS_MAX, TIERS, Work, _nth, _price


cdef inline void _least_domains(Work *work) noexcept nogil:
    """Set per tier the fewest domains that could hold the gang, without other constraints."""
    cdef int tier, i, domain, need, size, widest
    cdef const int *domains
    cdef int *inside
    for tier in range(TIERS):
        work.least_domains[tier] = 0
        if work.terms.crossing[tier] == 0.0 and work.terms.preference[tier] == 0.0:
            continue
        domains, inside = work.domains[tier], work.inside[tier]
        need, widest = work.nodes, 0
        for i in range(work.size):
            domain = domains[work.rows[i]]
            if domain < 0:
                need -= 1
            else:
                inside[domain] += 1
                if inside[domain] > widest:
                    widest = inside[domain]
        memset(work.sizes, 0, (widest + 1) * sizeof(int))
        for i in range(work.size):
            domain = domains[work.rows[i]]
            if domain >= 0 and inside[domain]:
                work.sizes[inside[domain]] += 1
                inside[domain] = 0
        size = widest
        while need > 0 and size > 0:
            i = (need + size - 1) // size
            if i > work.sizes[size]:
                i = work.sizes[size]
            work.least_domains[tier] += i
            need -= i * size
            size -= 1


cdef inline double _optimistic(Work *work, double speed, double hazard) noexcept nogil:
    cdef int unknown[TIERS]
    cdef int tier
    for tier in range(TIERS):
        unknown[tier] = 0
    return _price(&work.terms, speed, hazard, 0.0, work.least_domains, unknown)


cdef inline double _least_hazard(Work *work, double speed_min) noexcept nogil:
    """Return the sum of the least hazards of fast enough nodes; infinite if there are too few."""
    cdef int i, count = 0
    cdef double total = 0.0, last
    for i in range(work.size):
        if work.speed[i] >= speed_min:
            work.values[count] = work.hazard[i]
            count += 1
    if count < work.nodes:
        return INFINITY
    _nth(work.values, count, work.nodes - 1)
    for i in range(work.nodes):
        total += work.values[i]
    return total * (1.0 - 1e-12)  # the order of additions changes the last digits


cdef inline void _speed_levels(Work *work) noexcept nogil:
    """Set the minimum speeds to try, descending, and the maximum speed below each of them."""
    cdef int counts[BUCKETS]
    cdef double lows[BUCKETS]
    cdef double highs[BUCKETS]
    cdef int i, b, found = 0, above = 0, filled = 0, at
    cdef double low = INFINITY, high = -INFINITY, value, scale, top = -INFINITY
    for i in range(work.size):
        value = work.speed[i]
        low = value if value < low else low
        high = value if value > high else high
    scale = (BUCKETS - 1) / (high - low) if high > low else 0.0
    work.speed_low, work.speed_scale = low, scale
    memset(counts, 0, sizeof(counts))
    for i in range(work.size):
        value = work.speed[i]
        b = <int>((value - low) * scale)
        if counts[b] == 0 or value < lows[b]:
            lows[b] = value
        if counts[b] == 0 or value > highs[b]:
            highs[b] = value
        counts[b] += 1
    b = BUCKETS - 1
    while above + counts[b] < work.nodes:  # too few nodes are this fast
        above += counts[b]
        work.level_of[b] = 0
        b -= 1
    for i in range(b + 1):
        filled += counts[i] > 0
    at = 0
    while b >= 0:
        work.level_of[b] = found
        if counts[b]:
            top = highs[b] if highs[b] > top else top
            # Above SPEEDS_MAX levels, evenly distributed ones are skipped; the last is kept.
            if at == 0 or at == filled - 1 or filled <= SPEEDS_MAX or (
                at * (SPEEDS_MAX - 1) // filled != (at - 1) * (SPEEDS_MAX - 1) // filled
            ):
                work.levels[found], work.tops[found] = lows[b], top
                found += 1
                top = -INFINITY
            at += 1
        b -= 1
    work.level_count = found


cdef inline int _hazard_bucket(double hazard) noexcept nogil:
    """Return a hazard's bucket, by exponent and four bits, which keeps the order of hazards."""
    cdef uint64_t bits
    memcpy(&bits, &hazard, sizeof(bits))
    cdef long at = <long>(bits >> 48) - ((1023 - 24) << 4)  # from 2 ** -24
    return 0 if at < 0 else HAZARD_BUCKETS - 1 if at >= HAZARD_BUCKETS else <int>at


cdef inline void _sum_by_level(Work *work) noexcept nogil:
    """Count hazards by level and bucket, from the fastest nodes; bound each level's least sum."""
    cdef int i, level, at, need, size = work.level_count * HAZARD_BUCKETS
    cdef double total
    if work.size <= SMALL:
        for level in range(work.level_count):
            work.least[level] = _least_hazard(work, work.levels[level])
        return
    memset(work.hazard_counts, 0, size * sizeof(int))
    memset(work.hazard_sums, 0, size * sizeof(double))
    for i in range(work.size):
        level = work.level_of[<int>((work.speed[i] - work.speed_low) * work.speed_scale)]
        at = level * HAZARD_BUCKETS + _hazard_bucket(work.hazard[i])
        work.hazard_counts[at] += 1
        work.hazard_sums[at] += work.hazard[i]
    for i in range(HAZARD_BUCKETS, size):
        work.hazard_counts[i] += work.hazard_counts[i - HAZARD_BUCKETS]
        work.hazard_sums[i] += work.hazard_sums[i - HAZARD_BUCKETS]
    for level in range(work.level_count):
        need, total, at = work.nodes, 0.0, level * HAZARD_BUCKETS
        while need > 0 and at < (level + 1) * HAZARD_BUCKETS:
            if work.hazard_counts[at] <= need:
                total += work.hazard_sums[at]
                need -= work.hazard_counts[at]
            else:  # hazards of a bucket differ by up to a sixteenth, except in the first and last
                if at % HAZARD_BUCKETS and at % HAZARD_BUCKETS < HAZARD_BUCKETS - 1:
                    total += need * (work.hazard_sums[at] / work.hazard_counts[at]) * (16.0 / 17.0)
                need = 0
            at += 1
        work.least[level] = total * (1.0 - 1e-12)


cdef inline double _nth_hazard(Work *work, int level, int nth) noexcept nogil:
    """Return the *nth* smallest hazard, from 0, of the nodes of a level."""
    cdef int i, at = level * HAZARD_BUCKETS, count = 0
    if work.size > SMALL:
        while nth >= work.hazard_counts[at]:
            nth -= work.hazard_counts[at]
            at += 1
        at -= level * HAZARD_BUCKETS
    for i in range(work.size):
        if work.speed[i] >= work.levels[level] and (
            work.size <= SMALL or _hazard_bucket(work.hazard[i]) == at
        ):
            work.values[count] = work.hazard[i]
            count += 1
    return _nth(work.values, count, nth)
