# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A pass of GPM over several GPUs, and its data. C only."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memset

from nvml_abi cimport NVML_ERROR_NOT_SUPPORTED, NVML_SUCCESS, nvmlDevice_t, nvmlReturn_t
from nvml_account cimport Account, account_enter
from place_abi cimport Place, place_leave

cdef enum:
    ASKED_MAX = 16
    #: At least NVML_GPM_METRIC_MAX of any header (98 in 12.0, 210 in 12.9, 333 in 13.0, 477 in 13.4).
    HEADER_METRICS_MAX = 1024
    #: nvml.h requires samples more than 100 ms apart.
    APART_NS_MIN = 100_000_000

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

# The header's array has an entry per metric: a driver may access every entry.
cdef struct nvmlGpmMetricsGet_t:
    unsigned int version
    unsigned int numMetrics
    nvmlGpmSample_t sample1
    nvmlGpmSample_t sample2
    nvmlGpmMetric_t metrics[HEADER_METRICS_MAX]

ctypedef nvmlReturn_t (*SupportCall)(nvmlDevice_t device, nvmlGpmSupport_t *support) noexcept nogil
ctypedef nvmlReturn_t (*AllocCall)(nvmlGpmSample_t *sample) noexcept nogil
ctypedef nvmlReturn_t (*FreeCall)(nvmlGpmSample_t sample) noexcept nogil
ctypedef nvmlReturn_t (*SampleCall)(nvmlDevice_t device, nvmlGpmSample_t sample) noexcept nogil
ctypedef nvmlReturn_t (*MigSampleCall)(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample) noexcept nogil
ctypedef nvmlReturn_t (*MetricsCall)(nvmlGpmMetricsGet_t *metrics) noexcept nogil

cdef struct Watched:
    nvmlDevice_t device
    Account *account
    int instance  # MIG instance; negative: the whole GPU
    nvmlGpmSample_t before
    nvmlGpmSample_t now
    bint supported
    bint begun  # `before` has a sample
    int64_t taken_ns  # time of that sample
    nvmlReturn_t code  # result of the last call
    uint64_t failed

cdef struct GpmPass:
    Watched *gpus
    int rows
    int asked
    Place **place  # this process's place
    unsigned int metric[ASKED_MAX]
    double scale[ASKED_MAX]
    double most[ASKED_MAX]
    double *cells[ASKED_MAX]
    uint8_t *valid[ASKED_MAX]
    SampleCall take
    MigSampleCall take_mig
    MetricsCall compare
    FreeCall release


cdef inline void gpm_put(GpmPass *p, int row, int i, nvmlGpmMetric_t *metric) noexcept nogil:
    # NaN fails both comparisons.
    if metric.nvmlReturn == NVML_SUCCESS and metric.value >= 0 and metric.value <= p.most[i]:
        p.cells[i][row] = metric.value * p.scale[i]
        p.valid[i][row] = 1


cdef inline void gpm_compare(GpmPass *p, int row, Watched *gpu) noexcept nogil:
    """Set the metrics between a GPU's two samples."""
    cdef nvmlGpmMetricsGet_t wanted
    cdef int i
    if account_enter(gpu.account, p.place[0], b"nvmlGpmMetricsGet", 0, 0) <= 0:
        return
    memset(&wanted, 0, sizeof(wanted))
    wanted.version, wanted.numMetrics = 1, p.asked
    wanted.sample1, wanted.sample2 = gpu.before, gpu.now
    for i in range(p.asked):
        wanted.metrics[i].metricId = p.metric[i]
        wanted.metrics[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED  # in case the driver skips one
    gpu.code = p.compare(&wanted)
    place_leave(p.place[0])
    if gpu.code != NVML_SUCCESS:
        gpu.failed += 1
        return
    for i in range(p.asked):
        gpm_put(p, row, i, &wanted.metrics[i])


cdef inline void gpm_forget(GpmPass *p, int row) noexcept nogil:
    cdef int i
    for i in range(p.asked):
        p.valid[i][row] = 0


cdef inline void gpm_read(GpmPass *p, int row, int64_t now_ns) noexcept nogil:
    """Sample a row's GPU, and compare with the previous sample."""
    cdef Watched *gpu = &p.gpus[row]
    gpm_forget(p, row)
    if not gpu.supported or (gpu.begun and now_ns - gpu.taken_ns < APART_NS_MIN):
        return
    if account_enter(gpu.account, p.place[0], b"nvmlGpmSampleGet" if gpu.instance < 0 else b"nvmlGpmMigSampleGet", 0, 0) <= 0:
        return
    if gpu.instance < 0:
        gpu.code = p.take(gpu.device, gpu.now)
    else:
        gpu.code = p.take_mig(gpu.device, gpu.instance, gpu.now)
    place_leave(p.place[0])
    if gpu.code != NVML_SUCCESS:
        gpu.begun = False
        gpu.failed += 1
        return
    if gpu.begun:
        gpm_compare(p, row, gpu)
    gpu.before, gpu.now = gpu.now, gpu.before
    gpu.begun, gpu.taken_ns = True, now_ns
