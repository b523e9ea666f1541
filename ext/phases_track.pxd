# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Tracks each GPU sample by sample: its job, its share of computing, its state. C only."""

from libc.math cimport NAN, fabs, isfinite
from libc.stdint cimport int64_t

from phases_checkpoints cimport *
from phases_levels cimport *
from phases_state cimport *


cdef inline void job_clear(TrackedGpu *g) noexcept nogil:
    cdef int i
    levels_clear(&g.levels[BY_SM], False, 0.5, 0.75)
    levels_clear(&g.levels[BY_TENSOR], False, 0.3, 0.75)
    levels_clear(&g.levels[BY_POWER], True, 0.62, 0.6)
    g.learn_in_seconds, g.forget_in_seconds, g.learned_seconds = 1, 10, 0
    g.stretch_count = g.cadence.count = g.dips = 0
    g.is_dip = False
    g.sent_bytes = g.sent_seconds = g.stretch_sent_bytes = g.stretch_sent_seconds = 0
    g.is_stretch = g.in_checkpoint = g.is_predicted = False
    g.waiting_seconds = g.computing_seconds = 0
    g.interval_seconds = g.duration_seconds = g.step_seconds = NAN
    g.recent = g.recent_hits = 0
    g.last_checkpoint_ns = g.next_checkpoint_ns = 0
    g.disagreement = 0
    g.quiet_seconds = g.active_seconds = 0
    g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0
    for i in range(STATE_COUNT):
        g.state_seconds[i] = g.state_power_seconds[i] = g.state_watt_seconds[i] = 0


cdef inline void job_begin(TrackedGpu *g) noexcept nogil:
    job_clear(g)
    g.has_job = True
    g.jobs += 1
    g.job_begin_ns = g.computed_ns = g.last_ns


cdef inline void job_learn(TrackedGpu *g, double seconds) noexcept nogil:
    """Learn the levels: each second while the job is young, then every five seconds."""
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


cdef inline double within(float value, double most) noexcept nogil:
    """Return the value; NaN if it is impossible."""
    return value if isfinite(value) and 0 <= value <= most else NAN


cdef inline bint follow_job(TrackedGpu *g, double seconds, double watts, double used, double active) noexcept nogil:
    """Return whether a job is present: by its processes or by use, until IDLE_SECONDS of quiet."""
    cdef bint is_active, is_quiet
    cdef Segment *last
    if isfinite(used):
        is_active, is_quiet = used >= 0.05, used < 0.01
    elif isfinite(active):
        is_active, is_quiet = active >= 0.05, active < 0.01
    elif isfinite(g.floor_watts):
        is_active, is_quiet = watts > 1.35 * g.floor_watts + 10, True
    else:  # power alone, without any sample of an idle GPU
        is_active, is_quiet = watts >= 100, False
    if isfinite(watts) and isfinite(g.floor_watts) and watts > 1.25 * g.floor_watts:
        is_quiet = False
    g.active_seconds = g.active_seconds + seconds if is_active else 0
    if g.processes == 0 and g.active_seconds >= 2:
        g.processes = -1  # the processes are not visible
    if not g.has_job:
        if g.processes > 0 or (g.processes < 0 and g.active_seconds >= 0.2 - 1e-6):
            job_begin(g)
        elif isfinite(watts):
            # The lowest power, rising slowly: a warmer GPU leaks more.
            g.floor_watts = g.floor_watts + (watts - g.floor_watts) * min(1.0, seconds / 600) if g.floor_watts <= watts else watts
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


cdef inline double clipped(double share) noexcept nogil:
    return min(max(share, 0.0), 1.0)


cdef inline double duty_of(TrackedGpu *g, double watts, double used, double active, double tensor,
                           double bandwidth, double *confidence) noexcept nogil:
    """Return the share of computing, by the best signal whose levels differ.

    Scatter may put it below 0 or above 1. Without such a signal it is a guess with low confidence.
    A memory-bound kernel draws little power and uses no tensor cores, but SMs and memory are busy;
    by power alone it looks like a wait.
    """
    cdef double[WITNESSES] values
    cdef double[WITNESSES] duties
    cdef double certainty, off
    cdef int i, best = -1
    values[BY_SM], values[BY_TENSOR], values[BY_POWER] = active, tensor, watts
    for i in range(WITNESSES):
        duties[i] = NAN
        if isfinite(values[i]) and isfinite(g.levels[i].low):
            duties[i] = (values[i] - g.levels[i].low) / (g.levels[i].high - g.levels[i].low)
            duties[i] = min(max(duties[i], -0.5), 1.5)
            if best < 0:
                best = i
    if best != BY_SM and active >= MEMORY_BOUND_ACTIVE and bandwidth >= MEMORY_BOUND_BANDWIDTH:
        confidence[0] = 0.95
        return 1.0
    if best >= 0:
        certainty = 0.95 if best == BY_SM else 0.9 if best == BY_TENSOR else 0.85
        # A smeared high level is an average of computing and waiting.
        certainty *= 1 - min(2 * g.levels[best].spread, 0.6)
        if best != BY_POWER and isfinite(watts):
            # If power smoothing keeps a floor, power does not show waits.
            off = fabs(clipped(duties[BY_POWER]) - clipped(duties[best])) if isfinite(duties[BY_POWER]) else 0.5
            g.disagreement += 0.02 * (off - g.disagreement)
        confidence[0] = certainty * (1 - 0.5 * g.disagreement)
        if best == BY_POWER and duties[best] < 0.5:
            confidence[0] = min(confidence[0], POWER_WAIT_CONFIDENCE_MAX)
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
                           double tensor, double bandwidth, double resident, double sent, bint is_interrupted) noexcept nogil:
    cdef bint is_resident = not resident < 0.5
    cdef double duty, compute, stall, confidence = 0
    if isfinite(watts):
        levels_add(&g.levels[BY_POWER], watts, seconds, is_resident)
    if isfinite(active):
        levels_add(&g.levels[BY_SM], active, seconds, is_resident)
    if isfinite(tensor):
        levels_add(&g.levels[BY_TENSOR], tensor, seconds, is_resident)
    job_learn(g, seconds)
    duty = duty_of(g, watts, used, active, tensor, bandwidth, &confidence)
    compute = clipped(duty)
    if not isfinite(resident):
        resident = 1
    stall = min(1 - resident, 1 - compute)
    if is_interrupted:
        g.is_stretch = g.in_checkpoint = False
        g.waiting_seconds = 0
    if g.is_predicted and now_ns > g.predicted_ns + <int64_t>((0.1 * g.interval_seconds + 1) * 1e9):
        decide(g, False)
    stretch_put(g, now_ns, seconds, compute)
    sent_count(g, seconds, sent)
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
    if g.in_checkpoint and compute < 0.6:
        g.state = CHECKPOINT
    else:
        g.state = COMPUTE if compute >= 0.5 else HOST_STALL if 2 * stall > 1 - compute else WAIT
    if compute >= 0.5:
        g.computed_ns = now_ns


cdef inline void second_clear(TrackedGpu *g) noexcept nogil:
    g.known_seconds = g.job_seconds = g.duty_seconds = g.resident_seconds = 0
    g.checkpoint_seconds = g.idle_seconds = g.confidence_sum = 0
    g.stretch_job_seconds = g.stretch_duty_seconds = g.stretch_resident_seconds = 0


cdef inline void track(Tracker *t, int row, int64_t now_ns, const float *values) noexcept nogil:
    """Process a sample of a GPU; NaN is unknown."""
    cdef TrackedGpu *g = &t.gpus[row]
    cdef double watts = within(values[POWER], 1e5), used = within(values[UTILIZATION], 1.01)
    cdef double active = within(values[SM_ACTIVE], 1.01), tensor = within(values[TENSOR], 1.01)
    cdef double bandwidth = within(values[BANDWIDTH], 1.01), seconds, resident
    cdef double sent = within(values[PCIE_SENT], 1e12)
    cdef bint is_after_gap = False, is_interrupted
    if not (isfinite(watts) or isfinite(used) or isfinite(active)):
        return
    seconds = (now_ns - g.last_ns) / 1e9 if g.last_ns else NOMINAL_SECONDS
    if -REORDER_SECONDS < seconds <= 0:
        g.left_out += 1
        return
    if seconds <= 0:  # another clock: stored times are useless
        g.stretch_count, g.cadence.count, g.is_predicted = 0, 0, False
        g.interval_seconds = NAN
    is_interrupted = seconds <= 0 or seconds > STRETCH_GAP_MAX or not g.last_ns
    if seconds <= 0 or seconds > GAP_SECONDS or not g.last_ns:
        seconds, is_after_gap = NOMINAL_SECONDS, True
    g.last_ns = now_ns
    if isfinite(active) or isfinite(tensor):
        g.sm_active, g.tensor, g.bandwidth, g.gpm_ns = <float>active, <float>tensor, <float>bandwidth, now_ns
    elif 0 <= now_ns - g.gpm_ns <= <int64_t>(HOLD_SECONDS * 1e9):
        active, tensor, bandwidth = g.sm_active, g.tensor, g.bandwidth
    if isfinite(used):
        g.used, g.used_ns = <float>used, now_ns
    elif 0 <= now_ns - g.used_ns <= <int64_t>(HOLD_SECONDS * 1e9):
        used = g.used
    resident = used if isfinite(used) else NAN if not isfinite(active) else 1.0 if active > 0.02 else 0.0
    g.known_seconds += seconds
    if follow_job(g, seconds, watts, used, active):
        track_job(g, now_ns, seconds, watts, used, active, tensor, bandwidth, resident, sent, is_interrupted)
    else:
        g.idle_seconds += seconds
        g.state, g.confidence = IDLE, 0.95 if isfinite(used) or isfinite(active) else 0.5
        g.confidence_sum += seconds * g.confidence
    segment_put(g, now_ns, seconds, g.state, watts, g.confidence, is_after_gap)


cdef inline bint second_take(TrackedGpu *g, double *found) noexcept nogil:
    """Set each state's share and the confidence since the last call; False if unknown."""
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
    """Set the job's changes, levels, cadence, next checkpoint and its probability; NaN: missing."""
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
    late = (now_ns - g.next_checkpoint_ns) / 1e9 / g.interval_seconds
    if late > 2.5:  # the checkpoints have stopped
        return
    found[3], found[4] = g.interval_seconds, g.duration_seconds
    if g.in_checkpoint:  # the checkpoint being written was the one due
        late = min(now_ns - g.stretch_begin_ns, <int64_t>(g.duration_seconds * 1e9)) / 1e9 / g.interval_seconds - 1
    i = <int>(late - 0.1) + 1 if late > 0.1 else 0  # a checkpoint that is a tenth late is due now
    found[5] = max(0.0, (i - late) * g.interval_seconds)
    found[6] = next_probability(g)
