# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# distutils: extra_compile_args = -fno-wrapv
# -fwrapv, from Python's own flags, keeps gcc from vectorizing loops over int: an estimate took 1.5 times as long.
"""Estimates the period of a job's step from the last minutes of one GPU's signals.

1. A pause is a second or more at the low level of the signals. The step is first searched in the work between pauses: a
   checkpoint cycle cannot be mistaken for the step there.
2. Without a step in the work, each step may contain a pause, such as the exchange of gradients. The signals are searched again
   with these pauses. A long period with a pause in it is the step only if its work has a shape that repeats with the period.
   Flat work with a pause every 20 s is more often a checkpoint cycle: no period is reported.
3. The search computes the autocorrelation of each signal at three time scales and averages them, weighted by how strongly each
   signal repeats. The period is the shortest lag that repeats nearly as well as the best. If a part of this
   period explains the folded signals nearly as well, that part is the period.
"""

from libc.math cimport NAN, fabs, fmax, fmin, isnan
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from periods_search cimport *
from periods_signals cimport *

cdef double LOW_MAX = 0.4           # share of the way from the low to the high level
cdef double PAUSE_SECONDS = 1.0
cdef double PAUSE_ALIKE = 0.6       # low runs of this share of the median pause are pauses, too
cdef double PAUSE_OUTLYING = 3.0    # times the median pause: never part of a step
cdef double BATCHES_MAX = 8.6       # parts between two pauses that may be the micro-batches of one step
cdef double KNOWN_OFF_MAX = 0.1     # from a known step: parts of this length are steps, however few are between two pauses
cdef double CYCLE_SECONDS = 7.0     # a longer period with a pause needs work that has a shape,
cdef double CYCLE_PAUSE_SECONDS = 4.0   # or one with longer pauses
cdef double SHAPE_MIN = 0.3         # autocorrelation of the work alone, one period later
cdef double SHAPE_VALLEY_MIN = 0.15
cdef double SHAPE_SWING_MIN = 0.03  # standard deviation over mean of the work: noise is less, forward and backward differ by more
cdef double SHAPE_PART_MAX = 0.6    # a higher share of this autocorrelation at a BATCHES_MAX-th of the work: short steps
cdef double EDGE_SECONDS = 1.2      # a mean over a second blurs the work beside a pause


cdef int _mark_low(Work *work) noexcept nogil:
    """Set `mask` to PAUSE where half of the signals are low; return how many samples are.

    Half suffices: utilization is 1 while a kernel waits.
    """
    cdef unsigned char[SAMPLES_MAX] known_count
    cdef unsigned char[SAMPLES_MAX] low_count
    cdef const float *filled
    cdef const unsigned char *known
    cdef int s, i, total = 0
    cdef double low, high
    cdef float low_max
    memset(known_count, 0, work.n)
    memset(low_count, 0, work.n)
    for s in range(work.k):
        filled, known = work.filled + <size_t>s * work.n, work.known + <size_t>s * work.n
        if work.known_share[s] > KNOWN_SHARE_MIN and _levels(filled, known, work.n, &low, &high):
            low_max = <float>(low + LOW_MAX * (high - low))
            for i in range(work.n):
                known_count[i] += known[i]
                low_count[i] += known[i] & (filled[i] < low_max)
    for i in range(work.n):
        work.mask[i] = PAUSE if low_count[i] and 2 * low_count[i] >= known_count[i] else WORK
        total += work.mask[i]
    return total


cdef double _median_length(const int *lengths, int shortest, int longest, bint is_weighted) noexcept nogil:
    """Return the median of lengths, of a table of counts; *is_weighted*: half of the total time is in runs this long or longer."""
    cdef int length
    cdef double total = 0, below = 0
    for length in range(shortest, longest + 1):
        total += lengths[length] * (length if is_weighted else 1)
    for length in range(shortest, longest + 1):
        below += lengths[length] * (length if is_weighted else 1)
        if total and 2 * below >= total:
            return length
    return 0


cdef void _count_runs(Work *work, bint of_pauses) noexcept nogil:
    """Write to `lengths` how many runs of pauses, or of work between them, have each length."""
    cdef int i, begin = 0
    memset(work.lengths, 0, (SAMPLES_MAX + 1) * sizeof(int))
    for i in range(1, work.n + 1):
        if i == work.n or (work.mask[i] != WORK) != (work.mask[begin] != WORK):
            work.lengths[i - begin] += (work.mask[begin] != WORK) == of_pauses
            begin = i


cdef void _find_pauses(Work *work, double seconds_per_sample) noexcept nogil:
    """Set `mask`, `pause` and `segment`: pauses are low for a second, or nearly as long as most that are."""
    cdef int i, begin = 0, shortest = <int>(PAUSE_SECONDS / seconds_per_sample + 0.5), outlying
    cdef double median
    work.pause, work.segment = 0, work.n
    if not _mark_low(work):
        return
    _count_runs(work, True)
    median = _median_length(work.lengths, shortest, work.n, False)
    if median > 0:
        shortest = min(shortest, max(<int>(0.5 * shortest), <int>(PAUSE_ALIKE * median)))
        median = _median_length(work.lengths, shortest, work.n, False)
    outlying = max(shortest, <int>(PAUSE_OUTLYING * median))
    for i in range(1, work.n + 1):
        if i == work.n or work.mask[i] != work.mask[begin]:
            if work.mask[begin] == PAUSE:
                memset(work.mask + begin, WORK if i - begin < shortest else PAUSE if i - begin < outlying else OUTLYING_PAUSE, i - begin)
            begin = i
    work.pause = median
    _count_runs(work, False)
    work.segment = _median_length(work.lengths, 1, work.n, True)


cdef double _repeats(Work *work, int scale, double first, double last) noexcept nogil:
    """Return the highest autocorrelation of any signal's work between two lags (samples), after a valley; 0: none."""
    cdef int s, lag, count, begin = max(1, <int>first), end = <int>last
    cdef double valley, highest = 0
    for s in range(work.k):
        if work.known_share[s] < KNOWN_SHARE_MIN:
            continue
        count = _average(work, s, 0, factor_of(scale), PAUSE)
        if end >= min(count, LAGS_MAX + TAPS) or not _center(work.values, work.present, count, SHAPE_SWING_MIN):
            continue
        _correlate(work.values, work.present, count, end, work.lagged)
        valley = 1.0
        for lag in range(1, end + 1):
            if lag >= begin and work.lagged[lag] - valley > SHAPE_VALLEY_MIN:
                highest = fmax(highest, work.lagged[lag])
            valley = fmin(valley, work.lagged[lag])
    return highest


cdef bint _is_shape_of_step(Work *work, double samples, double seconds_per_sample) noexcept nogil:
    """Return whether the work without its pauses repeats after a period, and not after a small part of it.

    Flat work does not repeat. Short steps repeat, too, one checkpoint cycle later: each checkpoint restarts them in phase.
    """
    cdef int i, j, scale = 0, edge = <int>(EDGE_SECONDS / seconds_per_sample)
    cdef double shape
    for i in range(work.n):
        if work.mask[i] == PAUSE or work.mask[i] == OUTLYING_PAUSE:
            for j in range(max(0, i - edge), min(work.n, i + edge + 1)):
                if work.mask[j] == WORK:
                    work.mask[j] = PAUSE_EDGE
    while scale < SCALES - 1 and samples / factor_of(scale) + 2 > lags_of(scale):
        scale += 1
    shape = _repeats(work, scale, samples / factor_of(scale) - 1, samples / factor_of(scale) + 2)
    return shape >= SHAPE_MIN and _repeats(work, 0, 2, fmin(work.segment / BATCHES_MAX, lags_of(0))) < SHAPE_PART_MAX * shape


cdef Period _find_step(Work *work, double seconds_per_sample, double known_samples) noexcept nogil:
    cdef Period period
    _fill(work)
    _find_pauses(work, seconds_per_sample)
    period = _search(work, PAUSE)
    if not work.pause or fabs(period.samples - known_samples) <= KNOWN_OFF_MAX * known_samples:
        return period
    if not isnan(period.samples) and work.segment >= BATCHES_MAX * period.undivided:
        return period
    period = _search(work, OUTLYING_PAUSE)
    if isnan(period.samples) or period.samples <= work.segment / BATCHES_MAX:
        period.samples = NAN
    elif period.samples * seconds_per_sample >= CYCLE_SECONDS or work.pause * seconds_per_sample >= CYCLE_PAUSE_SECONDS:
        if not _is_shape_of_step(work, period.samples, seconds_per_sample):
            period.samples = NAN
    return period


def estimate(const float[:, ::1] signals not None, double seconds_per_sample, double known_seconds=NAN):
    cdef int k = signals.shape[0], n = signals.shape[1]
    cdef Work work
    cdef Period period
    cdef char *memory
    if k > SIGNALS_MAX or n > SAMPLES_MAX:
        raise ValueError(f"{k} signals of {n} samples: expected at most {SIGNALS_MAX} of {SAMPLES_MAX}")
    if not 0.001 <= seconds_per_sample <= 3600.0:
        raise ValueError(f"{seconds_per_sample} seconds a sample: expected 0.001 to 3600")
    if not k or n < SAMPLES_MIN:
        return NAN, 0.0
    memory = <char *>malloc(
        3 * POSITIONS_MAX * sizeof(double) + 2 * SAMPLES_MAX * sizeof(float) + (SAMPLES_MAX + 1) * sizeof(int)
        + <size_t>k * n * (sizeof(float) + 1) + n
    )
    if memory == NULL:
        raise MemoryError
    work.k, work.n, work.stride, work.signals = k, n, n, &signals[0, 0]
    work.mean = <double *>memory
    work.single = work.mean + POSITIONS_MAX
    work.lagged = work.single + POSITIONS_MAX
    work.values = <float *>(work.lagged + POSITIONS_MAX)
    work.present = work.values + SAMPLES_MAX
    work.lengths = <int *>(work.present + SAMPLES_MAX)
    work.filled = <float *>(work.lengths + SAMPLES_MAX + 1)
    work.known = <unsigned char *>(work.filled + <size_t>k * n)
    work.mask = work.known + <size_t>k * n
    with nogil:
        _make_taps(work.taps)
        period = _find_step(&work, seconds_per_sample, known_seconds / seconds_per_sample)
    free(memory)
    if isnan(period.samples):
        return NAN, 0.0
    return period.samples * seconds_per_sample, period.confidence
