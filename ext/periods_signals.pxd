# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The signals from which a period is estimated: gaps filled, averaged, centered, and correlated with themselves. C only."""

from libc.math cimport NAN, fabs, fmax, fmin, isfinite, isnan, sqrt
from libc.string cimport memset

cdef enum:
    SIGNALS_MAX = 16
    SAMPLES_MAX = 4096
    SAMPLES_MIN = 24
    LAGS_MAX = 160
    QUARTERS = 4        # positions per lag: a step of 4.5 samples repeats between two lags
    TAPS = 6            # lags on each side from which a position between two lags is interpolated
    POSITIONS_MAX = (LAGS_MAX + TAPS) * QUARTERS
    SCALES = 3
    HISTOGRAM_BINS = 1024
    FOLD_BINS_MAX = 64
    FOLD_WINDOWS_MAX = 8
    PARTS_MAX = 16      # a period is divided by at most this
    MISSING_MAX = 2     # consecutive missing samples that are interpolated: GPM is read at every second sample

cdef extern from *:
    """
    #define KNOWN_SHARE_MIN 0.3  /* of a signal's samples */
    #define DENSE_SHARE 0.7  /* a signal with more known samples is read at every sample */
    """
    const double KNOWN_SHARE_MIN
    const double DENSE_SHARE


cdef enum Mask:
    WORK, PAUSE, OUTLYING_PAUSE, PAUSE_EDGE


cdef struct Peak:
    double lag      # quarters
    double value
    double valley


cdef struct Period:
    double samples     # NaN: none
    double undivided
    double value       # the mean autocorrelation at the period
    double confidence
    bint is_split      # signals repeat, each at a period of its own


cdef struct Work:
    int k, n
    const float *signals     # [k][stride], NaN: missing
    int stride
    float *filled            # [k][n], short gaps interpolated
    unsigned char *known     # [k][n]
    unsigned char *mask      # [n], a Mask
    double segment           # half of the work is in stretches between pauses of this length or longer, samples
    double pause             # median length of pauses, samples; 0: none
    double[SIGNALS_MAX] weights
    double[SIGNALS_MAX] known_share
    float *values            # this and the following: scratch memory
    float *present
    int *lengths
    double *mean
    double *single
    double *lagged
    double[QUARTERS * 2 * TAPS] taps


cdef inline void _fill(Work *work) noexcept nogil:
    """Interpolate up to MISSING_MAX missing samples between two known ones."""
    cdef int s, i, j, last, known
    cdef const float *signal
    cdef float *filled
    cdef unsigned char *is_known
    for s in range(work.k):
        signal, filled = work.signals + <size_t>s * work.stride, work.filled + <size_t>s * work.n
        is_known = work.known + <size_t>s * work.n
        last, known = -1, 0
        for i in range(work.n):
            filled[i], is_known[i] = 0, isfinite(signal[i]) and fabs(signal[i]) < 1e30
            if not is_known[i]:
                continue
            filled[i] = signal[i]
            known += 1
            if last >= 0 and 1 < i - last <= MISSING_MAX + 1:
                for j in range(last + 1, i):
                    filled[j] = filled[last] + (filled[i] - filled[last]) * (j - last) / (i - last)
                    is_known[j] = True
            last = i
        work.known_share[s] = <double>known / work.n


cdef inline bint _levels(const float *filled, const unsigned char *known, int n, double *low, double *high) noexcept nogil:
    """Write the quantiles of 2 % and 92 %; False for a signal that does not swing."""
    cdef double least = 1e300, most = -1e300, below = 0, scale
    cdef int[HISTOGRAM_BINS] counts
    cdef int i, at, total = 0
    for i in range(n):
        if known[i]:
            least = filled[i] if filled[i] < least else least
            most = filled[i] if filled[i] > most else most
            total += 1
    if total < SAMPLES_MIN or not most > least:
        return False
    memset(counts, 0, sizeof(counts))
    scale = (HISTOGRAM_BINS - 1) / (most - least)
    for i in range(n):
        if known[i]:
            at = <int>((filled[i] - least) * scale)
            counts[at] += 1
    low[0] = high[0] = NAN
    for at in range(HISTOGRAM_BINS):
        below += counts[at]
        if isnan(low[0]) and below >= 0.02 * total:
            low[0] = least + (at + 0.5) * (most - least) / HISTOGRAM_BINS
        if below >= 0.92 * total:
            high[0] = least + (at + 0.5) * (most - least) / HISTOGRAM_BINS
            break
    return high[0] - low[0] > 0.3 * fabs(high[0])


cdef inline bint _is_left_out(unsigned char mark, Mask smallest) noexcept nogil:
    return mark >= smallest


cdef inline int _average(Work *work, int s, int first, int factor, Mask left_out) noexcept nogil:
    """Write means over *factor* samples from *first* on to `values`, and whether most of them are known to `present`.

    Return how many there are. A remainder at the beginning is dropped.
    """
    cdef int count = (work.n - first) // factor, i, j, at, known
    cdef size_t row = <size_t>s * work.n
    cdef double total
    first = work.n - count * factor
    for i in range(count):
        total, known = 0.0, 0
        for j in range(factor):
            at = first + i * factor + j
            if work.known[row + at] and not _is_left_out(work.mask[at], left_out):
                total += work.filled[row + at]
                known += 1
        work.present[i] = 2 * known > factor
        work.values[i] = <float>(total / known) if work.present[i] > 0 else 0.0
    return count


cdef inline bint _center(float *values, const float *present, int n, double swing_min) noexcept nogil:
    """Subtract mean and trend, and scale to a variance of 1. False: the signal varies too little."""
    cdef int i, count = 0
    cdef double mean = 0, middle = 0, slope, xx = 0, xy = 0, variance = 0, value
    for i in range(n):
        if present[i] > 0:
            mean += values[i]
            middle += i
            count += 1
    if count < SAMPLES_MIN // 2:
        return False
    mean /= count
    middle /= count
    for i in range(n):
        if present[i] > 0:
            xx += (i - middle) * (i - middle)
            xy += (i - middle) * (values[i] - mean)
    slope = xy / xx if xx > 0 else 0.0
    for i in range(n):
        value = values[i] - mean - slope * (i - middle) if present[i] > 0 else 0.0
        values[i] = <float>value
        variance += value * value
    variance /= count
    if not variance > swing_min * swing_min * mean * mean + 1e-18:
        return False
    for i in range(n):
        values[i] = <float>(values[i] / sqrt(variance))
    return True


cdef inline float _product(const float *a, const float *b, int n) noexcept nogil:
    """Return the scalar product. Eight sums, so that the compiler can keep them in vector registers."""
    cdef float[8] sums
    cdef float total = 0
    cdef int i, lane
    memset(sums, 0, sizeof(sums))
    for i in range(0, n - 7, 8):
        for lane in range(8):
            sums[lane] += a[i + lane] * b[i + lane]
    for i in range(n & ~7, n):
        total += a[i] * b[i]
    for lane in range(8):
        total += sums[lane]
    return total


cdef inline void _correlate(const float *values, const float *present, int n, int lags, double *out) noexcept nogil:
    """Write the autocorrelation at lags 0 to *lags*, over the pairs of present samples; 0 where there are few."""
    cdef int lag
    cdef float count
    cdef bint is_complete = _product(present, present, n) == n
    for lag in range(lags + 1):
        count = n - lag if is_complete else _product(present, present + lag, n - lag)
        out[lag] = _product(values, values + lag, n - lag) / count if count > 20 and count * 20 > n - lag else 0.0
