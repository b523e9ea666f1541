# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Splits a job's step into data loading, forward, backward and optimizer, with their shares, or abstains.

Forward and backward are reported together if only the traffic separates them: backward begins
before its first gradients move.

The last steps are folded at the known period, each shifted to its best fit, because steps differ in
length. The folded step is cut where its signals change (the partition with the least squared
distance and a price per cut), and the pieces are labeled by their activity. Parts that the signals
do not separate are NaN.
"""

from libc.math cimport NAN, fabs, fmax, fmin, isnan
from libc.string cimport memset

cdef enum:
    POWER, UTILIZATION, SM_ACTIVE, TENSOR, BANDWIDTH, PCIE, NVLINK
    SIGNALS = 7
    BINS_MAX = 64
    BINS_MIN = 16
    CYCLES_MAX = 24
    CYCLES_MIN = 4
    NEAR = 2  # bins by which a step may begin later or earlier than the previous step

cdef enum:
    DATA_LOADING, FORWARD, BACKWARD, OPTIMIZER, FORWARD_BACKWARD  # as in PARTS
    PART_COUNT = 5

cdef enum:
    STALL, QUIET, BUSY, BETWEEN, MEMORY, WAIT

cdef double STEP_SECONDS_MIN = 5.0   # GPM is read five times a second: parts of a shorter step are mixtures
cdef double EXPLAINED_MIN = 0.6      # share of the variance of work that the folded step explains
cdef double CUT_PRICE = 0.10         # squared distance that a further piece must save; signals are 0 to 1
cdef double CYCLE_COST_MAX = 0.5     # share of the variance: a step that fits worse is skipped
cdef double NVLINK_BYTES_MIN = 1e9   # per second: less is not an exchange of gradients
cdef double PCIE_BYTES_MIN = 2e7     # per second: less is not data loading
cdef double QUIET_MAX = 0.3          # share of the maximum traffic: forward
cdef double BUSY_MIN = 0.5           # backward
cdef double MIXED_SECONDS = 0.3      # GPM's readings are means of 0.2 s, and steps differ
cdef double PART_SECONDS_MIN = 0.5   # a shorter part has two readings of GPM, both mixtures
cdef double PART_BINS_MIN = 2.5
cdef double CONTRAST_MIN = 0.08      # difference of power, tensor cores or bandwidth that separates backward from forward
cdef double OPTIMIZER_MAX = 0.2      # share of the step

PARTS = ("data_loading", "forward", "backward", "optimizer", "forward_backward")


cdef struct Fold:
    int bins, cycles
    double sums[SIGNALS][BINS_MAX]
    double counts[SIGNALS][BINS_MAX]
    double means[SIGNALS][BINS_MAX]
    double squares, variance


cdef struct Piece:
    int begin, length
    double extent  # bins, with shares of adjacent mixtures
    int label
    double means[SIGNALS]


cdef inline double _work(const float *signals, int stride, int i) noexcept nogil:
    """Return a sample's work, for fitting steps to each other; NaN without a GPM reading."""
    return signals[TENSOR * stride + i] + signals[SM_ACTIVE * stride + i]


cdef void _take(Fold *fold, const float *signals, int stride, int begin, int end, double bins_per_sample, double shift) noexcept nogil:
    cdef int i, s, at
    for i in range(begin, end):
        at = <int>((i - begin) * bins_per_sample + shift + fold.bins) % fold.bins
        for s in range(SIGNALS):
            if not isnan(signals[s * stride + i]):
                fold.sums[s][at] += signals[s * stride + i]
                fold.counts[s][at] += 1


cdef double _misfit(const Fold *fold, const float *signals, int stride, int begin, int end, double bins_per_sample, double shift) noexcept nogil:
    """Return the mean squared distance of a shifted step to the fold; NaN without common data."""
    cdef int i, at, count = 0
    cdef double total = 0, value, expected
    for i in range(begin, end):
        value = _work(signals, stride, i)
        at = <int>((i - begin) * bins_per_sample + shift + fold.bins) % fold.bins
        if isnan(value) or not fold.counts[TENSOR][at]:
            continue
        expected = (fold.sums[TENSOR][at] + fold.sums[SM_ACTIVE][at]) / fold.counts[TENSOR][at]
        total += (value - expected) * (value - expected)
        count += 1
    return total / count if count * 8 > end - begin else NAN


cdef bint _fold(Fold *fold, const float *signals, int stride, int n, double samples_per_step) noexcept nogil:
    """Fold the last steps, the newest first, each at its best fit. False if too few fit."""
    cdef int cycle, cycles, begin, end, i, s, at, offset, reach, known = 0
    cdef double value, mean = 0, bins_per_sample, shift = 0, best, cost, chosen, drift = 0, explained = 0
    memset(fold, 0, sizeof(fold[0]))
    fold.bins = min(BINS_MAX, max(BINS_MIN, <int>samples_per_step))
    bins_per_sample = fold.bins / samples_per_step
    cycles = min(CYCLES_MAX, <int>(n / samples_per_step))
    if cycles < CYCLES_MIN:
        return False
    for i in range(n - <int>(cycles * samples_per_step), n):
        value = _work(signals, stride, i)
        if not isnan(value):
            mean += value
            known += 1
    if known * 4 < cycles * samples_per_step:
        return False
    mean /= known
    for i in range(n - <int>(cycles * samples_per_step), n):
        value = _work(signals, stride, i)
        if not isnan(value):
            fold.variance += (value - mean) * (value - mean) / known
    if fold.variance < 1e-4:
        return False
    for cycle in range(cycles):
        begin = n - <int>((cycle + 1) * samples_per_step)
        end = begin + <int>samples_per_step
        chosen = 0
        if cycle >= 1:
            best = 1e30
            reach = NEAR
            while True:
                for offset in range(-reach, reach + 1):
                    cost = _misfit(fold, signals, stride, begin, end, bins_per_sample, shift + offset)
                    if cost < best:
                        best, chosen = cost, offset
                # After a checkpoint the next step may begin anywhere.
                if best <= CYCLE_COST_MAX * fold.variance or reach > NEAR:
                    break
                reach = fold.bins // 2
            if best > CYCLE_COST_MAX * fold.variance:
                continue
            explained += best
            fold.cycles += 1
        shift += chosen
        while shift < 0:
            shift += fold.bins
        while shift >= fold.bins:
            shift -= fold.bins
        _take(fold, signals, stride, begin, end, bins_per_sample, shift)
    if fold.cycles + 1 < max(CYCLES_MIN, cycles // 2):
        return False
    fold.squares = explained / max(fold.cycles, 1)
    for s in range(SIGNALS):
        for i in range(fold.bins):
            fold.means[s][i] = fold.sums[s][i] / fold.counts[s][i] if fold.counts[s][i] > 0 else NAN
        for i in range(fold.bins):
            at = i
            while isnan(fold.means[s][at]) and at < i + 3:  # an empty bin has the next bin's mean
                at += 1
                if at >= fold.bins:
                    break
            if at < fold.bins:
                fold.means[s][i] = fold.means[s][at]
            elif i:
                fold.means[s][i] = fold.means[s][i - 1]
    return True


cdef double _scale(Fold *fold, int s, double least) noexcept nogil:
    """Scale a signal to 0 to 1 by its highest tenth; return that, 0 if below *least* or unknown."""
    cdef double[BINS_MAX] ordered
    cdef double value, top
    cdef int i, k
    top = 0
    for i in range(fold.bins):
        value = fold.means[s][i]
        if isnan(value):
            top = NAN
            break
        k = i
        while k > 0 and ordered[k - 1] > value:
            ordered[k] = ordered[k - 1]
            k -= 1
        ordered[k] = value
    if not isnan(top):
        top = ordered[fold.bins - 1 - fold.bins // 12]
    if isnan(top) or top < least or top <= 0:
        for i in range(fold.bins):
            fold.means[s][i] = 0.0
        return 0.0
    for i in range(fold.bins):
        fold.means[s][i] = fmin(fold.means[s][i] / top, 1.0)
    return top


cdef double _distance(const Fold *fold, int a, int b) noexcept nogil:
    cdef int s
    cdef double total = 0, off
    for s in range(UTILIZATION, NVLINK + 1):
        if s != PCIE:
            off = fold.means[s][a % fold.bins] - fold.means[s][b % fold.bins]
            total += off * off
    return total


cdef int _cut(const Fold *fold, Piece *pieces) noexcept nogil:
    """Cut the step where its signals change, from the clearest change; return the piece count."""
    cdef int bins = fold.bins, first = 0, i, k, s, at, count = 0
    cdef double[BINS_MAX + 1] best
    cdef int[BINS_MAX + 1] last
    cdef int[BINS_MAX + 1] ends
    cdef double[SIGNALS][BINS_MAX + 1] total
    cdef double[BINS_MAX + 1] squares
    cdef double cost, off, sum_
    off = -1
    for i in range(bins):
        cost = _distance(fold, i + bins - 1, i)
        if cost > off:
            off, first = cost, i
    squares[0] = 0
    for s in range(SIGNALS):
        total[s][0] = 0
    for i in range(bins):
        at = (first + i) % bins
        squares[i + 1] = squares[i]
        for s in range(SIGNALS):
            total[s][i + 1] = total[s][i] + fold.means[s][at]
            if s != PCIE and s != POWER:
                squares[i + 1] += fold.means[s][at] * fold.means[s][at]
    best[0] = 0
    for i in range(1, bins + 1):
        best[i] = 1e30
        for k in range(i):
            cost = squares[i] - squares[k]
            for s in range(UTILIZATION, SIGNALS):
                if s != PCIE:
                    sum_ = total[s][i] - total[s][k]
                    cost -= sum_ * sum_ / (i - k)
            cost += best[k] + CUT_PRICE
            if cost < best[i]:
                best[i], last[i] = cost, k
    i = bins
    while i > 0:
        ends[count] = i
        count += 1
        i = last[i]
    for k in range(count):
        i = ends[count - 1 - k]
        at = last[i]
        pieces[k].begin, pieces[k].length, pieces[k].extent = (first + at) % bins, i - at, i - at
        for s in range(SIGNALS):
            pieces[k].means[s] = (total[s][i] - total[s][at]) / (i - at)
    return count


cdef int _label(const Piece *piece, bint has_nvlink) noexcept nogil:
    cdef double[SIGNALS] mean
    cdef int s
    for s in range(SIGNALS):
        mean[s] = piece.means[s]
    if mean[SM_ACTIVE] < 0.3 and mean[TENSOR] < 0.25 and mean[UTILIZATION] < 0.4:
        return STALL
    if mean[TENSOR] >= 0.5:
        if not has_nvlink or QUIET_MAX < mean[NVLINK] < BUSY_MIN:
            return BETWEEN
        return QUIET if mean[NVLINK] <= QUIET_MAX else BUSY
    if mean[TENSOR] < 0.35 and mean[BANDWIDTH] >= 0.6 and mean[SM_ACTIVE] >= 0.5:
        return MEMORY
    if mean[TENSOR] < 0.35 and mean[SM_ACTIVE] < 0.5:
        return WAIT
    return BETWEEN


cdef bint _divide(Piece *left, const Piece *piece, Piece *right) noexcept nogil:
    """Divide a mixture between its neighbors by their most different signal; False: no mixture."""
    cdef int s, widest = SM_ACTIVE
    cdef double off = -1, share
    for s in range(UTILIZATION, SIGNALS):
        if s != PCIE and fabs(left.means[s] - right.means[s]) > off:
            off, widest = fabs(left.means[s] - right.means[s]), s
    if off < 0.2:
        return False
    share = (piece.means[widest] - right.means[widest]) / (left.means[widest] - right.means[widest])
    if not -0.1 <= share <= 1.1 or piece.means[BANDWIDTH] > fmax(left.means[BANDWIDTH], right.means[BANDWIDTH]) + 0.15:
        return False
    share = fmin(fmax(share, 0.0), 1.0)
    left.extent += share * piece.extent
    right.extent += (1 - share) * piece.extent
    return True


cdef int _joined(Piece *pieces, int count, int mixed_bins) noexcept nogil:
    """Divide short mixtures between their neighbors (readings are means); join equal neighbors."""
    cdef int i, k, s, shortest, number = 0
    while count > 2:
        shortest = -1
        for i in range(count):
            if pieces[i].length <= mixed_bins and (shortest < 0 or pieces[i].length < pieces[shortest].length):
                if pieces[(i + count - 1) % count].length >= pieces[i].length and pieces[(i + 1) % count].length >= pieces[i].length:
                    shortest = i
        if shortest < 0:
            break
        i = shortest
        if not _divide(&pieces[(i + count - 1) % count], &pieces[i], &pieces[(i + 1) % count]):
            pieces[i].length = mixed_bins + 1  # not a mixture
            continue
        for k in range(i, count - 1):
            pieces[k] = pieces[k + 1]
        count -= 1
    for i in range(count):
        if number and pieces[number - 1].label == pieces[i].label:
            k = number - 1
            for s in range(SIGNALS):
                pieces[k].means[s] = (
                    pieces[k].means[s] * pieces[k].extent + pieces[i].means[s] * pieces[i].extent
                ) / fmax(pieces[k].extent + pieces[i].extent, 1e-9)
            pieces[k].length += pieces[i].length
            pieces[k].extent += pieces[i].extent
        else:
            pieces[number] = pieces[i]
            number += 1
    if number > 1 and pieces[0].label == pieces[number - 1].label:
        pieces[0].begin = pieces[number - 1].begin
        pieces[0].length += pieces[number - 1].length
        pieces[0].extent += pieces[number - 1].extent
        number -= 1
    return number


cdef double _begun_before(const Fold *fold, const Piece *quiet, const Piece *busy) noexcept nogil:
    """Return how many last bins of *quiet* belong to backward: like *busy*, except traffic."""
    cdef int i, at, s, cut, best_cut = 0, bins = fold.bins, n = quiet.length
    cdef int[3] compared
    cdef double[3][BINS_MAX + 1] total
    cdef double gain, best = 0, front, back, rest, residual = 0, squares = 0, value, near, far
    compared[0], compared[1], compared[2] = POWER, TENSOR, BANDWIDTH
    if n < 4 or n > bins:
        return 0
    for s in range(3):
        total[s][0] = 0
        for i in range(n):
            value = fold.means[compared[s]][(quiet.begin + i) % bins]
            total[s][i + 1] = total[s][i] + value
            squares += value * value
        squares -= total[s][n] * total[s][n] / n
    for cut in range(2, n - 1):
        gain = 0
        for s in range(3):
            front, back, rest = total[s][cut] / cut, (total[s][n] - total[s][cut]) / (n - cut), total[s][n] / n
            gain += cut * (front - rest) * (front - rest) + (n - cut) * (back - rest) * (back - rest)
        if gain > best:
            best, best_cut = gain, cut
    residual = squares - best
    if best_cut == 0 or best < 3 * residual or n - best_cut > 0.5 * busy.length:
        return 0
    near = far = 0
    for s in range(3):
        front = total[s][best_cut] / best_cut
        back = (total[s][n] - total[s][best_cut]) / (n - best_cut)
        near += fabs(back - busy.means[compared[s]])
        far += fabs(front - busy.means[compared[s]])
    return n - best_cut if near < 0.5 * far else 0


cdef bint _differ(const Piece *quiet, const Piece *busy) noexcept nogil:
    """Return whether the two differ beyond traffic: then backward begins with the traffic."""
    return (
        fabs(quiet.means[POWER] - busy.means[POWER]) >= CONTRAST_MIN
        or fabs(quiet.means[TENSOR] - busy.means[TENSOR]) >= CONTRAST_MIN
        or fabs(quiet.means[BANDWIDTH] - busy.means[BANDWIDTH]) >= CONTRAST_MIN
    )


cdef void _name(const Fold *fold, const Piece *pieces, int count, double pcie_top, double bin_seconds, double *found) noexcept nogil:
    """Set the shares of the parts, NaN if not separated, and the clarity of their separation."""
    cdef int bins = fold.bins, i, before, after, at, stalls = 0, memories = 0, quiets = 0, busies = 0, others = 0, quiet_at = 0, memory_at = 0
    cdef double stalled = 0, data = 0, elsewhere = 0, plain = 1.0, ratio, early, forward = 0, backward = 0
    for i in range(count):
        if pieces[i].label == STALL:
            stalls += 1
            stalled += pieces[i].extent
            data += pieces[i].means[PCIE] * pieces[i].extent
        else:
            elsewhere += pieces[i].means[PCIE] * pieces[i].extent
        if pieces[i].label == MEMORY:
            memories += 1
            memory_at = i
        elif pieces[i].label == QUIET:
            quiets += 1
            quiet_at = i
        elif pieces[i].label == BUSY:
            busies += 1
        elif pieces[i].label == BETWEEN:
            others += 1
    if stalls and stalled < bins and pcie_top > 0:
        data /= stalled
        elsewhere /= bins - stalled
        if data > 2 * elsewhere:
            found[DATA_LOADING] = stalled / bins
            plain = fmin(plain, 1.0 - elsewhere / data)
    if memories == 1 and pieces[memory_at].extent <= OPTIMIZER_MAX * bins:
        before, after = pieces[(memory_at + count - 1) % count].label, pieces[(memory_at + 1) % count].label
        if before in (BUSY, WAIT, BETWEEN) and after in (STALL, QUIET, BETWEEN) and before != after:
            found[OPTIMIZER] = pieces[memory_at].extent / bins
            plain = fmin(plain, fmax(0.0, pieces[memory_at].means[BANDWIDTH] - pieces[memory_at].means[TENSOR]))
    # Forward, then backward, once per step. Micro-batches, traffic in both, or a waiting stage
    # between them violate this.
    if quiets == 1 and busies == 1 and not others:
        at = (quiet_at + 1) % count
        if pieces[at].label == BUSY and (count == 2 or pieces[(quiet_at + count - 1) % count].label != BUSY):
            early = _begun_before(fold, &pieces[quiet_at], &pieces[at])
            forward, backward = pieces[quiet_at].extent - early, pieces[at].extent + early
            ratio = backward / forward
            if 1.0 <= ratio <= 4.0 and forward >= 0.1 * bins:
                if early > 0 or _differ(&pieces[quiet_at], &pieces[at]):
                    found[FORWARD], found[BACKWARD] = forward / bins, backward / bins
                else:
                    found[FORWARD_BACKWARD] = (forward + backward) / bins
                plain = fmin(plain, pieces[at].means[NVLINK] - pieces[quiet_at].means[NVLINK])
    for i in range(PART_COUNT):
        if found[i] * bins < PART_BINS_MIN or found[i] * bins * bin_seconds < PART_SECONDS_MIN:
            found[i] = NAN
    if isnan(found[FORWARD]) != isnan(found[BACKWARD]):
        found[FORWARD_BACKWARD] = (forward + backward) / bins
        found[FORWARD] = found[BACKWARD] = NAN
    found[PART_COUNT] = plain


def split(const float[:, ::1] signals not None, double seconds_per_sample, double step_seconds):
    cdef int n = signals.shape[1], count, i
    cdef Fold fold
    cdef Piece[BINS_MAX] pieces
    cdef double[PART_COUNT + 1] found
    cdef double explained, nvlink_top, pcie_top
    if signals.shape[0] != SIGNALS:
        raise ValueError(f"{signals.shape[0]} signals: expected {SIGNALS}")
    if not 0.001 <= seconds_per_sample <= 3600.0:
        raise ValueError(f"{seconds_per_sample} seconds a sample: expected 0.001 to 3600")
    for i in range(PART_COUNT + 1):
        found[i] = NAN
    if not step_seconds >= STEP_SECONDS_MIN or not BINS_MIN <= step_seconds / seconds_per_sample <= n:
        return NAN, NAN, NAN, NAN, NAN, 0.0
    with nogil:
        explained = 0
        if _fold(&fold, &signals[0, 0], n, n, step_seconds / seconds_per_sample):
            explained = 1.0 - fold.squares / fold.variance
        if explained >= EXPLAINED_MIN and _scale(&fold, SM_ACTIVE, 0.1) > 0 and _scale(&fold, TENSOR, 0.02) > 0:
            _scale(&fold, BANDWIDTH, 0.1)
            _scale(&fold, UTILIZATION, 0.1)
            _scale(&fold, POWER, 1.0)
            nvlink_top, pcie_top = _scale(&fold, NVLINK, NVLINK_BYTES_MIN), _scale(&fold, PCIE, PCIE_BYTES_MIN)
            count = _cut(&fold, pieces)
            for i in range(count):
                pieces[i].label = _label(&pieces[i], nvlink_top > 0)
            count = _joined(pieces, count, max(1, <int>(MIXED_SECONDS * fold.bins / step_seconds)))
            _name(&fold, pieces, count, pcie_top, step_seconds / fold.bins, found)
    for i in range(PART_COUNT):
        if not isnan(found[i]):
            break
    else:
        return NAN, NAN, NAN, NAN, NAN, 0.0
    return found[0], found[1], found[2], found[3], found[4], explained * found[PART_COUNT]
