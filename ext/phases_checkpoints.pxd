# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Segments of a state, and checkpoints: regular stretches without computing. C only."""

from libc.math cimport NAN, fabs, isfinite
from libc.stdint cimport int64_t
from libc.string cimport memset

from phases_state cimport *


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
    """Add the pending samples to a segment."""
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
    """Add a sample to the last segment, or to the pending next segment."""
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


cdef inline double middle(double *values, int count) noexcept nogil:
    """Return the median; sorts *values*."""
    cdef int i, k
    cdef double value
    for i in range(1, count):
        value, k = values[i], i
        while k > 0 and values[k - 1] > value:
            values[k] = values[k - 1]
            k -= 1
        values[k] = value
    return values[count // 2] if count % 2 else (values[count // 2 - 1] + values[count // 2]) / 2


cdef inline double length_of(Stretch *stretch) noexcept nogil:
    return (stretch.end_ns - stretch.begin_ns) / 1e9


cdef inline double interval_before(TrackedGpu *g, Cadence *c, int i, bint is_work) noexcept nogil:
    """Return the seconds from the previous member to the *i*-th: between begins, or of work."""
    cdef Stretch *before = &g.stretches[c.members[i - 1]]
    return (g.stretches[c.members[i]].begin_ns - (before.end_ns if is_work else before.begin_ns)) / 1e9


cdef inline double cadence_expect(TrackedGpu *g, Cadence *c, int count, int by) noexcept nogil:
    """Return the predicted interval after *count* members; a gap is divided by its members."""
    cdef double[STRETCHES_MAX] values
    cdef bint is_work = by == BY_USUAL_WORK or by == BY_LAST_WORK
    cdef double usual = c.work if is_work else c.interval, value
    cdef int i, times
    for i in range(1, count):
        value = interval_before(g, c, i, is_work)
        times = <int>(value / usual + 0.5) if usual > 0 else 1
        # Work is interrupted at a skipped member, and its length is unknown.
        values[i - 1] = value / times if times > 1 else value
    value = values[count - 2] if by == BY_LAST_CLOCK or by == BY_LAST_WORK else middle(values, count - 1)
    return value + (length_of(&g.stretches[c.members[count - 1]]) if is_work else 0)


cdef inline void cadence_choose(TrackedGpu *g, Cadence *c) noexcept nogil:
    """Choose the forecast with the best past predictions."""
    cdef int by, i, hits
    cdef double off, total, best = 1e30
    c.hits = c.tested = 0
    for by in range(FORECASTS):
        total = 0
        hits = 0
        for i in range(2, c.count):
            off = fabs(cadence_expect(g, c, i, by) - interval_before(g, c, i, False)) / c.interval
            total += min(off, 0.5)
            hits += off <= 0.1
        # A simpler forecast is kept unless another is clearly better.
        if total < 0.9 * best - 0.001:
            best = total
            c.by, c.hits, c.tested = <Forecast>by, hits, c.count - 2
    c.next_seconds = cadence_expect(g, c, c.count, c.by)


cdef inline bint cadence_is_regular(TrackedGpu *g, Cadence *c) noexcept nogil:
    """Return whether the members are regular: by the clock, or after equal work."""
    cdef double[STRETCHES_MAX] values
    cdef double[STRETCHES_MAX] sorted_values
    cdef double usual, off, offs, best = 1e30
    cdef double tolerance = INTERVAL_TOLERANCE if c.count > 3 else 0.5 * INTERVAL_TOLERANCE
    cdef int is_work, i, times, regular, irregular
    c.regular = 0
    for is_work in range(2):
        for i in range(1, c.count):
            values[i - 1] = sorted_values[i - 1] = interval_before(g, c, i, is_work) + (c.duration if is_work else 0)
        usual = middle(sorted_values, c.count - 1)
        if is_work:
            c.work = usual - c.duration
        else:
            c.interval = usual
        offs = 0
        regular = irregular = 0
        for i in range(c.count - 1):
            times = <int>(values[i] / usual + 0.5)
            off = fabs(values[i] - times * usual) / usual
            if 1 <= times <= 3 and off <= tolerance:
                regular += 1
                irregular += times - 1
                offs += off
            else:
                irregular += 1
        if regular - irregular > c.regular - c.irregular or c.regular == 0 or (
                regular - irregular == c.regular - c.irregular and offs < best):
            c.regular, c.irregular, best = regular, irregular, offs
    c.off = best
    return c.regular >= 2 and c.regular >= 3 * c.irregular


cdef inline bint cadence_is_of_checkpoints(TrackedGpu *g, Cadence *c) noexcept nogil:
    """Return whether regular pauses lie between steps: long, rare, or separated by many steps."""
    cdef int i, busy = 0, copies = 0
    cdef bint has_steps
    for i in range(1, c.count):
        busy += g.stretches[c.members[i]].dips >= STEPS_MIN
        copies += g.stretches[c.members[i]].is_copy
    has_steps = 2 * busy > c.count - 1 or 2 * copies > c.count - 1 or c.interval >= STEPS_MIN * g.step_seconds
    if c.interval < (CHECKPOINT_INTERVAL_MIN if not has_steps else 0.5 * CHECKPOINT_INTERVAL_MIN):
        return False
    if c.interval < 3 * g.step_seconds or c.duration > 0.95 * c.interval:
        return False
    c.has_steps = has_steps
    # A known step is much shorter than a pause that is longer than any exchange.
    has_steps = has_steps or (c.duration >= PAUSE_SECONDS_LONG and c.interval >= 3 * g.step_seconds)
    if has_steps or c.duration >= 0.4 * c.interval or c.interval >= STEP_SECONDS_MAX:
        return True
    # A shorter pause may be the exchange of a long step, unless UNSURE_MEMBERS_MIN came at long
    # intervals.
    return c.duration >= PAUSE_SECONDS_LONG or (c.count >= UNSURE_MEMBERS_MIN and c.interval >= 0.5 * STEP_SECONDS_MAX)


cdef inline bint cadence_try(TrackedGpu *g, int *by_time, int first, double least, Cadence *c) noexcept nogil:
    """Return whether stretches since *first* of *least* s or more are checkpoints; set *c*."""
    cdef double[STRETCHES_MAX] durations
    cdef double length, longest = 0, rival = 0
    cdef int i
    c.count = 0
    for i in range(first, g.stretch_count):
        length = length_of(&g.stretches[by_time[i]])
        if length >= least:
            c.members[c.count] = by_time[i]
            durations[c.count] = length
            c.count += 1
            longest = max(longest, length)
        else:
            rival = max(rival, length)
    if c.count < 3 or longest > 5 * least:
        return False
    # A few stretches that are regular by chance are not much longer than others.
    if c.count < 5 and (longest > 3 * least or rival > 0.7 * least):
        return False
    c.duration = middle(durations, c.count)
    return cadence_is_regular(g, c) and cadence_is_of_checkpoints(g, c)


cdef inline void cadence_mark(TrackedGpu *g) noexcept nogil:
    """Mark the stretches that are checkpoints, and relabel their segments."""
    cdef Stretch *stretch
    cdef Segment *segment
    cdef int64_t number, middle_ns
    cdef int i
    for i in range(g.stretch_count):
        g.stretches[i].is_checkpoint = False
    for i in range(g.cadence.count):
        stretch = &g.stretches[g.cadence.members[i]]
        stretch.is_checkpoint = True
        for number in range(max(0, g.segment_count - SEGMENTS_MAX), g.segment_count):
            segment = &g.segments[number % SEGMENTS_MAX]
            middle_ns = segment.begin_ns + (segment.end_ns - segment.begin_ns) // 2
            if segment.state in (WAIT, HOST_STALL) and stretch.begin_ns <= middle_ns <= stretch.end_ns:
                segment_relabel(g, segment, CHECKPOINT)


cdef inline void cadence_find(TrackedGpu *g) noexcept nogil:
    """Find the cadence with the most members among stretches since any time, above any length."""
    cdef int[STRETCHES_MAX] by_time
    cdef int i, k, first
    cdef Cadence found, best
    best.count = 0
    for i in range(g.stretch_count):
        k = i
        while k > 0 and g.stretches[by_time[k - 1]].begin_ns > g.stretches[i].begin_ns:
            by_time[k] = by_time[k - 1]
            k -= 1
        by_time[k] = i
    for first in range(g.stretch_count - 2):
        for i in range(first, g.stretch_count):
            if not cadence_try(g, by_time, first, length_of(&g.stretches[by_time[i]]), &found):
                continue
            if not best.count or found.regular - 2 * found.irregular > best.regular - 2 * best.irregular or (
                    found.regular - 2 * found.irregular == best.regular - 2 * best.irregular
                    and (found.duration > 1.5 * best.duration or (found.off < best.off and found.duration > 0.7 * best.duration))):
                best = found
    if not best.count:
        g.cadence.count = 0
        g.interval_seconds = g.duration_seconds = NAN
        return
    cadence_choose(g, &best)
    g.cadence = best
    g.duration_seconds = best.duration
    g.interval_seconds = best.work + best.duration if best.by >= BY_USUAL_WORK else best.interval
    g.last_checkpoint_ns = g.stretches[best.members[best.count - 1]].begin_ns
    g.next_checkpoint_ns = g.last_checkpoint_ns + <int64_t>(best.next_seconds * 1e9)
    cadence_mark(g)


cdef inline double next_probability(TrackedGpu *g) noexcept nogil:
    """Return the share of intervals and predictions that were right; recent ones count more.

    Pauses without steps between them may be the exchanges of long steps: regular, but not
    checkpoints.
    """
    return (HITS_PRIOR + g.cadence.hits + 2 * g.recent_hits) / (
        TESTS_PRIOR + g.cadence.tested + g.cadence.irregular + 2 * g.recent
    ) * (1.0 if g.cadence.has_steps else CHECKPOINT_SHARE)


cdef inline void predict(TrackedGpu *g) noexcept nogil:
    """Predict the next checkpoint; the prediction is kept until it is decided."""
    if isfinite(g.interval_seconds):
        g.predicted_ns = g.next_checkpoint_ns
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


cdef inline void stretch_keep(TrackedGpu *g, Stretch *kept) noexcept nogil:
    """Store a stretch in place of the oldest among those that are not much longer."""
    cdef int i, place = -1
    cdef Stretch *stretch
    for i in range(g.stretch_count):
        stretch = &g.stretches[i]
        if kept.end_ns - stretch.end_ns > <int64_t>(STRETCH_AGE_MAX * 1e9):
            place = i
            break
        if g.stretch_count == STRETCHES_MAX and length_of(stretch) <= 2 * length_of(kept):
            if place < 0 or stretch.begin_ns < g.stretches[place].begin_ns:
                place = i
    if place < 0 and g.stretch_count < STRETCHES_MAX:
        place = g.stretch_count
        g.stretch_count += 1
    if place >= 0:
        g.stretches[place] = kept[0]


cdef inline void stretch_end(TrackedGpu *g, int64_t end_ns) noexcept nogil:
    cdef double computed, sent, sent_else
    cdef Stretch stretch
    if g.in_checkpoint:  # the samples that revealed its end were counted as checkpoint
        computed = min(g.computing_seconds, g.checkpoint_seconds)
        g.checkpoint_seconds -= computed
        g.job_seconds += computed
        g.duty_seconds += computed
        g.resident_seconds += computed
    g.is_stretch = g.in_checkpoint = False
    g.waiting_seconds = g.computing_seconds = 0
    g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0
    if end_ns - g.stretch_begin_ns >= <int64_t>(STRETCH_SECONDS_MIN * 1e9):
        sent = g.stretch_sent_bytes / g.stretch_sent_seconds if g.stretch_sent_seconds > 0 else 0
        sent_else = g.sent_bytes / g.sent_seconds if g.sent_seconds > 0 else sent
        stretch = Stretch(g.stretch_begin_ns, end_ns, g.dips, sent >= COPY_BYTES_MIN and sent > 5 * sent_else, False)
        g.dips = 0
        stretch_keep(g, &stretch)
        cadence_find(g)
        if not g.is_predicted or isfinite(g.interval_seconds) and g.last_checkpoint_ns == stretch.begin_ns:
            predict(g)


cdef inline void dip_count(TrackedGpu *g, double duty) noexcept nogil:
    """Count the drops of the share of computing: one per step, if samples resolve steps."""
    if g.is_dip and duty >= 0.6:
        g.is_dip = False
    elif not g.is_dip and duty < 0.4:
        g.is_dip = True
        g.dips += 1


cdef inline void sent_count(TrackedGpu *g, double seconds, double sent) noexcept nogil:
    """Add up the bytes sent to the host, inside and outside of stretches."""
    if not isfinite(sent):
        return
    if g.is_stretch:
        g.stretch_sent_bytes += seconds * sent
        g.stretch_sent_seconds += seconds
    else:
        g.sent_bytes += seconds * sent
        g.sent_seconds += seconds


cdef inline void stretch_put(TrackedGpu *g, int64_t now_ns, double seconds, double duty) noexcept nogil:
    """Follow stretches without computing, including whether the present one is a checkpoint."""
    cdef double off_seconds, elapsed
    dip_count(g, duty)
    if not g.is_stretch:
        if duty >= 0.4:
            g.waiting_seconds = 0
            return
        if g.waiting_seconds == 0:
            g.stretch_begin_ns = now_ns - <int64_t>(seconds * 1e9)
            g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0
            g.stretch_sent_bytes = g.stretch_sent_seconds = 0
        g.waiting_seconds += seconds
        g.is_stretch = g.waiting_seconds >= STRETCH_OPEN_SECONDS - 1e-6
        g.computing_seconds = 0
    elif duty >= 0.6:
        if g.computing_seconds == 0:
            g.resume_ns = now_ns - <int64_t>(seconds * 1e9)
        g.computing_seconds += seconds
        if g.computing_seconds >= STRETCH_OPEN_SECONDS - 1e-6:
            g.computing_seconds -= seconds  # this sample is not counted yet
            stretch_end(g, g.resume_ns)
            return
    elif now_ns - g.resume_ns > <int64_t>(RESUME_SECONDS_MAX * 1e9):
        g.computing_seconds = 0
    if not g.is_stretch or not isfinite(g.interval_seconds):
        return
    elapsed = (now_ns - g.stretch_begin_ns) / 1e9
    if g.in_checkpoint:
        # A job that does not resume hangs, or waits for a host.
        g.in_checkpoint = elapsed < max(CHECKPOINT_TIMES_MAX * g.duration_seconds, CHECKPOINT_SECONDS_LONG)
        return
    if elapsed >= max(CHECKPOINT_TIMES_MAX * g.duration_seconds, CHECKPOINT_SECONDS_LONG):
        return
    off_seconds = (g.stretch_begin_ns - g.next_checkpoint_ns) / 1e9
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
