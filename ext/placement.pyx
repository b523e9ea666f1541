# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The search for the nodes of a gang: which of them, by price, under constraints. Without the GIL and without a clock.

The nodes come as arrays in an order of the tree of domains, widest first, and by hazard within the narrowest. The search
fills domains from that tree by best fit, once for each pair of a least speed and a greatest hazard of a member, and then
swaps segments between domains. It counts its work in steps, not in seconds, so that the same question has the same answer.
Where there are few subsets it tries all. A relaxed problem (the fastest nodes, the least hazards, the fewest domains, each on
its own) bounds what any answer can cost.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy, memset

import numpy as np

cdef enum:
    TIERS = 5         # of which crossing has a price; also the levels of the tree, the widest first
    POOL_MAX = 64     # solutions that are compared
    SPEEDS_MAX = 16
    CUTOFFS_MAX = 5
    LEVELS_TRIED = 2  # of large fleets, where one option is asked for
    LEVELS_OF_OPTIONS = 6
    BUCKETS = 1024
    HAZARD_BUCKETS = 512  # sixteen in each doubling
    SMALL = 256       # nodes: of fewer, sums are sorted for
    STEPS_OF_A_SWAP = 32
    SWAP_GROUPS = 24  # that a segment is taken from, and given to

TIERS_COUNT = TIERS


cdef struct Terms:
    double gross          # GPU-hours
    double overhead       # share of the time lost whichever nodes are chosen
    double hours_lost     # per interruption
    double crossing[TIERS]    # share that a step takes longer when all traffic crosses this tier
    double preference[TIERS]  # GPU-hours for each domain after the first


cdef struct Solution:
    int *nodes
    double price
    double hazard
    double speed
    int domains[TIERS]
    int unknown[TIERS]


cdef struct Child:
    int capacity
    double mean
    int at


cdef struct Candidate:
    double key
    int group


cdef struct Work:
    # the question
    int count, nodes, segment, level, spread_max, options_max
    long steps_left
    double hazard_max
    Terms terms
    const double *hazards
    const double *speeds
    const int *domains[TIERS]
    const int *tree[TIERS]
    const int *spread
    # of the arena
    int size
    int *rows
    double *hazard        # by place in the arena, as all below
    double *speed
    int *group[TIERS]     # by place in the arena
    int *begin[TIERS]     # by group; one more at the end
    int *capacity[TIERS]
    int groups[TIERS]
    int least_domains[TIERS]
    # of one least speed and greatest hazard
    double speed_min, cutoff
    int *counted          # allowed nodes before each place
    double *summed        # their hazard
    int *members          # places, in the order in which they were taken
    bint is_listed        # they are in order, and `chosen` knows nothing of them
    int taken
    unsigned char *chosen
    int *spread_used
    # scratch
    Child *children
    int *stamps[TIERS]
    int *inside[TIERS]    # members, by domain, while segments are swapped
    Solution now
    int stamp
    int *sizes
    double *values
    # what was found
    Solution pool[POOL_MAX]
    int pool_count
    double bound
    double best
    # of the arena's least speeds, the highest first
    int level_count
    double levels[SPEEDS_MAX + 1]
    double tops[SPEEDS_MAX + 1]
    double least[SPEEDS_MAX + 1]   # no more than the sum of the least hazards among the nodes that are as fast
    int level_of[BUCKETS]
    double speed_low, speed_scale
    int *hazard_counts             # by hazard, cumulated over the levels
    double *hazard_sums


cdef double _crossing(int domains, int unknown) noexcept nogil:
    """Return the share of traffic that crosses: of what is not known, halfway between none and all of it apart."""
    cdef int fewest = domains if domains > 0 else 1
    cdef int most = domains + unknown
    if most < 1:
        most = 1
    return 0.5 * ((1.0 - 1.0 / fewest) + (1.0 - 1.0 / most))


cdef double _price(const Terms *terms, double speed, double hazard, const int *domains, const int *unknown) noexcept nogil:
    cdef double longer = 0.0, preference = 0.0, lost = terms.overhead + terms.hours_lost * hazard
    cdef int tier
    if lost > 1.0:
        lost = 1.0
    for tier in range(TIERS):
        longer += terms.crossing[tier] * _crossing(domains[tier], unknown[tier])
        if domains[tier] + (unknown[tier] > 0) > 1:
            preference += terms.preference[tier] * (domains[tier] + (unknown[tier] > 0) - 1)
    return terms.gross * (1.0 - speed / (1.0 + longer) * (1.0 - lost)) + preference


cdef int _by_capacity(const void *a, const void *b) noexcept nogil:
    """Order children: the roomiest first, the healthiest of those, and then as they lie."""
    cdef const Child *x = <const Child *>a
    cdef const Child *y = <const Child *>b
    if x.capacity != y.capacity:
        return 1 if x.capacity < y.capacity else -1
    if x.mean != y.mean:
        return 1 if x.mean > y.mean else -1
    return (x.at > y.at) - (x.at < y.at)


cdef double _nth(double *values, int count, int nth) noexcept nogil:
    """Return the *nth* smallest, from 0; *values* are moved."""
    cdef int low = 0, high = count - 1, i, j
    cdef double pivot, swap
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                swap = values[i]
                values[i] = values[j]
                values[j] = swap
                i += 1
                j -= 1
        if nth <= j:
            high = j
        elif nth >= i:
            low = i
        else:
            break
    return values[nth]


# ----------------------------------------------------------------------
# The tree of one arena: the nodes of one domain that all members must share, or all there are.

cdef void _build(Work *work) noexcept nogil:
    cdef int level, i, row, before
    cdef bint differs
    for level in range(TIERS):
        work.groups[level] = 0
    for i in range(work.size):
        row = work.rows[i]
        work.hazard[i], work.speed[i] = work.hazards[row], work.speeds[row]
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


cdef int _count(Work *work) noexcept nogil:
    """Count what is allowed, and what of it whole segments can take; return that of all."""
    cdef int i, level, g, total, child, allowed
    work.counted[0] = 0
    work.summed[0] = 0.0
    for i in range(work.size):
        allowed = _allowed(work, i)  # added in any case: branches that nobody can predict cost more
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


cdef int _take(Work *work, int begin, int end, int need) noexcept nogil:
    cdef int i, taken = 0
    for i in range(begin, end):
        if taken == need:
            break
        if _allowed(work, i) and _choose(work, i):
            taken += 1
    return taken


cdef int _fill_group(Work *work, int level, int group, int need, Child *scratch) noexcept nogil:
    """Take up to *need* nodes of a group, whole segments only; return how many."""
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


cdef int _fill(Work *work, int level, int first, int last, int need, Child *scratch) noexcept nogil:
    """Take up to *need* nodes of the groups from *first* to before *last*: the fewest groups, and the tightest last."""
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


cdef void _clear(Work *work) noexcept nogil:
    while work.taken:
        _drop_last(work)


# ----------------------------------------------------------------------
# What is found: measured, compared, and the best of it remembered.

cdef void _measure(Work *work, Solution *found) noexcept nogil:
    """Fill in what the members, in order of their places, come to."""
    cdef int tier, i, domain, place, before
    cdef const int *domains
    cdef int *stamps
    found.hazard = 0.0
    found.speed = INFINITY
    for tier in range(TIERS):
        found.domains[tier] = found.unknown[tier] = 0
    work.stamp += 1
    for i in range(work.nodes):
        place = work.members[i]
        found.hazard += work.hazard[place]
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
    found.price = _price(&work.terms, found.speed, found.hazard, found.domains, found.unknown)


cdef bint _dominates(const Solution *a, const Solution *b) noexcept nogil:
    """Whether *a* is as good as *b* in all that an operator may choose by."""
    cdef int tier
    if a.price > b.price or a.hazard > b.hazard or a.speed < b.speed:
        return False
    for tier in range(TIERS):
        if a.domains[tier] + a.unknown[tier] > b.domains[tier] + b.unknown[tier]:
            return False
    return True


cdef void _sort_members(Work *work) noexcept nogil:
    """Put the members in the order of their places."""
    cdef int i, count = 0
    for i in range(work.size):
        work.members[count] = i
        count += work.chosen[i]


cdef bint _offer(Work *work) noexcept nogil:
    """Remember the members as a solution, unless another is as good. False: there is no memory."""
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


# ----------------------------------------------------------------------
# From the narrowest tier out, best fit; and the least hazards, wherever they are.

cdef bint _pack(Work *work) noexcept nogil:
    """Fill domains by best fit. Where the spread left some out, take what still fits."""
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
    int at      # in the list of places
    int order


cdef int _by_segment(const void *a, const void *b) noexcept nogil:
    cdef const Segment *x = <const Segment *>a
    cdef const Segment *y = <const Segment *>b
    if x.hazard != y.hazard:
        return 1 if x.hazard > y.hazard else -1
    return (x.order > y.order) - (x.order < y.order)


cdef struct Ranked:
    double hazard
    int place


cdef int _by_rank(const void *a, const void *b) noexcept nogil:
    cdef const Ranked *x = <const Ranked *>a
    cdef const Ranked *y = <const Ranked *>b
    if x.hazard != y.hazard:
        return 1 if x.hazard > y.hazard else -1
    return (x.place > y.place) - (x.place < y.place)


cdef bint _healthiest(Work *work, int speed_level) noexcept nogil:
    """Take the segments of the least hazard. False: there is no memory."""
    cdef int level = work.level if work.segment > 1 else TIERS - 1
    cdef int g, i, j, count = 0, begin, total = 0, size
    cdef Ranked *ranked
    cdef Segment *segments
    cdef double value
    _clear(work)
    if work.segment == 1 and not work.spread_max:  # no order is needed
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


# ----------------------------------------------------------------------
# One segment at a time against another, for as long as there are steps.

cdef int _worst_of(Work *work, int level, int group, int *places) noexcept nogil:
    """Write the places of the last segment that a group has chosen; return how many."""
    cdef int i = work.begin[level][group + 1] - 1, count = 0
    while i >= work.begin[level][group] and count < work.segment:
        if work.chosen[i]:
            places[count] = i
            count += 1
        i -= 1
    return count


cdef int _best_of(Work *work, int level, int group, int *places) noexcept nogil:
    """Write the places of the first segment that a group has not chosen; return how many."""
    cdef int i, count = 0
    for i in range(work.begin[level][group], work.begin[level][group + 1]):
        if count == work.segment:
            break
        if not work.chosen[i] and _allowed(work, i):
            places[count] = i
            count += 1
    return count


cdef void _move(Work *work, const int *places, int by) noexcept nogil:
    """Take the places of a segment among the members, or out of them, in all counts."""
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
        work.now.hazard += by * work.hazard[places[i]]


cdef double _tried(Work *work, const int *out, const int *come) noexcept nogil:
    """Exchange *out* for *come* and return the price, infinite where that does not hold."""
    cdef int i
    cdef double speed = work.now.speed
    _move(work, out, -1)
    _move(work, come, 1)
    for i in range(work.segment):
        if work.speed[come[i]] < speed:
            speed = work.speed[come[i]]
        if work.spread_max and work.spread_used[work.spread[work.rows[come[i]]]] > work.spread_max:
            return INFINITY
    return _price(&work.terms, speed, work.now.hazard, work.now.domains, work.now.unknown)


cdef void _insert(Candidate *list, int *count, double key, int group) noexcept nogil:
    """Keep the candidates of the least keys, in order."""
    cdef int i
    if count[0] == SWAP_GROUPS and key >= list[SWAP_GROUPS - 1].key:
        return
    i = count[0] if count[0] < SWAP_GROUPS else SWAP_GROUPS - 1
    count[0] = i + 1
    while i > 0 and list[i - 1].key > key:
        list[i] = list[i - 1]
        i -= 1
    list[i].key, list[i].group = key, group


cdef int _candidates(Work *work, int level, int *places, Candidate *sources, Candidate *targets) noexcept nogil:
    """Find the groups that segments may be taken from, and given to: the smallest share and the worst, the best and those in use."""
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


cdef bint _improve(Work *work) noexcept nogil:
    """Swap segments between groups while that lowers the price and there are steps left. False: there is no memory."""
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


# ----------------------------------------------------------------------
# The relaxed problem.

cdef void _least_domains(Work *work) noexcept nogil:
    """Find of each tier in how few domains the gang could be, were that all that is asked of it."""
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


cdef double _optimistic(Work *work, double speed, double hazard) noexcept nogil:
    cdef int unknown[TIERS]
    cdef int tier
    for tier in range(TIERS):
        unknown[tier] = 0
    return _price(&work.terms, speed, hazard, work.least_domains, unknown)


cdef double _least_hazard(Work *work, double speed_min) noexcept nogil:
    """Return the sum of the least hazards of the nodes that are fast enough; infinite where these are too few."""
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
    return total * (1.0 - 1e-12)  # the order of additions moves the last digits


cdef void _speed_levels(Work *work) noexcept nogil:
    """Find the least speeds to try, the highest first, and what the slowest member has at most where it has not the one before."""
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
    while above + counts[b] < work.nodes:  # too few are that fast
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
            # Of more levels than there is room for, evenly many are left out; the last stays.
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
    """Return the bucket of a hazard by exponent and four bits: the order of buckets is that of hazards."""
    cdef uint64_t bits
    memcpy(&bits, &hazard, sizeof(bits))
    cdef long at = <long>(bits >> 48) - ((1023 - 24) << 4)  # from 2 ** -24
    return 0 if at < 0 else HAZARD_BUCKETS - 1 if at >= HAZARD_BUCKETS else <int>at


cdef void _sum_by_level(Work *work) noexcept nogil:
    """Count hazards by level and bucket, cumulated from the fastest nodes on, and bound the sum of the least of each level."""
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
            else:  # those of one bucket differ by a sixteenth at most, but in the first, where they may be anything
                if at % HAZARD_BUCKETS and at % HAZARD_BUCKETS < HAZARD_BUCKETS - 1:
                    total += need * (work.hazard_sums[at] / work.hazard_counts[at]) * (16.0 / 17.0)
                need = 0
            at += 1
        work.least[level] = total * (1.0 - 1e-12)


cdef double _nth_hazard(Work *work, int level, int nth) noexcept nogil:
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


# ----------------------------------------------------------------------
# One arena.

cdef double _subsets(int size, int nodes) noexcept nogil:
    cdef double total = 1.0
    cdef int i
    for i in range(nodes):
        total = total * (size - i) / (i + 1)
    return total


cdef bint _whole_segments(Work *work) noexcept nogil:
    """Whether the members fill whole segments."""
    cdef int i, run = 1
    if work.segment == 1:
        return True
    for i in range(1, work.nodes):
        if work.group[work.level][work.members[i]] == work.group[work.level][work.members[i - 1]]:
            run += 1
        else:
            if run % work.segment:
                return False
            run = 1
    return run % work.segment == 0


cdef bint _try_all(Work *work) noexcept nogil:
    """Offer each subset that holds. False: there is no memory."""
    cdef int i, j, n = work.nodes
    cdef bint holds
    work.taken = n
    work.is_listed = True
    for i in range(n):
        work.members[i] = i
    while True:
        holds = _whole_segments(work)
        if holds and work.spread_max:
            for i in range(n):
                work.spread_used[work.spread[work.rows[work.members[i]]]] = 0
            for i in range(n):
                j = work.spread[work.rows[work.members[i]]]
                work.spread_used[j] += 1
                holds = holds and work.spread_used[j] <= work.spread_max
            for i in range(n):
                work.spread_used[work.spread[work.rows[work.members[i]]]] = 0
        if holds and not _offer(work):
            work.taken = 0
            work.is_listed = False
            return False
        i = n - 1
        while i >= 0 and work.members[i] == work.size - n + i:
            i -= 1
        if i < 0:
            break
        work.members[i] += 1
        for j in range(i + 1, n):
            work.members[j] = work.members[j - 1] + 1
    work.taken = 0
    work.is_listed = False
    return True


cdef bint _solve(Work *work, bint exhaustive) noexcept nogil:
    """Search one arena. False: there is no memory."""
    cdef double optimistic, tried
    cdef double promise[SPEEDS_MAX + 1]
    cdef int i, level, tries, left
    _build(work)
    _least_domains(work)
    work.speed_min, work.cutoff = -INFINITY, INFINITY
    if work.options_max >= 0 and not exhaustive and _count(work) < work.nodes:
        return True
    if work.options_max == 0 and not exhaustive and work.pool_count == 0:
        if _pack(work) and not _offer(work):
            return False
    _speed_levels(work)
    _sum_by_level(work)
    if work.options_max == 0 and not exhaustive:
        # Only whether anything fits is asked: the least hazards of all nodes tell.
        level = work.level_count - 1
        work.speed_min = work.levels[level]
        if work.pool_count == 0 and (_count(work) < work.nodes or not _healthiest(work, level) or not _offer(work)):
            return False
        _clear(work)
        return True
    for i in range(work.level_count):
        optimistic = _optimistic(work, work.tops[i], work.least[i])
        work.bound = optimistic if optimistic < work.bound else work.bound
        promise[i] = _optimistic(work, work.levels[i], work.least[i])
    if work.options_max < 0:
        return True
    if exhaustive:
        return _try_all(work)
    # The most promising levels first; where only the price counts, and there is much to try, not more than a few.
    tries = work.level_count
    if work.size > SMALL:
        tries = LEVELS_TRIED if work.options_max == 1 else LEVELS_OF_OPTIONS
    left = work.level_count
    while left > 0 and (tries > 0 or work.pool_count == 0):
        level = 0
        for i in range(work.level_count):
            if promise[i] < promise[level]:
                level = i
        tried = promise[level]
        promise[level] = INFINITY
        left -= 1
        if work.least[level] > work.hazard_max:
            continue
        if work.options_max == 1 and (
            tried >= work.best or _optimistic(work, work.tops[level], work.least[level]) >= work.best
        ):
            continue
        work.speed_min, work.cutoff = work.levels[level], INFINITY
        if _count(work) < work.nodes:
            continue
        tries -= 1
        if not _try_level(work, level):
            return False
    _clear(work)
    return True


cdef bint _try_level(Work *work, int level) noexcept nogil:
    """Search among the nodes of one level. False: there is no memory."""
    cdef double cutoff, before = INFINITY
    cdef int j, k, total = work.counted[work.size]
    cdef int step = CUTOFFS_MAX - 2 if work.options_max == 1 and work.size > SMALL else 1
    if not _healthiest(work, level) or not _offer(work):
        return False
    j = 0
    while j < CUTOFFS_MAX:
        # Cut-offs of the hazard: none, and what leaves out the worst of those that are not needed.
        if j:
            k = total - 1 - (total - work.nodes) * j // (CUTOFFS_MAX - 1)
            cutoff = _nth_hazard(work, level, k)
            if cutoff >= before:
                j += step
                continue
            before = work.cutoff = cutoff
            if _count(work) < work.nodes:
                return True
        j += step
        if not _pack(work):
            continue
        if not _offer(work):
            return False
        if work.steps_left > 0 and (not _improve(work) or not _offer(work)):
            return False
    return True


#: The memory of the last search, for the next: fresh pages cost more than the search itself. Of 10,000 nodes 4 MB.
cdef char *_memory = NULL
cdef size_t _memory_bytes = 0
cdef bint _memory_is_used = False


cdef size_t _lay_out(Work *work, char *memory, int size, const int *domain_counts, int spread_count) noexcept nogil:
    """Put all arrays into *memory*; return how many bytes they need. NULL: only count."""
    cdef size_t at = 0
    cdef int level, widest = size
    for level in range(TIERS):
        widest = domain_counts[level] if domain_counts[level] > widest else widest
        work.group[level] = <int *>_piece(memory, &at, size * sizeof(int))
        work.begin[level] = <int *>_piece(memory, &at, (size + 1) * sizeof(int))
        work.capacity[level] = <int *>_piece(memory, &at, size * sizeof(int))
        work.stamps[level] = <int *>_piece(memory, &at, (domain_counts[level] + 1) * sizeof(int))
        work.inside[level] = <int *>_piece(memory, &at, (domain_counts[level] + 1) * sizeof(int))
        if memory != NULL:
            memset(work.stamps[level], 0, (domain_counts[level] + 1) * sizeof(int))
            memset(work.inside[level], 0, (domain_counts[level] + 1) * sizeof(int))
    work.rows = <int *>_piece(memory, &at, size * sizeof(int))
    work.hazard = <double *>_piece(memory, &at, size * sizeof(double))
    work.speed = <double *>_piece(memory, &at, size * sizeof(double))
    work.counted = <int *>_piece(memory, &at, (size + 1) * sizeof(int))
    work.summed = <double *>_piece(memory, &at, (size + 1) * sizeof(double))
    work.members = <int *>_piece(memory, &at, (size + 1) * sizeof(int))
    work.chosen = <unsigned char *>_piece(memory, &at, size + 1)
    work.spread_used = <int *>_piece(memory, &at, (spread_count + 1) * sizeof(int))
    work.children = <Child *>_piece(memory, &at, (TIERS + 1) * (size + 1) * sizeof(Child))
    work.sizes = <int *>_piece(memory, &at, (widest + 1) * sizeof(int))
    work.values = <double *>_piece(memory, &at, (widest + 1) * sizeof(double))
    work.hazard_counts = <int *>_piece(memory, &at, (SPEEDS_MAX + 1) * HAZARD_BUCKETS * sizeof(int))
    work.hazard_sums = <double *>_piece(memory, &at, (SPEEDS_MAX + 1) * HAZARD_BUCKETS * sizeof(double))
    if memory != NULL:
        memset(work.chosen, 0, size + 1)
        memset(work.spread_used, 0, (spread_count + 1) * sizeof(int))
    return at


cdef inline char *_piece(char *memory, size_t *at, size_t size_bytes) noexcept nogil:
    """Return the next piece, which begins on a multiple of 16 bytes."""
    cdef char *piece = memory + at[0] if memory != NULL else NULL
    at[0] += (size_bytes + 15) & ~<size_t>15
    return piece


cdef char *_reserve(Work *work, int size, const int *domain_counts, int spread_count):
    """Return memory in which all arrays are: that of the last search, unless another has it. NULL: there is none."""
    global _memory, _memory_bytes, _memory_is_used
    cdef size_t needed = _lay_out(work, NULL, size, domain_counts, spread_count)
    cdef char *memory
    if _memory_is_used:
        memory = <char *>malloc(needed)
    else:
        if needed > _memory_bytes:
            free(_memory)
            _memory = <char *>malloc(needed)
            _memory_bytes = needed if _memory != NULL else 0
        memory = _memory
        _memory_is_used = memory != NULL
    if memory != NULL:
        _lay_out(work, memory, size, domain_counts, spread_count)
    return memory


cdef void _release(Work *work, char *memory):
    global _memory_is_used
    cdef int i
    if memory == _memory:
        _memory_is_used = False
    else:
        free(memory)
    for i in range(work.pool_count):
        free(work.pool[i].nodes)


cdef bint _search(Work *work, const int *arenas, int arena_count, double subsets_max) noexcept nogil:
    """Search all arenas. False: there is no memory."""
    cdef int *begin = <int *>calloc(arena_count + 2, sizeof(int))
    cdef int *order = <int *>malloc((work.count + 1) * sizeof(int))
    cdef int i, arena, size
    cdef double subsets = 0.0
    cdef bint good = begin != NULL and order != NULL
    if good:
        for i in range(work.count):
            if arenas[i] >= 0:
                begin[arenas[i] + 1] += 1
        for arena in range(arena_count):
            if begin[arena + 1] >= work.nodes and subsets <= subsets_max:
                subsets += _subsets(begin[arena + 1], work.nodes)
            begin[arena + 1] += begin[arena]
        for i in range(work.count):
            if arenas[i] >= 0:
                order[begin[arenas[i]]] = i
                begin[arenas[i]] += 1
        for arena in range(arena_count):  # each begins now where it ended
            i = begin[arena - 1] if arena else 0
            size = begin[arena] - i
            if size < work.nodes:
                continue
            work.size = size
            memcpy(work.rows, order + i, size * sizeof(int))
            if not _solve(work, subsets <= subsets_max):
                good = False
                break
            if work.options_max == 0 and work.pool_count:
                break
    free(begin)
    free(order)
    return good


def search(
    const double[::1] hazards not None, const double[::1] speeds not None, const int[:, ::1] tree not None,
    const int[:, ::1] domains not None, const int[::1] domain_counts not None, const int[::1] arenas not None,
    int arena_count, const int[::1] spread not None, int spread_count, int spread_max, int nodes, int segment_nodes,
    int segment_level, double hazard_max, const double[::1] terms not None, int options_max, long steps_max, double subsets_max,
):
    cdef int count = hazards.shape[0], tier, i
    cdef int[:, ::1] copied
    cdef Work work
    cdef bint good
    if count == 0 or nodes < 1 or nodes > count:
        return INFINITY, np.zeros((0, max(nodes, 1)), dtype=np.int32), np.zeros((0, 3 + 2 * TIERS))
    if (
        speeds.shape[0] != count or tree.shape[0] != TIERS or tree.shape[1] != count or domains.shape[0] != TIERS
        or domains.shape[1] != count or domain_counts.shape[0] != TIERS or arenas.shape[0] != count
        or spread.shape[0] != count or terms.shape[0] != 3 + 2 * TIERS
    ):
        raise ValueError("columns of one length, and of all tiers, are expected")
    if segment_nodes < 1 or nodes % segment_nodes or (segment_nodes > 1 and not 0 <= segment_level < TIERS):
        raise ValueError(f"segments of {segment_nodes} nodes on level {segment_level} do not make up {nodes} nodes")
    memset(&work, 0, sizeof(work))
    work.count, work.nodes, work.segment, work.level = count, nodes, segment_nodes, segment_level
    work.spread_max, work.options_max, work.steps_left = spread_max, options_max, steps_max
    work.hazard_max, work.bound, work.best = hazard_max, INFINITY, INFINITY
    work.hazards, work.speeds, work.spread = &hazards[0], &speeds[0], &spread[0]
    work.terms.gross, work.terms.overhead, work.terms.hours_lost = terms[0], terms[1], terms[2]
    for tier in range(TIERS):
        work.terms.crossing[tier], work.terms.preference[tier] = terms[3 + tier], terms[3 + TIERS + tier]
        work.domains[tier], work.tree[tier] = &domains[tier, 0], &tree[tier, 0]
    cdef char *memory = _reserve(&work, count, &domain_counts[0], spread_count)
    if memory == NULL:
        raise MemoryError("no memory for the search")
    try:
        with nogil:
            good = _search(&work, &arenas[0], arena_count, subsets_max)
        if not good:
            raise MemoryError("no memory for the search")
        members = np.empty((work.pool_count, nodes), dtype=np.int32)
        measures = np.empty((work.pool_count, 3 + 2 * TIERS))
        copied = members
        for i in range(work.pool_count):
            memcpy(&copied[i, 0], work.pool[i].nodes, nodes * sizeof(int))
            measures[i, :3] = work.pool[i].price, work.pool[i].hazard, work.pool[i].speed
            for tier in range(TIERS):
                measures[i, 3 + tier] = work.pool[i].domains[tier]
                measures[i, 3 + TIERS + tier] = work.pool[i].unknown[tier]
        return work.bound, members, measures
    finally:
        _release(&work, memory)
