# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Detects the period of a job's step by a vote of its signals.

Pauses (stretches at the low level that are much longer than the usual gap of a step) are left out first. Each signal's
autocorrelation is computed at four scales: the last minute as sampled and averaged by two, and averaged by four and by sixteen over
the whole time. The autocorrelations are averaged, weighted by how strongly each repeats. The step is the shortest lag whose
multiples are nearly as high as the best: half a step repeats only in part (micro-batches), and two steps repeat less well, because
steps differ. A cycle that consists of a pause and of work without structure is no step: jobs that save or evaluate at a
regular interval have it.
"""

from libc.math cimport M_PI as PI, NAN, cos, fabs, fmax, fmin, isfinite, isnan, sin, sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memset

cdef enum:
    SIGNALS_MAX = 16
    SAMPLES_MAX = 4096
    LAGS_MAX = 160
    BETWEEN = 4  # places between two lags: a step of 4.5 samples repeats there
    TAPS = 6  # further lags, for the places between the last ones
    PLACES = (LAGS_MAX + TAPS) * BETWEEN
    SCALES = 4
    BINS = 128
    FOLD_BINS_MAX = 64
    PHASES = 128
    PARTS_DIVIDED_MAX = 16
    ALIAS_PARTS_MAX = 48
    COUNTERS_MIN = 3  # utilization alone says nothing: it is 1 in each step of many jobs

cdef double PEAK_MIN = 0.35      # of the autocorrelation at the step
cdef double PEAK_MORE = 0.15     # of averages: bursts of any kind repeat by chance where there are few of them
cdef double VALLEY_MIN = 0.25    # from the step's peak down to the least before it
cdef double ALIKE = 0.88         # a shorter lag that repeats so much as well as the best is the step
cdef double CONFIDENCE_MIN = 0.6 # one of three periods of less is wrong
cdef double RARE_CONFIDENCE_MIN = 0.75  # of periods that were seen ten times at most
cdef double RARE_SAMPLES = 300.0
cdef double VOTE_MIN = 0.25      # a signal that repeats so little has no vote
cdef double SWING_MIN = 0.18     # standard deviation over the mean: steps too short for the samples swing less, and alias
cdef double LAG_MIN = 3.0        # a signal's own samples; a shorter period cannot be told from its multiples
cdef double SHORT_MAX = 4.0      # samples, where counters confirm what each sample shows
cdef double GLIMPSE_SWING_MAX = 0.5
cdef double FAINT_SWING_MAX = 0.3
cdef double LOW_MAX = 0.3        # of the way from a signal's low to its high level: not computing
cdef double PAUSE_SECONDS_MIN = 1.0
cdef double PAUSE_GAPS = 3.0     # a pause is this many times as long as the usual gap
cdef double PARTS_MAX = 8.6      # a cycle of more repeating parts between its pauses is not a step of micro-batches
cdef double CYCLE_SECONDS_MIN = 7.0    # a pause and flat work that repeat in less: a step
cdef double CYCLE_PAUSE_SECONDS = 4.0  # or with a shorter pause
cdef double EDGE_SECONDS = 1.2   # a driver's mean of a second blurs this much of the work beside a pause
cdef double FOLDED_MIN = 0.1     # of the variance: a period that explains less has no parts to compare with
cdef double FOLDED_ALIKE = 0.92  # a part of the period that explains so much as the whole is the step
cdef double FOLD_SAMPLES = 200.0
cdef double SHORT_ALIKE = 0.6    # a part that is too short to be told from its multiples is rather the step
cdef double BLURRED_SAMPLES = 30.0  # parts of a shorter period are blurred by their samples
cdef double BLURRED_ALIKE = 0.85
cdef double ALIAS_ROUGH_MIN = 0.6     # samples that follow each other so roughly may be of a shorter period,
cdef double ALIAS_SMOOTHER_MAX = 0.6  # if they are smoother by this factor in its order
cdef double STRUCTURE_MIN = 0.4 # of the autocorrelation of the work alone, one cycle later
cdef double SUPPORT_CYCLES = 8.0  # a known step must repeat within this many of itself, and at least these seconds
cdef double SUPPORT_SECONDS = 20.0
cdef double SUPPORT_OFF_MAX = 0.04
cdef double SUPPORT_MIN = 0.3
cdef double SUPPORT_VALLEY_MIN = 0.2

cdef int[SCALES] FACTORS = [1, 2, 4, 16]
cdef int[SCALES] LAGS = [60, 60, 80, LAGS_MAX]
cdef int[SCALES] LAST_SAMPLES = [700, 700, 1400, SAMPLES_MAX]


cdef struct Peak:
    double lag      # places
    double value
    double valley


cdef struct Period:
    double samples     # NaN: none
    double value       # of the mean autocorrelation
    double confidence
    bint is_split      # each signal repeats, and not with the others: a common multiple is no step
    bint is_short      # what repeats is shorter than the samples show


cdef struct Folded:
    double share   # of the variance; NaN: no window is long enough
    double swing   # standard deviation of the folded signal over the mean


cdef struct Work:
    float *values
    float *known
    double stretch         # mean length of work without a pause, in samples
    double pause           # median length of a pause
    unsigned char *paused  # of each sample: 0 work, 1 an outlying pause, 2 another stretch of a second and more
    int *lengths
    double *means
    double *each
    double *lagged
    double *taps


cdef void _average(const float *signal, const unsigned char *paused, int left_out, int n, int factor, float *values, float *known) noexcept nogil:
    """Write means over *factor* samples, and 1 where one of them is known and not left out; the remainder at the beginning is dropped."""
    cdef int count = n // factor, first = n - count * factor, i, j, at, some
    cdef double total
    for i in range(count):
        total, some = 0.0, 0
        for j in range(factor):
            at = first + i * factor + j
            if not isnan(signal[at]) and not (paused[at] and paused[at] <= left_out):
                total += signal[at]
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
    if some < 12:
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


cdef bint _is_dense(const float *known, const unsigned char *paused, int left_out, int n, int factor) noexcept nogil:
    """Return whether most samples of work are there: a signal that comes every second time votes where two are averaged."""
    cdef int i, expected = 0
    cdef float some = 0
    for i in range(n):
        some += known[i]
    for i in range(n * factor):
        expected += not (paused[i] and paused[i] <= left_out)
    return some > 0.7 * expected / factor


cdef double _share_known(const float *signal, int n) noexcept nogil:
    cdef int i, some = 0
    for i in range(n):
        some += not isnan(signal[i])
    return <double>some / n


cdef bint _has_counters(const float *signals, int k, int n, int stride) noexcept nogil:
    """Return whether there are signals that are read every second time: GPM's."""
    cdef int s, count = 0
    for s in range(k):
        count += 0.3 < _share_known(signals + <size_t>s * stride, n) < 0.7
    return count >= COUNTERS_MIN


cdef void _correlate(const float *values, const float *known, int n, int lags, double *out) noexcept nogil:
    """Write the autocorrelation at lags 0 to *lags*, over the samples of which both are known."""
    cdef int lag, i
    cdef float total, count
    for lag in range(lags + 1):
        total, count = 0.0, 0.0
        for i in range(n - lag):
            total += values[i] * values[i + lag]
            count += known[i] * known[i + lag]
        out[lag] = total / count if count > 20 and count * 20 > n - lag else 0.0


cdef void _interpolate(const double *r, int lags, const double *taps, double *out) noexcept nogil:
    """Write the autocorrelation at each quarter of a lag."""
    cdef int lag, part, tap, at
    cdef double total
    for lag in range(lags + 1):
        out[lag * BETWEEN] = r[lag]
        for part in range(1, BETWEEN):
            total = 0.0
            for tap in range(-TAPS + 1, TAPS + 1):
                at = lag + tap
                at = -at if at < 0 else at
                if at <= lags + TAPS:
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


cdef bint _is_peak(const double *r, int lag) noexcept nogil:
    return r[lag] >= r[lag - 1] and r[lag] > r[lag + 1]


cdef double _vertex(const double *r, int lag) noexcept nogil:
    """Return where the parabola through a peak and its neighbors is highest."""
    cdef double left = r[lag - 1], right = r[lag + 1], bend = left - 2.0 * r[lag] + right
    return lag + (0.5 * (left - right) / bend if bend < 0.0 else 0.0)


cdef Peak _best(const double *r, int lags) noexcept nogil:
    """Return the step's peak among the lags, of value 0 where there is none."""
    cdef Peak found
    cdef int lag, chosen = 0, highest = 0
    cdef double low = 1.0
    found.lag, found.value, found.valley = 0.0, 0.0, 0.0
    for lag in range(2 * BETWEEN, lags):
        if _is_peak(r, lag) and (not highest or r[lag] > r[highest]):
            highest = lag
    if not highest or r[highest] <= 0.0:
        return found
    for lag in range(2 * BETWEEN, lags):
        if _is_peak(r, lag) and r[lag] >= ALIKE * r[highest]:
            chosen = lag
            break
    for lag in range(1, chosen):
        low = fmin(low, r[lag])
    found.lag = _vertex(r, chosen)
    found.value = r[chosen]
    found.valley = r[chosen] - low
    return found


cdef double _refined(const double *r, int lags, double lag) noexcept nogil:
    """Return the lag by its highest multiple whose peak is still plain: an error there is divided by the multiple."""
    cdef int multiple = 2, at, i
    cdef double expected, found = lag
    while True:
        expected = found * multiple
        if expected + 4 >= lags:
            return found
        at = <int>(expected + 0.5)
        for i in range(-2, 3):
            if r[<int>(expected + 0.5) + i] > r[at]:
                at = <int>(expected + 0.5) + i
        if r[at] < 0.5 * PEAK_MIN or not _is_peak(r, at):
            return found
        found = _vertex(r, at) / multiple
        multiple += 1


cdef Folded _fold(const float *signal, int n, const unsigned char *paused, int left_out, double period, int bins, int window) noexcept nogil:
    """Return how much of a signal's variance a period explains, corrected for its bins: of windows that no pause interrupts."""
    cdef double[FOLD_BINS_MAX] sums
    cdef int[FOLD_BINS_MAX] counts
    cdef double within = 0, around = 0, whole = 0, mean, squares, inside
    cdef int i, j, begin = 0, end, at, known, all_known = 0, free_within = 0, free_around = 0
    cdef Folded found
    found.share = found.swing = NAN
    while begin < n:
        if paused[begin] and paused[begin] <= left_out:
            begin += 1
            continue
        end = begin
        while end < n and end - begin < window and not (paused[end] and paused[end] <= left_out):
            end += 1
        if end - begin >= window:
            memset(sums, 0, bins * sizeof(double))
            memset(counts, 0, bins * sizeof(int))
            mean = squares = inside = 0
            known = 0
            for i in range(begin, end):
                if isnan(signal[i]):
                    continue
                at = <int>((i - begin) / period * bins) % bins
                sums[at] += signal[i]
                counts[at] += 1
                mean += signal[i]
                squares += <double>signal[i] * signal[i]
                known += 1
            if known > 2:
                around += squares - mean * mean / known
                free_around += known - 1
                free_within += known
                whole += mean
                all_known += known
                for j in range(bins):
                    if counts[j]:
                        inside += sums[j] * sums[j] / counts[j]
                        free_within -= 1
                within += squares - inside
        begin = end
    if free_within > 8 and around > 0:
        found.share = 1.0 - within / free_within / (around / free_around)
        if whole != 0:
            found.swing = sqrt(fmax(around / free_around - within / free_within, 0.0)) / fabs(whole / all_known)
    return found


cdef double _folded(const float *signals, int k, int n, int stride, const double *weights, const unsigned char *paused, int left_out,
                    double period, int bins, int window) noexcept nogil:
    """Return the weighted mean of the shares that a period explains; 0: no window is long enough."""
    cdef double total = 0, sum_of_weights = 0, share
    cdef int s
    for s in range(k):
        if weights[s] > 0:
            share = _fold(signals + <size_t>s * stride, n, paused, left_out, period, bins, window).share
            if not isnan(share):
                total += weights[s] * share
                sum_of_weights += weights[s]
    return total / sum_of_weights if sum_of_weights > 0 else 0.0


cdef bint _is_glimpse(const float *signals, int k, int n, int stride, const unsigned char *paused, int left_out, double samples,
                      bint is_dense) noexcept nogil:
    """Return whether signals of each sample swing with the period and the counters, which are read every second time, hardly do.

    Counters are means over all the time, and power may be a glimpse of each 100 ms: then its steps are too short for it, and the
    period is an alias. So it may be where the counters alone repeat (not *is_dense*), faintly, within a few of their samples.
    """
    cdef double dense = 0, rare = 0, share, swing
    cdef int s, bins = <int>fmin(fmax(samples, 4.0), FOLD_BINS_MAX), window = <int>fmax(4 * samples, 40.0), counters = 0
    for s in range(k):
        share = _share_known(signals + <size_t>s * stride, n)
        if share < 0.3:
            continue
        swing = _fold(signals + <size_t>s * stride, n, paused, left_out, samples, bins, window).swing
        if isnan(swing):
            continue
        if share > 0.7:
            dense = fmax(dense, swing)
        else:
            rare = fmax(rare, swing)
            counters += 1
    return counters >= COUNTERS_MIN and (rare < GLIMPSE_SWING_MAX * dense or (not is_dense and samples < 10 and rare < FAINT_SWING_MAX))


cdef double _divided(const float *signals, int k, int n, int stride, const double *weights, const unsigned char *paused, int left_out,
                     double samples, double short_max, double stretch) noexcept nogil:
    """Return the period, or the smallest part of it by which the signals repeat as well."""
    # In a longer window a short period's samples are of many phases, and a multiple has no advantage.
    cdef int window = <int>fmax(fmax(3 * samples, fmin(16 * samples, fmin(FOLD_SAMPLES, 0.8 * stretch))), 24.0), part
    cdef int bins = <int>fmin(fmax((3.0 if window > 8 * samples else 1.5) * samples, 8.0), FOLD_BINS_MAX)
    cdef double whole = _folded(signals, k, n, stride, weights, paused, left_out, samples, bins, window), one
    if whole < FOLDED_MIN:
        return samples
    for part in range(PARTS_DIVIDED_MAX, 1, -1):
        if samples / part < 0.8:
            continue
        one = _folded(signals, k, n, stride, weights, paused, left_out, samples / part, max(3, bins // part), window)
        if one >= whole * (SHORT_ALIKE if samples / part < short_max else FOLDED_ALIKE if samples > BLURRED_SAMPLES else BLURRED_ALIKE):
            return samples / part
    return samples


cdef double _roughness(const float *signals, int k, int n, int stride, const double *weights, const unsigned char *paused, int left_out,
                       double period, int window) noexcept nogil:
    """Return how much neighbors in phase differ, as a share of how much any two samples do (Lafler and Kinman 1965)."""
    cdef double[PHASES] sums
    cdef int[PHASES] counts
    cdef double total = 0, sum_of_weights = 0, differences, squares, value, mean, first, before
    cdef int s, i, j, begin, end, at, known, pairs, all_known
    for s in range(k):
        if weights[s] <= 0:
            continue
        differences = squares = 0
        begin = pairs = all_known = 0
        while begin < n:
            if paused[begin] and paused[begin] <= left_out:
                begin += 1
                continue
            end = begin
            while end < n and end - begin < window and not (paused[end] and paused[end] <= left_out):
                end += 1
            if end - begin >= window:
                memset(sums, 0, sizeof(sums))
                memset(counts, 0, sizeof(counts))
                mean = 0
                known = 0
                for i in range(begin, end):
                    value = signals[<size_t>s * stride + i]
                    if not isnan(value):
                        at = <int>((i - begin) / period * PHASES) % PHASES
                        sums[at] += value
                        counts[at] += 1
                        mean += value
                        known += 1
                if known > 6:
                    mean /= known
                    for i in range(begin, end):
                        value = signals[<size_t>s * stride + i]
                        if not isnan(value):
                            squares += (value - mean) * (value - mean)
                    all_known += known
                    first = before = NAN
                    for j in range(PHASES):
                        if counts[j]:
                            value = sums[j] / counts[j]
                            if isnan(first):
                                first = value
                            else:
                                differences += (value - before) * (value - before)
                                pairs += 1
                            before = value
                    differences += (first - before) * (first - before)
                    pairs += 1
            begin = end
        if pairs and squares > 0:
            total += weights[s] * differences / pairs / (2 * squares / all_known)
            sum_of_weights += weights[s]
    return total / sum_of_weights if sum_of_weights > 0 else NAN


cdef bint _is_alias(const float *signals, int k, int n, int stride, const double *weights, const unsigned char *paused, int left_out,
                    double samples, double short_max) noexcept nogil:
    """Return whether the samples of a period follow each other smoothly in the order of a part of it that is too short."""
    cdef int part, window = <int>fmax(4 * samples, 40.0)
    cdef double whole = _roughness(signals, k, n, stride, weights, paused, left_out, samples, window)
    if not whole > ALIAS_ROUGH_MIN:
        return False
    for part in range(2, ALIAS_PARTS_MAX + 1):
        if 0.8 <= samples / part < short_max:
            if _roughness(signals, k, n, stride, weights, paused, left_out, samples / part, window) < ALIAS_SMOOTHER_MAX * whole:
                return True
    return False


cdef Period _at_scale(const float *signals, int k, int n, int stride, int scale, int left_out, Work *work) noexcept nogil:
    """Return the period of the signals, averaged; *left_out*: 1 leaves outlying pauses out, 2 all of a second and more."""
    cdef int factor = FACTORS[scale], first = max(0, n - LAST_SAMPLES[scale])
    cdef int length = n - first, count = length // factor, s, lag, votes = 0, agree = 0, offset
    cdef int lags = min(LAGS[scale], count // 4)
    cdef double[SIGNALS_MAX] singles
    cdef double[SIGNALS_MAX] weights
    cdef double weight, total = 0
    cdef double *r = work.means
    cdef const unsigned char *paused = work.paused + first + length - count * factor
    cdef Peak peak, one
    cdef Period found
    cdef bint is_dense = False
    cdef double short_max
    found.samples, found.value, found.confidence, found.is_split, found.is_short = NAN, 0.0, 0.0, False, False
    if lags < 6:
        return found
    memset(r, 0, PLACES * sizeof(double))
    for s in range(k):
        singles[s] = weights[s] = 0.0
        _average(signals + <size_t>s * stride + first, work.paused + first, left_out, length, factor, work.values, work.known)
        if not _is_dense(work.known, paused, left_out, count, factor):
            continue
        if not _center(work.values, work.known, count):
            continue
        _correlate(work.values, work.known, count, lags + TAPS, work.lagged)
        _interpolate(work.lagged, lags, work.taps, work.each)
        one = _best(work.each, lags * BETWEEN)
        if one.value < VOTE_MIN or one.valley < VOTE_MIN:
            continue
        singles[s] = one.lag
        is_dense = is_dense or _share_known(signals + <size_t>s * stride + first, length) > 0.7
        votes += 1
        weight = weights[s] = one.value * one.valley
        total += weight
        for lag in range(lags * BETWEEN + 1):
            r[lag] += weight * work.each[lag]
    if not votes:
        return found
    short_max = SHORT_MAX if is_dense and _has_counters(signals + first, k, length, stride) else 2 * LAG_MIN
    for lag in range(lags * BETWEEN + 1):
        r[lag] /= total
    peak = _best(r, lags * BETWEEN)
    if peak.value < PEAK_MIN + (0.0 if scale < 2 else PEAK_MORE) or peak.valley < VALLEY_MIN:
        found.is_split = votes > 1
        return found
    for s in range(k):
        # Micro-batches show in some signals alone: a whole part of the step agrees with it.
        if singles[s] > 0.0:
            weight = peak.lag / singles[s]
            offset = <int>(weight + 0.5)
            if offset >= 1 and fabs(weight - offset) <= 0.06 * offset:
                agree += 1
    if 2 * agree < votes:
        found.is_split = True
        return found
    found.samples = _refined(r, lags * BETWEEN, peak.lag) * factor / BETWEEN
    found.value = peak.value
    found.confidence = fmin(peak.value, 1.0) * agree / votes
    found.samples = _divided(signals + first, k, length, stride, weights, work.paused + first, left_out, found.samples, short_max, work.stretch)
    found.is_short = found.samples < short_max or _is_alias(
        signals + first, k, length, stride, weights, work.paused + first, left_out, found.samples, short_max
    ) or _is_glimpse(signals + first, k, length, stride, work.paused + first, left_out, found.samples, is_dense)
    return found


cdef Period _search(const float *signals, int k, int n, int stride, int left_out, int scales, double longest, Work *work) noexcept nogil:
    """Return the period by all scales, the finest first: a coarser one counts if it repeats better and is not of too many parts.

    *longest*: stretch of work without a pause, in samples.
    """
    cdef double ratio_max
    cdef Period found, coarse
    cdef int scale
    found.samples, found.value, found.confidence, found.is_split, found.is_short = NAN, 0.0, 0.0, False, False
    for scale in range(scales):
        coarse = _at_scale(signals, k, n, stride, scale, left_out, work)
        if coarse.is_split and isnan(found.samples) and scale < 2:
            return coarse
        if isnan(coarse.samples):
            continue
        if isnan(found.samples):
            found = coarse
            continue
        if fabs(coarse.samples - found.samples) < 0.06 * found.samples:
            found.value, found.confidence = fmax(found.value, coarse.value), fmax(found.confidence, coarse.confidence)
            continue
        ratio_max = PARTS_MAX + 1 if longest == n else 1e9 if longest < PARTS_MAX * found.samples else 0
        if 1.6 * found.samples < coarse.samples < ratio_max * found.samples and coarse.value > found.value / ALIKE:
            found = coarse
    if found.is_short or found.confidence < (RARE_CONFIDENCE_MIN if found.samples > RARE_SAMPLES else CONFIDENCE_MIN):
        found.samples = NAN
    return found


cdef void _levels(const float *signal, int n, double *low, double *high) noexcept nogil:
    """Write the quantiles of 2 % and 90 %; NaN for a signal that does not swing."""
    cdef double least = 1e300, most = -1e300, below = 0
    cdef int[BINS] counts
    cdef int i, at, known = 0
    low[0] = high[0] = NAN
    for i in range(n):
        if isfinite(signal[i]):
            least, most = fmin(least, signal[i]), fmax(most, signal[i])
            known += 1
    if known < 24 or not most > least:
        return
    memset(counts, 0, sizeof(counts))
    for i in range(n):
        if isfinite(signal[i]):
            at = <int>((signal[i] - least) / (most - least) * (BINS - 1))
            counts[at] += 1
    for at in range(BINS):
        below += counts[at]
        if isnan(low[0]) and below >= 0.02 * known:
            low[0] = least + (at + 0.5) * (most - least) / BINS
        if below >= 0.9 * known:
            high[0] = least + (at + 0.5) * (most - least) / BINS
            break
    if not high[0] - low[0] > 0.3 * fabs(high[0]):
        low[0] = high[0] = NAN


cdef double _find_pauses(const float *signals, int k, int n, int stride, double seconds_per_sample, Work *work) noexcept nogil:
    """Mark the samples of pauses; return the longest stretch of work without one, in samples."""
    cdef double[SIGNALS_MAX] lows
    cdef double[SIGNALS_MAX] highs
    cdef double[SIGNALS_MAX] ordered
    cdef double total, usual, one
    cdef float value
    cdef int s, i, j, some, begin = -1, gaps = 0, below = 0, length, least, outlying, last = 0
    cdef double longest = 0, worked = 0
    cdef int stretches = 0
    work.stretch, work.pause = n, 0
    for s in range(k):
        _levels(signals + <size_t>s * stride, n, &lows[s], &highs[s])
    memset(work.lengths, 0, (SAMPLES_MAX + 1) * sizeof(int))
    memset(work.paused, 0, SAMPLES_MAX)
    for i in range(n):
        total, some = 0.0, 0
        for s in range(k):
            if isnan(lows[s]):
                continue
            value = signals[<size_t>s * stride + i]
            j = i
            while isnan(value) and j > 0 and i - j < 2:  # read in turns with another
                j -= 1
                value = signals[<size_t>s * stride + j]
            if not isnan(value):
                one = fmin(fmax((value - lows[s]) / (highs[s] - lows[s]), 0.0), 1.0)
                j = some
                while j > 0 and ordered[j - 1] > one:
                    ordered[j] = ordered[j - 1]
                    j -= 1
                ordered[j] = one
                some += 1
        # The lower half: utilization is 1 while a kernel waits.
        for j in range((some + 1) // 2):
            total += ordered[j]
        # Unknown for a moment: as before.
        work.known[i] = (total < LOW_MAX * ((some + 1) // 2)) if some else work.known[i - 1] if i else 0
    for i in range(n + 1):
        if i < n and work.known[i] > 0:
            if begin < 0:
                begin = i
        elif begin >= 0:
            work.lengths[i - begin] += 1
            gaps += 1
            begin = -1
    if not gaps:
        return n
    usual = 0
    for length in range(n):
        below += work.lengths[length]
        if 2 * below >= gaps:
            usual = length
            break
    least = <int>(PAUSE_SECONDS_MIN / seconds_per_sample + 0.5)
    if usual > 0.6 * least:  # all of them are, or none
        least = min(least, <int>(0.6 * usual))
    outlying = max(least, <int>(PAUSE_GAPS * usual))
    below = gaps = 0
    for length in range(least, n + 1):
        gaps += work.lengths[length]
    for length in range(least, n + 1):
        below += work.lengths[length]
        if gaps and 2 * below >= gaps:
            work.pause = length
            break
    for i in range(n + 1):
        if i < n and work.known[i] > 0:
            if begin < 0:
                begin = i
        elif begin >= 0:
            if i - begin >= least:
                memset(work.paused + begin, 1 if i - begin >= outlying else 2, i - begin)
                longest = fmax(longest, begin - last)
                worked += begin - last
                last = i
                stretches += 1
            begin = -1
    work.stretch = (worked + n - last) / (stretches + 1)
    return fmax(longest, n - last)


cdef bint _center_any(float *values, const float *known, int n) noexcept nogil:
    """Take the mean away and scale to a variance of 1, however little it varies. False: it is constant."""
    cdef int i, some = 0
    cdef double mean = 0, variance = 0
    for i in range(n):
        if known[i] > 0:
            mean += values[i]
            some += 1
    if some < 24:
        return False
    mean /= some
    for i in range(n):
        values[i] = <float>(values[i] - mean) if known[i] > 0 else <float>0.0
        variance += values[i] * values[i]
    variance /= some
    if not variance > 1e-6 * mean * mean + 1e-18:
        return False
    for i in range(n):
        values[i] = <float>(values[i] / sqrt(variance))
    return True


cdef double _repeats_at(const float *signals, int k, int n, int stride, int scale, double low, double high, Work *work) noexcept nogil:
    """Return the highest peak of any signal's autocorrelation between two lags (samples), of work alone; 0: none."""
    cdef int count = n // FACTORS[scale], s, lag, first, end
    cdef double best = 0, valley
    first, end = max(2, <int>(low / FACTORS[scale])), min(LAGS[scale] - 1, <int>(high / FACTORS[scale] + 1.0))
    if end < first or count < 24:
        return 0.0
    for s in range(k):
        _average(signals + <size_t>s * stride, work.paused, 3, n, FACTORS[scale], work.values, work.known)
        if not _center_any(work.values, work.known, count):
            continue
        _correlate(work.values, work.known, count, min(end + 1, count - 1), work.lagged)
        valley = 1.0
        for lag in range(1, end + 1):
            if work.lagged[lag] == 0.0:  # no pairs
                continue
            if lag >= first and work.lagged[lag] > valley + PEAK_MORE:
                best = fmax(best, work.lagged[lag])
            valley = fmin(valley, work.lagged[lag])
    return best


cdef bint _is_pause_cycle(const float *signals, int k, int n, int stride, double cycle, double longest, double seconds_per_sample,
                          Work *work) noexcept nogil:
    """Return whether a cycle is a pause and the work of many steps, or of steps too short to be seen.

    The work alone does not repeat one cycle later, or repeats as well after a small part of it.
    """
    cdef int i, j, edge = <int>(EDGE_SECONDS / seconds_per_sample), scale = 0
    cdef double structure
    if cycle * seconds_per_sample < CYCLE_SECONDS_MIN and work.pause * seconds_per_sample < CYCLE_PAUSE_SECONDS:
        return False
    # The edges of pauses belong to them.
    for i in range(n):
        if work.paused[i] and work.paused[i] < 3:
            for j in range(max(0, i - edge), min(n, i + edge + 1)):
                if not work.paused[j]:
                    work.paused[j] = 3
    while scale < SCALES - 1 and cycle / FACTORS[scale] + 2 > LAGS[scale]:
        scale += 1
    structure = _repeats_at(signals, k, n, stride, scale, cycle - FACTORS[scale], cycle + FACTORS[scale], work)
    if structure < STRUCTURE_MIN:
        return True
    for scale in range(2):
        if _repeats_at(signals, k, n, stride, scale, 0, longest / PARTS_MAX, work) > 0.5 * structure:
            return True
    return False


cdef Period _step(const float *signals, int k, int n, int stride, double seconds_per_sample, Work *work) noexcept nogil:
    cdef double longest = _find_pauses(signals, k, n, stride, seconds_per_sample, work)
    cdef Period found = _search(signals, k, n, stride, 1, SCALES, longest, work), part
    cdef int i
    cdef bint has_pauses = False, has_stretches = False
    for i in range(n):
        has_pauses = has_pauses or work.paused[i] == 1
        has_stretches = has_stretches or work.paused[i] == 2
    # Parts of the work between stretches that may be pauses: steps if there are many, micro-batches if few.
    if has_stretches:
        part = _search(signals, k, n, stride, 2, 3, longest, work)
        if not isnan(part.samples) and longest >= PARTS_MAX * part.samples:
            if isnan(found.samples) or found.samples > 1.6 * part.samples:
                return part
    if not isnan(found.samples) and longest / PARTS_MAX < found.samples < 0.9 * work.stretch:
        found.samples = NAN  # micro-batches, or too few steps to tell
    if not isnan(found.samples) and (has_pauses or has_stretches) and found.samples > longest / PARTS_MAX:
        if _is_pause_cycle(signals, k, n, stride, found.samples, longest, seconds_per_sample, work):
            found.samples = NAN
    return found


cdef double _repeats_near(const float *signals, int k, int n, int stride, double samples, double *at, Work *work) noexcept nogil:
    """Return the autocorrelation's peak nearest to *samples*, and write its place; 0: none within SUPPORT_OFF_MAX."""
    cdef int scale = 0, count, s, lag, lags, first, chosen = 0, some = 0, left_out = 1
    cdef double *r = work.means
    cdef double low, short_max
    cdef double[SIGNALS_MAX] weights
    cdef bint is_dense = False
    while scale < SCALES - 1 and samples * (1 + SUPPORT_OFF_MAX) / FACTORS[scale] + 2 > LAGS[scale]:
        scale += 1
    for scale in range(scale, min(scale + 2, SCALES)):
        count = n // FACTORS[scale]
        lags = min(LAGS[scale], count // 2)
        if samples * (1 + SUPPORT_OFF_MAX) / FACTORS[scale] + 1 > lags:
            return 0.0
        memset(r, 0, PLACES * sizeof(double))
        some = 0
        for s in range(k):
            weights[s] = 0.0
            _average(signals + <size_t>s * stride, work.paused, left_out, n, FACTORS[scale], work.values, work.known)
            if not _is_dense(work.known, work.paused + n - count * FACTORS[scale], left_out, count, FACTORS[scale]):
                continue
            if not _center(work.values, work.known, count):
                continue
            _correlate(work.values, work.known, count, lags + TAPS, work.lagged)
            _interpolate(work.lagged, lags, work.taps, work.each)
            for lag in range(lags * BETWEEN + 1):
                r[lag] += work.each[lag]
            some += 1
            weights[s] = 1.0
            is_dense = is_dense or _share_known(signals + <size_t>s * stride, n) > 0.7
        if some:
            break
    if not some:
        return 0.0
    for lag in range(lags * BETWEEN + 1):
        r[lag] /= some
    first = <int>(samples * (1 - SUPPORT_OFF_MAX) / FACTORS[scale] * BETWEEN)
    for lag in range(max(first, 2), min(<int>(samples * (1 + SUPPORT_OFF_MAX) / FACTORS[scale] * BETWEEN) + 1, lags * BETWEEN - 1) + 1):
        if _is_peak(r, lag) and (not chosen or r[lag] > r[chosen]):
            chosen = lag
    if not chosen:
        return 0.0
    low = 1.0
    for lag in range(1, chosen):
        low = fmin(low, r[lag])
    if r[chosen] - low < SUPPORT_VALLEY_MIN:
        return 0.0
    at[0] = _vertex(r, chosen) * FACTORS[scale] / BETWEEN
    short_max = SHORT_MAX if is_dense and _has_counters(signals, k, n, stride) else 2 * LAG_MIN
    if _divided(signals, k, n, stride, weights, work.paused, left_out, at[0], short_max, work.stretch) < short_max:
        return 0.0
    return r[chosen]


cdef char *_reserve(Work *work, double *taps) except NULL:
    """Return memory for *work*, which the caller frees."""
    cdef char *memory = <char *>malloc(3 * PLACES * sizeof(double) + (SAMPLES_MAX + 1) * (2 * sizeof(float) + sizeof(int) + 1))
    if memory == NULL:
        raise MemoryError
    work.means = <double *>memory
    work.each = work.means + PLACES
    work.lagged = work.each + PLACES
    work.values = <float *>(work.lagged + PLACES)
    work.known = work.values + SAMPLES_MAX
    work.lengths = <int *>(work.known + SAMPLES_MAX)
    work.paused = <unsigned char *>(work.lengths + SAMPLES_MAX + 1)
    work.taps = taps
    return memory


cdef int _check(Py_ssize_t k, Py_ssize_t n, double seconds_per_sample) except -1:
    if k > SIGNALS_MAX or n > SAMPLES_MAX:
        raise ValueError(f"{k} signals of {n} samples: expected at most {SIGNALS_MAX} of {SAMPLES_MAX}")
    if not 0.001 <= seconds_per_sample <= 3600.0:
        raise ValueError(f"{seconds_per_sample} seconds a sample: expected 0.001 to 3600")
    return 0


def estimate(const float[:, ::1] signals not None, double seconds_per_sample):
    cdef int k = signals.shape[0], n = signals.shape[1]
    cdef double[BETWEEN * 2 * TAPS] taps
    cdef Work work
    cdef char *memory
    cdef Period found
    _check(k, n, seconds_per_sample)
    if not k or n < 24:
        return NAN, 0.0
    memory = _reserve(&work, taps)
    with nogil:
        _make_taps(taps)
        found = _step(&signals[0, 0], k, n, n, seconds_per_sample, &work)
    free(memory)
    if isnan(found.samples):
        return NAN, 0.0
    return found.samples * seconds_per_sample, found.confidence


def repeats(const float[:, ::1] signals not None, double seconds_per_sample, double seconds, double skipped_seconds=0.0):
    cdef int k = signals.shape[0], all_samples = signals.shape[1], n, first
    cdef double[BETWEEN * 2 * TAPS] taps
    cdef Work work
    cdef char *memory
    cdef double found, at = NAN
    _check(k, all_samples, seconds_per_sample)
    n = all_samples - <int>fmin(fmax(skipped_seconds / seconds_per_sample, 0.0), all_samples)
    if not k or n < 24 or not seconds > 0:
        return NAN, 0.0
    memory = _reserve(&work, taps)
    with nogil:
        _make_taps(taps)
        first = max(0, n - <int>(fmax(SUPPORT_CYCLES * seconds, SUPPORT_SECONDS) / seconds_per_sample))
        _find_pauses(&signals[0, first], k, n - first, all_samples, seconds_per_sample, &work)
        found = _repeats_near(&signals[0, first], k, n - first, all_samples, seconds / seconds_per_sample, &at, &work)
    free(memory)
    if found < SUPPORT_MIN:
        return NAN, 0.0
    return at * seconds_per_sample, fmin(found, 1.0)
