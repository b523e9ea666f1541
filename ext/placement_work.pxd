# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What the search for a gang works on: the question, the tree of an arena, and what was found. C only, no Python object."""

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
    double cost           # GPU-hours that the nodes cost beside
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
    const double *hazards     # of order: with what a node costs beside, as far as that is worth
    const double *risks       # per hour, alone
    const double *costs       # GPU-hours
    bint has_costs
    const double *speeds
    const int *domains[TIERS]
    const int *tree[TIERS]
    const int *spread
    # of the arena
    int size
    int *rows
    double *hazard        # by place in the arena, as all below
    double *risk
    double *cost
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


cdef inline double _crossing(int domains, int unknown) noexcept nogil:
    """Return the share of traffic that crosses: of what is not known, halfway between none and all of it apart."""
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
    """Order children: the roomiest first, the healthiest of those, and then as they lie."""
    cdef const Child *x = <const Child *>a
    cdef const Child *y = <const Child *>b
    if x.capacity != y.capacity:
        return 1 if x.capacity < y.capacity else -1
    if x.mean != y.mean:
        return 1 if x.mean > y.mean else -1
    return (x.at > y.at) - (x.at < y.at)


cdef inline double _nth(double *values, int count, int nth) noexcept nogil:
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
