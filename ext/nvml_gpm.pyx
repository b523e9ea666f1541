# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NVML's GPU performance monitoring (GPM): utilization of SMs, tensor cores and memory.

A metric is the difference of two samples taken more than 100 ms apart. Unlike DCGM's profiling it
holds no lock that a profiler needs. Each GPU has two samples, used in turn; a GPU that fails starts
over without affecting the others. Values that the driver leaves out are missing, never zero.
"""

from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free

from nvml_abi cimport NVML_SUCCESS, nvmlDevice_t
from nvml_account cimport Account, account_boottime_ns, account_enter
from nvml_gpm_pass cimport *
from place_abi cimport Place, place_leave

from .nvml import account_address
from .place import POINTER

SYMBOLS = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
#: Used only for MIG GPU instances.
MIG_SYMBOL = "nvmlGpmMigSampleGet"

#: Metrics per reader at most.
METRICS_MAX = ASKED_MAX

cdef Account *DRIVER = <Account *><uintptr_t>account_address("")

#: Sizes and offsets, for a test against NVIDIA's header.
LAYOUT = {
    "nvmlGpmSupport_t": sizeof(nvmlGpmSupport_t),
    "nvmlGpmMetric_t": sizeof(nvmlGpmMetric_t),
    "nvmlGpmMetricsGet_t.metrics": sizeof(nvmlGpmMetricsGet_t) - HEADER_METRICS_MAX * sizeof(nvmlGpmMetric_t),
    "nvmlGpmMetricsGet_t": sizeof(nvmlGpmMetricsGet_t),
}


cdef class Gpm:
    cdef GpmPass state
    cdef list held
    cdef object nvml  # keeps the library initialized while our samples exist

    def __cinit__(self, nvml not None, handles, targets, instances=None, *, addresses=None):
        handles, targets = list(handles), list(targets)
        instances = [-1] * len(handles) if instances is None else list(instances)
        addresses = [""] * len(handles) if addresses is None else list(addresses)
        if len(instances) != len(handles) or len(addresses) != len(handles):
            raise ValueError(f"an instance and an address for each of {len(handles)} rows, got {len(instances)}, {len(addresses)}")
        if len(targets) > ASKED_MAX:
            raise ValueError(f"at most {ASKED_MAX} GPM metrics are asked for, got {len(targets)}")
        self.nvml, self.held = nvml, []
        self.state.rows, self.state.place = len(handles), <Place **><uintptr_t>POINTER
        self.state.gpus = <Watched *>calloc(self.state.rows + 1, sizeof(Watched))
        if self.state.gpus == NULL:
            raise MemoryError
        for metric, scale, most, cells, valid, column in targets:
            self._aim(metric, scale, most, cells, valid, column)
        self._watch(handles, instances, addresses)

    cdef _aim(self, unsigned int metric, double scale, double most, cells, valid, Py_ssize_t column):
        cdef GpmPass *p = &self.state
        cdef uint8_t[::1] cell_bytes = cells
        cdef uint8_t[::1] valid_bytes = valid
        cdef Py_ssize_t first = column * p.rows, after = first + p.rows
        if column < 0 or 8 * after > cell_bytes.shape[0] or after > valid_bytes.shape[0]:
            raise ValueError(f"column {column} of {p.rows} rows lies outside its memory")
        self.held += [cell_bytes, valid_bytes]
        if p.rows:
            p.metric[p.asked], p.scale[p.asked], p.most[p.asked] = metric, scale, most
            p.cells[p.asked] = <double *>&cell_bytes[8 * first]
            p.valid[p.asked] = &valid_bytes[first]
            p.asked += 1

    def _watch(self, handles, instances, addresses):
        """Determine which GPUs have GPM, and allocate their samples."""
        cdef GpmPass *p = &self.state
        cdef size_t support = self.nvml.symbol_address(SYMBOLS[0])
        cdef size_t alloc = self.nvml.symbol_address(SYMBOLS[1])
        p.release = <FreeCall><size_t>self.nvml.symbol_address(SYMBOLS[2])
        p.take = <SampleCall><size_t>self.nvml.symbol_address(SYMBOLS[3])
        p.compare = <MetricsCall><size_t>self.nvml.symbol_address(SYMBOLS[4])
        p.take_mig = <MigSampleCall><size_t>self.nvml.symbol_address(MIG_SYMBOL)
        if not support or not alloc or p.release == NULL or p.take == NULL or p.compare == NULL:
            return
        cdef size_t handle
        cdef int row
        for row, handle in enumerate(handles):
            p.gpus[row].device, p.gpus[row].instance = <nvmlDevice_t>handle, instances[row]
            p.gpus[row].account = <Account *><uintptr_t>account_address(addresses[row])
            if handle and (p.gpus[row].instance < 0 or p.take_mig != NULL):
                with nogil:
                    make_samples(p, &p.gpus[row], <SupportCall>support, <AllocCall>alloc)

    @property
    def pass_address(self):
        return <uintptr_t>&self.state

    @property
    def supported(self):
        return [bool(self.state.gpus[row].supported) for row in range(self.state.rows)]

    @property
    def failed(self):
        return sum(self.state.gpus[row].failed for row in range(self.state.rows))

    def failing(self, int row):
        return self.error(row) is not None and bool(self.state.gpus[row].supported)

    def error(self, int row):
        if not 0 <= row < self.state.rows:
            raise IndexError(f"there are {self.state.rows} rows, and no {row}")
        code = self.state.gpus[row].code
        return self.nvml._error("GPM", code) if code != NVML_SUCCESS else None

    def run(self, int64_t now_ns):
        cdef int row
        cdef int64_t ahead_ns  # difference to the machine's clock
        self.nvml._check()
        with nogil:
            ahead_ns = now_ns - account_boottime_ns()
            for row in range(self.state.rows):
                gpm_read(&self.state, row, account_boottime_ns() + ahead_ns)

    def close(self):
        cdef int row
        if not self.nvml.initialised:
            return  # the samples ended with the library
        for row in range(self.state.rows):
            if self.state.gpus[row].supported:
                self.state.gpus[row].supported = False
                with nogil:
                    account_enter(DRIVER, self.state.place[0], b"nvmlGpmSampleFree", 0, 0)
                    self.state.release(self.state.gpus[row].before)
                    self.state.release(self.state.gpus[row].now)
                    place_leave(self.state.place[0])

    def __dealloc__(self):
        # The samples are not freed here: the library may be unloaded.
        free(self.state.gpus)


cdef void make_samples(GpmPass *p, Watched *gpu, SupportCall support, AllocCall alloc) noexcept nogil:
    cdef nvmlGpmSupport_t answer
    answer.version, answer.isSupportedDevice = 1, 0
    if account_enter(gpu.account, p.place[0], b"nvmlGpmQueryDeviceSupport", 0, 0) <= 0:
        return
    gpu.code = support(gpu.device, &answer)
    place_leave(p.place[0])
    if gpu.code != NVML_SUCCESS or answer.isSupportedDevice == 0:
        return
    account_enter(DRIVER, p.place[0], b"nvmlGpmSampleAlloc", 0, 0)
    gpu.code = alloc(&gpu.before)
    if gpu.code == NVML_SUCCESS:
        gpu.code = alloc(&gpu.now)
        if gpu.code != NVML_SUCCESS:
            p.release(gpu.before)
    gpu.supported = gpu.code == NVML_SUCCESS
    place_leave(p.place[0])
