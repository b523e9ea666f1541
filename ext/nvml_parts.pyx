# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The parts of a GPU by NVML's C ABI: NVLink and C2C fields, MIG, processes, fabric, the event set.

It builds on `nvml`, which loads the library, looks up symbols and attaches GPUs. This module holds the handles and
makes the calls, each without the GIL, published by the process and counted in its GPU's account. A symbol that the
driver lacks costs only its own readings. Counts are bounded: a driver that reports 4 billion links or processes is
ignored.
"""

from collections import namedtuple

from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from nvml_abi cimport *
from nvml_account cimport Account, account_enter
from nvml_parts_abi cimport *
from nvml_parts_fields cimport *
from nvml_parts_lists cimport *
from nvml_pass cimport blank
from place_abi cimport Place, place_leave

from .nvml import CALLS_PER_SECOND_MAX, LEFT_OUT, NvmlError, account_address
from .place import POINTER

#: Larger counts are discarded as implausible. (NVML 13.5 knows 36 NVLinks, and MIG at most 8 devices per GPU.)
LINKS_MAX = 64
MIG_DEVICES_MAX = 64
PROCESSES_MAX = ENTRIES_MAX
cdef enum:
    #: Maximum number of fields in one call.
    FIELDS_PER_CALL_MAX = 512
    #: A field that a row lacks is requested again after this many passes, because a link may have come up.
    ASK_AGAIN_PASSES = 30
    UUID_BYTES = 96
#: Larger memory sizes and counts are discarded as implausible; such counts are negative error codes.
cdef uint64_t BYTES_MAX = <uint64_t>1 << 50, COUNT_MAX = <uint64_t>1 << 62

# SYMBOLS: the members of `PartsCalls` in their order; setup.py writes the file from nvml_parts_abi.pxd.
include "nvml_parts_symbols.pxi"
if len(SYMBOLS) > 64:
    raise ImportError("nvml_parts: more symbols than NAMES")

#: Calls that list a GPU's processes: COMPUTE's first, then GRAPHICS', then MPS'.
LIST_SYMBOLS = tuple(symbol for symbol in SYMBOLS if symbol.endswith("RunningProcesses_v3"))

cdef Place **HERE = <Place **><uintptr_t>POINTER
cdef const char *NAMES[64]
_NAMES = [symbol.encode() for symbol in SYMBOLS]  # keeps what NAMES points to
for _slot, _name in enumerate(_NAMES):
    NAMES[<int>_slot] = <const char *><bytes>_name

#: Form in which a field's value is written into its cell.
INTEGER, FLOAT, BIT_ERROR_RATIO = INTEGER_FORM, FLOAT_FORM, BIT_ERROR_RATIO_FORM

#: Uses of a GPU by a process, as bits.
COMPUTE, GRAPHICS, MPS = 1, 2, 4

MigDevice = namedtuple("MigDevice", [
    "uuid", "gpu_instance", "compute_instance", "profile", "placement_start", "placement_slices", "gpu_slices",
    "compute_slices", "multiprocessors", "memory_total_bytes", "memory_used_bytes", "sram_uncorrected_errors",
    "refused",
])
Process = namedtuple("Process", ["pid", "memory_bytes", "gpu_instance", "compute_instance", "kinds"])
Fabric = namedtuple("Fabric", ["cluster_uuid", "state", "status", "clique", "health_mask", "health_summary"])
Event = namedtuple("Event", ["address", "type", "data", "gpu_instance", "compute_instance"])
#: Types of a system event: the driver was unbound from a GPU, or bound to a GPU.
UNBIND, BIND = nvmlSystemEventTypeGpuDriverUnbind, nvmlSystemEventTypeGpuDriverBind
SystemEvent = namedtuple("SystemEvent", ["type", "address"])

ctypedef nvmlReturn_t (*UintCall)(nvmlDevice_t, unsigned int *) noexcept nogil


cdef inline object known(uint64_t value, uint64_t most):
    """Return the value; None for a blank or a value above *most*."""
    return None if blank(value) or value > most else value


def bit_error_ratio(uint64_t code):
    cdef double ratio
    return ratio if decode_bit_error_ratio(code, &ratio) else None


cdef class Parts:
    """The handles of some GPUs, and the calls on them."""

    cdef PartsCalls call
    cdef object nvml
    cdef dict handles
    cdef dict accounts
    cdef dict said  # per GPU: the last raw answer on its fabric, and the object made from it
    cdef int at
    cdef readonly frozenset missing_symbols
    cdef int fabric_version

    def __init__(self, nvml):
        self.nvml, self.handles, self.accounts, self.said, self.fabric_version = nvml, {}, {}, {}, 3
        cdef void **slots = <void **>&self.call
        missing = []
        for i, symbol in enumerate(SYMBOLS):
            slots[<int>i] = <void *><size_t>nvml.symbol_address(symbol)
            if slots[<int>i] == NULL:
                missing.append(symbol)
        self.missing_symbols = frozenset(missing)

    def open(self, str address):
        self.handles[address] = self.nvml.handle_address(address)

    cdef nvmlDevice_t _device(self, str address) except? NULL:
        self.nvml._check()  # fails if the library was unloaded
        return <nvmlDevice_t><size_t>self.handles[address]

    cdef bint _may(self, str address, const void *slot) except -1:
        """Return whether the driver has the call in *slot*; if so, publish that the call begins.

        Raises NvmlError if the call must be left out.
        """
        if (<void **>slot)[0] == NULL:
            return False
        self.at = <int>((<char *>slot - <char *>&self.call) // sizeof(void *))
        known = self.accounts.get(address)
        if known is None:
            known = self.accounts[address] = account_address(address)
        if account_enter(<Account *><uintptr_t>known, HERE[0], NAMES[self.at], 0, 0) == 0:
            raise _left_out(SYMBOLS[self.at])
        return True

    cdef bint _answered(self, nvmlReturn_t code) except -1:
        """Return whether the call gave an answer; False if the GPU lacks the function. Raises NvmlError."""
        place_leave(HERE[0])
        if code == NVML_SUCCESS:
            return True
        if lacking(code):
            return False
        raise self._error(SYMBOLS[self.at], code)

    cdef object _error(self, str what, int code):
        return self.nvml._error(what, code)

    def nvlink_count(self, str address):
        count = self._field(address, NVML_FI_DEV_NVLINK_LINK_COUNT)
        if count is not None and count <= LINKS_MAX:
            return count
        link = 0
        while link < LINKS_MAX and self.nvlink_state(address, link) is not None:
            link += 1
        return link

    def c2c_count(self, str address):
        count = self._field(address, NVML_FI_DEV_C2C_LINK_COUNT) or 0
        return count if count <= LINKS_MAX else 0

    def nvlink_state(self, str address, unsigned int link):
        cdef nvmlDevice_t device = self._device(address)
        cdef nvmlEnableState_t active = 0
        cdef nvmlReturn_t code
        if not self._may(address, &self.call.nvmlDeviceGetNvLinkState):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetNvLinkState(device, link, &active)
        return active if self._answered(code) and active <= 1 else None

    cdef object _field(self, str address, unsigned int field):
        """Return a field of the whole GPU; None if the GPU lacks the field."""
        cdef nvmlDevice_t device = self._device(address)
        cdef nvmlFieldValue_t value
        cdef nvmlReturn_t code
        cdef uint64_t integer = 0
        memset(&value, 0, sizeof(value))
        value.fieldId, value.nvmlReturn = field, NVML_ERROR_NOT_SUPPORTED
        if not self._may(address, &self.call.nvmlDeviceGetFieldValues):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetFieldValues(device, 1, &value)
        if not self._answered(code) or value.nvmlReturn != NVML_SUCCESS:
            return None
        return integer if integer_of(&value, &integer) and not blank(integer) else None

    def mig_mode(self, str address):
        cdef nvmlDevice_t device = self._device(address)
        cdef unsigned int current = 0, pending = 0
        cdef nvmlReturn_t code
        if not self._may(address, &self.call.nvmlDeviceGetMigMode):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetMigMode(device, &current, &pending)
        if not self._answered(code) or current > 1 or pending > 1:
            return None
        return current, pending

    def mig_devices_max(self, str address):
        return self._uint(address, self._device(address), &self.call.nvmlDeviceGetMaxMigDeviceCount)

    def mig_devices(self, str address, unsigned int most):
        cdef nvmlDevice_t device = self._device(address), mig
        cdef nvmlReturn_t code
        cdef unsigned int index
        found = []
        for index in range(min(most, <unsigned int>MIG_DEVICES_MAX)):
            mig = NULL
            if not self._may(address, &self.call.nvmlDeviceGetMigDeviceHandleByIndex):
                break
            with nogil:
                code = self.call.nvmlDeviceGetMigDeviceHandleByIndex(device, index, &mig)
            if self._answered(code) and mig != NULL:  # an index without a device does not end the list
                instance = self._mig_device(address, <size_t>device, <size_t>mig)
                if (_unless_refused([], self._mig_uuid, address, <size_t>mig) or "") == instance.uuid:
                    found.append(instance)  # otherwise the handle was assigned to another device meanwhile
        return found

    def _mig_device(self, str address, size_t device, size_t mig):
        """Read one MIG device. Missing values are None; `refused` records that permission was denied."""
        refused = []
        uuid = _unless_refused(refused, self._mig_uuid, address, mig) or ""
        instance = _unless_refused(refused, self._uint_of, address, mig, True)
        compute = _unless_refused(refused, self._uint_of, address, mig, False)
        profile = None
        if instance is not None:
            profile = _unless_refused(refused, self._placement, address, device, instance)
        attributes = _unless_refused(refused, self._attributes, address, mig)
        memory = _unless_refused(refused, self._memory, address, mig)
        errors = _unless_refused(refused, self._sram_errors, address, mig)
        return MigDevice(
            uuid, instance, compute, *(profile or (None,) * 3), *(attributes or (None,) * 3),
            *(memory or (None,) * 2), errors, bool(refused),
        )

    def _mig_uuid(self, str address, size_t mig):
        cdef char text[UUID_BYTES]
        cdef nvmlReturn_t code
        memset(text, 0, sizeof(text))
        if not self._may(address, &self.call.nvmlDeviceGetUUID):
            return ""
        with nogil:
            code = self.call.nvmlDeviceGetUUID(<nvmlDevice_t>mig, text, sizeof(text))
        if not self._answered(code):
            return ""
        return text[:UUID_BYTES].partition(b"\0")[0].decode(errors="replace")

    def _uint_of(self, str address, size_t mig, bint gpu_instance):
        if gpu_instance:
            return self._uint(address, <nvmlDevice_t>mig, &self.call.nvmlDeviceGetGpuInstanceId)
        return self._uint(address, <nvmlDevice_t>mig, &self.call.nvmlDeviceGetComputeInstanceId)

    cdef object _uint(self, str address, nvmlDevice_t device, UintCall *slot):
        cdef unsigned int value = 0
        cdef nvmlReturn_t code
        if not self._may(address, slot):
            return None
        with nogil:
            code = slot[0](device, &value)
        return known(value, ~<unsigned int>0) if self._answered(code) else None

    def _placement(self, str address, size_t device, unsigned int instance):
        """Return profile, first memory slice and number of slices of a GPU instance."""
        cdef nvmlGpuInstance_t handle = NULL
        cdef nvmlGpuInstanceInfo_t info
        cdef nvmlReturn_t code
        memset(&info, 0, sizeof(info))
        if self.call.nvmlGpuInstanceGetInfo == NULL or not self._may(address, &self.call.nvmlDeviceGetGpuInstanceById):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetGpuInstanceById(<nvmlDevice_t>device, instance, &handle)
        if not self._answered(code):
            return None
        self._may(address, &self.call.nvmlGpuInstanceGetInfo)
        with nogil:
            code = self.call.nvmlGpuInstanceGetInfo(handle, &info)
        if not self._answered(code):
            return None
        return known(info.profileId, 1 << 16), known(info.placement.start, 1 << 10), known(info.placement.size, 1 << 10)

    def _attributes(self, str address, size_t mig):
        cdef nvmlDeviceAttributes_t found
        cdef nvmlReturn_t code
        memset(&found, 0, sizeof(found))
        if not self._may(address, &self.call.nvmlDeviceGetAttributes_v2):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetAttributes_v2(<nvmlDevice_t>mig, &found)
        if not self._answered(code):
            return None
        return (
            known(found.gpuInstanceSliceCount, 1 << 10), known(found.computeInstanceSliceCount, 1 << 10),
            known(found.multiprocessorCount, 1 << 16),
        )

    def _memory(self, str address, size_t mig):
        cdef nvmlMemory_t memory
        cdef nvmlReturn_t code
        memory.total = memory.free = memory.used = 0
        if not self._may(address, &self.call.nvmlDeviceGetMemoryInfo):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetMemoryInfo(<nvmlDevice_t>mig, &memory)
        return (known(memory.total, BYTES_MAX), known(memory.used, BYTES_MAX)) if self._answered(code) else None

    def _sram_errors(self, str address, size_t mig):
        cdef unsigned long long count = 0
        cdef nvmlReturn_t code
        if not self._may(address, &self.call.nvmlDeviceGetMemoryErrorCounter):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetMemoryErrorCounter(
                <nvmlDevice_t>mig, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_MEMORY_LOCATION_SRAM,
                &count,
            )
        return known(count, ~<uint64_t>0) if self._answered(code) else None

    def fabric(self, str address):
        cdef nvmlDevice_t device = self._device(address)
        cdef nvmlGpuFabricInfo_v3_t info
        cdef nvmlReturn_t code
        cdef int version
        for version in range(self.fabric_version, 1, -1):  # version 2 is version 3 without its last member
            memset(&info, 0, sizeof(info))
            info.version = fabric_version(version)
            if not self._may(address, &self.call.nvmlDeviceGetGpuFabricInfoV):
                break
            with nogil:
                code = self.call.nvmlDeviceGetGpuFabricInfoV(device, &info)
            if self._answered(code):
                raw = <bytes>(<char *>&info)[: sizeof(info)]
                before = self.said.get(address)
                if before is None or before[0] != raw:
                    uuid = <bytes>(<char *>info.clusterUuid)[:NVML_GPU_FABRIC_UUID_LEN]
                    summary = info.healthSummary if version == 3 else None
                    said = Fabric(uuid, info.state, info.status, info.cliqueId, info.healthMask, summary)
                    before = self.said[address] = (raw, said)
                return before[1]
            if code != NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                break
            self.fabric_version = 2  # the newest version of this driver: later requests begin with it
        return self._fabric_without_health(address, <size_t>device)

    cdef object _fabric_without_health(self, str address, size_t device):
        """Use the call that drivers had before the versioned call."""
        cdef nvmlGpuFabricInfo_t info
        cdef nvmlReturn_t code
        memset(&info, 0, sizeof(info))
        if not self._may(address, &self.call.nvmlDeviceGetGpuFabricInfo):
            return None
        with nogil:
            code = self.call.nvmlDeviceGetGpuFabricInfo(<nvmlDevice_t>device, &info)
        if not self._answered(code):
            return None
        uuid = <bytes>(<char *>info.clusterUuid)[:NVML_GPU_FABRIC_UUID_LEN]
        return Fabric(uuid, info.state, info.status, info.cliqueId, None, None)


cdef unsigned int fabric_version(int version):
    """Return NVML_STRUCT_VERSION(GpuFabricInfo, version)."""
    return (sizeof(nvmlGpuFabricInfo_v3_t) if version == 3 else sizeof(nvmlGpuFabricInfo_v2_t)) | version << 24


def _unless_refused(refused, question, *arguments):
    """Return the answer; None after an NvmlError. A denied permission is noted in *refused*."""
    try:
        return question(*arguments)
    except NvmlError as error:
        if error.code == NVML_ERROR_NO_PERMISSION:
            refused.append(error)
        return None


cdef object _left_out(str call):
    return NvmlError(f"{call}: left out, over {CALLS_PER_SECOND_MAX} calls a second", LEFT_OUT)


cdef object _process(nvmlProcessInfo_t *info, int kind):
    return Process(
        info.pid, known(info.usedGpuMemory, BYTES_MAX), known(info.gpuInstanceId, 1 << 16),
        known(info.computeInstanceId, 1 << 16), kind,
    )


cdef class ProcessLists:
    """Processes on some GPUs, read in one pass. Python objects are made only for a list that changed."""

    cdef Parts parts
    cdef Listed *gpus
    cdef int count
    cdef ProcessesCall calls[LISTS]
    cdef const char *names[LISTS]
    cdef Entries room
    cdef dict rows  # by address

    def __cinit__(self, Parts parts not None, addresses):
        cdef PartsCalls *call = &parts.call
        cdef int row, i
        self.parts, self.rows = parts, {address: row for row, address in enumerate(addresses)}
        self.calls[0] = call.nvmlDeviceGetComputeRunningProcesses_v3
        self.calls[1] = call.nvmlDeviceGetGraphicsRunningProcesses_v3
        self.calls[2] = call.nvmlDeviceGetMPSComputeRunningProcesses_v3
        for i, symbol in enumerate(LIST_SYMBOLS):
            self.names[i] = NAMES[SYMBOLS.index(symbol)]
        self.gpus = <Listed *>calloc(len(self.rows) + 1, sizeof(Listed))
        if self.gpus == NULL:
            raise MemoryError
        self.count = len(self.rows)
        for address, row in self.rows.items():
            self.gpus[row].device = parts._device(address)
            self.gpus[row].account = <Account *><uintptr_t>account_address(address)
            self.gpus[row].failed = 0  # no result yet

    def __dealloc__(self):
        cdef int row, i
        for row in range(self.count):
            for i in range(LISTS):
                free(self.gpus[row].lists[i].first)
        free(self.gpus)
        free(self.room.first)

    def run(self):
        cdef bint is_same = True
        cdef int row
        self.parts.nvml._check()
        with nogil:
            for row in range(self.count):
                is_same &= ask_gpu(&self.gpus[row], self.calls, self.names, HERE[0], &self.room)
        return is_same

    def of(self, str address):
        cdef Listed *gpu = &self.gpus[<int>self.rows[address]]
        cdef unsigned int i
        cdef int kind
        if gpu.failed >= 0:
            raise self._failure(gpu)
        return [
            _process(&gpu.lists[kind].first[i], 1 << kind)
            for kind in range(LISTS)
            for i in range(gpu.lists[kind].count)
            if gpu.lists[kind].first[i].pid
        ]

    cdef object _failure(self, Listed *gpu):
        what = LIST_SYMBOLS[gpu.failed]
        if gpu.code == NVML_SUCCESS:
            return _left_out(what)
        if gpu.code == NVML_ERROR_INSUFFICIENT_SIZE:
            what = f"{what}: {gpu.claimed} processes, of which at most {PROCESSES_MAX} are believed"
            return NvmlError(what, gpu.code)
        return self.parts._error(what, gpu.code)


cdef class FieldPass:
    """Fields of many links: one call per GPU, if the number of fields fits in one call."""

    cdef Parts parts
    cdef Ask *asks  # sorted by GPU from the first pass on
    cdef int count
    cdef int arranged  # number of asks when `ends` was made
    cdef list ends  # per GPU: the end of its asks
    cdef uint64_t passes
    cdef list addresses
    cdef dict held
    cdef readonly dict codes
    cdef nvmlFieldValue_t values[FIELDS_PER_CALL_MAX]
    cdef int asked[FIELDS_PER_CALL_MAX]

    def __init__(self, Parts parts not None):
        self.parts, self.addresses, self.held, self.codes, self.ends = parts, [], {}, {}, []

    def __dealloc__(self):
        free(self.asks)

    def ask(
        self, str address, unsigned int field, unsigned int scope, cells, valid, Py_ssize_t cell,
        int form=INTEGER_FORM, uint64_t multiplier=1, uint64_t raw_max=0,
    ):
        cdef size_t first_cell, first_valid
        cdef Py_ssize_t rows
        first_cell, first_valid, rows = self._hold(cells, valid)
        if cell < 0 or cell >= rows:
            raise ValueError(f"cell {cell} lies outside its memory")
        cdef Ask *asks = <Ask *>realloc(self.asks, (self.count + 1) * sizeof(Ask))
        if asks == NULL:
            raise MemoryError
        self.asks = asks
        if address not in self.addresses:
            self.addresses.append(address)
        cdef uint64_t most = raw_max or COUNT_MAX // max(multiplier, <uint64_t>1)
        asks[self.count] = Ask(
            self.addresses.index(address), field, scope, form, multiplier, most,
            <uint64_t *>first_cell + cell, <uint8_t *>first_valid + cell, True,
        )
        self.count += 1

    def _hold(self, cells, valid):
        """Return the address and the number of cells of the memory, which this object keeps from moving."""
        cdef uint8_t[::1] cell_bytes
        cdef uint8_t[::1] valid_bytes
        cdef size_t first_cell = 0, first_valid = 0
        known = self.held.get(id(valid))
        if known is None:
            cell_bytes, valid_bytes = cells, valid
            rows = min(cell_bytes.shape[0] // 8, valid_bytes.shape[0])
            if rows:
                first_cell, first_valid = <size_t>&cell_bytes[0], <size_t>&valid_bytes[0]
            known = (first_cell, first_valid, rows, memoryview(cells), memoryview(valid))
            self.held[id(valid)] = known
        return known[:3]

    def run(self):
        cdef int i, first, end, device
        cdef nvmlDevice_t handle
        cdef nvmlReturn_t code
        if self.arranged != self.count:
            self._arrange()
        for i in range(self.count):
            self.asks[i].valid[0] = 0
        self.codes, end = {}, 0
        for device, address in enumerate(self.addresses):
            first, end = end, self.ends[device]
            handle, first = self.parts._device(address), self._next(first, end)
            while first < end and self._may(address):
                with nogil:
                    code = self._call(handle, end, &first)
                    place_leave(HERE[0])
                if code != NVML_SUCCESS:
                    self.codes[address] = code
                    self._forget(device)
                    break
                first = self._next(first, end)
        self.passes += 1

    cdef int _arrange(self) except -1:
        """Group the asks by GPU, so that a pass over one GPU does not visit the asks of all GPUs."""
        cdef Ask *asks = <Ask *>malloc((self.count + 1) * sizeof(Ask))
        cdef int i, device, at = 0
        if asks == NULL:
            raise MemoryError
        self.ends = []
        for device in range(len(self.addresses)):
            for i in range(self.count):
                if self.asks[i].device == device:
                    asks[at] = self.asks[i]
                    at += 1
            self.ends.append(at)
        free(self.asks)
        self.asks, self.arranged = asks, self.count
        return 0

    cdef bint _may(self, str address):
        """Return whether the next call may be made; if it must be left out, note this as the GPU's error."""
        try:
            return self.parts._may(address, &self.parts.call.nvmlDeviceGetFieldValues)
        except NvmlError as error:
            self.codes[address] = error.code
            self._forget(self.addresses.index(address))
            return False

    cdef int _next(self, int first, int end) noexcept nogil:
        """Return the first ask from *first* on that is due in this pass; *end* if none is due."""
        while first < end and not self._is_due(&self.asks[first]):
            first += 1
        return first

    cdef bint _is_due(self, Ask *ask) noexcept nogil:
        return ask.has or self.passes % ASK_AGAIN_PASSES == 0

    cdef nvmlReturn_t _call(self, nvmlDevice_t handle, int end, int *first) noexcept nogil:
        """Read the next fields of a GPU, write their values, and set *first* to the index after the last of them."""
        cdef int i, count = 0
        cdef Ask *ask
        cdef nvmlReturn_t code
        while first[0] < end and count < FIELDS_PER_CALL_MAX:
            ask = &self.asks[first[0]]
            if self._is_due(ask):
                memset(&self.values[count], 0, sizeof(nvmlFieldValue_t))
                self.values[count].fieldId, self.values[count].scopeId = ask.field, ask.scope
                self.values[count].nvmlReturn = NVML_ERROR_NOT_SUPPORTED  # in case the driver skips a field
                self.asked[count] = first[0]
                count += 1
            first[0] += 1
        code = self.parts.call.nvmlDeviceGetFieldValues(handle, count, self.values)
        if code == NVML_SUCCESS:
            for i in range(count):
                put(&self.asks[self.asked[i]], &self.values[i])
                if self.values[i].nvmlReturn == NVML_ERROR_GPU_IS_LOST:
                    code = NVML_ERROR_GPU_IS_LOST
        return code

    cdef void _forget(self, int device) noexcept:
        """Invalidate the fields of a GPU that could not be read, including values from before it was lost."""
        cdef int i
        for i in range(self.count):
            if self.asks[i].device == device:
                self.asks[i].valid[0] = 0


cdef class EventSet:
    """NVML's events of some GPUs."""

    cdef Parts parts
    cdef nvmlEventSet_t events
    cdef dict addresses

    def __init__(self, Parts parts not None):
        cdef nvmlReturn_t code = NVML_ERROR_FUNCTION_NOT_FOUND
        parts.nvml._check()
        self.parts, self.addresses, self.events = parts, {}, NULL
        if parts.call.nvmlEventSetWait_v2 != NULL and parts._may("", &parts.call.nvmlEventSetCreate):
            with nogil:
                code = parts.call.nvmlEventSetCreate(&self.events)
            place_leave(HERE[0])
        if code != NVML_SUCCESS:
            raise parts._error("nvmlEventSetCreate", code)

    def register(self, str address, unsigned long long wanted):
        cdef nvmlDevice_t device = self.parts._device(address)
        cdef unsigned long long types = 0
        cdef nvmlReturn_t code
        if not self.parts._may(address, &self.parts.call.nvmlDeviceGetSupportedEventTypes):
            return 0
        with nogil:
            code = self.parts.call.nvmlDeviceGetSupportedEventTypes(device, &types)
        types &= wanted
        if not self.parts._answered(code) or not types:
            return 0
        if not self.parts._may(address, &self.parts.call.nvmlDeviceRegisterEvents):
            return 0
        with nogil:
            code = self.parts.call.nvmlDeviceRegisterEvents(device, types, self.events)
        if not self.parts._answered(code):
            return 0
        self.addresses[<size_t>device] = address
        return types

    def wait(self, unsigned int milliseconds):
        cdef nvmlEventData_t data
        cdef nvmlReturn_t code
        if self.events == NULL:
            raise NvmlError("the event set was closed", NVML_ERROR_UNINITIALIZED)
        self.parts.nvml._check()
        memset(&data, 0, sizeof(data))
        self.parts._may("", &self.parts.call.nvmlEventSetWait_v2)
        with nogil:
            code = self.parts.call.nvmlEventSetWait_v2(self.events, &data, milliseconds)
        place_leave(HERE[0])
        if code == NVML_ERROR_TIMEOUT:
            return None
        if code != NVML_SUCCESS:
            raise self.parts._error("nvmlEventSetWait", code)
        return Event(
            self.addresses.get(<size_t>data.device, ""), data.eventType, data.eventData,
            known(data.gpuInstanceId, 1 << 16), known(data.computeInstanceId, 1 << 16),
        )

    def close(self):
        cdef nvmlEventSet_t events = self.events
        self.events = NULL
        if events != NULL and self.parts.nvml.initialised and self.parts._may("", &self.parts.call.nvmlEventSetFree):
            with nogil:
                self.parts.call.nvmlEventSetFree(events)
                place_leave(HERE[0])


cdef class SystemEventSet:
    """Events of the driver being unbound from and bound to GPUs. Drivers before about 575 lack these events."""

    cdef Parts parts
    cdef nvmlSystemEventSet_t events

    def __init__(self, Parts parts not None):
        cdef nvmlSystemEventSetCreateRequest_v1_t made
        cdef nvmlSystemRegisterEventRequest_v1_t asked
        cdef nvmlReturn_t code = NVML_ERROR_FUNCTION_NOT_FOUND
        parts.nvml._check()
        self.parts, self.events = parts, NULL
        memset(&made, 0, sizeof(made))
        made.version = sizeof(made) | 1 << 24
        if parts.call.nvmlSystemEventSetWait == NULL or parts.call.nvmlSystemRegisterEvents == NULL:
            raise parts._error("nvmlSystemEventSetCreate", code)
        if parts._may("", &parts.call.nvmlSystemEventSetCreate):
            with nogil:
                code = parts.call.nvmlSystemEventSetCreate(&made)
            place_leave(HERE[0])
        if code != NVML_SUCCESS:
            raise parts._error("nvmlSystemEventSetCreate", code)
        self.events = made.set
        memset(&asked, 0, sizeof(asked))
        asked.version = sizeof(asked) | 1 << 24
        asked.eventTypes, asked.set = nvmlSystemEventTypeGpuDriverUnbind | nvmlSystemEventTypeGpuDriverBind, made.set
        parts._may("", &parts.call.nvmlSystemRegisterEvents)
        with nogil:
            code = parts.call.nvmlSystemRegisterEvents(&asked)
        place_leave(HERE[0])
        if code != NVML_SUCCESS:
            self.close()
            raise parts._error("nvmlSystemRegisterEvents", code)

    def look(self):
        cdef nvmlSystemEventData_v1_t data[16]
        cdef nvmlSystemEventSetWaitRequest_v1_t asked
        cdef nvmlReturn_t code
        cdef unsigned int i
        if self.events == NULL:
            raise NvmlError("the event set was closed", NVML_ERROR_UNINITIALIZED)
        self.parts.nvml._check()
        memset(&asked, 0, sizeof(asked))
        asked.version = sizeof(asked) | 1 << 24
        asked.set, asked.data, asked.dataSize = self.events, data, 16
        self.parts._may("", &self.parts.call.nvmlSystemEventSetWait)
        with nogil:
            code = self.parts.call.nvmlSystemEventSetWait(&asked)
        place_leave(HERE[0])
        if code == NVML_ERROR_TIMEOUT:
            return []
        if code != NVML_SUCCESS and code != NVML_ERROR_INSUFFICIENT_SIZE:  # too many events: read the rest next time
            raise self.parts._error("nvmlSystemEventSetWait", code)
        return [SystemEvent(data[i].eventType, _address_of(data[i].gpuId)) for i in range(min(asked.numEvent, <unsigned int>16))]

    def close(self):
        cdef nvmlSystemEventSetFreeRequest_v1_t freed
        memset(&freed, 0, sizeof(freed))
        freed.version = sizeof(freed) | 1 << 24
        freed.set, self.events = self.events, NULL
        if freed.set != NULL and self.parts.nvml.initialised and self.parts._may("", &self.parts.call.nvmlSystemEventSetFree):
            with nogil:
                self.parts.call.nvmlSystemEventSetFree(&freed)
                place_leave(HERE[0])


def _address_of(unsigned int gpu):
    """Return the PCI address of a GPU number: domain, bus and device as packed by NVIDIA's open kernel modules
    (gpuGenerate32BitId)."""
    return f"{gpu >> 16:04x}:{gpu >> 8 & 0xFF:02x}:{gpu & 0xFF:02x}.0"


# LAYOUT: C expression -> value, of all structs in nvml_parts_abi.pxd; setup.py writes the file from it.
include "nvml_parts_layout.pxi"


def abi():
    return LAYOUT | {
        "nvmlSystemEventSetCreateRequest_v1": sizeof(nvmlSystemEventSetCreateRequest_v1_t) | 1 << 24,
        "nvmlSystemEventSetFreeRequest_v1": sizeof(nvmlSystemEventSetFreeRequest_v1_t) | 1 << 24,
        "nvmlSystemRegisterEventRequest_v1": sizeof(nvmlSystemRegisterEventRequest_v1_t) | 1 << 24,
        "nvmlSystemEventSetWaitRequest_v1": sizeof(nvmlSystemEventSetWaitRequest_v1_t) | 1 << 24,
        "nvmlGpuFabricInfo_v2": fabric_version(2),
        "nvmlGpuFabricInfo_v3": fabric_version(3),
        "sizeof(nvmlGpuFabricInfoV_t)": sizeof(nvmlGpuFabricInfoV_t),
    }
