# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The tree of domains of an arena: counts the allowed nodes, and takes them by best fit. C only."""

from libc.stdlib cimport qsort

from placement_work cimport Child, TIERS, Work, _by_capacity


cdef inline void _build(Work *work) noexcept nogil:
    cdef int level, i, row, before
    cdef bint differs
    for level in range(TIERS):
        work.groups[level] = 0
    for i in range(work.size):
        row = work.rows[i]
        work.hazard[i], work.speed[i] = work.hazards[row], work.speeds[row]
        work.risk[i], work.cost[i] = work.risks[row], work.costs[row]
        differs = i == 0
        for level in range(TIERS):
            if i and not differs:
                before = work.rows[i - 1]
                differs = work.tree[level][row] != work.tree[level][before]
            if differs:
                work.begin[level][work.groups[level]] = i
                work.groups[level] += 1
            work.group[level][i] = work.groups[level] - 1
    for level in range(TIERS):
        work.begin[level][work.groups[level]] = work.size


cdef inline bint _allowed(const Work *work, int place) noexcept nogil:
    return (work.speed[place] >= work.speed_min) & (work.hazard[place] <= work.cutoff)


cdef inline int _count(Work *work) noexcept nogil:
    """Count the allowed nodes, and the capacity in whole segments; return the total capacity."""
    cdef int i, level, g, total, child, allowed
    work.counted[0] = 0
    work.summed[0] = 0.0
    for i in range(work.size):
        allowed = _allowed(work, i)  # added without a branch: mispredicted branches cost more
        work.counted[i + 1] = work.counted[i] + allowed
        work.summed[i + 1] = work.summed[i] + allowed * work.hazard[i]
    for level in range(TIERS - 1, -1, -1):
        for g in range(work.groups[level]):
            total = work.counted[work.begin[level][g + 1]] - work.counted[work.begin[level][g]]
            if work.segment > 1 and level == work.level:
                total -= total % work.segment
            elif work.segment > 1 and level < work.level:
                total = 0
                child = work.group[level + 1][work.begin[level][g]]
                while child < work.groups[level + 1] and work.begin[level + 1][child] < work.begin[level][g + 1]:
                    total += work.capacity[level + 1][child]
                    child += 1
            work.capacity[level][g] = total
    total = 0
    for g in range(work.groups[0]):
        total += work.capacity[0][g]
    return total


cdef inline bint _choose(Work *work, int place) noexcept nogil:
    cdef int domain
    if work.chosen[place]:
        return False
    if work.spread_max:
        domain = work.spread[work.rows[place]]
        if work.spread_used[domain] >= work.spread_max:
            return False
        work.spread_used[domain] += 1
    work.chosen[place] = 1
    work.members[work.taken] = place
    work.taken += 1
    return True


cdef inline void _drop_last(Work *work) noexcept nogil:
    work.taken -= 1
    cdef int place = work.members[work.taken]
    work.chosen[place] = 0
    if work.spread_max:
        work.spread_used[work.spread[work.rows[place]]] -= 1


cdef inline int _take(Work *work, int begin, int end, int need) noexcept nogil:
    cdef int i, taken = 0
    for i in range(begin, end):
        if taken == need:
            break
        if _allowed(work, i) and _choose(work, i):
            taken += 1
    return taken


cdef inline int _fill_group(Work *work, int level, int group, int need, Child *scratch) noexcept nogil:
    """Take up to *need* nodes of a group, whole segments only; return their number."""
    cdef int begin = work.begin[level][group], end = work.begin[level][group + 1], taken
    if level == TIERS - 1:
        taken = _take(work, begin, end, need)
    else:
        taken = _fill(work, level + 1, work.group[level + 1][begin], work.group[level + 1][end - 1] + 1, need, scratch)
    if work.segment > 1 and level == work.level:
        while taken % work.segment:
            _drop_last(work)
            taken -= 1
    return taken


cdef inline int _fill(Work *work, int level, int first, int last, int need, Child *scratch) noexcept nogil:
    """Take up to *need* nodes of groups [*first*, *last*): the fewest groups, the tightest last."""
    cdef int count = 0, g, i, j, taken = 0, got, wanted
    cdef int begin, end, allowed
    cdef Child one
    if last - first == 1:
        return _fill_group(work, level, first, need, scratch)
    for g in range(first, last):
        if work.capacity[level][g] > 0:
            begin, end = work.begin[level][g], work.begin[level][g + 1]
            allowed = work.counted[end] - work.counted[begin]
            scratch[count].capacity = work.capacity[level][g]
            scratch[count].mean = (work.summed[end] - work.summed[begin]) / allowed
            scratch[count].at = g
            count += 1
    qsort(scratch, count, sizeof(Child), _by_capacity)
    i = 0
    while taken < need and i < count:
        wanted = need - taken
        if scratch[i].capacity >= wanted:
            j = i
            while j + 1 < count and scratch[j + 1].capacity >= wanted:
                j += 1
            while j > i and scratch[j - 1].capacity == scratch[j].capacity:
                j -= 1
            one = scratch[j]
            while j > i:
                scratch[j] = scratch[j - 1]
                j -= 1
            scratch[i] = one
        else:
            wanted = scratch[i].capacity
        got = _fill_group(work, level, scratch[i].at, wanted, scratch + count)
        taken += got
        i += 1
    return taken


cdef inline void _clear(Work *work) noexcept nogil:
    while work.taken:
        _drop_last(work)
