# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Sets of members, by best fit or least hazards: measured, compared and stored. C only."""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc, qsort

from placement_work cimport POOL_MAX, Solution, TIERS, Work, _price
from placement_tree cimport _allowed, _choose, _clear, _drop_last, _fill, _fill_group
from placement_bounds cimport _nth_hazard


cdef inline void _measure(Work *work, Solution *found) noexcept nogil:
    """Set the measures of the members, which are in the order of places."""
    cdef int tier, i, domain, place, before
    cdef const int *domains
    cdef int *stamps
    found.hazard = found.cost = 0.0
    found.speed = INFINITY
    for tier in range(TIERS):
        found.domains[tier] = found.unknown[tier] = 0
    work.stamp += 1
    for i in range(work.nodes):
        place = work.members[i]
        found.hazard += work.risk[place]
        found.cost += work.cost[place]
        if work.speed[place] < found.speed:
            found.speed = work.speed[place]
    for tier in range(TIERS):
        before = -1
        domains, stamps = work.domains[tier], work.stamps[tier]
        for i in range(work.nodes):
            domain = domains[work.rows[work.members[i]]]
            if domain == before and domain >= 0:
                continue
            before = domain
            if domain < 0:
                found.unknown[tier] += 1
            elif stamps[domain] != work.stamp:
                stamps[domain] = work.stamp
                found.domains[tier] += 1
    found.price = _price(&work.terms, found.speed, found.hazard, found.cost, found.domains, found.unknown)


cdef inline bint _dominates(const Solution *a, const Solution *b) noexcept nogil:
    """Return whether *a* is not worse than *b* in any measure for an operator."""
    cdef int tier
    if a.price > b.price or a.hazard > b.hazard or a.speed < b.speed:
        return False
    for tier in range(TIERS):
        if a.domains[tier] + a.unknown[tier] > b.domains[tier] + b.unknown[tier]:
            return False
    return True


cdef inline void _sort_members(Work *work) noexcept nogil:
    cdef int i, count = 0
    for i in range(work.size):
        work.members[count] = i
        count += work.chosen[i]


cdef inline bint _offer(Work *work) noexcept nogil:
    """Store the members as a solution unless one dominates it. False without memory."""
    cdef Solution found
    cdef int i, kept = 0, worst
    if work.taken != work.nodes:
        return True
    if not work.is_listed:
        _sort_members(work)
    _measure(work, &found)
    if found.hazard > work.hazard_max:
        return True
    for i in range(work.pool_count):
        if _dominates(&work.pool[i], &found):
            return True
    if work.options_max <= 1 and found.price > work.best:
        return True
    found.nodes = <int *>malloc(work.nodes * sizeof(int))
    if found.nodes == NULL:
        return False
    for i in range(work.nodes):
        found.nodes[i] = work.rows[work.members[i]]
    for i in range(work.pool_count):
        if _dominates(&found, &work.pool[i]):
            free(work.pool[i].nodes)
        else:
            work.pool[kept] = work.pool[i]
            kept += 1
    work.pool_count = kept
    if kept == POOL_MAX:
        worst = 0
        for i in range(1, kept):
            if work.pool[i].price > work.pool[worst].price:
                worst = i
        if work.pool[worst].price <= found.price:
            free(found.nodes)
            return True
        free(work.pool[worst].nodes)
        work.pool[worst] = found
    else:
        work.pool[kept] = found
        work.pool_count += 1
    if found.price < work.best:
        work.best = found.price
    return True


cdef inline bint _pack(Work *work) noexcept nogil:
    """Fill domains by best fit. If the spread limit left nodes out, take others that fit."""
    cdef int level, g
    _clear(work)
    _fill(work, 0, 0, work.groups[0], work.nodes, work.children)
    if work.taken < work.nodes and work.spread_max:
        level = work.level if work.segment > 1 else TIERS - 1
        for g in range(work.groups[level]):
            if work.taken == work.nodes:
                break
            _fill_group(work, level, g, work.nodes - work.taken, work.children)
    return work.taken == work.nodes


cdef struct Segment:
    double hazard
    int at      # index in the list of places
    int order


cdef inline int _by_segment(const void *a, const void *b) noexcept nogil:
    cdef const Segment *x = <const Segment *>a
    cdef const Segment *y = <const Segment *>b
    if x.hazard != y.hazard:
        return 1 if x.hazard > y.hazard else -1
    return (x.order > y.order) - (x.order < y.order)


cdef struct Ranked:
    double hazard
    int place


cdef inline int _by_rank(const void *a, const void *b) noexcept nogil:
    cdef const Ranked *x = <const Ranked *>a
    cdef const Ranked *y = <const Ranked *>b
    if x.hazard != y.hazard:
        return 1 if x.hazard > y.hazard else -1
    return (x.place > y.place) - (x.place < y.place)


cdef inline bint _healthiest(Work *work, int speed_level) noexcept nogil:
    """Take the segments of the least hazard. False without memory."""
    cdef int level = work.level if work.segment > 1 else TIERS - 1
    cdef int g, i, j, count = 0, begin, total = 0, size
    cdef Ranked *ranked
    cdef Segment *segments
    cdef double value
    _clear(work)
    if work.segment == 1 and not work.spread_max:  # sorting is not needed
        value = _nth_hazard(work, speed_level, work.nodes - 1)
        for i in range(work.size):
            work.chosen[i] = _allowed(work, i) & (work.hazard[i] < value)
            work.taken += work.chosen[i]
        _sort_members(work)
        for i in range(work.size):
            if work.taken == work.nodes:
                break
            if _allowed(work, i) and work.hazard[i] == value:
                _choose(work, i)
        return True
    ranked = <Ranked *>malloc(work.size * sizeof(Ranked))
    segments = <Segment *>malloc(work.size * sizeof(Segment))
    if ranked == NULL or segments == NULL:
        free(ranked)
        free(segments)
        return False
    for g in range(work.groups[level]):
        begin = total
        for i in range(work.begin[level][g], work.begin[level][g + 1]):
            if _allowed(work, i):
                ranked[total].hazard, ranked[total].place = work.hazard[i], i
                total += 1
        qsort(ranked + begin, total - begin, sizeof(Ranked), _by_rank)
        size = (total - begin) // work.segment
        for j in range(size):
            value = 0.0
            for i in range(work.segment):
                value += ranked[begin + j * work.segment + i].hazard
            segments[count].hazard, segments[count].at, segments[count].order = value, begin + j * work.segment, count
            count += 1
    qsort(segments, count, sizeof(Segment), _by_segment)
    for j in range(count):
        if work.taken == work.nodes:
            break
        begin = work.taken
        for i in range(work.segment):
            if not _choose(work, ranked[segments[j].at + i].place):
                break
        while work.taken - begin and work.taken - begin < work.segment:
            _drop_last(work)
    free(ranked)
    free(segments)
    return True
