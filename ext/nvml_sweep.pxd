# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One pass over all GPUs: which call gives which reading, and what an answer is worth. C only, no Python object.

What NVML does not say is missing, never zero: an error, a blank (all ones, or DCGM's 2^63-16 and up), a value
beyond what the reading can be. A GPU that is lost is asked nothing more in this pass, and its row is missing
but for the loss itself; its neighbours are read as ever.
"""

from libc.math cimport fabs, isfinite
from libc.stdint cimport int64_t, uint8_t, uint64_t

from nvml_abi cimport *

cdef enum:
    FIELDS_MAX = 16
    ADDRESS_BYTES = 32
    #: A GPU that could not be opened is tried again after so many sweeps: an attach may take seconds.
    OPEN_EVERY_SWEEPS = 60

cdef enum:
    SM_CLOCK, MEMORY_CLOCK, SM_CLOCK_MAX, EVENT_REASONS, VIOLATION_POWER, VIOLATION_THERMAL, VIOLATION_SYNC_BOOST
    POWER, POWER_AVERAGE, POWER_LIMIT, ENERGY, TEMPERATURE, MEMORY_TEMPERATURE, MARGIN, SLOWDOWN
    UTILIZATION, MEMORY_UTILIZATION, MEMORY_USED, MEMORY_TOTAL, MEMORY_RESERVED
    ECC_CORRECTED_VOLATILE, ECC_UNCORRECTED_VOLATILE, ECC_CORRECTED_LIFETIME, ECC_UNCORRECTED_LIFETIME
    REMAPPED_CORRECTABLE, REMAPPED_UNCORRECTABLE, REMAP_PENDING, REMAP_FAILED
    PCIE_GENERATION, PCIE_GENERATION_MAX, PCIE_WIDTH, PCIE_WIDTH_MAX, PCIE_REPLAYS
    PERFORMANCE_STATE, RECOVERY_ACTION, PROCESSES, CALLS_FAILED, SLOW_CALLS_FAILED, LOST
    READING_COUNT

# What NVML's unit is multiplied with and divided by (x / 1000 is exact where x * 0.001 is not), the largest
# raw value that is believed (0: any), the field that gives it (0: a call of its own does).
cdef struct About:
    double multiplier
    double divisor
    uint64_t raw_max
    int field
    bint is_float

# What a sweep needs, made before it begins. `cells` and `valid` stand at a reading's row 0; NULL: not wanted.
cdef struct Pass:
    Calls *call
    int rows
    char *addresses  # ADDRESS_BYTES a row
    nvmlDevice_t *devices  # NULL: not open
    nvmlReturn_t *opened  # the last answer to opening it
    uint64_t *failed  # calls, of each row, since the sweep was made
    uint64_t *cells[READING_COUNT]
    uint8_t *valid[READING_COUNT]
    About about[READING_COUNT]
    nvmlFieldValue_t fields[FIELDS_MAX]
    int field_reading[FIELDS_MAX]
    int field_count
    uint64_t sweeps
    uint64_t calls
    int row  # the row at hand
    int at  # slot in Calls of the call being made, -1 between calls: what a hang is named by
    bint lost
    uint8_t lacks[READING_COUNT]  # this row has no such field: the reading's own call is asked instead

ctypedef nvmlReturn_t (*UintCall)(nvmlDevice_t, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*UintOfKindCall)(nvmlDevice_t, unsigned int, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*LongCall)(nvmlDevice_t, unsigned long long *) noexcept nogil


# ---- what an answer is worth -------------------------------------------------------------------------

cdef inline bint lacking(nvmlReturn_t code) noexcept nogil:
    """Say whether the answer means `this driver or GPU does not have it`, which is no failure."""
    return code in (
        NVML_ERROR_NOT_SUPPORTED,
        NVML_ERROR_FUNCTION_NOT_FOUND,
        NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        NVML_ERROR_DEPRECATED,
    )


cdef inline bint answered(Pass *p, nvmlReturn_t code) noexcept nogil:
    """Say whether there is a value; note a loss, count a failure."""
    if code == NVML_SUCCESS:
        return True
    if code == NVML_ERROR_GPU_IS_LOST:
        p.lost = True
    elif not lacking(code):
        p.failed[p.row] += 1
    return False


cdef inline bint blank(uint64_t value) noexcept nogil:
    """Say whether a driver writes this where it has no value (`unsigned` -1 of 32 or 64 bits, DCGM's blanks)."""
    cdef uint64_t all_ones = ~<uint64_t>0
    return value == all_ones >> 32 or value == all_ones or value >> 4 == all_ones >> 5


cdef inline void put_float(Pass *p, int reading, double value) noexcept nogil:
    """Write a gauge; what is not finite or beyond belief stays missing."""
    cdef About *about = &p.about[reading]
    if p.cells[reading] == NULL or not isfinite(value) or (about.raw_max and fabs(value) > about.raw_max):
        return
    (<double *>p.cells[reading])[p.row] = value * about.multiplier / about.divisor
    p.valid[reading][p.row] = 1


cdef inline void put(Pass *p, int reading, uint64_t value) noexcept nogil:
    """Write an unsigned answer in the reading's unit; a blank or an unbelievable one stays missing."""
    cdef About *about = &p.about[reading]
    if p.cells[reading] == NULL or blank(value):
        return
    if about.is_float:
        put_float(p, reading, <double>value)
    elif not about.raw_max or value <= about.raw_max:
        p.cells[reading][p.row] = value
        p.valid[reading][p.row] = 1


cdef inline void put_signed(Pass *p, int reading, int64_t value) noexcept nogil:
    """Write a signed answer. A counter cannot be below zero; of gauges only a margin is ever truly -1."""
    if value == -1 and reading != MARGIN:
        return
    if p.about[reading].is_float:
        put_float(p, reading, <double>value)
    elif value >= 0:
        put(p, reading, <uint64_t>value)


# ---- calls of one shape ------------------------------------------------------------------------------

cdef inline bint wanted(Pass *p, int reading) noexcept nogil:
    return p.cells[reading] != NULL


cdef inline bint may(Pass *p, const void *slot) noexcept nogil:
    """Say whether the call in *slot* of Calls can be made now, and note that it is being made."""
    if p.lost or (<void **>slot)[0] == NULL:
        return False
    p.at = <int>((<char *>slot - <char *>p.call) // sizeof(void *))
    p.calls += 1
    return True


cdef inline void read_uint(Pass *p, nvmlDevice_t device, int reading, UintCall *slot) noexcept nogil:
    cdef unsigned int value = 0
    if wanted(p, reading) and may(p, slot) and answered(p, slot[0](device, &value)):
        put(p, reading, value)


cdef inline void read_uint_of(Pass *p, nvmlDevice_t device, int reading, unsigned int kind, UintOfKindCall *slot) noexcept nogil:
    cdef unsigned int value = 0
    if wanted(p, reading) and may(p, slot) and answered(p, slot[0](device, kind, &value)):
        put(p, reading, value)


cdef inline void read_long(Pass *p, nvmlDevice_t device, int reading, LongCall *slot) noexcept nogil:
    cdef unsigned long long value = 0
    if wanted(p, reading) and may(p, slot) and answered(p, slot[0](device, &value)):
        put(p, reading, value)


# ---- fields: all of a GPU's in one call ---------------------------------------------------------------

cdef inline void put_field(Pass *p, int reading, nvmlFieldValue_t *field) noexcept nogil:
    """Write one field's answer. INVALID_ARGUMENT here is a driver that does not know the id."""
    p.lacks[reading] = lacking(field.nvmlReturn) or field.nvmlReturn == NVML_ERROR_INVALID_ARGUMENT
    if p.lacks[reading] or not answered(p, field.nvmlReturn):
        return
    if field.valueType == NVML_VALUE_TYPE_DOUBLE:
        if p.about[reading].is_float:
            put_float(p, reading, field.value.dVal)
    elif field.valueType == NVML_VALUE_TYPE_UNSIGNED_INT:
        put(p, reading, field.value.uiVal)
    elif field.valueType == NVML_VALUE_TYPE_UNSIGNED_LONG:
        put(p, reading, field.value.ulVal)
    elif field.valueType == NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
        put(p, reading, field.value.ullVal)
    elif field.valueType == NVML_VALUE_TYPE_SIGNED_LONG_LONG:
        put_signed(p, reading, field.value.sllVal)
    elif field.valueType == NVML_VALUE_TYPE_SIGNED_INT:
        put_signed(p, reading, field.value.siVal)
    elif field.valueType == NVML_VALUE_TYPE_UNSIGNED_SHORT:
        put(p, reading, field.value.usVal)


cdef inline void read_fields(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Ask for all fields at once; where that fails as a whole, each reading's own call is asked."""
    cdef int i
    for i in range(p.field_count):
        p.lacks[p.field_reading[i]] = 1
        p.fields[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED  # should the driver pass one over
    if not p.field_count or not may(p, &p.call.nvmlDeviceGetFieldValues):
        return
    if answered(p, p.call.nvmlDeviceGetFieldValues(device, p.field_count, p.fields)):
        for i in range(p.field_count):
            put_field(p, p.field_reading[i], &p.fields[i])


cdef inline void read_instead_of_fields(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Ask the older calls for what this driver or GPU does not have as a field."""
    if p.lacks[POWER]:
        read_uint(p, device, POWER, &p.call.nvmlDeviceGetPowerUsage)
    if p.lacks[ENERGY]:
        read_long(p, device, ENERGY, &p.call.nvmlDeviceGetTotalEnergyConsumption)
    if p.lacks[PCIE_REPLAYS]:
        read_uint(p, device, PCIE_REPLAYS, &p.call.nvmlDeviceGetPcieReplayCounter)
    read_ecc(p, device, ECC_CORRECTED_VOLATILE, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC)
    read_ecc(p, device, ECC_UNCORRECTED_VOLATILE, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC)
    read_ecc(p, device, ECC_CORRECTED_LIFETIME, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_AGGREGATE_ECC)
    read_ecc(p, device, ECC_UNCORRECTED_LIFETIME, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_AGGREGATE_ECC)


cdef inline void read_ecc(Pass *p, nvmlDevice_t device, int reading, unsigned int type, unsigned int counter) noexcept nogil:
    cdef unsigned long long value = 0
    if not p.lacks[reading] or not wanted(p, reading) or not may(p, &p.call.nvmlDeviceGetTotalEccErrors):
        return
    if answered(p, p.call.nvmlDeviceGetTotalEccErrors(device, type, counter, &value)):
        put(p, reading, value)


# ---- version words: NVML_STRUCT_VERSION, sizeof | version << 24 ------------------------------------------

cdef inline unsigned int memory_version() noexcept nogil:
    return sizeof(nvmlMemory_v2_t) | 2 << 24


cdef inline unsigned int temperature_version() noexcept nogil:
    return sizeof(nvmlTemperature_t) | 1 << 24


cdef inline unsigned int margin_version() noexcept nogil:
    return sizeof(nvmlMarginTemperature_t) | 1 << 24


# ---- calls of their own shape --------------------------------------------------------------------------

cdef inline void read_event_reasons(Pass *p, nvmlDevice_t device) noexcept nogil:
    """The call was renamed in driver 535; the older name is still exported by most."""
    if p.call.nvmlDeviceGetCurrentClocksEventReasons != NULL:
        read_long(p, device, EVENT_REASONS, &p.call.nvmlDeviceGetCurrentClocksEventReasons)
    else:
        read_long(p, device, EVENT_REASONS, &p.call.nvmlDeviceGetCurrentClocksThrottleReasons)


cdef inline void read_temperature(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Ask the versioned call, and the one it replaces where a driver lacks it or its version."""
    cdef nvmlTemperature_t now
    cdef nvmlReturn_t code = NVML_ERROR_FUNCTION_NOT_FOUND
    if not wanted(p, TEMPERATURE):
        return
    if may(p, &p.call.nvmlDeviceGetTemperatureV):
        now.version = temperature_version()
        now.sensorType, now.temperature = NVML_TEMPERATURE_GPU, 0
        code = p.call.nvmlDeviceGetTemperatureV(device, &now)
        if answered(p, code):
            put_signed(p, TEMPERATURE, now.temperature)
    if lacking(code):
        read_uint_of(p, device, TEMPERATURE, NVML_TEMPERATURE_GPU, <UintOfKindCall *>&p.call.nvmlDeviceGetTemperature)


cdef inline void read_margin(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlMarginTemperature_t margin
    if not wanted(p, MARGIN) or not may(p, &p.call.nvmlDeviceGetMarginTemperature):
        return
    margin.version = margin_version()
    margin.marginTemperature = 0
    if answered(p, p.call.nvmlDeviceGetMarginTemperature(device, &margin)):
        put_signed(p, MARGIN, margin.marginTemperature)


cdef inline void read_utilization(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlUtilization_t share
    share.gpu = share.memory = 0
    if not wanted(p, UTILIZATION) and not wanted(p, MEMORY_UTILIZATION):
        return
    if may(p, &p.call.nvmlDeviceGetUtilizationRates) and answered(p, p.call.nvmlDeviceGetUtilizationRates(device, &share)):
        put(p, UTILIZATION, share.gpu)
        put(p, MEMORY_UTILIZATION, share.memory)


cdef inline void read_memory(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Used includes what the driver reserves (version 1 of the call); version 2 tells that apart."""
    cdef nvmlMemory_t memory
    cdef nvmlMemory_v2_t apart
    memory.total = memory.free = memory.used = 0
    apart.version = memory_version()
    apart.total = apart.reserved = apart.free = apart.used = 0
    if wanted(p, MEMORY_RESERVED) and may(p, &p.call.nvmlDeviceGetMemoryInfo_v2):
        if answered(p, p.call.nvmlDeviceGetMemoryInfo_v2(device, &apart)):
            put(p, MEMORY_TOTAL, apart.total)
            put(p, MEMORY_RESERVED, apart.reserved)
    if wanted(p, MEMORY_USED) or (wanted(p, MEMORY_TOTAL) and not p.valid[MEMORY_TOTAL][p.row]):
        if may(p, &p.call.nvmlDeviceGetMemoryInfo) and answered(p, p.call.nvmlDeviceGetMemoryInfo(device, &memory)):
            put(p, MEMORY_USED, memory.used)
            put(p, MEMORY_TOTAL, memory.total)


cdef inline void read_remapped_rows(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef unsigned int correctable = 0, uncorrectable = 0, pending = 0, failed = 0
    if not (wanted(p, REMAPPED_CORRECTABLE) or wanted(p, REMAPPED_UNCORRECTABLE)):
        if not (wanted(p, REMAP_PENDING) or wanted(p, REMAP_FAILED)):
            return
    if not may(p, &p.call.nvmlDeviceGetRemappedRows):
        return
    if answered(p, p.call.nvmlDeviceGetRemappedRows(device, &correctable, &uncorrectable, &pending, &failed)):
        put(p, REMAPPED_CORRECTABLE, correctable)
        put(p, REMAPPED_UNCORRECTABLE, uncorrectable)
        put(p, REMAP_PENDING, pending)
        put(p, REMAP_FAILED, failed)


cdef inline void read_processes(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Ask with room for none: the answer is the count, and INSUFFICIENT_SIZE is then no failure."""
    cdef unsigned int count = 0
    cdef nvmlReturn_t code
    if not wanted(p, PROCESSES) or not may(p, &p.call.nvmlDeviceGetComputeRunningProcesses_v3):
        return
    code = p.call.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL)
    if code == NVML_ERROR_INSUFFICIENT_SIZE or answered(p, code):
        put(p, PROCESSES, count)


# ---- the pass -------------------------------------------------------------------------------------------

cdef inline void read_device(Pass *p, nvmlDevice_t device) noexcept nogil:
    read_fields(p, device)
    read_instead_of_fields(p, device)
    read_uint_of(p, device, SM_CLOCK, NVML_CLOCK_SM, <UintOfKindCall *>&p.call.nvmlDeviceGetClockInfo)
    read_uint_of(p, device, MEMORY_CLOCK, NVML_CLOCK_MEM, <UintOfKindCall *>&p.call.nvmlDeviceGetClockInfo)
    read_uint_of(p, device, SM_CLOCK_MAX, NVML_CLOCK_SM, <UintOfKindCall *>&p.call.nvmlDeviceGetMaxClockInfo)
    read_event_reasons(p, device)
    read_uint(p, device, POWER_LIMIT, &p.call.nvmlDeviceGetEnforcedPowerLimit)
    read_temperature(p, device)
    read_margin(p, device)
    read_uint_of(
        p, device, SLOWDOWN, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        <UintOfKindCall *>&p.call.nvmlDeviceGetTemperatureThreshold,
    )
    read_utilization(p, device)
    read_memory(p, device)
    read_remapped_rows(p, device)
    read_uint(p, device, PCIE_GENERATION, &p.call.nvmlDeviceGetCurrPcieLinkGeneration)
    read_uint(p, device, PCIE_GENERATION_MAX, &p.call.nvmlDeviceGetMaxPcieLinkGeneration)
    read_uint(p, device, PCIE_WIDTH, &p.call.nvmlDeviceGetCurrPcieLinkWidth)
    read_uint(p, device, PCIE_WIDTH_MAX, &p.call.nvmlDeviceGetMaxPcieLinkWidth)
    read_uint(p, device, PERFORMANCE_STATE, <UintCall *>&p.call.nvmlDeviceGetPerformanceState)
    read_processes(p, device)


cdef inline void open_device(Pass *p) noexcept nogil:
    """Attach the row's GPU by its PCI address; on failure it is tried again OPEN_EVERY_SWEEPS later."""
    cdef nvmlDevice_t device = NULL
    cdef nvmlReturn_t code
    if may(p, &p.call.nvmlDeviceGetHandleByPciBusId_v2):
        code = p.call.nvmlDeviceGetHandleByPciBusId_v2(&p.addresses[p.row * ADDRESS_BYTES], &device)
        p.opened[p.row] = code
        if answered(p, code):
            p.devices[p.row] = device


cdef inline void forget_row(Pass *p) noexcept nogil:
    cdef int reading
    for reading in range(READING_COUNT):
        if p.valid[reading] != NULL:
            p.valid[reading][p.row] = 0


cdef inline void sweep(Pass *p) noexcept nogil:
    """Fill every row; a row's error stays in its row."""
    cdef int row
    for row in range(p.rows):
        p.row, p.lost = row, False
        forget_row(p)
        if p.devices[row] == NULL and p.sweeps % OPEN_EVERY_SWEEPS == 0:
            open_device(p)
        if p.devices[row] != NULL:
            read_device(p, p.devices[row])
            if p.lost:
                forget_row(p)
            put(p, LOST, p.lost)
        elif p.opened[row] == NVML_ERROR_GPU_IS_LOST:
            put(p, LOST, 1)
        put(p, CALLS_FAILED, p.failed[row])
        put(p, SLOW_CALLS_FAILED, p.failed[row])
    p.sweeps += 1
    p.at = -1
