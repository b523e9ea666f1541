# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Searches the period of some signals: by their autocorrelation at three time scales, then by folding. C only."""

from libc.math cimport M_PI as PI, NAN, cos, fabs, fmax, fmin, isnan, sin
from libc.string cimport memset

from periods_signals cimport *

cdef extern from *:
    """
    /* Search. Values of the autocorrelation. */
    #define PEAK_MIN 0.35  /* at the period */
    #define PEAK_MIN_AVERAGED 0.5  /* of averaged samples: few bursts of any kind repeat by chance */
    #define VALLEY_MIN 0.25  /* from the peak down to the minimum before it */
    #define VOTE_MIN 0.25  /* peak and valley of a signal that takes part */
    #define ALIKE 0.88  /* a shorter lag with this share of the best peak is preferred */
    #define SWING_MIN 0.18  /* standard deviation over mean of a signal that takes part */
    #define AGREE_OFF_MAX 0.06  /* from a whole multiple of a signal's own period */
    /* Resolution, in samples. */
    #define PERIOD_MIN 3.0  /* by signals that are read at every sample */
    #define PERIOD_MIN_SPARSE 5.0  /* by signals that are read at every second sample */
    #define ALIAS_SAMPLES_MAX 20.0  /* see _is_resolved */
    #define GPM_SIGNALS_MIN 3  /* utilization is sparse, too, but is 1 in each step of many jobs */
    #define PART_MIN 2.2  /* folded at about two samples, a longer period looks smooth, too */
    #define FOLD_ALIKE 0.85  /* a part that explains this share of the variance that the whole explains is the period */
    #define FOLD_ALIKE_SHORT 0.6  /* for a part under SHORT_SAMPLES: the samples blur it */
    #define SHORT_SAMPLES 6.0
    #define FOLD_SAMPLES 200.0
    """
    const double PEAK_MIN
    const double PEAK_MIN_AVERAGED
    const double VALLEY_MIN
    const double VOTE_MIN
    const double ALIKE
    const double SWING_MIN
    const double AGREE_OFF_MAX
    const double PERIOD_MIN
    const double PERIOD_MIN_SPARSE
    const double ALIAS_SAMPLES_MAX
    const int GPM_SIGNALS_MIN
    const double PART_MIN
    const double FOLD_ALIKE
    const double FOLD_ALIKE_SHORT
    const double SHORT_SAMPLES
    const double FOLD_SAMPLES


cdef inline int factor_of(int scale) noexcept nogil:
    """Return how many samples are averaged."""
    return 1 if scale == 0 else 4 if scale == 1 else 16


cdef inline int lags_of(int scale) noexcept nogil:
    """Return how many lags are correlated at most, in averages."""
    return 60 if scale == 0 else 80 if scale == 1 else LAGS_MAX


cdef inline int samples_of(int scale) noexcept nogil:
    """Return how many of the last samples are read."""
    return 700 if scale == 0 else 1400 if scale == 1 else SAMPLES_MAX


cdef inline void _make_taps(double *taps) noexcept nogil:
    """Write the weights of a sinc under a Hann window."""
    cdef int part, tap
    cdef double x
    for part in range(QUARTERS):
        for tap in range(-TAPS + 1, TAPS + 1):
            x = tap - <double>part / QUARTERS
            taps[part * 2 * TAPS + tap + TAPS - 1] = (
                1.0 if x == 0.0 else sin(PI * x) / (PI * x) * (0.5 + 0.5 * cos(PI * x / (TAPS + 1)))
            )


cdef inline void _interpolate(const double *r, int lags, const double *taps, double *out) noexcept nogil:
    """Write the autocorrelation at each quarter of a lag up to *lags*; *r* has TAPS more lags."""
    cdef int lag, part, tap, at
    cdef double total
    for lag in range(lags + 1):
        out[lag * QUARTERS] = r[lag]
        for part in range(1, QUARTERS if lag < lags else 1):
            total = 0.0
            for tap in range(-TAPS + 1, TAPS + 1):
                at = lag + tap
                total += r[-at if at < 0 else at] * taps[part * 2 * TAPS + tap + TAPS - 1]
            out[lag * QUARTERS + part] = total


cdef inline bint _is_peak(const double *r, int at) noexcept nogil:
    return r[at] >= r[at - 1] and r[at] > r[at + 1]


cdef inline double _vertex(const double *r, int at) noexcept nogil:
    """Return the maximum of the parabola through a peak and its neighbors."""
    cdef double bend = r[at - 1] - 2.0 * r[at] + r[at + 1]
    return at + (0.5 * (r[at - 1] - r[at + 1]) / bend if bend < 0.0 else 0.0)


cdef inline Peak _first_peak(const double *r, int end) noexcept nogil:
    """Return the first peak with nearly the height of the highest; value 0: the signal has no peak."""
    cdef Peak peak
    cdef int at, highest = 0, first = 0
    cdef double low = 1.0
    peak.lag, peak.value, peak.valley = 0.0, 0.0, 0.0
    for at in range(2 * QUARTERS, end):
        if _is_peak(r, at) and (not highest or r[at] > r[highest]):
            highest = at
    if not highest or r[highest] <= 0.0:
        return peak
    for at in range(2 * QUARTERS, end):
        if _is_peak(r, at) and r[at] >= ALIKE * r[highest]:
            first = at
            break
    for at in range(1, first):
        low = fmin(low, r[at])
    peak.lag, peak.value, peak.valley = _vertex(r, first), r[first], r[first] - low
    return peak


cdef inline double _refine(const double *r, int end, double lag) noexcept nogil:
    """Return the lag by its highest multiple with a clear peak: an error there is divided by the multiple."""
    cdef int multiple = 2, at, expected, i
    cdef double refined = lag
    while refined * multiple + 4 < end:
        at = expected = <int>(refined * multiple + 0.5)
        for i in range(expected - 2, expected + 3):
            if r[i] > r[at]:
                at = i
        if r[at] < 0.5 * PEAK_MIN or not _is_peak(r, at):
            break
        refined = _vertex(r, at) / multiple
        multiple += 1
    return refined


cdef inline Period _search_scale(Work *work, int scale, Mask left_out) noexcept nogil:
    """Return the period of the averaged signals, and write their weights."""
    cdef int factor = factor_of(scale), first = max(0, work.n - samples_of(scale))
    cdef int lags = min(lags_of(scale), (work.n - first) // factor // 4), s, at, count, votes = 0, agree = 0
    cdef double[SIGNALS_MAX] lag_of
    cdef double total = 0, ratio
    cdef double *r = work.mean
    cdef Peak peak
    cdef Period period
    memset(&period, 0, sizeof(period))
    period.samples = NAN
    if lags < 6:
        return period
    memset(r, 0, POSITIONS_MAX * sizeof(double))
    for s in range(work.k):
        lag_of[s] = work.weights[s] = 0.0
        if work.known_share[s] < KNOWN_SHARE_MIN:
            continue
        count = _average(work, s, first, factor, left_out)
        if not _center(work.values, work.present, count, SWING_MIN):
            continue
        _correlate(work.values, work.present, count, lags + TAPS, work.lagged)
        _interpolate(work.lagged, lags, work.taps, work.single)
        peak = _first_peak(work.single, lags * QUARTERS)
        if peak.value < VOTE_MIN or peak.valley < VOTE_MIN:
            continue
        votes += 1
        lag_of[s], work.weights[s] = peak.lag, peak.value * peak.valley
        total += work.weights[s]
        for at in range(lags * QUARTERS + 1):
            r[at] += work.weights[s] * work.single[at]
    if not votes:
        return period
    for at in range(lags * QUARTERS + 1):
        r[at] /= total
    peak = _first_peak(r, lags * QUARTERS)
    if peak.value < (PEAK_MIN if factor == 1 else PEAK_MIN_AVERAGED) or peak.valley < VALLEY_MIN:
        period.is_split = votes > 1
        return period
    for s in range(work.k):
        # Micro-batches are visible in some signals only: their period divides the step's.
        if lag_of[s] > 0.0:
            ratio = peak.lag / lag_of[s]
            count = <int>(ratio + 0.5)
            agree += count >= 1 and fabs(ratio - count) <= AGREE_OFF_MAX * count
    if 2 * agree < votes:
        period.is_split = True
        return period
    period.samples = _refine(r, lags * QUARTERS, peak.lag) * factor / QUARTERS
    period.value = peak.value
    period.confidence = fmin(peak.value, 1.0) * agree / votes
    return period


cdef inline double _explained(Work *work, int s, double period, int bins, int window, Mask left_out) noexcept nogil:
    """Return the share of a signal's variance that folding at *period* explains, corrected for the *bins*; NaN: no data.

    Each window is folded alone, so that the phase may drift: the last FOLD_WINDOWS_MAX windows without a pause.
    """
    cdef double[FOLD_BINS_MAX] sums
    cdef int[FOLD_BINS_MAX] counts
    cdef const float *signal = work.signals + <size_t>s * work.stride
    cdef const unsigned char *known = work.known + <size_t>s * work.n
    cdef double inside = 0, around = 0, total, squares, between, phase, bins_per_sample = bins / period
    cdef int i, at, end = work.n, begin, count, free_inside = 0, free_around = 0, windows = 0
    while end >= window and windows < FOLD_WINDOWS_MAX:
        begin = end
        while begin > end - window and not _is_left_out(work.mask[begin - 1], left_out):
            begin -= 1
        if begin > end - window:  # a pause
            end = begin - 1
            continue
        memset(sums, 0, bins * sizeof(double))
        memset(counts, 0, bins * sizeof(int))
        total, squares, between, count = 0, 0, 0, 0
        phase = -bins_per_sample
        for i in range(begin, end):
            phase += bins_per_sample
            while phase >= bins:
                phase -= bins
            if known[i] and not isnan(signal[i]):
                at = <int>phase
                sums[at] += signal[i]
                counts[at] += 1
                total += signal[i]
                squares += <double>signal[i] * signal[i]
                count += 1
        if count > 2:
            for at in range(bins):
                if counts[at]:
                    between += sums[at] * sums[at] / counts[at]
                    free_inside -= 1
            free_inside += count
            free_around += count - 1
            inside += squares - between
            around += squares - total * total / count
        end = begin
        windows += 1
    if free_inside <= 8 or not around > 0:
        return NAN
    return 1.0 - inside / free_inside / (around / free_around)


cdef inline double _explained_by_all(Work *work, double period, int window, Mask left_out) noexcept nogil:
    """Return the weighted mean over the signals of the share that *period* explains."""
    cdef double total = 0, weight = 0, share
    cdef int s, bins = <int>fmin(fmax(1.5 * period, 4.0), FOLD_BINS_MAX)
    for s in range(work.k):
        if work.weights[s] > 0:
            share = _explained(work, s, period, bins, window, left_out)
            if not isnan(share):
                total += work.weights[s] * share
                weight += work.weights[s]
    return total / weight if weight > 0 else 0.0


cdef inline double _divide(Work *work, double samples, Mask left_out) noexcept nogil:
    """Return the period, or the smallest part of it that explains the signals nearly as well."""
    # Over more periods the samples of a short one have many phases, and a multiple has no advantage.
    cdef int window = <int>fmax(fmax(3 * samples, fmin(16 * samples, FOLD_SAMPLES)), 24.0), part
    cdef double whole = _explained_by_all(work, samples, window, left_out), needed
    if whole == 0.0:
        window = <int>fmax(3 * samples, 24.0)
        whole = _explained_by_all(work, samples, window, left_out)
    if whole < 0.1:
        return samples
    for part in range(PARTS_MAX, 1, -1):
        if samples / part >= PART_MIN:
            needed = FOLD_ALIKE_SHORT if samples / part < SHORT_SAMPLES else FOLD_ALIKE
            if _explained_by_all(work, samples / part, window, left_out) >= needed * whole:
                return samples / part
    return samples


cdef inline bint _is_resolved(const Work *work, double samples) noexcept nogil:
    """Return whether the signals that repeat are read often enough for the period.

    GPM's readings are means over the time between two readings. If GPM has readings and no such signal repeats, a short period
    is an alias: power may be an instantaneous value, and the steps are too short for it.
    """
    cdef int s, dense = 0, sparse = 0, sparse_known = 0
    for s in range(work.k):
        if work.known_share[s] > DENSE_SHARE:
            dense += work.weights[s] > 0
        elif work.known_share[s] > KNOWN_SHARE_MIN:
            sparse += work.weights[s] > 0
            sparse_known += 1
    if samples < ALIAS_SAMPLES_MAX and not sparse and sparse_known >= GPM_SIGNALS_MIN:
        return False
    return samples >= (PERIOD_MIN if dense else PERIOD_MIN_SPARSE)


cdef inline Period _search(Work *work, Mask left_out) noexcept nogil:
    """Return the period by all scales. A coarser scale's longer period counts if it repeats clearly better."""
    cdef Period best, period
    cdef double[SIGNALS_MAX] weights
    cdef int scale, s
    memset(&best, 0, sizeof(best))
    best.samples = NAN
    for scale in range(SCALES):
        period = _search_scale(work, scale, left_out)
        if period.is_split and not scale:
            return best
        if isnan(period.samples):
            continue
        if not isnan(best.samples) and fabs(period.samples - best.samples) < 0.06 * best.samples:
            best.value, best.confidence = fmax(best.value, period.value), fmax(best.confidence, period.confidence)
        elif isnan(best.samples) or (period.samples > 1.6 * best.samples and period.value > best.value / ALIKE):
            best = period
            weights = work.weights
    if isnan(best.samples):
        return best
    work.weights = weights
    best.undivided = best.samples
    best.samples = _divide(work, best.samples, left_out)
    if not _is_resolved(work, best.samples):
        best.samples = NAN
    return best
