# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Phases of each GPU (compute, wait, host stall, checkpoint, idle) from its own samples, and the last minutes of samples.

The power levels of compute and of wait are learned per job and discarded with it. A power reading may be an average over
a second, so the share of compute is its position between the two levels, not the side of a threshold.
"""

from libc.math cimport NAN, isfinite
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from phases_history cimport *
from phases_levels cimport *
from phases_state cimport *
from phases_track cimport *

SIGNALS = (
    "power_watts", "sm_clock_hertz", "clock_event_reasons_flags", "utilization_ratio", "sm_active_ratio",
    "tensor_active_ratio", "memory_bandwidth_ratio", "pcie_transmitted_bytes_per_second",
    "pcie_received_bytes_per_second", "nvlink_received_bytes_per_second", "nvlink_transmitted_bytes_per_second",
)
STATES = ("compute", "wait", "host_stall", "checkpoint", "idle")
HISTORY_SIGNALS = (
    "power_watts", "utilization_ratio", "sm_active_ratio", "tensor_active_ratio", "memory_bandwidth_ratio",
    "pcie_bytes_per_second", "nvlink_bytes_per_second", "sm_clock_hertz", "state",
)
SECOND_COLUMNS = (
    "compute_ratio", "wait_ratio", "host_stall_ratio", "checkpoint_ratio", "idle_ratio", "phase_confidence_ratio",
)
JOB_COLUMNS = (
    "job_changes_count", "compute_watts", "wait_watts", "checkpoint_interval_seconds", "checkpoint_duration_seconds",
    "next_checkpoint_seconds", "next_checkpoint_probability_ratio",
)
ROWS_MAX = 256


cdef class PhaseTracker:
    cdef Tracker tracker

    def __cinit__(self, int rows):
        cdef int row
        if not 1 <= rows <= ROWS_MAX:
            raise ValueError(f"1 to {ROWS_MAX} rows, got {rows}")
        self.tracker.gpus = <TrackedGpu *>calloc(rows, sizeof(TrackedGpu))
        if self.tracker.gpus == NULL:
            raise MemoryError
        self.tracker.rows = rows
        for row in range(rows):
            job_clear(&self.tracker.gpus[row])
            self.tracker.gpus[row].processes = -1
            self.tracker.gpus[row].floor_watts = NAN
            self.tracker.gpus[row].state = IDLE

    def __dealloc__(self):
        free(self.tracker.gpus)

    cdef TrackedGpu *_gpu(self, int row) except NULL:
        if not 0 <= row < self.tracker.rows:
            raise IndexError(f"row {row} of {self.tracker.rows}")
        return &self.tracker.gpus[row]

    @property
    def rows(self):
        return self.tracker.rows

    @property
    def tracker_address(self):
        return <uintptr_t>&self.tracker

    @property
    def memory_bytes(self):
        return self.tracker.rows * sizeof(TrackedGpu)

    def push(self, int row, int64_t now_ns, float power=NAN, float clock=NAN, float reasons=NAN, float utilization=NAN,
             float sm_active=NAN, float tensor=NAN, float bandwidth=NAN, float pcie_transmitted=NAN,
             float pcie_received=NAN, float nvlink_received=NAN, float nvlink_transmitted=NAN):
        cdef float[SIGNAL_COUNT] values
        values[POWER], values[CLOCK], values[REASONS], values[UTILIZATION] = power, clock, reasons, utilization
        values[SM_ACTIVE], values[TENSOR], values[BANDWIDTH] = sm_active, tensor, bandwidth
        values[PCIE_SENT], values[PCIE_RECEIVED] = pcie_transmitted, pcie_received
        values[NVLINK_RECEIVED], values[NVLINK_SENT] = nvlink_received, nvlink_transmitted
        self._gpu(row)
        track(&self.tracker, row, now_ns, values)

    def push_samples(self, int row, const int64_t[::1] times_ns, const float[:, ::1] samples):
        cdef Py_ssize_t at
        self._gpu(row)
        if samples.shape[0] != times_ns.shape[0] or samples.shape[1] != SIGNAL_COUNT:
            raise ValueError(f"{times_ns.shape[0]} times, samples of {samples.shape[0]} x {samples.shape[1]}")
        with nogil:
            for at in range(times_ns.shape[0]):
                track(&self.tracker, row, times_ns[at], &samples[at, 0])

    def begin_job(self, int row, *, bint is_known=True):
        cdef TrackedGpu *g = self._gpu(row)
        if is_known or not g.has_job:
            job_begin(g)
        g.processes = 1

    def end_job(self, int row):
        cdef TrackedGpu *g = self._gpu(row)
        g.processes = 0
        g.active_seconds = 0

    def set_step(self, int row, double seconds):
        self._gpu(row).step_seconds = seconds

    def take_second(self, int row):
        """Return the shares of the samples since the last call, and the confidence; None without a sample."""
        cdef double[6] found
        if not second_take(self._gpu(row), found):
            return None
        return tuple(found)

    def summarise(self, block not None, columns):
        cdef uint8_t[::1] cell_bytes = block.cells
        cdef uint8_t[::1] valid_bytes = block.valid
        cdef double *cells = <double *>&cell_bytes[0]
        cdef double[6] found
        cdef int[6] places
        cdef int row, i, rows = self.tracker.rows
        cdef bint is_known
        if len(columns) != 6:
            raise ValueError(f"{len(columns)} columns for 6 values")
        for i in range(6):
            places[i] = self._column(columns[i], cell_bytes.shape[0], valid_bytes.shape[0])
        for row in range(rows):
            is_known = second_take(&self.tracker.gpus[row], found)
            for i in range(6):
                valid_bytes[places[i] * rows + row] = is_known
                if is_known:
                    cells[places[i] * rows + row] = found[i]

    def summarise_jobs(self, block not None, columns, int64_t now_ns):
        cdef uint8_t[::1] cell_bytes = block.cells
        cdef uint8_t[::1] valid_bytes = block.valid
        cdef double *cells = <double *>&cell_bytes[0]
        cdef double[7] found
        cdef int[7] places
        cdef int row, i, rows = self.tracker.rows
        if len(columns) != 7:
            raise ValueError(f"{len(columns)} columns for 7 values")
        for i in range(7):
            places[i] = self._column(columns[i], cell_bytes.shape[0], valid_bytes.shape[0])
        for row in range(rows):
            job_values(&self.tracker.gpus[row], now_ns, found)
            for i in range(7):
                valid_bytes[places[i] * rows + row] = isfinite(found[i]) != 0
                cells[places[i] * rows + row] = found[i] if isfinite(found[i]) else 0

    cdef int _column(self, int column, Py_ssize_t cells, Py_ssize_t valid) except -1:
        if not 0 <= column or (column + 1) * self.tracker.rows > min(valid, cells // 8):
            raise ValueError(f"column {column} of {self.tracker.rows} rows lies outside its memory")
        return column

    def job(self, int row, int64_t now_ns):
        """Return the values of JOB_COLUMNS, NaN where missing."""
        cdef double[7] found
        job_values(self._gpu(row), now_ns, found)
        return dict(zip(JOB_COLUMNS, found))

    def current_job(self, int row):
        cdef TrackedGpu *g = self._gpu(row)
        return (g.jobs, g.job_begin_ns, g.computed_ns) if g.has_job else None

    def state(self, int row):
        cdef TrackedGpu *g = self._gpu(row)
        return STATES[g.state], g.confidence

    def segments(self, int row):
        cdef TrackedGpu *g = self._gpu(row)
        cdef Segment *s
        cdef int64_t number
        found = []
        for number in range(max(0, g.segment_count - SEGMENTS_MAX), g.segment_count):
            s = &g.segments[number % SEGMENTS_MAX]
            found.append((STATES[s.state], s.begin_ns, s.end_ns,
                          s.confidence_seconds / s.seconds if s.seconds > 0 else 0.0,
                          s.watt_seconds / s.power_seconds if s.power_seconds > 0 else NAN))
        return found

    def totals(self, int row):
        cdef TrackedGpu *g = self._gpu(row)
        cdef int i
        return {
            STATES[i]: (g.state_seconds[i],
                        g.state_watt_seconds[i] / g.state_power_seconds[i] if g.state_power_seconds[i] > 0 else NAN)
            for i in range(STATE_COUNT)
        }

    def scores(self, int row):
        cdef TrackedGpu *g = self._gpu(row)
        return g.brier_count, g.hits, g.brier_sum / g.brier_count if g.brier_count else NAN

    def left_out(self, int row):
        return self._gpu(row).left_out


cdef class SampleHistory:
    cdef History history

    def __cinit__(self, int rows, int samples_max=3000):
        if not (1 <= rows <= ROWS_MAX and 1 <= samples_max <= 1_000_000):
            raise ValueError(f"1 to {ROWS_MAX} rows of 1 to 1,000,000 samples, got {rows} of {samples_max}")
        self.history.cells = <float *>calloc(<size_t>rows * HISTORY_COLUMNS * samples_max, sizeof(float))
        self.history.times = <int64_t *>calloc(samples_max, sizeof(int64_t))
        if self.history.cells == NULL or self.history.times == NULL:
            raise MemoryError
        self.history.rows, self.history.samples_max = rows, samples_max

    def __dealloc__(self):
        free(self.history.cells)
        free(self.history.times)

    @property
    def rows(self):
        return self.history.rows

    @property
    def count(self):
        return self.history.count

    @property
    def length(self):
        return min(self.history.count, <uint64_t>self.history.samples_max)

    @property
    def last_ns(self):
        return self.history.times[(self.history.count - 1) % self.history.samples_max] if self.history.count else 0

    @property
    def history_address(self):
        return <uintptr_t>&self.history

    @property
    def memory_bytes(self):
        return self.history.samples_max * (self.history.rows * HISTORY_COLUMNS * sizeof(float) + sizeof(int64_t))

    def begin(self, int64_t now_ns):
        history_begin(&self.history, now_ns)

    def put(self, int row, int column, float value):
        if not 0 <= row < self.history.rows or not 0 <= column < HISTORY_COLUMNS:
            raise IndexError(f"row {row} of {self.history.rows}, column {column} of {HISTORY_COLUMNS}")
        if not self.history.count:
            raise ValueError("no sample was begun")
        history_put(&self.history, row, column, value)

    def copy_to(self, int row, int column, float[::1] buffer):
        cdef uint64_t number, first
        cdef const float *cells
        if not 0 <= row < self.history.rows or not 0 <= column < HISTORY_COLUMNS:
            raise IndexError(f"row {row} of {self.history.rows}, column {column} of {HISTORY_COLUMNS}")
        first = self.history.count - min(<uint64_t>self.length, <uint64_t>buffer.shape[0])
        cells = self.history.cells + <size_t>(row * HISTORY_COLUMNS + column) * self.history.samples_max
        for number in range(first, self.history.count):
            buffer[number - first] = cells[number % self.history.samples_max]
        return self.history.count - first

    def resample_to(self, int row, columns, int64_t period_ns, float[:, ::1] buffer):
        cdef int64_t slots = buffer.shape[1], slot, last_ns
        cdef uint64_t number, place
        cdef int[HISTORY_COLUMNS] wanted
        cdef int at, count = len(columns)
        cdef const float *cells
        if count > HISTORY_COLUMNS or count != buffer.shape[0]:
            raise ValueError(f"{count} columns into {buffer.shape[0]} rows")
        for at in range(count):
            wanted[at] = columns[at]
            if not 0 <= row < self.history.rows or not 0 <= wanted[at] < HISTORY_COLUMNS:
                raise IndexError(f"row {row} of {self.history.rows}, column {wanted[at]} of {HISTORY_COLUMNS}")
        if period_ns < 1:
            raise ValueError(f"a period of {period_ns} ns")
        buffer[:] = NAN
        if not self.history.count:
            return
        cells = self.history.cells + <size_t>(row * HISTORY_COLUMNS) * self.history.samples_max
        last_ns = self.history.times[(self.history.count - 1) % self.history.samples_max]
        for number in range(self.history.count - <uint64_t>self.length, self.history.count):
            place = number % self.history.samples_max
            if not 0 <= last_ns - self.history.times[place] < slots * period_ns:
                continue
            slot = slots - 1 - (last_ns - self.history.times[place] + period_ns // 2) // period_ns
            if slot < 0:
                continue
            for at in range(count):
                if isfinite(cells[wanted[at] * self.history.samples_max + place]):
                    buffer[at, slot] = cells[wanted[at] * self.history.samples_max + place]

    def copy_times_to(self, int64_t[::1] buffer):
        cdef uint64_t number, first
        first = self.history.count - min(<uint64_t>self.length, <uint64_t>buffer.shape[0])
        for number in range(first, self.history.count):
            buffer[number - first] = self.history.times[number % self.history.samples_max]
        return self.history.count - first
