# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Segments of a state, and the stretches without computing that come regularly: checkpoints, and when the next is due. C only."""

from libc.math cimport NAN, fabs, isfinite
from libc.stdint cimport int64_t
from libc.string cimport memset

from phases_state cimport *


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
    between them, however long each takes, as when a job writes one every n steps; else by the clock."""
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
            if best.count == count and (
                    found.irregular > best.irregular or found.irregular == best.irregular and found.off >= best.off):
                continue
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
