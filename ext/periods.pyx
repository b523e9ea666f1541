# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Detects the period of a job's step by a vote of its signals.

Each signal's autocorrelation is computed over lags of three scales: the last minute as sampled, and averaged by four and by
sixteen over the whole time. The autocorrelations are averaged, weighted by how strongly each repeats. The step is the shortest
peak lag at which the mean is nearly as high as at the best: half a step repeats only in part (micro-batches), and two steps
repeat less well, because steps differ. No period is returned if the best peak is low, its valley is shallow, or the step is
shorter than three samples or longer than a quarter of the time.
"""

from libc.math cimport M_PI as PI, NAN, cos, fabs, fmin, isnan, sin, sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memset

cdef enum:
    SIGNALS_MAX = 16
    SAMPLES_MAX = 4096
    LAGS_MAX = 160
    FINE_SAMPLES = 700  # a minute at ten a second
    BETWEEN = 4  # places between two lags: a step of 4.5 samples repeats there
    TAPS = 6
    PLACES = LAGS_MAX * BETWEEN + BETWEEN

cdef double PEAK_MIN = 0.35      # of the autocorrelation at the step
cdef double PEAK_MORE = 0.15     # of averages: bursts of any kind repeat by chance where there are few of them
cdef double VALLEY_MIN = 0.25    # from the step's peak down to the least before it
cdef double ALIKE = 0.88         # a shorter lag that repeats so much as well as the best is the step
cdef double VOTE_MIN = 0.25      # a signal that repeats so little has no vote
cdef double SWING_MIN = 0.18     # standard deviation over the mean: steps too short for the samples swing less, and alias


cdef struct Peak:
    double lag      # samples
    double value
    double valley


cdef struct Found:
    double seconds
    double confidence


cdef void _average(const float *signal, int n, int factor, float *values, float *known) noexcept nogil:
    """Write means over *factor* samples, and 1 where one of them is known; the remainder at the beginning is left out."""
    cdef int count = n // factor, first = n - count * factor, i, j, some
    cdef double total
    for i in range(count):
        total, some = 0.0, 0
        for j in range(factor):
            if not isnan(signal[first + i * factor + j]):
                total += signal[first + i * factor + j]
                some += 1
        known[i] = some > 0
        values[i] = <float>(total / some) if some else 0.0


cdef bint _center(float *values, const float *known, int n) noexcept nogil:
    """Take the mean and the trend away, and scale to a variance of 1. False: it does not vary."""
    cdef int i, some = 0
    cdef double mean = 0, at_mean = 0, slope, xx = 0, xy = 0, variance = 0, one
    for i in range(n):
        if known[i] > 0:
            mean += values[i]
            at_mean += i
            some += 1
    if some < 12 or some * 3 < n:
        return False
    mean /= some
    at_mean /= some
    for i in range(n):
        if known[i] > 0:
            xx += (i - at_mean) * (i - at_mean)
            xy += (i - at_mean) * (values[i] - mean)
    slope = xy / xx if xx > 0 else 0.0
    for i in range(n):
        one = values[i] - mean - slope * (i - at_mean) if known[i] > 0 else 0.0
        values[i] = <float>one
        variance += one * one
    variance /= some
    if not variance > SWING_MIN * SWING_MIN * mean * mean + 1e-18:
        return False
    for i in range(n):
        values[i] = <float>(values[i] / sqrt(variance))
    return True


cdef bint _is_dense(const float *known, int n) noexcept nogil:
    """Return whether most samples are there: one that comes every second time has its say where two are averaged."""
    cdef int i
    cdef float some = 0
    for i in range(n):
        some += known[i]
    return some > 0.7 * n


cdef void _correlate(const float *values, const float *known, int n, int lags, double *out) noexcept nogil:
    """Write the autocorrelation at lags 0 to *lags*, over the samples of which both are known."""
    cdef int lag, i
    cdef float total, count
    for lag in range(lags + 1):
        total, count = 0.0, 0.0
        for i in range(n - lag):
            total += values[i] * values[i + lag]
            count += known[i] * known[i + lag]
        out[lag] = total / count if count * 6 > n - lag else 0.0


cdef void _interpolate(const double *r, int lags, const double *taps, double *out) noexcept nogil:
    """Write the autocorrelation at each quarter of a lag: it is of what the samples can show, so its samples tell all of it."""
    cdef int lag, part, tap, at
    cdef double total
    for lag in range(lags + 1):
        out[lag * BETWEEN] = r[lag]
        for part in range(1, BETWEEN):
            total = 0.0
            for tap in range(-TAPS + 1, TAPS + 1):
                at = lag + tap
                at = -at if at < 0 else at
                if at <= lags:
                    total += r[at] * taps[part * 2 * TAPS + tap + TAPS - 1]
            if lag < lags:
                out[lag * BETWEEN + part] = total


cdef void _make_taps(double *taps) noexcept nogil:
    """Write the weights of a sinc under a Hann window."""
    cdef int part, tap
    cdef double x
    for part in range(BETWEEN):
        for tap in range(-TAPS + 1, TAPS + 1):
            x = tap - <double>part / BETWEEN
            taps[part * 2 * TAPS + tap + TAPS - 1] = (
                1.0 if x == 0.0 else sin(PI * x) / (PI * x) * (0.5 + 0.5 * cos(PI * x / (TAPS + 1)))
            )


cdef Peak _best(const double *r, int lags, int least) noexcept nogil:
    """Return the step's peak among the lags, of value 0 where there is none."""
    cdef Peak found
    cdef int lag, chosen = 0
    cdef double highest = 0.0, low, left, right, bend
    found.lag, found.value, found.valley = 0.0, 0.0, 0.0
    for lag in range(least, lags):
        if r[lag] >= r[lag - 1] and r[lag] > r[lag + 1] and r[lag] > highest:
            highest = r[lag]
    if highest <= 0.0:
        return found
    for lag in range(least, lags):
        if r[lag] >= r[lag - 1] and r[lag] > r[lag + 1] and r[lag] >= ALIKE * highest:
            chosen = lag
            break
    low = 1.0
    for lag in range(1, chosen):
        low = fmin(low, r[lag])
    left, right = r[chosen - 1], r[chosen + 1]
    bend = left - 2.0 * r[chosen] + right
    found.lag = chosen + (0.5 * (left - right) / bend if bend < 0.0 else 0.0)
    found.value = r[chosen]
    found.valley = r[chosen] - low
    return found


cdef double _refined(const double *r, int lags, double lag) noexcept nogil:
    """Return the lag by its highest multiple whose peak is still plain: an error there is divided by the multiple."""
    cdef int multiple = 2, at, i
    cdef double expected, left, right, bend, found = lag
    while True:
        expected = found * multiple
        if expected + 4 >= lags:
            return found
        at = <int>(expected + 0.5)
        for i in range(-2, 3):
            if r[<int>(expected + 0.5) + i] > r[at]:
                at = <int>(expected + 0.5) + i
        left, right = r[at - 1], r[at + 1]
        bend = left - 2.0 * r[at] + right
        if r[at] < 0.5 * PEAK_MIN or bend >= 0.0 or r[at] < left or r[at] < right:
            return found
        found = (at + 0.5 * (left - right) / bend) / multiple
        multiple += 1


cdef Found _at_scale(const float *signals, int k, int n, int stride, int factor, int lags, const double *taps, float *work, double *r) noexcept nogil:
    """Return the period in samples of the signals as given, and how sure it is; NaN where they do not say."""
    cdef int count = n // factor, s, lag, votes = 0, agree = 0, offset
    cdef double *each = r + PLACES
    cdef double *singles = each + PLACES
    cdef double *lagged = singles + SIGNALS_MAX
    cdef double weight, total = 0
    cdef Peak peak, one
    cdef Found found
    found.seconds, found.confidence = NAN, 0.0
    lags = min(lags, count // 4)
    if lags < 6:
        return found
    memset(r, 0, (lags * BETWEEN + 1) * sizeof(double))
    for s in range(k):
        singles[s] = 0.0
        _average(signals + <size_t>s * stride, n, factor, work, work + SAMPLES_MAX)
        if not _center(work, work + SAMPLES_MAX, count) or not _is_dense(work + SAMPLES_MAX, count):
            continue
        _correlate(work, work + SAMPLES_MAX, count, lags, lagged)
        _interpolate(lagged, lags, taps, each)
        one = _best(each, lags * BETWEEN, 3 * BETWEEN)
        if one.value < VOTE_MIN or one.valley < VOTE_MIN:
            continue
        singles[s] = one.lag
        votes += 1
        weight = one.value * one.valley
        total += weight
        for lag in range(lags * BETWEEN + 1):
            r[lag] += weight * each[lag]
    if not votes:
        return found
    for lag in range(lags * BETWEEN + 1):
        r[lag] /= total
    peak = _best(r, lags * BETWEEN, 3 * BETWEEN)
    if peak.value < PEAK_MIN + (0.0 if factor == 1 else PEAK_MORE) or peak.valley < VALLEY_MIN or peak.lag < 3.0 * BETWEEN:
        if votes > 1:
            found.confidence = -1.0  # each repeats, and not with the others: a common multiple is no step
        return found
    for s in range(k):
        # Micro-batches show in some signals alone: a whole part of the step agrees with it.
        if singles[s] > 0.0:
            weight = peak.lag / singles[s]
            offset = <int>(weight + 0.5)
            if offset >= 1 and fabs(weight - offset) <= 0.06 * offset:
                agree += 1
    if 2 * agree < votes:
        found.confidence = -1.0
        return found
    found.seconds = _refined(r, lags * BETWEEN, peak.lag) * factor / BETWEEN
    found.confidence = fmin(peak.value, 1.0) * agree / votes
    return found


def estimate(const float[:, ::1] signals not None, double seconds_per_sample):
    cdef int k = signals.shape[0], n = signals.shape[1], tail
    cdef float *work
    cdef double *r
    cdef double taps[BETWEEN * 2 * TAPS]
    cdef Found found, coarse
    if k > SIGNALS_MAX or n > SAMPLES_MAX:
        raise ValueError(f"{k} signals of {n} samples: expected at most {SIGNALS_MAX} of {SAMPLES_MAX}")
    if not 0.001 <= seconds_per_sample <= 3600.0:
        raise ValueError(f"{seconds_per_sample} seconds a sample: expected 0.001 to 3600")
    if not k or n < 24:
        return NAN, 0.0
    work = <float *>malloc(2 * SAMPLES_MAX * sizeof(float))
    r = <double *>malloc((3 * PLACES + SIGNALS_MAX) * sizeof(double))
    if work == NULL or r == NULL:
        free(work)
        free(r)
        raise MemoryError
    with nogil:
        _make_taps(taps)
        tail = min(n, FINE_SAMPLES)
        found = _at_scale(&signals[0, n - tail], k, tail, n, 1, 60, taps, work, r)
        if found.confidence < 0.0:
            n = 0
        # What repeats within seconds may be a part of what repeats within a minute.
        coarse = _at_scale(&signals[0, 0], k, n, n, 4, 80, taps, work, r)
        if isnan(found.seconds) or (coarse.seconds > 1.6 * found.seconds and coarse.confidence > found.confidence / ALIKE):
            found = coarse if not isnan(coarse.seconds) else found
        coarse = _at_scale(&signals[0, 0], k, n, n, 16, LAGS_MAX, taps, work, r)
        if isnan(found.seconds) or (coarse.seconds > 1.6 * found.seconds and coarse.confidence > found.confidence / ALIKE):
            found = coarse if not isnan(coarse.seconds) else found
    free(work)
    free(r)
    return found.seconds * seconds_per_sample, found.confidence if not isnan(found.seconds) else 0.0
