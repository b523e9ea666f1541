# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The tracker's state per GPU: levels, segments, stretches without computing, a job. C only.

Sizes are fixed: nothing is allocated after a tracker was created.
"""

from libc.stdint cimport int64_t

cdef enum:
    # Signals of a GPU in a sample, in the order of SIGNALS in phases.pyi.
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
    # Signals that distinguish computing from waiting, the best first.
    BY_SM = 0
    BY_TENSOR = 1
    BY_POWER = 2
    WITNESSES = 3


cdef extern from *:
    """
    #define NOMINAL_SECONDS 0.1  /* duration of a sample without a predecessor */
    #define GAP_SECONDS 1.5  /* nothing is known of longer gaps */
    #define HOLD_SECONDS 0.25  /* GPM and utilization are sampled at every second pass */
    #define IDLE_SECONDS 30.0  /* the job ends after this quiet time */
    #define REORDER_SECONDS 10.0  /* a sample older than the last one by more: another clock */
    #define FORGET_SECONDS 1800.0  /* time constant of the histograms */
    #define CLASS_SECONDS_MIN 2.0  /* of each level, before both are used */
    #define STRETCH_OPEN_SECONDS 0.3  /* without computing opens a stretch, of computing ends it */
    #define STRETCH_SECONDS_MIN 0.7  /* a shorter stretch is not a candidate for a checkpoint */
    #define STRETCH_AGE_MAX 14400.0
    #define STRETCH_GAP_MAX 5.0  /* a stretch continues over a gap of samples up to this */
    #define SEGMENT_SECONDS_MIN 0.5  /* a shorter state has no segment */
    #define CHECKPOINT_INTERVAL_MIN 10.0  /* shorter intervals are steps */
    #define STEP_SECONDS_MAX 60.0  /* a longer period is more likely of checkpoints */
    #define UNSURE_MEMBERS_MIN 6
    #define RESUME_SECONDS_MAX 1.2  /* computing in this time ends a stretch, as short steps do */
    #define INTERVAL_TOLERANCE 0.12
    #define STEPS_MIN 9  /* between two checkpoints; fewer parts between two pauses may be micro-batches of a step */
    #define PAUSE_SECONDS_LONG 4.0  /* longer than the exchange of any step */
    #define COPY_BYTES_MIN 1e8  /* per second, sent to the host: more than losses and logs */
    #define CHECKPOINT_TIMES_MAX 4.0  /* a pause of more usual durations than this */
    #define CHECKPOINT_SECONDS_LONG 60.0  /* and of more seconds is not a checkpoint */
    #define MEMORY_BOUND_ACTIVE 0.5  /* share of active SMs, together with */
    #define MEMORY_BOUND_BANDWIDTH 0.3  /* this share of the bandwidth: collectives move less */
    #define POWER_WAIT_CONFIDENCE_MAX 0.5
    #define HITS_PRIOR 1.0
    #define TESTS_PRIOR 1.5
    #define CHECKPOINT_SHARE 0.9  /* share of checkpoints among regular pauses without steps between them */
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
    const int STEPS_MIN
    const double PAUSE_SECONDS_LONG
    const double COPY_BYTES_MIN
    const double CHECKPOINT_TIMES_MAX
    const double CHECKPOINT_SECONDS_LONG
    const double MEMORY_BOUND_ACTIVE
    const double MEMORY_BOUND_BANDWIDTH
    const double POWER_WAIT_CONFIDENCE_MAX
    const double HITS_PRIOR
    const double TESTS_PRIOR
    const double CHECKPOINT_SHARE
    const double STRETCH_GAP_MAX
    const int UNSURE_MEMBERS_MIN
    const double RESUME_SECONDS_MAX

cdef struct Levels:
    float weight[BINS]  # seconds
    float resident[BINS]  # part of it with a kernel on the GPU
    float total[BINS]  # seconds times value
    bint is_power  # bins are logarithmic, from 8 W to 2 kW: a small GPU waits at 30 W
    double width  # bins per 1; for power, per octave
    double apart_max  # greatest ratio of low and high level; above it there is only one level
    double seconds
    double low, high, wait  # NaN: unknown. wait: the low level with a resident kernel
    double high_share  # share of the upper class at or below the high level
    double spread  # spread of the upper class, in distances between the levels

cdef struct Segment:
    int64_t begin_ns, end_ns
    double seconds, power_seconds, watt_seconds, confidence_seconds
    int state

cdef struct Stretch:
    int64_t begin_ns, end_ns
    int dips  # drops of the share of computing since the previous stretch
    bint is_copy  # much more than usual was sent to the host
    bint is_checkpoint

cdef enum Forecast:
    # Prediction of the next member: the usual or last interval, between begins or of work between.
    BY_USUAL_CLOCK, BY_LAST_CLOCK, BY_USUAL_WORK, BY_LAST_WORK
    FORECASTS = 4

cdef struct Cadence:
    int[STRETCHES_MAX] members  # by time
    int count
    bint has_steps  # between two members
    int regular, irregular  # intervals
    double interval, work, duration  # usual, seconds
    double off  # deviation of the regular intervals, in intervals
    Forecast by
    double next_seconds  # from the begin of the last member to the next member
    int hits, tested  # intervals that this forecast predicts within a tenth

cdef struct TrackedGpu:
    Levels levels[WITNESSES]
    Segment segments[SEGMENTS_MAX]
    Stretch stretches[STRETCHES_MAX]
    int64_t segment_count
    int stretch_count
    int64_t last_ns, gpm_ns, used_ns
    float sm_active, tensor, bandwidth, used  # last values, for HOLD_SECONDS
    double learn_in_seconds, forget_in_seconds, learned_seconds
    double floor_watts  # without a job; NaN
    double quiet_seconds, active_seconds
    int processes  # -1 unknown, 0 none, 1 some
    bint has_job
    int64_t jobs
    int64_t job_begin_ns, computed_ns  # the last sample before the job, and its last sample of computing
    double disagreement  # between power and the best signal, 0 to 1, decaying
    int state
    double confidence
    # A state that may become a segment.
    int pending_state
    double pending_seconds, pending_power_seconds, pending_watt_seconds, pending_confidence
    int64_t pending_begin_ns
    # A stretch without computing.
    bint is_stretch
    int64_t stretch_begin_ns, resume_ns
    double waiting_seconds, computing_seconds
    bint in_checkpoint
    int dips  # since the last stretch
    bint is_dip
    double sent_bytes, sent_seconds, stretch_sent_bytes, stretch_sent_seconds  # outside a stretch, and in the open one
    # Cadence of checkpoints, from the stretches.
    Cadence cadence
    double interval_seconds, duration_seconds, step_seconds
    int64_t last_checkpoint_ns, next_checkpoint_ns  # begins
    # An undecided prediction.
    int64_t predicted_ns
    double predicted_probability
    bint is_predicted
    double brier_sum
    int64_t brier_count, hits
    double recent, recent_hits  # predictions; older ones count less
    # Sums since the last call of `second_take`.
    double known_seconds, job_seconds, duty_seconds, resident_seconds, checkpoint_seconds, idle_seconds
    double confidence_sum
    # The same within the open stretch.
    double stretch_job_seconds, stretch_duty_seconds, stretch_resident_seconds
    # Sums of the job.
    double state_seconds[STATE_COUNT]
    double state_power_seconds[STATE_COUNT]
    double state_watt_seconds[STATE_COUNT]
    int64_t left_out  # samples out of order

cdef struct Tracker:
    TrackedGpu *gpus
    int rows
