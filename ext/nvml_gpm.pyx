# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NVML's GPU performance monitoring (GPM): what share of the SMs, the tensor cores and the memory was at work.

A metric is the difference of two samples taken more than 100 ms apart. Unlike DCGM's profiling it holds
no lock that a profiler would miss. Each GPU has two samples, used in turn; a GPU that fails begins anew,
and no other GPU knows of it. What the driver leaves out of its answer is missing, never zero.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from nvml_abi cimport NVML_ERROR_NOT_SUPPORTED, nvmlDevice_t, nvmlReturn_t

SYMBOLS = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
#: Only GPU instances of MIG are sampled by this one.
MIG_SYMBOL = "nvmlGpmMigSampleGet"

cdef enum:
    ASKED_MAX = 16
    #: nvml.h wants samples more than 100 ms apart.
    APART_NS_MIN = 100_000_000

#: How many metrics one reader asks for at most.
METRICS_MAX = ASKED_MAX

ctypedef void *nvmlGpmSample_t

cdef struct nvmlGpmSupport_t:
    unsigned int version
    unsigned int isSupportedDevice

cdef struct nvmlGpmMetric_t:
    unsigned int metricId
    nvmlReturn_t nvmlReturn
    double value
    const char *shortName
    const char *longName
    const char *unit

# The header's array is as long as there are metrics; only `numMetrics` of it are looked at.
cdef struct nvmlGpmMetricsGet_t:
    unsigned int version
    unsigned int numMetrics
    nvmlGpmSample_t sample1
    nvmlGpmSample_t sample2
    nvmlGpmMetric_t metrics[ASKED_MAX]

ctypedef nvmlReturn_t (*SupportCall)(nvmlDevice_t device, nvmlGpmSupport_t *support) noexcept nogil
ctypedef nvmlReturn_t (*AllocCall)(nvmlGpmSample_t *sample) noexcept nogil
ctypedef nvmlReturn_t (*FreeCall)(nvmlGpmSample_t sample) noexcept nogil
ctypedef nvmlReturn_t (*SampleCall)(nvmlDevice_t device, nvmlGpmSample_t sample) noexcept nogil
ctypedef nvmlReturn_t (*MigSampleCall)(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample) noexcept nogil
ctypedef nvmlReturn_t (*MetricsCall)(nvmlGpmMetricsGet_t *metrics) noexcept nogil

#: Sizes and offsets, for the test that holds them against NVIDIA's header.
LAYOUT = {
    "nvmlGpmSupport_t": sizeof(nvmlGpmSupport_t),
    "nvmlGpmMetric_t": sizeof(nvmlGpmMetric_t),
    "nvmlGpmMetricsGet_t.metrics": sizeof(nvmlGpmMetricsGet_t) - ASKED_MAX * sizeof(nvmlGpmMetric_t),
}


cdef struct Watched:
    nvmlDevice_t device
    int instance  # of MIG; below 0: the whole GPU
    nvmlGpmSample_t before
    nvmlGpmSample_t now
    bint supported
    bint begun  # `before` holds a sample
    int64_t taken_ns  # when that was taken
    nvmlReturn_t code  # the last answer
    uint64_t failed


cdef class Gpm:
    cdef Watched *gpus
    cdef int rows, asked
    cdef unsigned int metric[ASKED_MAX]
    cdef double scale[ASKED_MAX]
    cdef double most[ASKED_MAX]
    cdef double *cells[ASKED_MAX]
    cdef uint8_t *valid[ASKED_MAX]
    cdef list held
    cdef object nvml  # keeps the library initialised as long as our samples live
    cdef SampleCall take
    cdef MigSampleCall take_mig
    cdef MetricsCall compare
    cdef FreeCall release

    def __cinit__(self, nvml not None, handles, targets, instances=None):
        handles, targets = list(handles), list(targets)
        instances = [-1] * len(handles) if instances is None else list(instances)
        if len(instances) != len(handles):
            raise ValueError(f"a GPU instance for each of {len(handles)} rows, got {len(instances)}")
        if len(targets) > ASKED_MAX:
            raise ValueError(f"at most {ASKED_MAX} GPM metrics are asked for, got {len(targets)}")
        self.nvml, self.rows, self.held = nvml, len(handles), []
        self.gpus = <Watched *>calloc(self.rows + 1, sizeof(Watched))
        if self.gpus == NULL:
            raise MemoryError
        for metric, scale, most, cells, valid, column in targets:
            self._aim(metric, scale, most, cells, valid, column)
        self._watch(handles, instances)

    cdef _aim(self, unsigned int metric, double scale, double most, cells, valid, Py_ssize_t column):
        cdef uint8_t[::1] cell_bytes = cells
        cdef uint8_t[::1] valid_bytes = valid
        cdef Py_ssize_t first = column * self.rows, after = first + self.rows
        if column < 0 or 8 * after > cell_bytes.shape[0] or after > valid_bytes.shape[0]:
            raise ValueError(f"column {column} of {self.rows} rows lies outside its memory")
        self.held += [cell_bytes, valid_bytes]
        if self.rows:
            self.metric[self.asked], self.scale[self.asked], self.most[self.asked] = metric, scale, most
            self.cells[self.asked] = <double *>&cell_bytes[8 * first]
            self.valid[self.asked] = &valid_bytes[first]
            self.asked += 1

    def _watch(self, handles, instances):
        """Find out once which GPUs have GPM, and make their samples."""
        cdef size_t support = self.nvml.symbol_address(SYMBOLS[0])
        cdef size_t alloc = self.nvml.symbol_address(SYMBOLS[1])
        self.release = <FreeCall><size_t>self.nvml.symbol_address(SYMBOLS[2])
        self.take = <SampleCall><size_t>self.nvml.symbol_address(SYMBOLS[3])
        self.compare = <MetricsCall><size_t>self.nvml.symbol_address(SYMBOLS[4])
        self.take_mig = <MigSampleCall><size_t>self.nvml.symbol_address(MIG_SYMBOL)
        if not support or not alloc or self.release == NULL or self.take == NULL or self.compare == NULL:
            return
        cdef size_t handle
        cdef int row
        for row, handle in enumerate(handles):
            self.gpus[row].device, self.gpus[row].instance = <nvmlDevice_t>handle, instances[row]
            if handle and (self.gpus[row].instance < 0 or self.take_mig != NULL):
                with nogil:
                    make_samples(&self.gpus[row], <SupportCall>support, <AllocCall>alloc, self.release)

    @property
    def supported(self):
        return [bool(self.gpus[row].supported) for row in range(self.rows)]

    @property
    def failed(self):
        return sum(self.gpus[row].failed for row in range(self.rows))

    def failing(self, int row):
        return self.error(row) is not None and bool(self.gpus[row].supported)

    def error(self, int row):
        if not 0 <= row < self.rows:
            raise IndexError(f"there are {self.rows} rows, and no {row}")
        return self.nvml._error("GPM", self.gpus[row].code) if self.gpus[row].code != 0 else None

    def run(self, int64_t now_ns):
        cdef int row
        cdef int64_t ahead_ns  # of the machine's clock
        self.nvml._check()
        with nogil:
            ahead_ns = now_ns - monotonic_ns()
            for row in range(self.rows):
                self._read(row, monotonic_ns() + ahead_ns)

    cdef void _read(self, int row, int64_t now_ns) noexcept nogil:
        cdef Watched *gpu = &self.gpus[row]
        cdef int i
        for i in range(self.asked):
            self.valid[i][row] = 0
        if not gpu.supported or (gpu.begun and now_ns - gpu.taken_ns < APART_NS_MIN):
            return
        if gpu.instance < 0:
            gpu.code = self.take(gpu.device, gpu.now)
        else:
            gpu.code = self.take_mig(gpu.device, gpu.instance, gpu.now)
        if gpu.code != 0:
            gpu.begun = False
            gpu.failed += 1
            return
        if gpu.begun:
            self._compare(row, gpu)
        gpu.before, gpu.now = gpu.now, gpu.before
        gpu.begun, gpu.taken_ns = True, now_ns

    cdef void _compare(self, int row, Watched *gpu) noexcept nogil:
        """Write what went on between a GPU's two samples."""
        cdef nvmlGpmMetricsGet_t wanted
        cdef int i
        memset(&wanted, 0, sizeof(wanted))
        wanted.version, wanted.numMetrics = 1, self.asked
        wanted.sample1, wanted.sample2 = gpu.before, gpu.now
        for i in range(self.asked):
            wanted.metrics[i].metricId = self.metric[i]
            wanted.metrics[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED  # should the driver pass one over
        gpu.code = self.compare(&wanted)
        if gpu.code != 0:
            gpu.failed += 1
            return
        for i in range(self.asked):
            self._put(row, i, &wanted.metrics[i])

    cdef void _put(self, int row, int i, nvmlGpmMetric_t *metric) noexcept nogil:
        # NaN fails both comparisons, as it must.
        if metric.nvmlReturn == 0 and metric.value >= 0 and metric.value <= self.most[i]:
            self.cells[i][row] = metric.value * self.scale[i]
            self.valid[i][row] = 1

    def close(self):
        """Free the samples. Not while `run` runs, and before the library is let go of."""
        cdef int row
        if not self.nvml.initialised:
            return  # it took the samples with it
        for row in range(self.rows):
            if self.gpus[row].supported:
                self.gpus[row].supported = False
                with nogil:
                    self.release(self.gpus[row].before)
                    self.release(self.gpus[row].now)

    def __dealloc__(self):
        # The samples are not freed here: the library may be gone, and a thread inside it for ever.
        free(self.gpus)


cdef int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef void make_samples(Watched *gpu, SupportCall support, AllocCall alloc, FreeCall release) noexcept nogil:
    cdef nvmlGpmSupport_t answer
    answer.version, answer.isSupportedDevice = 1, 0
    gpu.code = support(gpu.device, &answer)
    if gpu.code != 0 or answer.isSupportedDevice == 0:
        return
    gpu.code = alloc(&gpu.before)
    if gpu.code != 0:
        return
    gpu.code = alloc(&gpu.now)
    if gpu.code != 0:
        release(gpu.before)
        return
    gpu.supported = True
