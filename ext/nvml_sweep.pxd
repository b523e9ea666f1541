# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A pass over all GPUs: calls with their own structs, and the order of calls. C only.

A lost GPU is not called again in this pass, and its row is missing except for the loss itself; the
other GPUs are read as usual.
"""

from libc.string cimport memset

from nvml_abi cimport *
from nvml_pass cimport *


# Version words (NVML_STRUCT_VERSION): sizeof | version << 24.
cdef inline unsigned int memory_version() noexcept nogil:
    return sizeof(nvmlMemory_v2_t) | 2 << 24


cdef inline unsigned int temperature_version() noexcept nogil:
    return sizeof(nvmlTemperature_t) | 1 << 24


cdef inline unsigned int margin_version() noexcept nogil:
    return sizeof(nvmlMarginTemperature_t) | 1 << 24


cdef inline unsigned int sram_version() noexcept nogil:
    return sizeof(nvmlEccSramErrorStatus_t) | 1 << 24


cdef inline unsigned int sram_places_version() noexcept nogil:
    return sizeof(nvmlEccSramUniqueUncorrectedErrorCounts_t) | 1 << 24


cdef inline unsigned int repair_version() noexcept nogil:
    return sizeof(nvmlRepairStatus_t) | 1 << 24


cdef inline void read_temperature(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Use the versioned call, or its predecessor if the driver lacks it or its version."""
    cdef nvmlTemperature_t now
    cdef unsigned int older = 0
    cdef nvmlReturn_t code = NVML_ERROR_FUNCTION_NOT_FOUND
    if may(p, &p.call.nvmlDeviceGetTemperatureV):
        now.version = temperature_version()
        now.sensorType, now.temperature = NVML_TEMPERATURE_GPU, 0
        code = p.call.nvmlDeviceGetTemperatureV(device, &now)
        if answered(p, code):
            put_signed(p, TEMPERATURE, now.temperature)
    if lacking(code) and may(p, &p.call.nvmlDeviceGetTemperature):
        if answered(p, p.call.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &older)):
            put(p, TEMPERATURE, older)


cdef inline void read_margin(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlMarginTemperature_t margin
    if not may(p, &p.call.nvmlDeviceGetMarginTemperature):
        return
    margin.version = margin_version()
    margin.marginTemperature = 0
    if answered(p, p.call.nvmlDeviceGetMarginTemperature(device, &margin)):
        put_signed(p, MARGIN, margin.marginTemperature)


cdef inline void read_utilization(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlUtilization_t share
    share.gpu = share.memory = 0
    if may(p, &p.call.nvmlDeviceGetUtilizationRates) and answered(p, p.call.nvmlDeviceGetUtilizationRates(device, &share)):
        put(p, UTILIZATION, share.gpu)
        put(p, MEMORY_UTILIZATION, share.memory)


cdef inline void read_memory(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Read memory. Used includes the reserved part (version 1 of the call); version 2 splits it."""
    cdef nvmlMemory_t memory
    cdef nvmlMemory_v2_t apart
    memory.total = memory.free = memory.used = 0
    apart.version = memory_version()
    apart.total = apart.reserved = apart.free = apart.used = 0
    if wanted(p, MEMORY_RESERVED) and may(p, &p.call.nvmlDeviceGetMemoryInfo_v2):
        if answered(p, p.call.nvmlDeviceGetMemoryInfo_v2(device, &apart)):
            put(p, MEMORY_TOTAL, apart.total)
            put(p, MEMORY_RESERVED, apart.reserved)
    if wanted(p, MEMORY_USED) or wanted(p, MEMORY_FREE) or (wanted(p, MEMORY_TOTAL) and not p.valid[MEMORY_TOTAL][p.row]):
        if may(p, &p.call.nvmlDeviceGetMemoryInfo) and answered(p, p.call.nvmlDeviceGetMemoryInfo(device, &memory)):
            put(p, MEMORY_USED, memory.used)
            put(p, MEMORY_FREE, memory.free)
            put(p, MEMORY_TOTAL, memory.total)


cdef inline void read_remapped_rows(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef unsigned int correctable = 0, uncorrectable = 0, pending = 0, failed = 0
    if not may(p, &p.call.nvmlDeviceGetRemappedRows):
        return
    if answered(p, p.call.nvmlDeviceGetRemappedRows(device, &correctable, &uncorrectable, &pending, &failed)):
        put(p, REMAPPED_CORRECTABLE, correctable)
        put(p, REMAPPED_UNCORRECTABLE, uncorrectable)
        put(p, REMAP_PENDING, pending)
        put(p, REMAP_FAILED, failed)


cdef inline void read_processes(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Pass no buffer: the call returns the count, and INSUFFICIENT_SIZE is not a failure."""
    cdef unsigned int count = 0
    cdef nvmlReturn_t code
    if not may(p, &p.call.nvmlDeviceGetComputeRunningProcesses_v3):
        return
    code = p.call.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL)
    if code == NVML_ERROR_INSUFFICIENT_SIZE or answered(p, code):
        put(p, PROCESSES, count)


cdef inline void read_bar1(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlBAR1Memory_t memory
    memory.bar1Total = memory.bar1Free = memory.bar1Used = 0
    if not may(p, &p.call.nvmlDeviceGetBAR1MemoryInfo):
        return
    if answered(p, p.call.nvmlDeviceGetBAR1MemoryInfo(device, &memory)):
        put(p, BAR1_USED, memory.bar1Used)
        put(p, BAR1_TOTAL, memory.bar1Total)


cdef inline void read_histogram(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlRowRemapperHistogramValues_t banks
    banks.max = banks.high = banks.partial = banks.low = banks.none = 0
    if not may(p, &p.call.nvmlDeviceGetRowRemapperHistogram):
        return
    if answered(p, p.call.nvmlDeviceGetRowRemapperHistogram(device, &banks)):
        put(p, BANKS_MAX, banks.max)
        put(p, BANKS_HIGH, banks.high)
        put(p, BANKS_PARTIAL, banks.partial)
        put(p, BANKS_LOW, banks.low)
        put(p, BANKS_NONE, banks.none)


cdef inline void read_sram(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlEccSramErrorStatus_t sram
    if not may(p, &p.call.nvmlDeviceGetSramEccErrorStatus):
        return
    memset(&sram, 0, sizeof(sram))
    sram.version = sram_version()
    if not answered(p, p.call.nvmlDeviceGetSramEccErrorStatus(device, &sram)):
        return
    put(p, SRAM_CORRECTED_VOLATILE, sram.volatileCor)
    put(p, SRAM_PARITY_VOLATILE, sram.volatileUncParity)
    put(p, SRAM_SECDED_VOLATILE, sram.volatileUncSecDed)
    put(p, SRAM_CORRECTED_LIFETIME, sram.aggregateCor)
    put(p, SRAM_PARITY_LIFETIME, sram.aggregateUncParity)
    put(p, SRAM_SECDED_LIFETIME, sram.aggregateUncSecDed)
    put(p, SRAM_L2, sram.aggregateUncBucketL2)
    put(p, SRAM_SM, sram.aggregateUncBucketSm)
    put(p, SRAM_PCIE, sram.aggregateUncBucketPcie)
    put(p, SRAM_MCU, sram.aggregateUncBucketMcu)
    put(p, SRAM_OTHER, sram.aggregateUncBucketOther)
    put(p, SRAM_THRESHOLD, sram.bThresholdExceeded)


cdef inline void read_sram_places(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Read the number of places that lost data, then the places; more may come meanwhile."""
    cdef nvmlEccSramUniqueUncorrectedErrorCounts_t found
    cdef nvmlReturn_t code
    found.version, found.entryCount, found.entries = sram_places_version(), 0, NULL
    if not may(p, &p.call.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts):
        return
    code = p.call.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(device, &found)
    if code != NVML_ERROR_INSUFFICIENT_SIZE and not answered(p, code):
        return
    if found.entryCount and found.entryCount <= SRAM_PLACES_MAX:
        memset(p.places, 0xFF, SRAM_PLACES_MAX * sizeof(p.places[0]))  # a skipped entry is blank
        found.version, found.entryCount, found.entries = sram_places_version(), SRAM_PLACES_MAX, p.places
        if not may(p, &p.call.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts):
            return
        if not answered(p, p.call.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(device, &found)):
            return
    if found.entryCount <= SRAM_PLACES_MAX:
        put_sram_places(p, found.entryCount)


cdef inline void put_sram_places(Pass *p, unsigned int count) noexcept nogil:
    """Set the count and the sums; a sum is missing if an entry lacks a number."""
    cdef uint64_t errors = 0, parity = 0
    cdef bint known = True, known_parity = True
    cdef unsigned int i
    for i in range(count):
        known = known and not blank(p.places[i].count)
        known_parity = known_parity and p.places[i].isParity <= 1
        errors += p.places[i].count
        parity += p.places[i].isParity
    put(p, SRAM_PLACES, count)
    if known:
        put(p, SRAM_PLACES_ERRORS, errors)
    if known_parity:
        put(p, SRAM_PARITY_PLACES, parity)


cdef inline void read_repair(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlRepairStatus_t repair
    repair.version, repair.bChannelRepairPending, repair.bTpcRepairPending = repair_version(), 0, 0
    if may(p, &p.call.nvmlDeviceGetRepairStatus):
        if answered(p, p.call.nvmlDeviceGetRepairStatus(device, &repair)):
            put(p, REPAIR_CHANNEL, repair.bChannelRepairPending)
            put(p, REPAIR_TPC, repair.bTpcRepairPending)


cdef inline void read_unrepairable(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Read the flag. nvml.h (13.1 to 13.5) has only the flag in its struct, nvidia-ml-py (13.615) a
    version word before it.

    So the buffer has both words; if the version word was overwritten, it is the flag.
    """
    cdef unsigned int room[2]
    if not may(p, &p.call.nvmlDeviceGetUnrepairableMemoryFlag_v1):
        return
    room[0], room[1] = sizeof(room) | 1 << 24, 0
    if answered(p, p.call.nvmlDeviceGetUnrepairableMemoryFlag_v1(device, <nvmlUnrepairableMemoryStatus_v1_t *>room)):
        put(p, UNREPAIRABLE, room[1] if room[0] == (sizeof(room) | 1 << 24) else room[0])


cdef inline void read_violation(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef nvmlViolationTime_t held
    held.referenceTime = held.violationTime = 0
    if not may(p, &p.call.nvmlDeviceGetViolationStatus):
        return
    if answered(p, p.call.nvmlDeviceGetViolationStatus(device, NVML_PERF_POLICY_THERMAL, &held)):
        put(p, VIOLATION_CHECK, held.violationTime)


cdef inline uint64_t bits(int first, int last) noexcept nogil:
    """Return a mask of the readings from *first* to *last*."""
    return ((<uint64_t>2 << last) - 1) & ~((<uint64_t>1 << first) - 1)


cdef inline void take_step(Pass *p, Step step, bint is_wanted, uint64_t readings) noexcept nogil:
    if is_wanted:
        p.steps[p.step_count] = step
        p.step_readings[p.step_count] = readings
        p.step_count += 1


cdef inline void plan_steps(Pass *p) noexcept nogil:
    """Select the calls with a wanted reading."""
    take_step(p, read_temperature, wanted(p, TEMPERATURE), bits(TEMPERATURE, TEMPERATURE))
    take_step(p, read_margin, wanted(p, MARGIN), bits(MARGIN, MARGIN))
    take_step(p, read_utilization, wanted(p, UTILIZATION) or wanted(p, MEMORY_UTILIZATION),
              bits(UTILIZATION, MEMORY_UTILIZATION))
    take_step(p, read_memory, wanted(p, MEMORY_USED) or wanted(p, MEMORY_FREE) or wanted(p, MEMORY_TOTAL)
              or wanted(p, MEMORY_RESERVED), bits(MEMORY_USED, MEMORY_RESERVED))
    take_step(p, read_processes, wanted(p, PROCESSES), bits(PROCESSES, PROCESSES))
    take_step(p, read_remapped_rows, wanted(p, REMAPPED_CORRECTABLE) or wanted(p, REMAPPED_UNCORRECTABLE)
              or wanted(p, REMAP_PENDING) or wanted(p, REMAP_FAILED), bits(REMAPPED_CORRECTABLE, REMAP_FAILED))
    take_step(p, read_bar1, wanted(p, BAR1_USED), bits(BAR1_USED, BAR1_TOTAL))
    take_step(p, read_histogram, wanted(p, BANKS_NONE), bits(BANKS_MAX, BANKS_NONE))
    take_step(p, read_sram, wanted(p, SRAM_THRESHOLD), bits(SRAM_CORRECTED_VOLATILE, SRAM_THRESHOLD))
    take_step(p, read_sram_places, p.places != NULL, bits(SRAM_PLACES, SRAM_PARITY_PLACES))
    take_step(p, read_repair, wanted(p, REPAIR_TPC), bits(REPAIR_CHANNEL, REPAIR_TPC))
    take_step(p, read_unrepairable, wanted(p, UNREPAIRABLE), bits(UNREPAIRABLE, UNREPAIRABLE))
    take_step(p, read_violation, wanted(p, VIOLATION_CHECK), bits(VIOLATION_CHECK, VIOLATION_CHECK))


cdef inline void take_turn(Pass *p, nvmlDevice_t device, int i) noexcept nogil:
    """Make the calls of a step, unless they are slow and it is not their turn."""
    cdef int64_t began_ns
    cdef uint64_t calls = p.calls
    cdef int reading
    if waits(p, PACED_STEPS + i):
        for reading in range(64):
            if p.step_readings[i] >> reading & 1:
                hold(p, reading)
    elif p.paced == NULL:
        p.steps[i](p, device)
    else:
        began_ns = account_boottime_ns()
        p.steps[i](p, device)
        if p.calls > calls:
            note_cost(p, PACED_STEPS + i, began_ns)


cdef inline void read_device(Pass *p, nvmlDevice_t device) noexcept nogil:
    cdef int i
    choose_turn(p)
    read_fields(p, device)
    make_asks(p, device)
    for i in range(p.step_count):
        take_turn(p, device, i)


cdef inline void open_device(Pass *p) noexcept nogil:
    """Attach the row's GPU by its PCI address; after a failure retry OPEN_EVERY_SWEEPS later."""
    cdef nvmlDevice_t device = NULL
    cdef nvmlReturn_t code
    if may(p, &p.call.nvmlDeviceGetHandleByPciBusId_v2):
        code = p.call.nvmlDeviceGetHandleByPciBusId_v2(&p.addresses[p.row * ADDRESS_BYTES], &device)
        p.opened[p.row] = code
        if answered(p, code):
            p.devices[p.row] = device


cdef inline void forget_row(Pass *p) noexcept nogil:
    cdef int i
    for i in range(p.wanted_count):
        p.valid[p.wanted[i]][p.row] = 0


cdef inline void note_valid(Pass *p) noexcept nogil:
    cdef int i
    for i in range(p.wanted_count):
        p.was_valid[p.wanted[i]] = p.valid[p.wanted[i]][p.row]


cdef inline void read_row(Pass *p) noexcept nogil:
    """Fill the current row, including whether its GPU is lost."""
    if p.devices[p.row] == NULL and p.sweeps % OPEN_EVERY_SWEEPS == 0:
        open_device(p)
    if p.devices[p.row] != NULL:
        read_device(p, p.devices[p.row])
        if p.lost:
            forget_row(p)
        elif not p.late:
            put(p, ERROR_CODE, row_error(p))
        put(p, LOST, p.lost)
    elif p.opened[p.row] == NVML_ERROR_GPU_IS_LOST:
        put(p, LOST, 1)
    elif p.opened[p.row] == NVML_ERROR_NO_PERMISSION:
        p.refused[p.row] = OPEN_SLOT
    elif p.opened[p.row] != NVML_SUCCESS and not lacking(p.opened[p.row]) and not of_nvml(p.opened[p.row]):
        put(p, ERROR_CODE, p.opened[p.row])
    put(p, CALLS_FAILED, p.failed[p.row])
    put(p, SLOW_CALLS_FAILED, p.failed[p.row])
    put(p, SETTINGS_CALLS_FAILED, p.failed[p.row])


cdef inline bint is_slow(Pass *p, int row) noexcept nogil:
    return p.over[row] >= SLOW_PASSES


cdef inline void note_time(Pass *p, bint over) noexcept nogil:
    """Record whether the current row exceeded its time; such a GPU may be skipped for a while."""
    cdef int row = p.row
    if not over:
        p.over[row], p.skip_next[row] = 0, 0
        return
    p.over[row] += p.over[row] < 255
    if p.skips:
        p.skip_next[row] = min(max(2 * p.skip_next[row], <int>SKIP_PASSES), <int>SKIP_PASSES_MAX)
        p.skip[row] = p.skip_next[row]


cdef inline int64_t sweep_row(Pass *p, int row, int64_t share_ns, int64_t now_ns) noexcept nogil:
    """Fill a row within its share of the pass's time; return the time of completion.

    A slow GPU that is sampled separately has a larger share, but stays slow while it exceeds its
    regular share.
    """
    cdef int64_t began_ns = now_ns
    p.row, p.lost, p.mute, p.late = row, False, False, False
    p.given, p.row_failed, p.row_code = 0, 0, NVML_SUCCESS
    p.until_ns = began_ns + share_ns if share_ns else 0
    p.refused[row] = -1
    note_valid(p)
    forget_row(p)
    if p.spared[row] or p.ended:
        return now_ns
    if p.skip[row] > 0:
        p.skip[row] -= 1
        return now_ns
    read_row(p)
    place_leave(p.place[0])
    if share_ns and not p.ended:
        now_ns = account_boottime_ns()
        note_time(p, p.late or now_ns - began_ns > (share_ns if p.skips else p.budget_ns // p.rows))
    return now_ns


cdef inline void sweep(Pass *p) noexcept nogil:
    """Fill every row, those of slow GPUs last; a GPU's error stays in its row.

    If NVML itself ended, every row is missing. Each GPU has the same share of the pass's time, a
    single GPU all of it.
    """
    cdef int row, at_work = 0, late_ones
    cdef int64_t share_ns = 0, now_ns = account_boottime_ns()
    p.ended = NVML_SUCCESS
    for row in range(p.rows):
        at_work += not p.spared[row]
    if at_work:
        share_ns = p.budget_ns // at_work
    for late_ones in range(2):
        for row in range(p.rows):
            if p.last[row] == late_ones:
                now_ns = sweep_row(p, row, share_ns, now_ns)
    for row in range(p.rows):
        p.last[row] = is_slow(p, row)
        if p.ended:
            p.row = row
            forget_row(p)
    p.sweeps += 1
    p.at = -1
