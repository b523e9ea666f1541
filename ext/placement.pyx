# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Search for the nodes of a gang: minimizes the price under constraints. Releases the GIL.

The nodes are arrays in the order of the domain tree, widest domain first, and by hazard within the
narrowest. The search fills domains by best fit, for each pair of a minimum speed and a maximum
hazard of a member, and then swaps segments between domains. It counts its work in steps, not in
seconds, so the same request has the same result. If there are few subsets it tries all. A relaxed
problem (the fastest nodes, the smallest hazards, the fewest domains, each taken separately) bounds
the price from below.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from placement_work cimport (
    CUTOFFS_MAX, Child, HAZARD_BUCKETS, LEVELS_OF_OPTIONS, LEVELS_TRIED, SMALL, SPEEDS_MAX, TIERS,
    Work,
)
from placement_tree cimport _build, _clear, _count
from placement_bounds cimport _least_domains, _nth_hazard, _optimistic, _speed_levels, _sum_by_level
from placement_fill cimport _healthiest, _offer, _pack
from placement_swaps cimport _improve

import numpy as np

TIERS_COUNT = TIERS


cdef double _subsets(int size, int nodes) noexcept nogil:
    cdef double total = 1.0
    cdef int i
    for i in range(nodes):
        total = total * (size - i) / (i + 1)
    return total


cdef bint _whole_segments(Work *work) noexcept nogil:
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
    """Offer each valid subset. False without memory."""
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
    """Search an arena. False without memory."""
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
        # Only whether the gang fits is asked, which the least hazards of all nodes decide.
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
    # The most promising levels first, and only a few of them if only the price counts.
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
        if work.least[level] > work.hazard_max and not work.has_costs:
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
    """Search among the nodes of a level. False without memory."""
    cdef double cutoff, before = INFINITY
    cdef int j, k, total = work.counted[work.size]
    cdef int step = CUTOFFS_MAX - 2 if work.options_max == 1 and work.size > SMALL else 1
    if not _healthiest(work, level) or not _offer(work):
        return False
    j = 0
    while j < CUTOFFS_MAX:
        # Maximum hazards: none, then values that exclude the worst of the surplus nodes.
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


#: The last search's memory, for the next: new pages cost more than the search. 4 MB for 10,000
#: nodes.
cdef char *_memory = NULL
cdef size_t _memory_bytes = 0
cdef bint _memory_is_used = False


cdef size_t _lay_out(Work *work, char *memory, int size, const int *domain_counts, int spread_count) noexcept nogil:
    """Place all arrays in *memory* (NULL: nowhere); return the size in bytes."""
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
    work.risk = <double *>_piece(memory, &at, size * sizeof(double))
    work.cost = <double *>_piece(memory, &at, size * sizeof(double))
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
    """Return the next piece, aligned to 16 bytes."""
    cdef char *piece = memory + at[0] if memory != NULL else NULL
    at[0] += (size_bytes + 15) & ~<size_t>15
    return piece


cdef char *_reserve(Work *work, int size, const int *domain_counts, int spread_count):
    """Return memory for all arrays, the last search's if free; NULL without memory."""
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
    """Search all arenas. False without memory."""
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
        for arena in range(arena_count):  # begin[arena] is now the end of the arena
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
    const double[::1] hazards not None, const double[::1] risks not None, const double[::1] costs not None, bint has_costs,
    const double[::1] speeds not None, const int[:, ::1] tree not None,
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
        speeds.shape[0] != count or risks.shape[0] != count or costs.shape[0] != count or tree.shape[0] != TIERS or tree.shape[1] != count or domains.shape[0] != TIERS
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
    work.risks, work.costs, work.has_costs = &risks[0], &costs[0], has_costs
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


def domains_spanned(const int[:, ::1] tiers not None, const int[::1] counts not None, const Py_ssize_t[::1] nodes not None):
    cdef Py_ssize_t i, count = nodes.shape[0], width = tiers.shape[1]
    cdef int tier, most = 0, at
    domains = np.zeros(tiers.shape[0], dtype=np.int32)
    unknown = np.zeros(tiers.shape[0], dtype=np.int32)
    cdef int[::1] spanned = domains, missing = unknown
    _check_domains(tiers, counts)
    for tier in range(counts.shape[0]):
        most = max(most, counts[tier])
    seen = np.full(most + 1, -1, dtype=np.int32)
    cdef int[::1] last = seen
    for i in range(count):
        if not 0 <= nodes[i] < width:
            raise IndexError(f"node {nodes[i]} of {width}")
    with nogil:
        for tier in range(tiers.shape[0]):
            for i in range(count):
                at = tiers[tier, nodes[i]]
                if at < 0:
                    missing[tier] += 1
                elif at < most and last[at] != tier:
                    last[at] = tier
                    spanned[tier] += 1
    return domains, unknown


def largest_domains(
    const int[:, ::1] tiers not None, const int[::1] counts not None, const Py_ssize_t[::1] free_nodes not None,
    const Py_ssize_t[::1] nodes not None,
):
    cdef Py_ssize_t i, width = tiers.shape[1]
    cdef int tier, most = 0, at
    _check_domains(tiers, counts)
    for tier in range(counts.shape[0]):
        most = max(most, counts[tier])
    before = np.zeros(tiers.shape[0], dtype=np.int32)
    after = np.zeros(tiers.shape[0], dtype=np.int32)
    sizes = np.zeros(most + 1, dtype=np.int32)
    cdef int[::1] largest = before, left = after, size = sizes
    for i in range(free_nodes.shape[0]):
        if not 0 <= free_nodes[i] < width:
            raise IndexError(f"node {free_nodes[i]} of {width}")
    for i in range(nodes.shape[0]):
        if not 0 <= nodes[i] < width:
            raise IndexError(f"node {nodes[i]} of {width}")
    with nogil:
        for tier in range(tiers.shape[0]):
            memset(&size[0], 0, (most + 1) * sizeof(int))
            for i in range(free_nodes.shape[0]):
                at = tiers[tier, free_nodes[i]]
                if 0 <= at < most:
                    size[at] += 1
                    largest[tier] = max(largest[tier], size[at])
            for i in range(nodes.shape[0]):
                at = tiers[tier, nodes[i]]
                if 0 <= at < most:
                    size[at] -= 1
            for i in range(most):
                left[tier] = max(left[tier], size[i])
    return before, after


cdef _check_domains(const int[:, ::1] tiers, const int[::1] counts):
    if counts.shape[0] != tiers.shape[0]:
        raise ValueError("a count of domains for each tier is expected")
