# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What each GPU does, sample by sample: levels learned from its job, states, segments, checkpoints. C only, no Python object.

A sample costs a few additions into histograms made before; the levels are learned from those once a second at most.
"""

from libc.math cimport NAN, exp, fabs, isfinite, log2
from libc.stdint cimport int64_t
from libc.string cimport memset

cdef enum:
    # What a sample has of a GPU, in this order (SIGNALS of phases.pyi).
    POWER, CLOCK, REASONS, UTILIZATION, SM_ACTIVE, TENSOR, BANDWIDTH, PCIE_SENT, PCIE_RECEIVED, NVLINK_RECEIVED, NVLINK_SENT
    SIGNAL_COUNT = 11
    COMPUTE = 0
    WAIT = 1
    HOST_STALL = 2
    CHECKPOINT = 3
    IDLE = 4
    STATE_COUNT = 5
    BINS = 256
    SEGMENTS_MAX = 128
    STRETCHES_MAX = 16
    # By which signal computing is told from waiting, the best first.
    BY_SM = 0
    BY_TENSOR = 1
    BY_POWER = 2
    WITNESSES = 3


cdef extern from *:
    """
    #define NOMINAL_SECONDS 0.1  /* what a sample stands for that has none before it */
    #define GAP_SECONDS 1.5  /* of longer ones nothing is known */
    #define HOLD_SECONDS 0.25  /* GPM and utilisation are sampled at every second pass */
    #define IDLE_SECONDS 30.0  /* quiet for so long: the job is over */
    #define REORDER_SECONDS 10.0  /* what is older than the last sample by more: another clock */
    #define FORGET_SECONDS 1800.0  /* time constant of the histograms */
    #define CLASS_SECONDS_MIN 2.0  /* of either level, before both are believed */
    #define STRETCH_OPEN_SECONDS 0.3  /* so long without computing opens a stretch; so long of computing ends it */
    #define STRETCH_SECONDS_MIN 1.0  /* a shorter one is no candidate for a checkpoint */
    #define STRETCH_AGE_MAX 14400.0
    #define SEGMENT_SECONDS_MIN 0.5  /* a state that is shorter begins no segment */
    #define CHECKPOINT_INTERVAL_MIN 10.0  /* what comes more often is taken for steps */
    #define STEP_SECONDS_MAX 90.0  /* three steps of 30 s: a longer period is rather that of checkpoints */
    #define INTERVAL_TOLERANCE 0.12
    """
    const double NOMINAL_SECONDS
    const double GAP_SECONDS
    const double HOLD_SECONDS
    const double IDLE_SECONDS
    const double REORDER_SECONDS
    const double FORGET_SECONDS
    const double CLASS_SECONDS_MIN
    const double STRETCH_OPEN_SECONDS
    const double STRETCH_SECONDS_MIN
    const double STRETCH_AGE_MAX
    const double SEGMENT_SECONDS_MIN
    const double CHECKPOINT_INTERVAL_MIN
    const double STEP_SECONDS_MAX
    const double INTERVAL_TOLERANCE

cdef struct Levels:
    float weight[BINS]  # seconds
    float resident[BINS]  # of these, with a kernel on the GPU
    float total[BINS]  # seconds times value
    bint is_power  # bins are even in the logarithm, from 8 W to 2 kW: a small GPU waits at 30 W
    double width  # bins to 1; of power, to an octave
    double apart_max  # the low level over the high one, at most: else they are one
    double seconds
    double low, high, wait  # NaN: not known. wait: the low one with a kernel resident
    double high_share  # of the upper class, at or below the high level
    double spread  # of the upper class, in distances between the levels

cdef struct Segment:
    int64_t begin_ns, end_ns
    double seconds, power_seconds, watt_seconds, confidence_seconds
    int state

cdef struct Stretch:
    int64_t begin_ns, end_ns
    bint is_checkpoint

cdef struct Cadence:
    int count  # of the longest stretches
    bint by_work  # see cadence_try
    double interval
    int regular, irregular  # intervals
    double off  # of the regular ones, in intervals

cdef struct TrackedGpu:
    Levels levels[WITNESSES]
    Segment segments[SEGMENTS_MAX]
    Stretch stretches[STRETCHES_MAX]
    int64_t segment_count
    int stretch_count
    int64_t last_ns, gpm_ns, used_ns
    float sm_active, tensor, used  # the last ones, for HOLD_SECONDS
    double learn_in_seconds, forget_in_seconds, learned_seconds
    double floor_watts  # without a job; NaN
    double quiet_seconds, active_seconds
    int processes  # -1 not known, 0 none, 1 some
    bint has_job
    int64_t jobs
    double disagreement  # of power with the better witness, 0..1, decaying
    int state
    double confidence
    # A state that may become a segment.
    int pending_state
    double pending_seconds, pending_power_seconds, pending_watt_seconds, pending_confidence
    int64_t pending_begin_ns
    # A stretch without computing.
    bint is_stretch
    int64_t stretch_begin_ns
    double waiting_seconds, computing_seconds
    bint in_checkpoint
    # Cadence of checkpoints, from the stretches.
    double interval_seconds, duration_seconds, step_seconds
    bint by_work  # see cadence_try
    int64_t last_checkpoint_ns  # its begin; by_work: the end less the usual duration
    int regular, irregular  # intervals
    # A prediction that is not yet decided.
    int64_t predicted_ns
    double predicted_probability
    bint is_predicted
    double brier_sum
    int64_t brier_count, hits
    double recent, recent_hits  # predictions, the older ones count less
    # Of the second.
    double known_seconds, job_seconds, duty_seconds, resident_seconds, checkpoint_seconds, idle_seconds
    double confidence_sum
    double stretch_job_seconds, stretch_duty_seconds, stretch_resident_seconds  # of job_seconds..., in the open stretch
    # Of the job.
    double state_seconds[STATE_COUNT]
    double state_power_seconds[STATE_COUNT]
    double state_watt_seconds[STATE_COUNT]
    int64_t left_out  # samples out of order

cdef struct Tracker:
    TrackedGpu *gpus
    int rows


# ---- levels ----------------------------------------------------------------------------------------------

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
    """Return the first bin of the upper class below bin *end*, by the greatest variance between the two (Otsu 1979)."""
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
    """Find both levels; the low one stays unknown where they are not apart. Where the split is of two kinds of computing,
    what is below it is split again. *floor*: the value without a job, NaN if not known.

    A reading that is an average over some of either lies between the two: so a level is not the middle of its class, but
    nearer to its far end.
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
                if middle_low > 1.1 * l.wait:  # waits too short for the reading to come down
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


# ---- jobs ------------------------------------------------------------------------------------------------

cdef inline void job_clear(TrackedGpu *g) noexcept nogil:
    """Forget what was learned of a job."""
    cdef int i
    levels_clear(&g.levels[BY_SM], False, 0.5, 0.75)
    levels_clear(&g.levels[BY_TENSOR], False, 0.3, 0.75)
    levels_clear(&g.levels[BY_POWER], True, 0.62, 0.6)
    g.learn_in_seconds, g.forget_in_seconds, g.learned_seconds = 1, 10, 0
    g.stretch_count = 0
    g.is_stretch = g.in_checkpoint = g.is_predicted = False
    g.waiting_seconds = g.computing_seconds = 0
    g.interval_seconds = g.duration_seconds = g.step_seconds = NAN
    g.regular = g.irregular = 0
    g.recent = g.recent_hits = 0
    g.last_checkpoint_ns = 0
    g.disagreement = 0
    g.quiet_seconds = g.active_seconds = 0
    g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0
    for i in range(STATE_COUNT):
        g.state_seconds[i] = g.state_power_seconds[i] = g.state_watt_seconds[i] = 0


cdef inline void job_begin(TrackedGpu *g) noexcept nogil:
    job_clear(g)
    g.has_job = True
    g.jobs += 1


cdef inline void job_learn(TrackedGpu *g, double seconds) noexcept nogil:
    """Learn the levels: each second while the job is young, then each five."""
    cdef int i
    g.learned_seconds += seconds
    g.learn_in_seconds -= seconds
    g.forget_in_seconds -= seconds
    if g.forget_in_seconds <= 0:
        g.forget_in_seconds = 10
        for i in range(WITNESSES):
            if g.levels[i].seconds > 0:
                levels_forget(&g.levels[i], 10)
    if g.learn_in_seconds <= 0:
        g.learn_in_seconds = 1 if g.learned_seconds < 60 else 5
        for i in range(WITNESSES):
            if g.levels[i].seconds > 0:
                levels_learn(&g.levels[i], g.floor_watts if i == BY_POWER else NAN)


# ---- segments --------------------------------------------------------------------------------------------

cdef inline Segment *segment_last(TrackedGpu *g) noexcept nogil:
    return &g.segments[(g.segment_count - 1) % SEGMENTS_MAX] if g.segment_count else NULL


cdef inline void segment_relabel(TrackedGpu *g, Segment *s, int state) noexcept nogil:
    if s.state == state:
        return
    g.state_seconds[s.state] -= min(s.seconds, g.state_seconds[s.state])
    g.state_power_seconds[s.state] -= min(s.power_seconds, g.state_power_seconds[s.state])
    g.state_watt_seconds[s.state] -= min(s.watt_seconds, g.state_watt_seconds[s.state])
    s.state = state
    g.state_seconds[state] += s.seconds
    g.state_power_seconds[state] += s.power_seconds
    g.state_watt_seconds[state] += s.watt_seconds


cdef inline void pending_clear(TrackedGpu *g) noexcept nogil:
    g.pending_seconds = g.pending_power_seconds = g.pending_watt_seconds = g.pending_confidence = 0


cdef inline void segment_take(TrackedGpu *g, Segment *s, int64_t now_ns) noexcept nogil:
    """Add what is pending to a segment."""
    s.end_ns = now_ns
    s.seconds += g.pending_seconds
    s.power_seconds += g.pending_power_seconds
    s.watt_seconds += g.pending_watt_seconds
    s.confidence_seconds += g.pending_confidence
    g.state_seconds[s.state] += g.pending_seconds
    g.state_power_seconds[s.state] += g.pending_power_seconds
    g.state_watt_seconds[s.state] += g.pending_watt_seconds
    pending_clear(g)


cdef inline void segment_open(TrackedGpu *g, int state, int64_t begin_ns) noexcept nogil:
    cdef Segment *s = &g.segments[g.segment_count % SEGMENTS_MAX]
    memset(s, 0, sizeof(s[0]))
    s.state, s.begin_ns, s.end_ns = state, begin_ns, begin_ns
    g.segment_count += 1


cdef inline void segment_put(TrackedGpu *g, int64_t now_ns, double seconds, int state, double watts,
                             double confidence, bint is_after_gap) noexcept nogil:
    """Add a sample: to the last segment, or to what may become the next one."""
    cdef Segment *s = segment_last(g)
    if s == NULL or is_after_gap:
        pending_clear(g)
        segment_open(g, state, now_ns - <int64_t>(seconds * 1e9))
        s = segment_last(g)
    if state != s.state and (g.pending_seconds == 0 or g.pending_state != state):
        if g.pending_seconds > 0:
            segment_take(g, s, now_ns - <int64_t>(seconds * 1e9))
        g.pending_state, g.pending_begin_ns = state, now_ns - <int64_t>(seconds * 1e9)
    g.pending_seconds += seconds
    g.pending_confidence += seconds * confidence
    if isfinite(watts):
        g.pending_power_seconds += seconds
        g.pending_watt_seconds += seconds * watts
    if state == s.state:
        segment_take(g, s, now_ns)
    elif g.pending_seconds >= SEGMENT_SECONDS_MIN - 1e-6:
        segment_open(g, state, g.pending_begin_ns)
        segment_take(g, segment_last(g), now_ns)


# ---- checkpoints -----------------------------------------------------------------------------------------

cdef inline double middle(double *values, int count) noexcept nogil:
    """Return the median; sorts."""
    cdef int i, k
    cdef double value
    for i in range(1, count):
        value, k = values[i], i
        while k > 0 and values[k - 1] > value:
            values[k] = values[k - 1]
            k -= 1
        values[k] = value
    return values[count // 2] if count % 2 else (values[count // 2 - 1] + values[count // 2]) / 2


cdef inline bint cadence_try(TrackedGpu *g, int *order, int count, bint by_work, Cadence *found) noexcept nogil:
    """Say whether the *count* longest stretches come regularly. *order*: the longest first. *by_work*: after as much time
    between them, however long each takes, as when a job writes one each so many steps; else by the clock."""
    cdef double[STRETCHES_MAX] gaps, sorted_gaps, durations
    cdef int[STRETCHES_MAX] by_time
    cdef int i, k, at, times
    cdef double longest, least, usual, interval, off
    for i in range(count):
        at, k = order[i], i
        while k > 0 and g.stretches[by_time[k - 1]].begin_ns > g.stretches[at].begin_ns:
            by_time[k] = by_time[k - 1]
            k -= 1
        by_time[k] = at
    for i in range(count):
        durations[i] = (g.stretches[order[i]].end_ns - g.stretches[order[i]].begin_ns) / 1e9
    usual = middle(durations, count)
    for i in range(count - 1):
        if by_work:
            gaps[i] = (g.stretches[by_time[i + 1]].begin_ns - g.stretches[by_time[i]].end_ns) / 1e9 + usual
        else:
            gaps[i] = (g.stretches[by_time[i + 1]].begin_ns - g.stretches[by_time[i]].begin_ns) / 1e9
        sorted_gaps[i] = gaps[i]
    interval = middle(sorted_gaps, count - 1)
    least = (g.stretches[order[count - 1]].end_ns - g.stretches[order[count - 1]].begin_ns) / 1e9
    longest = (g.stretches[order[0]].end_ns - g.stretches[order[0]].begin_ns) / 1e9
    if interval < CHECKPOINT_INTERVAL_MIN or interval < 3 * g.step_seconds < STEP_SECONDS_MAX:
        return False
    if longest > 5 * least or usual > 0.9 * interval:
        return False
    found[0] = Cadence(count, by_work, interval, 0, 0, 0)
    for i in range(count - 1):
        times = <int>(gaps[i] / interval + 0.5)
        off = fabs(gaps[i] - times * interval) / interval
        if 1 <= times <= 3 and off <= INTERVAL_TOLERANCE:
            found.regular += 1
            found.irregular += times - 1
            found.off += off
        else:
            found.irregular += 1
    return found.regular >= 2 and 4 * found.regular >= 3 * (count - 1)


cdef inline void cadence_mark(TrackedGpu *g, int *order, int count) noexcept nogil:
    """Note which stretches are checkpoints, and call their segments so."""
    cdef Stretch *stretch
    cdef Segment *segment
    cdef double[STRETCHES_MAX] durations
    cdef int64_t number, middle_ns
    cdef int i
    g.last_checkpoint_ns = 0
    for i in range(g.stretch_count):
        stretch = &g.stretches[order[i]]
        if i >= count:
            stretch.is_checkpoint = False
            continue
        durations[i] = (stretch.end_ns - stretch.begin_ns) / 1e9
        g.last_checkpoint_ns = max(g.last_checkpoint_ns, stretch.end_ns if g.by_work else stretch.begin_ns)
        if stretch.is_checkpoint:
            continue
        stretch.is_checkpoint = True
        for number in range(max(0, g.segment_count - SEGMENTS_MAX), g.segment_count):
            segment = &g.segments[number % SEGMENTS_MAX]
            middle_ns = segment.begin_ns + (segment.end_ns - segment.begin_ns) // 2
            if segment.state != COMPUTE and segment.state != IDLE and stretch.begin_ns <= middle_ns <= stretch.end_ns:
                segment_relabel(g, segment, CHECKPOINT)
    g.duration_seconds = middle(durations, count)
    if g.by_work:
        g.last_checkpoint_ns -= <int64_t>(g.duration_seconds * 1e9)


cdef inline void cadence_find(TrackedGpu *g) noexcept nogil:
    """Find the cadence that most of the long stretches have."""
    cdef int[STRETCHES_MAX] order
    cdef int i, k, count
    cdef Cadence found, best
    cdef int64_t length
    best = Cadence(0, False, 0, 0, 0, 0)
    for i in range(g.stretch_count):
        length, k = g.stretches[i].end_ns - g.stretches[i].begin_ns, i
        while k > 0 and g.stretches[order[k - 1]].end_ns - g.stretches[order[k - 1]].begin_ns < length:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i
    for count in range(3, g.stretch_count + 1):
        for i in range(2):
            if not cadence_try(g, order, count, i, &found):
                continue
            if best.count < count or found.irregular < best.irregular or (found.irregular == best.irregular and found.off < best.off):
                best = found
    if best.count:
        g.by_work, g.interval_seconds = best.by_work, best.interval
        g.regular, g.irregular = best.regular, best.irregular
        cadence_mark(g, order, best.count)
    else:
        g.interval_seconds = g.duration_seconds = NAN
        g.regular = g.irregular = 0


cdef inline double next_probability(TrackedGpu *g) noexcept nogil:
    """Return the share of the intervals that were regular and of the predictions that came true, these twice, as the rule
    of succession has it."""
    return (1 + g.regular + 2 * g.recent_hits) / (2 + g.regular + g.irregular + 2 * g.recent)


cdef inline void predict(TrackedGpu *g) noexcept nogil:
    """Say when the next one is due; kept until it is decided."""
    if isfinite(g.interval_seconds) and g.last_checkpoint_ns:
        g.predicted_ns = g.last_checkpoint_ns + <int64_t>(g.interval_seconds * 1e9)
        g.predicted_probability = next_probability(g)
        g.is_predicted = True


cdef inline void decide(TrackedGpu *g, bint came) noexcept nogil:
    cdef double off = g.predicted_probability - (1.0 if came else 0.0)
    g.brier_sum += off * off
    g.brier_count += 1
    g.hits += came
    g.recent = 0.8 * g.recent + 1
    g.recent_hits = 0.8 * g.recent_hits + came
    g.is_predicted = False


cdef inline void stretch_keep(TrackedGpu *g, int64_t begin_ns, int64_t end_ns) noexcept nogil:
    """Remember a stretch in place of the oldest of those that are not much longer."""
    cdef int i, place = -1
    cdef int64_t length = end_ns - begin_ns
    cdef Stretch *stretch
    for i in range(g.stretch_count):
        stretch = &g.stretches[i]
        if end_ns - stretch.end_ns > <int64_t>(STRETCH_AGE_MAX * 1e9):
            place = i
            break
        if g.stretch_count == STRETCHES_MAX and stretch.end_ns - stretch.begin_ns <= 2 * length:
            if place < 0 or stretch.begin_ns < g.stretches[place].begin_ns:
                place = i
    if place < 0 and g.stretch_count < STRETCHES_MAX:
        place = g.stretch_count
        g.stretch_count += 1
    if place >= 0:
        g.stretches[place] = Stretch(begin_ns, end_ns, False)


cdef inline void stretch_end(TrackedGpu *g, int64_t end_ns) noexcept nogil:
    cdef double computed
    if g.in_checkpoint:  # the samples by which its end was seen were counted to it
        computed = min(g.computing_seconds, g.checkpoint_seconds)
        g.checkpoint_seconds -= computed
        g.job_seconds += computed
        g.duty_seconds += computed
        g.resident_seconds += computed
    g.is_stretch = g.in_checkpoint = False
    g.waiting_seconds = g.computing_seconds = 0
    g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0
    if end_ns - g.stretch_begin_ns >= <int64_t>(STRETCH_SECONDS_MIN * 1e9):
        stretch_keep(g, g.stretch_begin_ns, end_ns)
        cadence_find(g)
        if not g.is_predicted:
            predict(g)


cdef inline void stretch_put(TrackedGpu *g, int64_t now_ns, double seconds, double duty) noexcept nogil:
    """Follow stretches without computing, and say whether this one is a checkpoint."""
    cdef double off_seconds, elapsed
    if not g.is_stretch:
        if duty >= 0.4:
            g.waiting_seconds = 0
            return
        if g.waiting_seconds == 0:
            g.stretch_begin_ns = now_ns - <int64_t>(seconds * 1e9)
            g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0
        g.waiting_seconds += seconds
        g.is_stretch = g.waiting_seconds >= STRETCH_OPEN_SECONDS - 1e-6
        g.computing_seconds = 0
    elif duty >= 0.6:
        g.computing_seconds += seconds
        if g.computing_seconds >= STRETCH_OPEN_SECONDS - 1e-6:
            g.computing_seconds -= seconds  # this one is not counted yet
            stretch_end(g, now_ns - <int64_t>((g.computing_seconds + seconds) * 1e9))
            return
    else:
        g.computing_seconds = 0
    if not g.is_stretch or g.in_checkpoint or not isfinite(g.interval_seconds):
        return
    elapsed = (now_ns - g.stretch_begin_ns) / 1e9
    off_seconds = (g.stretch_begin_ns - g.last_checkpoint_ns) / 1e9
    while off_seconds > 0.5 * g.interval_seconds:
        off_seconds -= g.interval_seconds
    if fabs(off_seconds) > max(0.15 * g.interval_seconds, 1.5) or g.stretch_begin_ns <= g.last_checkpoint_ns:
        return
    if elapsed < max(0.5, 0.1 * g.duration_seconds):
        return
    if g.is_predicted:
        decide(g, fabs((g.stretch_begin_ns - g.predicted_ns) / 1e9) <= 0.1 * g.interval_seconds)
    if next_probability(g) < 0.5:
        return
    g.in_checkpoint = True
    g.job_seconds -= g.stretch_job_seconds
    g.duty_seconds -= g.stretch_duty_seconds
    g.resident_seconds -= g.stretch_resident_seconds
    g.checkpoint_seconds += g.stretch_job_seconds
    g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0


# ---- a sample --------------------------------------------------------------------------------------------

cdef inline double within(float value, double most) noexcept nogil:
    """Return the value; NaN where it cannot be."""
    return value if isfinite(value) and 0 <= value <= most else NAN


cdef inline bint follow_job(TrackedGpu *g, double seconds, double watts, double used, double active) noexcept nogil:
    """Say whether a job is there: its processes say so, or the GPU is used; until it is quiet for IDLE_SECONDS."""
    cdef bint is_active, is_quiet
    cdef Segment *last
    if isfinite(used):
        is_active, is_quiet = used >= 0.05, used < 0.01
    elif isfinite(active):
        is_active, is_quiet = active >= 0.05, active < 0.01
    elif isfinite(g.floor_watts):
        is_active, is_quiet = watts > 1.35 * g.floor_watts + 10, True
    else:  # power alone, and never seen without a job
        is_active, is_quiet = watts >= 100, False
    if isfinite(watts) and isfinite(g.floor_watts) and watts > 1.25 * g.floor_watts:
        is_quiet = False
    g.active_seconds = g.active_seconds + seconds if is_active else 0
    if g.processes == 0 and g.active_seconds >= 2:
        g.processes = -1  # who is there cannot be seen
    if not g.has_job:
        if g.processes > 0 or (g.processes < 0 and g.active_seconds >= 0.2 - 1e-6):
            job_begin(g)
        elif isfinite(watts):
            g.floor_watts = watts if not g.floor_watts <= watts else g.floor_watts + (watts - g.floor_watts) * min(1.0, seconds / 600)
        return g.has_job
    g.quiet_seconds = g.quiet_seconds + seconds if is_quiet else 0
    if g.processes == 0 or (g.processes < 0 and g.quiet_seconds >= IDLE_SECONDS):
        g.has_job = False
        last = segment_last(g)
        if g.processes < 0 and last != NULL and last.end_ns - last.begin_ns <= <int64_t>(1.1 * g.quiet_seconds * 1e9):
            segment_relabel(g, last, IDLE)
        g.is_stretch = g.in_checkpoint = g.is_predicted = False
        g.waiting_seconds = 0
    return g.has_job


cdef inline double duty_of(TrackedGpu *g, double watts, double used, double active, double tensor, double *confidence) noexcept nogil:
    """Return the share of computing, below 0 and above 1 by what samples scatter, by the best witness whose levels are
    apart; without one, a guess and little confidence."""
    cdef double[WITNESSES] values
    cdef double[WITNESSES] duties
    cdef double certainty
    cdef int i, best = -1
    values[BY_SM], values[BY_TENSOR], values[BY_POWER] = active, tensor, watts
    for i in range(WITNESSES):
        duties[i] = NAN
        if isfinite(values[i]) and isfinite(g.levels[i].low):
            duties[i] = (values[i] - g.levels[i].low) / (g.levels[i].high - g.levels[i].low)
            duties[i] = min(max(duties[i], -0.5), 1.5)
            if best < 0:
                best = i
    if best >= 0:
        certainty = 0.95 if best == BY_SM else 0.9 if best == BY_TENSOR else 0.85
        # A high level that is smeared is an average of computing and waiting.
        certainty *= 1 - min(2 * g.levels[best].spread, 0.6)
        if best != BY_POWER and isfinite(watts):
            # Where power smoothing keeps a floor, power knows of no waiting.
            i = isfinite(duties[BY_POWER])
            g.disagreement += 0.02 * ((fabs(min(max(duties[BY_POWER], 0.0), 1.0) - min(max(duties[best], 0.0), 1.0)) if i else 0.5)
                                      - g.disagreement)
        confidence[0] = certainty * (1 - 0.5 * g.disagreement)
        return duties[best]
    if isfinite(active) and g.levels[BY_SM].seconds >= CLASS_SECONDS_MIN:
        confidence[0] = 0.5
        return 1.0 if active >= 0.3 or tensor >= 0.05 else 0.0
    if isfinite(watts) and isfinite(g.levels[BY_POWER].high):
        confidence[0] = 0.2 if g.floor_watts > 0 and g.levels[BY_POWER].high < 3 * g.floor_watts else 0.35
        if isfinite(used) and used < 0.5:
            return used if watts < 0.75 * g.levels[BY_POWER].high else 1.0
        return 1.0 if watts >= 0.75 * g.levels[BY_POWER].high else 0.5
    confidence[0] = 0.1
    return used if isfinite(used) else 0.5


cdef inline void track_job(TrackedGpu *g, int64_t now_ns, double seconds, double watts, double used, double active,
                           double tensor, double resident, bint is_after_gap) noexcept nogil:
    cdef bint is_resident = not resident < 0.5
    cdef double duty, compute, stall, confidence = 0
    if isfinite(watts):
        levels_add(&g.levels[BY_POWER], watts, seconds, is_resident)
    if isfinite(active):
        levels_add(&g.levels[BY_SM], active, seconds, is_resident)
    if isfinite(tensor):
        levels_add(&g.levels[BY_TENSOR], tensor, seconds, is_resident)
    job_learn(g, seconds)
    duty = duty_of(g, watts, used, active, tensor, &confidence)
    compute = min(max(duty, 0.0), 1.0)
    if not isfinite(resident):
        resident = 1
    stall = min(1 - resident, 1 - compute)
    if is_after_gap:
        g.is_stretch = g.in_checkpoint = False
        g.waiting_seconds = 0
    if g.is_predicted and now_ns > g.predicted_ns + <int64_t>((0.1 * g.interval_seconds + 1) * 1e9):
        decide(g, False)
    stretch_put(g, now_ns, seconds, compute)
    if g.in_checkpoint:
        g.checkpoint_seconds += seconds
    else:
        g.job_seconds += seconds
        g.duty_seconds += seconds * duty
        g.resident_seconds += seconds * resident
        if g.waiting_seconds > 0:
            g.stretch_job_seconds += seconds
            g.stretch_duty_seconds += seconds * duty
            g.stretch_resident_seconds += seconds * resident
    g.confidence_sum += seconds * confidence
    g.confidence = confidence
    g.state = CHECKPOINT if g.in_checkpoint and compute < 0.6 else COMPUTE if compute >= 0.5 else HOST_STALL if 2 * stall > 1 - compute else WAIT


cdef inline void second_clear(TrackedGpu *g) noexcept nogil:
    g.known_seconds = g.job_seconds = g.duty_seconds = g.resident_seconds = 0
    g.checkpoint_seconds = g.idle_seconds = g.confidence_sum = 0
    g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0


cdef inline void track(Tracker *t, int row, int64_t now_ns, const float *values) noexcept nogil:
    """Take one sample of a GPU; what is NaN in it is not known."""
    cdef TrackedGpu *g = &t.gpus[row]
    cdef double watts = within(values[POWER], 1e5), used = within(values[UTILIZATION], 1.01)
    cdef double active = within(values[SM_ACTIVE], 1.01), tensor = within(values[TENSOR], 1.01)
    cdef double seconds, resident
    cdef bint is_after_gap = False
    if not (isfinite(watts) or isfinite(used) or isfinite(active)):
        return
    seconds = (now_ns - g.last_ns) / 1e9 if g.last_ns else NOMINAL_SECONDS
    if -REORDER_SECONDS < seconds <= 0:
        g.left_out += 1
        return
    if seconds <= 0:  # another clock: what is remembered by time is of no use
        g.stretch_count, g.is_predicted = 0, False
        g.interval_seconds = NAN
    if seconds <= 0 or seconds > GAP_SECONDS or not g.last_ns:
        seconds, is_after_gap = NOMINAL_SECONDS, True
    g.last_ns = now_ns
    if isfinite(active) or isfinite(tensor):
        g.sm_active, g.tensor, g.gpm_ns = <float>active, <float>tensor, now_ns
    elif 0 <= now_ns - g.gpm_ns <= <int64_t>(HOLD_SECONDS * 1e9):
        active, tensor = g.sm_active, g.tensor
    if isfinite(used):
        g.used, g.used_ns = <float>used, now_ns
    elif 0 <= now_ns - g.used_ns <= <int64_t>(HOLD_SECONDS * 1e9):
        used = g.used
    resident = used if isfinite(used) else NAN if not isfinite(active) else 1.0 if active > 0.02 else 0.0
    g.known_seconds += seconds
    if follow_job(g, seconds, watts, used, active):
        track_job(g, now_ns, seconds, watts, used, active, tensor, resident, is_after_gap)
    else:
        g.idle_seconds += seconds
        g.state, g.confidence = IDLE, 0.95 if isfinite(used) or isfinite(active) else 0.5
        g.confidence_sum += seconds * g.confidence
    segment_put(g, now_ns, seconds, g.state, watts, g.confidence, is_after_gap)


# ---- what a second amounts to, and a job -----------------------------------------------------------------

cdef inline bint second_take(TrackedGpu *g, double *found) noexcept nogil:
    """Write the share of each state, and the confidence, over what is known since the last call; False: nothing is."""
    cdef double known = g.known_seconds, job, compute = 0, stall = 0, others
    if known <= 0:
        second_clear(g)
        return False
    job = max(g.job_seconds, 0.0)
    others = max(g.checkpoint_seconds, 0.0) + g.idle_seconds + job
    if others <= 0:
        others, job = 1, 1
    if job > 0 and g.job_seconds > 0:
        compute = min(max(g.duty_seconds / job, 0.0), 1.0)
        stall = min(min(max(1 - g.resident_seconds / job, 0.0), 1.0), 1 - compute)
    found[COMPUTE] = compute * job / others
    found[HOST_STALL] = stall * job / others
    found[WAIT] = max(1 - compute - stall, 0.0) * job / others
    found[CHECKPOINT] = max(g.checkpoint_seconds, 0.0) / others
    found[IDLE] = g.idle_seconds / others
    found[STATE_COUNT] = min(g.confidence_sum / known, 1.0)
    second_clear(g)
    return True


cdef inline void job_values(TrackedGpu *g, int64_t now_ns, double *found) noexcept nogil:
    """Write what is known of the job: changes, levels, cadence, next checkpoint and its probability; NaN: missing."""
    cdef int i
    cdef double late
    found[0] = g.jobs
    for i in range(1, 7):
        found[i] = NAN
    if not g.has_job:
        return
    found[1] = g.levels[BY_POWER].high
    found[2] = g.levels[BY_POWER].wait
    if not isfinite(g.interval_seconds):
        return
    late = (now_ns - g.last_checkpoint_ns) / 1e9 / g.interval_seconds
    if g.in_checkpoint:
        late = min((now_ns - g.stretch_begin_ns) / 1e9, g.duration_seconds) / g.interval_seconds
    if late > 3.5:  # it has none any more
        return
    found[3], found[4] = g.interval_seconds, g.duration_seconds
    i = <int>(late - 0.1) + 1 if late > 0.1 else 1  # one that is a tenth late is due now
    found[5] = max(0.0, (i - late) * g.interval_seconds)
    found[6] = next_probability(g)
