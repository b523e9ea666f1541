# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Swaps segments between domains, one at a time, while the price falls. C only."""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from placement_work cimport Candidate, STEPS_OF_A_SWAP, SWAP_GROUPS, TIERS, Work, _price
from placement_tree cimport _allowed
from placement_fill cimport _measure, _sort_members


cdef inline int _worst_of(Work *work, int level, int group, int *places) noexcept nogil:
    """Write the places of the last chosen segment of a group; return their number."""
    cdef int i = work.begin[level][group + 1] - 1, count = 0
    while i >= work.begin[level][group] and count < work.segment:
        if work.chosen[i]:
            places[count] = i
            count += 1
        i -= 1
    return count


cdef inline int _best_of(Work *work, int level, int group, int *places) noexcept nogil:
    """Write the places of the first unchosen segment of a group; return their number."""
    cdef int i, count = 0
    for i in range(work.begin[level][group], work.begin[level][group + 1]):
        if count == work.segment:
            break
        if not work.chosen[i] and _allowed(work, i):
            places[count] = i
            count += 1
    return count


cdef inline void _move(Work *work, const int *places, int by) noexcept nogil:
    """Add a segment's places to the members (*by* 1) or remove them (-1), in all counts."""
    cdef int i, tier, row, domain
    for i in range(work.segment):
        row = work.rows[places[i]]
        work.chosen[places[i]] = by > 0
        if work.spread_max:
            work.spread_used[work.spread[row]] += by
        for tier in range(TIERS):
            domain = work.domains[tier][row]
            if domain < 0:
                work.now.unknown[tier] += by
                continue
            work.inside[tier][domain] += by
            if work.inside[tier][domain] == (by > 0):
                work.now.domains[tier] += by
        work.now.hazard += by * work.risk[places[i]]
        work.now.cost += by * work.cost[places[i]]


cdef inline double _tried(Work *work, const int *out, const int *come) noexcept nogil:
    """Swap *out* for *come*; return the price, infinite if the result is invalid."""
    cdef int i
    cdef double speed = work.now.speed
    _move(work, out, -1)
    _move(work, come, 1)
    for i in range(work.segment):
        if work.speed[come[i]] < speed:
            speed = work.speed[come[i]]
        if work.spread_max and work.spread_used[work.spread[work.rows[come[i]]]] > work.spread_max:
            return INFINITY
    return _price(&work.terms, speed, work.now.hazard, work.now.cost, work.now.domains, work.now.unknown)


cdef inline void _insert(Candidate *list, int *count, double key, int group) noexcept nogil:
    """Keep the candidates with the least keys, in order."""
    cdef int i
    if count[0] == SWAP_GROUPS and key >= list[SWAP_GROUPS - 1].key:
        return
    i = count[0] if count[0] < SWAP_GROUPS else SWAP_GROUPS - 1
    count[0] = i + 1
    while i > 0 and list[i - 1].key > key:
        list[i] = list[i - 1]
        i -= 1
    list[i].key, list[i].group = key, group


cdef inline int _candidates(Work *work, int level, int *places, Candidate *sources, Candidate *targets) noexcept nogil:
    """Find groups to take segments from (smallest share, worst) and to give to (best, in use)."""
    cdef int g, i
    cdef int count[4]
    cdef double hazard, used
    cdef Candidate lists[4][SWAP_GROUPS]
    memset(count, 0, sizeof(count))
    for g in range(work.groups[level]):
        if work.capacity[level][g] == 0:
            continue
        used = 0
        for i in range(work.begin[level][g], work.begin[level][g + 1]):
            used += work.chosen[i]
        if used and _worst_of(work, level, g, places) == work.segment:
            hazard = 0.0
            for i in range(work.segment):
                hazard += work.hazard[places[i]]
            _insert(lists[0], &count[0], used, g)
            _insert(lists[1], &count[1], -hazard, g)
        if _best_of(work, level, g, places) == work.segment:
            hazard = 0.0
            for i in range(work.segment):
                hazard += work.hazard[places[i]]
            _insert(lists[2], &count[2], hazard, g)
            if used:
                _insert(lists[3], &count[3], hazard, g)
    memcpy(sources, lists[0], count[0] * sizeof(Candidate))
    memcpy(sources + count[0], lists[1], count[1] * sizeof(Candidate))
    memcpy(targets, lists[2], count[2] * sizeof(Candidate))
    memcpy(targets + count[2], lists[3], count[3] * sizeof(Candidate))
    return (count[0] + count[1]) * (2 * SWAP_GROUPS + 1) + count[2] + count[3]


cdef inline bint _improve(Work *work) noexcept nogil:
    """Swap segments between groups while the price falls and steps remain. False: no memory."""
    cdef int level = work.level if work.segment > 1 else TIERS - 1
    cdef int a, b, i, tier, row, found
    cdef Candidate sources[2 * SWAP_GROUPS]
    cdef Candidate targets[2 * SWAP_GROUPS]
    cdef int *out = <int *>malloc(2 * work.segment * sizeof(int))
    cdef int *come
    cdef double price
    cdef bint better = True
    if out == NULL:
        return False
    come = out + work.segment
    _measure(work, &work.now)
    for i in range(work.taken):
        row = work.rows[work.members[i]]
        for tier in range(TIERS):
            if work.domains[tier][row] >= 0:
                work.inside[tier][work.domains[tier][row]] += 1
    while better and work.steps_left > 0:
        better = False
        found = _candidates(work, level, out, sources, targets)
        work.steps_left -= work.size
        for a in range(found // (2 * SWAP_GROUPS + 1)):
            for b in range(found % (2 * SWAP_GROUPS + 1)):
                if work.steps_left <= 0:
                    break
                work.steps_left -= STEPS_OF_A_SWAP * work.segment
                if _worst_of(work, level, sources[a].group, out) < work.segment or _best_of(work, level, targets[b].group, come) < work.segment:
                    continue
                price = _tried(work, out, come)
                if price < work.now.price - 1e-12 * work.terms.gross and work.now.hazard <= work.hazard_max:
                    for i in range(work.segment):
                        if work.speed[come[i]] < work.now.speed:
                            work.now.speed = work.speed[come[i]]
                    work.now.price = price
                    better = True
                else:
                    _move(work, come, -1)
                    _move(work, out, 1)
    free(out)
    _sort_members(work)
    for i in range(work.taken):
        row = work.rows[work.members[i]]
        for tier in range(TIERS):
            if work.domains[tier][row] >= 0:
                work.inside[tier][work.domains[tier][row]] = 0
    return True
