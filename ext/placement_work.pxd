# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Data of the search for a gang: the request, the tree of an arena, and the solutions. C only."""

cdef enum:
    TIERS = 5         # tiers with a price of crossing; also levels of the tree, widest first
    POOL_MAX = 64     # solutions kept
    SPEEDS_MAX = 16
    CUTOFFS_MAX = 5
    LEVELS_TRIED = 2  # in large fleets, for a single option
    LEVELS_OF_OPTIONS = 6
    BUCKETS = 1024
    HAZARD_BUCKETS = 512  # sixteen per doubling
    SMALL = 256       # nodes up to which sums are computed by sorting
    STEPS_OF_A_SWAP = 32
    SWAP_GROUPS = 24  # from which segments are taken, and to which they are given


cdef struct Terms:
    double gross          # GPU-hours
    double overhead       # share of the time lost regardless of the nodes
    double hours_lost     # per interruption
    double crossing[TIERS]    # share by which a step is longer if all traffic crosses this tier
    double preference[TIERS]  # GPU-hours for each domain after the first


cdef struct Solution:
    int *nodes
    double price
    double hazard
    double speed
    double cost           # further GPU-hours of the nodes
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
    # Request.
    int count, nodes, segment, level, spread_max, options_max
    long steps_left
    double hazard_max
    Terms terms
    const double *hazards     # search order: a risk plus at most the worth of a cost
    const double *risks       # per hour
    const double *costs       # GPU-hours
    bint has_costs
    const double *speeds
    const int *domains[TIERS]
    const int *tree[TIERS]
    const int *spread
    # Arena.
    int size
    int *rows
    double *hazard        # by place in the arena, as are all arrays below
    double *risk
    double *cost
    double *speed
    int *group[TIERS]     # by place in the arena
    int *begin[TIERS]     # by group; an additional entry at the end
    int *capacity[TIERS]
    int groups[TIERS]
    int least_domains[TIERS]
    # For a minimum speed and a maximum hazard.
    double speed_min, cutoff
    int *counted          # allowed nodes before each place
    double *summed        # sum of their hazards
    int *members          # places, in the order of taking
    bint is_listed        # `members` is sorted, and `chosen` is not set
    int taken
    unsigned char *chosen
    int *spread_used
    # Scratch memory.
    Child *children
    int *stamps[TIERS]
    int *inside[TIERS]    # members by domain, during swaps
    Solution now
    int stamp
    int *sizes
    double *values
    # Results.
    Solution pool[POOL_MAX]
    int pool_count
    double bound
    double best
    # Minimum speeds of the arena, descending.
    int level_count
    double levels[SPEEDS_MAX + 1]
    double tops[SPEEDS_MAX + 1]
    double least[SPEEDS_MAX + 1]   # lower bound of the least hazard sum of nodes this fast
    int level_of[BUCKETS]
    double speed_low, speed_scale
    int *hazard_counts             # by hazard bucket, cumulated over the levels
    double *hazard_sums


cdef inline double _crossing(int domains, int unknown) noexcept nogil:
    """Return the share of crossing traffic; unknown nodes count halfway between none and all."""
    cdef int fewest = domains if domains > 0 else 1
    cdef int most = domains + unknown
    if most < 1:
        most = 1
    return 0.5 * ((1.0 - 1.0 / fewest) + (1.0 - 1.0 / most))


cdef inline double _price(
    const Terms *terms, double speed, double hazard, double cost, const int *domains, const int *unknown
) noexcept nogil:
    cdef double longer = 0.0, preference = 0.0, lost = terms.overhead + terms.hours_lost * hazard
    cdef int tier
    if lost > 1.0:
        lost = 1.0
    for tier in range(TIERS):
        longer += terms.crossing[tier] * _crossing(domains[tier], unknown[tier])
        if domains[tier] + (unknown[tier] > 0) > 1:
            preference += terms.preference[tier] * (domains[tier] + (unknown[tier] > 0) - 1)
    return terms.gross * (1.0 - speed / (1.0 + longer) * (1.0 - lost)) + preference + cost


cdef inline int _by_capacity(const void *a, const void *b) noexcept nogil:
    """Compare children: the greatest capacity first, then the least hazard, then the position."""
    cdef const Child *x = <const Child *>a
    cdef const Child *y = <const Child *>b
    if x.capacity != y.capacity:
        return 1 if x.capacity < y.capacity else -1
    if x.mean != y.mean:
        return 1 if x.mean > y.mean else -1
    return (x.at > y.at) - (x.at < y.at)


cdef inline double _nth(double *values, int count, int nth) noexcept nogil:
    """Return the *nth* smallest value, from 0; reorders *values*."""
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
