# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Ring of the last samples of a few readings per GPU, filled without Python, with summaries by second.

A sample is one pass of a sweep and of GPM into preallocated cells. The ring keeps copies of those cells, and overwrites
the oldest. A value that is missing in a sample stays missing in the ring, and is not part of a mean.
"""

from libc.math cimport NAN, fmax, fmin
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from nvml_account cimport account_boottime_ns
from nvml_gpm_pass cimport GpmPass, gpm_forget, gpm_read
from nvml_pass cimport Pass
from nvml_sweep cimport note_time, sweep
from phases_history cimport *
from phases_state cimport BANDWIDTH, CLOCK, NVLINK_RECEIVED, NVLINK_SENT, PCIE_RECEIVED, PCIE_SENT, POWER, REASONS
from phases_state cimport SIGNAL_COUNT, SM_ACTIVE, TENSOR, UTILIZATION, Tracker
from phases_track cimport track
from place_abi cimport place_is_called

cdef extern from *:
    """
    #include <time.h>
    #include <errno.h>
    /* Sleep to a time of CLOCK_BOOTTIME, which costs half of a poll of a descriptor. A signal ends the sleep.
       Returns false if the sleep is not available: some sandboxes lack this clock. */
    static int ring_sleep(int64_t until_ns)
    {
        struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
        int error = clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &until, NULL);
        return error == 0 || error == EINTR;
    }
    """
    bint ring_sleep(int64_t until_ns) noexcept nogil

#: How the samples of a second become one value.
MEAN, LEAST, MOST, SHARE, COUNT = range(5)

cdef enum:
    AS_MEAN, AS_LEAST, AS_MOST, AS_SHARE, AS_COUNT
    TARGETS_MAX = 32
    #: The spacing of GPM is computed again after GPM_PASSES passes. GPM_SPACING_MAX limits it, in samples.
    GPM_PASSES = 256
    GPM_SPACING_MAX = 20

cdef struct Target:
    int form
    int column  # in the ring
    uint64_t bits  # for AS_SHARE: the share of the samples with any of these bits
    double most  # upper limit of the value; 0: no limit
    int cell_column  # in the summary


cdef class SampleRing:
    cdef Pass *swept
    cdef GpmPass *gpm
    cdef object kept  # owners of the memory of these two
    cdef uint64_t *cells
    cdef uint8_t *valid
    cdef uint64_t *ring
    cdef uint8_t *ring_valid
    cdef int64_t *times
    cdef Target targets[TARGETS_MAX]
    cdef int target_count
    cdef int width, rows, samples_max
    cdef int64_t period_ns
    cdef readonly uint64_t count
    cdef uint64_t told
    cdef readonly int64_t well_ns
    cdef uint64_t gpm_every
    cdef double gpm_seconds  # time per second for GPM of one GPU; 0: no limit
    cdef readonly uint64_t gpm_spacing  # GPM is read at every n-th sample
    cdef uint64_t gpm_passes
    cdef int64_t[3] gpm_costs_ns  # the last passes: cost of the most expensive GPU
    cdef int step_count  # of the sweep: calls with a shape of their own
    cdef Tracker *tracker
    cdef History *history
    cdef int[SIGNAL_COUNT] sources  # column of each signal of the tracker; negative: none

    def __cinit__(self, swept not None, gpm not None, cells, valid, int rows, targets, int64_t period_ns,
                  int samples_max=64, int gpm_every=1, tracker=None, history=None, sources=(), double gpm_seconds=0):
        cdef uint8_t[::1] cell_bytes = cells
        cdef uint8_t[::1] valid_bytes = valid
        self.width, self.rows, self.samples_max, self.period_ns = valid_bytes.shape[0], rows, samples_max, period_ns
        if cell_bytes.shape[0] != 8 * self.width or rows < 1 or self.width % rows or samples_max < 1 or period_ns < 1:
            raise ValueError(f"{self.width} cells of {cell_bytes.shape[0]} bytes in {rows} rows, {samples_max} samples")
        if len(targets) > TARGETS_MAX:
            raise ValueError(f"a summary has at most {TARGETS_MAX} columns, got {len(targets)}")
        for i, (form, column, bits, most, cell_column) in enumerate(targets):
            if not 0 <= column < self.width // rows or not COUNT >= form >= MEAN:
                raise ValueError(f"column {column} of {self.width // rows}, form {form}")
            self.targets[<int>i] = Target(form, column, bits, most, cell_column)
        self.target_count, self.gpm_seconds = len(targets), gpm_seconds
        self.kept = (swept, gpm, cell_bytes, valid_bytes, tracker, history)
        self.swept, self.gpm = <Pass *><uintptr_t>swept.pass_address, <GpmPass *><uintptr_t>gpm.pass_address
        self._follow(gpm_every, tracker, history, tuple(sources) or (-1,) * SIGNAL_COUNT)
        self.cells, self.valid = <uint64_t *>&cell_bytes[0], &valid_bytes[0]
        self.ring = <uint64_t *>calloc(<size_t>samples_max * self.width, 8)
        self.ring_valid = <uint8_t *>calloc(<size_t>samples_max * self.width, 1)
        self.times = <int64_t *>calloc(samples_max, sizeof(int64_t))
        if self.ring == NULL or self.ring_valid == NULL or self.times == NULL:
            raise MemoryError

    cdef int _follow(self, int gpm_every, tracker, history, sources) except -1:
        cdef int i
        if gpm_every < 1 or len(sources) != SIGNAL_COUNT or max(sources) >= self.width // self.rows:
            raise ValueError(f"GPM at each {gpm_every} samples, columns {sources} for {SIGNAL_COUNT} signals")
        self.gpm_every, self.gpm_spacing, self.step_count = gpm_every, gpm_every, self.swept.step_count
        for i in range(SIGNAL_COUNT):
            self.sources[i] = sources[i]
        for each in (tracker, history):
            if each is not None and each.rows != self.rows:
                raise ValueError(f"{each.rows} rows beside {self.rows}")
        if tracker is not None:
            self.tracker = <Tracker *><uintptr_t>tracker.tracker_address
        if history is not None:
            self.history = <History *><uintptr_t>history.history_address
        return 0

    def __dealloc__(self):
        free(self.ring)
        free(self.ring_valid)
        free(self.times)

    def sample(self, int64_t now_ns):
        with nogil:
            self._sample(now_ns)

    def rest(self, int64_t until_ns):
        with nogil:
            self._rest(until_ns)

    cdef void _rest(self, int64_t until_ns) noexcept nogil:
        """Sample at each grid point up to and including *until_ns*. The next point is always in the future: points that
        passed while the host was suspended are left out."""
        cdef int64_t now = account_boottime_ns(), next_ns = (now // self.period_ns + 1) * self.period_ns
        while now < until_ns and not place_is_called(self.swept.place[0]):
            if not ring_sleep(min(next_ns, until_ns)):
                return  # no samples are better than a busy loop
            now = account_boottime_ns()
            if now < next_ns or place_is_called(self.swept.place[0]):  # the call may forbid further calls to a GPU
                continue
            if self.swept.ended == 0:  # otherwise the next regular sweep reports the end and opens NVML again
                self._sample(now)
                now = account_boottime_ns()
            next_ns = (now // self.period_ns + 1) * self.period_ns

    cdef void _sample(self, int64_t now_ns) noexcept nogil:
        cdef int64_t ahead_ns = now_ns - account_boottime_ns()  # correction from the boot clock of this machine
        cdef int64_t began_ns, dearest_ns = 0
        cdef int row, place = self.count % self.samples_max
        cdef bint answers = False, failing = False, with_gpm = self.count % self.gpm_spacing == 0
        # Calls of their own shape (utilization, which is renewed at most every 1/6 s) are made in samples without GPM.
        self.swept.step_count = 0 if self.count % self.gpm_every == 0 and self.gpm_every > 1 else self.step_count
        sweep(self.swept)
        for row in range(self.rows):
            if self.swept.spared[row] or self.swept.skip[row] or self.swept.over[row] or self.swept.ended:
                gpm_forget(self.gpm, row)
                continue
            if not with_gpm:
                gpm_forget(self.gpm, row)
            elif self.gpm.gpus[row].supported:
                began_ns = account_boottime_ns()
                gpm_read(self.gpm, row, began_ns + ahead_ns)
                dearest_ns = max(dearest_ns, account_boottime_ns() - began_ns)
                if self.swept.budget_ns and account_boottime_ns() - began_ns > self.swept.budget_ns // self.rows:
                    self.swept.row = row
                    note_time(self.swept, True)
            if self.valid[row]:
                answers = True
                failing = failing or (self.gpm.gpus[row].supported and self.gpm.gpus[row].code != 0)
        if answers and not failing:
            self.well_ns = now_ns
        if dearest_ns:
            self._pace_gpm(dearest_ns)
        memcpy(self.ring + <size_t>place * self.width, self.cells, 8 * <size_t>self.width)
        memcpy(self.ring_valid + <size_t>place * self.width, self.valid, self.width)
        self.times[place] = now_ns
        self.count += 1
        self._track(now_ns)

    cdef void _pace_gpm(self, int64_t cost_ns) noexcept nogil:
        """Note the cost of GPM for one GPU, and set the spacing that keeps GPM within its time. The minimum of three
        passes counts, so that a preempted process does not make GPM seem expensive."""
        cdef int64_t least_ns
        cdef double allowed_ns = self.gpm_seconds * self.period_ns  # in each sample
        self.gpm_costs_ns[self.gpm_passes % 3] = cost_ns
        self.gpm_passes += 1
        if allowed_ns > 0 and self.gpm_passes % GPM_PASSES == 3:
            least_ns = min(self.gpm_costs_ns[0], min(self.gpm_costs_ns[1], self.gpm_costs_ns[2]))
            self.gpm_spacing = max(self.gpm_every, min(<uint64_t>GPM_SPACING_MAX, <uint64_t>(least_ns / allowed_ns) + 1))

    cdef void _track(self, int64_t now_ns) noexcept nogil:
        """Give the sample to the tracker and the history. A GPU that was skipped has no values."""
        cdef float[SIGNAL_COUNT] values
        cdef int row, i
        cdef size_t at
        if self.history != NULL:
            history_begin(self.history, now_ns)
        if self.tracker == NULL:
            return
        for row in range(self.rows):
            for i in range(SIGNAL_COUNT):
                values[i] = NAN
                at = <size_t>max(self.sources[i], 0) * self.rows + row
                if self.sources[i] >= 0 and self.valid[at]:
                    values[i] = self.cells[at] if i == REASONS else (<double *>self.cells)[at]
            track(self.tracker, row, now_ns, values)
            if self.history != NULL:
                self._remember(row, values)

    cdef void _remember(self, int row, const float *values) noexcept nogil:
        history_put(self.history, row, HISTORY_POWER, values[POWER])
        history_put(self.history, row, HISTORY_UTILIZATION, values[UTILIZATION])
        history_put(self.history, row, HISTORY_SM_ACTIVE, values[SM_ACTIVE])
        history_put(self.history, row, HISTORY_TENSOR, values[TENSOR])
        history_put(self.history, row, HISTORY_BANDWIDTH, values[BANDWIDTH])
        history_put(self.history, row, HISTORY_PCIE, values[PCIE_SENT] + values[PCIE_RECEIVED])
        history_put(self.history, row, HISTORY_NVLINK, values[NVLINK_SENT] + values[NVLINK_RECEIVED])
        history_put(self.history, row, HISTORY_CLOCK, values[CLOCK])
        history_put(self.history, row, HISTORY_STATE, self.tracker.gpus[row].state)

    def samples(self, int column, int row):
        """Return the kept samples of a reading, oldest first, as raw 64 bits; None for a missing value."""
        cdef uint64_t first = self.count - min(self.count, <uint64_t>self.samples_max), number
        cdef size_t at
        if not 0 <= column < self.width // self.rows or not 0 <= row < self.rows:
            raise IndexError(f"column {column} of {self.width // self.rows}, row {row} of {self.rows}")
        found = []
        for number in range(first, self.count):
            at = <size_t>(number % self.samples_max) * self.width + column * self.rows + row
            found.append(self.ring[at] if self.ring_valid[at] else None)
        return found

    def summarise(self, block not None):
        cdef uint8_t[::1] cell_bytes = block.cells
        cdef uint8_t[::1] valid_bytes = block.valid
        cdef uint64_t first = max(self.told, self.count - min(self.count, <uint64_t>self.samples_max))
        cdef int i, row
        for i in range(self.target_count):
            if (self.targets[i].cell_column + 1) * self.rows > min(valid_bytes.shape[0], cell_bytes.shape[0] // 8):
                raise ValueError(f"column {self.targets[i].cell_column} of {self.rows} rows lies outside its memory")
        for i in range(self.target_count):
            for row in range(self.rows):
                self._put(&self.targets[i], first, row, <double *>&cell_bytes[0], &valid_bytes[0])
        found, self.told = self.count - first, self.count
        return found

    cdef void _put(self, Target *target, uint64_t first, int row, double *cells, uint8_t *valid) noexcept nogil:
        cdef uint64_t number
        cdef size_t at
        cdef double value, total = 0, least = 0, most = 0
        cdef int known = 0
        for number in range(first, self.count):
            at = <size_t>(number % self.samples_max) * self.width + target.column * self.rows + row
            if not self.ring_valid[at]:
                continue
            value = (<double *>self.ring)[at]
            if target.form == AS_SHARE:
                value = (self.ring[at] & target.bits) != 0
            least = value if not known else fmin(least, value)
            most = value if not known else fmax(most, value)
            total += value
            known += 1
        at = target.cell_column * self.rows + row
        if target.form == AS_COUNT:
            self._put_count(first, row, cells, valid, at)
            return
        valid[at] = known > 0
        if not known:
            return
        value = least if target.form == AS_LEAST else most if target.form == AS_MOST else total / known
        cells[at] = fmin(value, target.most) if target.most > 0 else value

    cdef void _put_count(self, uint64_t first, int row, double *cells, uint8_t *valid, size_t at) noexcept nogil:
        """Write the number of samples in which the GPU answered."""
        cdef uint64_t number
        cdef size_t sample
        cdef int column, known = 0
        for number in range(first, self.count):
            sample = <size_t>(number % self.samples_max) * self.width
            for column in range(self.width // self.rows):
                if self.ring_valid[sample + column * self.rows + row]:
                    known += 1
                    break
        cells[at], valid[at] = known, not self.swept.spared[row]
