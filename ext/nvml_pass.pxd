# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a pass over the GPUs works with: its memory, what an answer is worth, and the calls of a common shape.

What NVML does not say is missing, never zero: an error, a blank (all ones, or DCGM's 2^63-16 and up), a value
beyond what the reading can be. C only, no Python object.
"""

from libc.math cimport fabs, isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nvml_abi cimport *
from nvml_account cimport Account, account_boottime_ns, account_enter
from place_abi cimport Place, place_leave

cdef enum:
    FIELDS_MAX = 96
    ASKS_MAX = 64
    STEPS_MAX = 16
    READINGS_MAX = 192
    ADDRESS_BYTES = 32
    #: More places of lost data in SRAM than this are not believed: 112 KiB of entries.
    SRAM_PLACES_MAX = 4096
    #: A GPU that could not be opened is tried again after this many sweeps: an attach may take seconds.
    OPEN_EVERY_SWEEPS = 60
    #: Slots of a row's costs: its fields, its calls of a common shape, its steps, and the call for all fields together.
    PACED_STEPS = 160
    PACED_BATCH = 176
    PACED_MAX = 177
    #: A call that takes longer takes turns with the others like it; so does a field, of which there are many.
    SLOW_CALL_MICROSECONDS = 200
    SLOW_FIELD_MICROSECONDS = 50
    #: A cost is the least of this many calls: a process that is held up does not make a call slow.
    COSTS_KEPT = 3
    #: Each field of a slow call for all is asked for alone no more often than this, to find those that cost so much.
    MEASURE_EVERY_SWEEPS = 600
    #: A GPU answers nothing if this many calls fail for each value that it gives.
    FAILED_PER_GIVEN_MIN = 4
    #: Where nvmlDeviceGetHandleByPciBusId_v2 stands in Calls (nvml.pyx compares).
    OPEN_SLOT = 7
    #: A GPU that is over its time in this many passes, one after the other, is slow.
    SLOW_PASSES = 3
    #: A GPU over its time in a pass that may skip it is skipped so often, and twice as often each time, up to a minute.
    SKIP_PASSES = 8
    SKIP_PASSES_MAX = 480

# Readings that a call of a shape of its own gives; the others are numbered as they are declared in nvml.pyx.
cdef enum:
    TEMPERATURE, MARGIN, UTILIZATION, MEMORY_UTILIZATION
    MEMORY_USED, MEMORY_FREE, MEMORY_TOTAL, MEMORY_RESERVED, BAR1_USED, BAR1_TOTAL
    REMAPPED_CORRECTABLE, REMAPPED_UNCORRECTABLE, REMAP_PENDING, REMAP_FAILED
    BANKS_MAX, BANKS_HIGH, BANKS_PARTIAL, BANKS_LOW, BANKS_NONE
    SRAM_CORRECTED_VOLATILE, SRAM_PARITY_VOLATILE, SRAM_SECDED_VOLATILE
    SRAM_CORRECTED_LIFETIME, SRAM_PARITY_LIFETIME, SRAM_SECDED_LIFETIME
    SRAM_L2, SRAM_SM, SRAM_PCIE, SRAM_MCU, SRAM_OTHER, SRAM_THRESHOLD
    SRAM_PLACES, SRAM_PLACES_ERRORS, SRAM_PARITY_PLACES
    REPAIR_CHANNEL, REPAIR_TPC, UNREPAIRABLE, VIOLATION_CHECK, PROCESSES
    CALLS_FAILED, SLOW_CALLS_FAILED, SETTINGS_CALLS_FAILED, LOST, ERROR_CODE
    NAMED_COUNT

# How a call is made: (device, uint *), (device, kind, uint *), (device, ulonglong *), (device, uint *, uint *),
# (device, kind, kind, ulonglong *).
cdef enum:
    AS_UINT, AS_UINT_OF_KIND, AS_LONG, AS_PAIR, AS_LONG_OF_KINDS

# What NVML's unit is multiplied with and divided by (x / 1000 is exact where x * 0.001 is not), the largest
# raw value that is believed (0: any), whether it may be below zero.
cdef struct About:
    double multiplier
    double divisor
    uint64_t raw_max
    bint is_float
    bint is_signed
    bint is_long  # a field of another type than unsigned 64 bits is another quantity
    bint holds  # a slow call's value counts until its next turn; else it is missing meanwhile

# What a call, a field or a step of a row costs.
cdef struct PacedCall:
    uint32_t microseconds[COSTS_KEPT]  # of the last ones
    uint32_t made  # since it is measured
    uint64_t made_at  # sweep of the last one
    bint lacks  # the driver answered that it does not have the field

# A call of a common shape, and the readings it gives; `second` is -1 where it gives one. It is made unless a
# field has given them: the first slot that the driver exports, of up to two names of one call.
cdef struct Ask:
    int slot
    int other_slot
    int shape
    unsigned int kind
    unsigned int kind2
    int reading
    int second

# A call of a shape of its own, with what is made of its answer.
cdef struct Pass
ctypedef void (*Step)(Pass *, nvmlDevice_t) noexcept nogil

# What a sweep needs, made before it begins. `cells` and `valid` stand at a reading's row 0; NULL: not wanted.
cdef struct Pass:
    Calls *call
    const char **names  # of Calls, by slot
    Place **place  # where this process tells which call it is in
    int rows
    char *addresses  # ADDRESS_BYTES a row
    Account **accounts  # of each row
    uint8_t *spared  # of each row: it is asked nothing
    int64_t budget_ns  # of all rows together; 0: no limit
    bint skips  # a row that is over its time is left out of the next passes
    bint is_first  # its calls are made when others' are left out
    uint8_t *over  # passes of each row that were over its time, one after the other
    uint8_t *last  # rows that come last
    int *skip  # passes that each row is still left out of
    int *skip_next  # how many those will be the next time
    nvmlDevice_t *devices  # NULL: not open
    nvmlReturn_t *opened  # the last answer to opening it
    uint64_t *failed  # calls, of each row, since the sweep was made
    int *refused  # slot of the last call of this pass that was not permitted, of each row; -1: none
    uint64_t *cells[READINGS_MAX]
    uint8_t *valid[READINGS_MAX]
    About about[READINGS_MAX]
    nvmlFieldValue_t fields[FIELDS_MAX]
    int field_reading[FIELDS_MAX]
    int field_count
    Ask asks[ASKS_MAX]
    int ask_count
    Step steps[STEPS_MAX]
    int step_count
    uint64_t sweeps
    uint64_t calls
    int row  # the row at hand
    int given  # values that this row's calls gave in this pass
    int row_failed  # its calls that failed in this pass
    nvmlReturn_t row_code  # the first failure's code; RESET_REQUIRED if a call gave that
    int at  # slot in Calls of the last call
    int64_t until_ns  # when this row's time is up; 0: never
    bint late  # it is: the row is asked no more
    bint lost  # the GPU of this row
    bint mute  # this row's GPU says that NVML itself is gone, and NVML does not: it is asked no more
    nvmlReturn_t ended  # not 0: NVML itself is gone (uninitialised, unloaded, of another version)
    nvmlEccSramUniqueUncorrectedErrorEntry_v1_t *places  # SRAM_PLACES_MAX; NULL: not wanted
    int wanted[READINGS_MAX]  # the readings that have cells
    int wanted_count
    uint8_t lacks[READINGS_MAX]  # this row has no such field: the reading's own call is asked
    PacedCall *paced  # PACED_MAX a row; NULL: every call is made in each sweep
    double slow_microseconds  # for slow calls of a row, on average, in each sweep
    uint64_t *slow_from  # of each row, the sweep from which a slow call may be made
    uint64_t *measured_at  # of each row, the sweep at which its fields were last measured one by one
    uint8_t *measuring  # of each row, in how many sweeps they still are
    int turn  # the slow call of the row at hand that is made now; -1: none
    uint8_t was_valid[READINGS_MAX]  # of the row at hand, before this sweep
    nvmlFieldValue_t batch[FIELDS_MAX]
    int batch_field[FIELDS_MAX]
    uint64_t step_readings[STEPS_MAX]  # which each step gives, a bit for each of the first 64

ctypedef nvmlReturn_t (*UintCall)(nvmlDevice_t, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*UintOfKindCall)(nvmlDevice_t, unsigned int, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*LongCall)(nvmlDevice_t, unsigned long long *) noexcept nogil
ctypedef nvmlReturn_t (*PairCall)(nvmlDevice_t, unsigned int *, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*LongOfKindsCall)(nvmlDevice_t, unsigned int, unsigned int, unsigned long long *) noexcept nogil


# ---- what an answer is worth -------------------------------------------------------------------------

cdef inline bint lacking(nvmlReturn_t code) noexcept nogil:
    """Say whether the answer means `this driver or GPU does not have it`, which is no failure."""
    return code in (
        NVML_ERROR_NOT_SUPPORTED,
        NVML_ERROR_FUNCTION_NOT_FOUND,
        NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        NVML_ERROR_DEPRECATED,
    )


cdef inline bint of_nvml(nvmlReturn_t code) noexcept nogil:
    """Say whether the answer is of NVML as a whole: the driver was unloaded, or is being updated."""
    return code in (NVML_ERROR_UNINITIALIZED, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH)


cdef inline bint may(Pass *p, const void *slot) noexcept nogil:
    """Say whether the call in *slot* of Calls can be made now, and tell that it is being made."""
    cdef int allowed
    if p.lost or p.mute or p.late or p.ended or (<void **>slot)[0] == NULL:
        return False
    p.at = <int>((<char *>slot - <char *>p.call) // sizeof(void *))
    allowed = account_enter(p.accounts[p.row], p.place[0], p.names[p.at], p.until_ns, p.is_first)
    p.late = allowed < 0
    p.calls += allowed > 0
    return allowed > 0


cdef inline void note_failure(Pass *p, nvmlReturn_t code) noexcept nogil:
    p.failed[p.row] += 1
    p.row_failed += 1
    if p.row_code == NVML_SUCCESS or code == NVML_ERROR_RESET_REQUIRED:
        p.row_code = code


cdef inline void note_end(Pass *p, nvmlReturn_t code) noexcept nogil:
    """Ask NVML itself whether it is gone: one GPU's word does not cost its neighbours."""
    cdef unsigned int count = 0
    if may(p, &p.call.nvmlDeviceGetCount_v2) and of_nvml(p.call.nvmlDeviceGetCount_v2(&count)):
        p.ended = code
    else:
        p.mute = True
        note_failure(p, code)


cdef inline bint answered(Pass *p, nvmlReturn_t code) noexcept nogil:
    """Say whether there is a value; note a loss, a refusal, an end; count a failure. The call has returned."""
    place_leave(p.place[0])
    if code == NVML_SUCCESS:
        return True
    if code == NVML_ERROR_GPU_IS_LOST:
        p.lost = True
    elif code == NVML_ERROR_NO_PERMISSION:
        p.refused[p.row] = p.at
    elif of_nvml(code):
        note_end(p, code)
    elif not lacking(code):
        note_failure(p, code)
    return False


cdef inline nvmlReturn_t row_error(Pass *p) noexcept nogil:
    """Return the code of a GPU that must be reset, or that answers (almost) no call; NVML_SUCCESS for any other.

    A few values do not count: the library answers some calls from its own memory, without the GPU.
    """
    if p.row_code == NVML_ERROR_RESET_REQUIRED or FAILED_PER_GIVEN_MIN * p.given < p.row_failed:
        return p.row_code
    return NVML_SUCCESS


cdef inline bint blank(uint64_t value) noexcept nogil:
    """Say whether a driver writes this where it has no value (`unsigned` -1 of 32 or 64 bits, DCGM's blanks)."""
    cdef uint64_t all_ones = ~<uint64_t>0
    return value == all_ones >> 32 or value == all_ones or value >> 4 == all_ones >> 5


cdef inline void put_float(Pass *p, int reading, double value) noexcept nogil:
    """Write a gauge; what is not finite, beyond belief or below what it can be stays missing."""
    cdef About *about = &p.about[reading]
    if p.cells[reading] == NULL or not isfinite(value) or (about.raw_max and fabs(value) > about.raw_max):
        return
    if value < 0 and not about.is_signed:
        return
    (<double *>p.cells[reading])[p.row] = value * about.multiplier / about.divisor
    p.valid[reading][p.row] = 1
    p.given += 1


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
        p.given += 1


cdef inline void put_signed(Pass *p, int reading, int64_t value) noexcept nogil:
    """Write a signed answer. Only a margin is ever below zero: what else is, is an error code."""
    if p.about[reading].is_float:
        put_float(p, reading, <double>value)
    elif value >= 0:
        put(p, reading, <uint64_t>value)


# ---- the pace of slow calls ----------------------------------------------------------------------------

cdef inline uint32_t usual_microseconds(PacedCall *call) noexcept nogil:
    """Return what a call costs; 0 until that is known."""
    cdef uint32_t least = call.microseconds[0]
    cdef int i
    if call.made < COSTS_KEPT:
        return 0
    for i in range(1, COSTS_KEPT):
        least = min(least, call.microseconds[i])
    return least


cdef inline PacedCall *paced_call(Pass *p, int at) noexcept nogil:
    return &p.paced[p.row * PACED_MAX + at]


cdef inline bint is_slow_call(Pass *p, int at) noexcept nogil:
    cdef uint32_t most = SLOW_FIELD_MICROSECONDS if at < FIELDS_MAX else SLOW_CALL_MICROSECONDS
    return p.paced != NULL and usual_microseconds(paced_call(p, at)) >= most


cdef inline bint waits(Pass *p, int at) noexcept nogil:
    """Say whether a call is slow, and it is not its turn."""
    return is_slow_call(p, at) and p.turn != at


cdef inline void note_cost(Pass *p, int at, int64_t began_ns) noexcept nogil:
    """Note what a call took that began then. A slow one uses up the time of several sweeps."""
    cdef PacedCall *call
    cdef int64_t microseconds
    if p.paced == NULL:
        return
    call = paced_call(p, at)
    microseconds = (account_boottime_ns() - began_ns) // 1000
    call.microseconds[call.made % COSTS_KEPT] = <uint32_t>max(0, min(microseconds, 1 << 30))
    call.made = call.made + 1 if call.made < COSTS_KEPT * 1024 else COSTS_KEPT * 1024 - COSTS_KEPT + 1
    call.made_at = p.sweeps
    if at != PACED_BATCH and is_slow_call(p, at):
        p.slow_from[p.row] = p.sweeps + 1 + <uint64_t>(usual_microseconds(call) / p.slow_microseconds)


cdef inline void choose_turn(Pass *p) noexcept nogil:
    """Give the turn to the slow call that was made longest ago, once the one before is paid for."""
    cdef int at, first
    p.turn = -1
    if p.paced == NULL or p.sweeps < p.slow_from[p.row]:
        return
    for at in range(PACED_BATCH):
        if is_slow_call(p, at) and (p.turn < 0 or paced_call(p, at).made_at < paced_call(p, p.turn).made_at):
            p.turn = at


cdef inline void hold(Pass *p, int reading) noexcept nogil:
    """Let a reading have the value of its last turn, if it is one that may."""
    if p.cells[reading] != NULL and p.about[reading].holds and p.was_valid[reading]:
        p.valid[reading][p.row] = 1


# ---- calls of one shape ------------------------------------------------------------------------------

cdef inline bint wanted(Pass *p, int reading) noexcept nogil:
    return p.cells[reading] != NULL


cdef inline void make(Pass *p, nvmlDevice_t device, Ask *ask, int at) noexcept nogil:
    """Make one call of a common shape, and write what it gives. *at*: where its cost is noted."""
    cdef int64_t began_ns
    cdef void **slot = <void **>p.call + ask.slot
    cdef unsigned int value = 0, second = 0
    cdef unsigned long long large = 0
    cdef nvmlReturn_t code
    if slot[0] == NULL and ask.other_slot >= 0:
        slot = <void **>p.call + ask.other_slot
    if not may(p, slot):
        return
    began_ns = <int64_t>p.place[0].entered_ns
    if ask.shape == AS_UINT:
        code = (<UintCall>slot[0])(device, &value)
    elif ask.shape == AS_UINT_OF_KIND:
        code = (<UintOfKindCall>slot[0])(device, ask.kind, &value)
    elif ask.shape == AS_PAIR:
        code = (<PairCall>slot[0])(device, &value, &second)
    elif ask.shape == AS_LONG:
        code = (<LongCall>slot[0])(device, &large)
    else:
        code = (<LongOfKindsCall>slot[0])(device, ask.kind, ask.kind2, &large)
    note_cost(p, at, began_ns)
    if answered(p, code):
        if ask.shape == AS_LONG or ask.shape == AS_LONG_OF_KINDS:
            put(p, ask.reading, large)
        else:
            put(p, ask.reading, value)
        if ask.second >= 0:
            put(p, ask.second, second)


cdef inline void make_asks(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Make the calls whose readings no field of this row has given."""
    cdef int i
    cdef Ask *ask
    for i in range(p.ask_count):
        ask = &p.asks[i]
        if not p.lacks[ask.reading] and (ask.second < 0 or not p.lacks[ask.second]):
            continue
        if not waits(p, FIELDS_MAX + i):
            make(p, device, ask, FIELDS_MAX + i)
            continue
        hold(p, ask.reading)
        if ask.second >= 0:
            hold(p, ask.second)


# ---- fields: all of a GPU's in one call ---------------------------------------------------------------

cdef inline void put_field(Pass *p, int reading, nvmlFieldValue_t *field) noexcept nogil:
    """Write one field's answer. INVALID_ARGUMENT here is a driver that does not know the id."""
    p.lacks[reading] = lacking(field.nvmlReturn) or field.nvmlReturn == NVML_ERROR_INVALID_ARGUMENT
    if p.lacks[reading] or not answered(p, field.nvmlReturn):
        return
    if p.about[reading].is_long and field.valueType != NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
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


cdef inline void read_field_alone(Pass *p, nvmlDevice_t device, int i) noexcept nogil:
    """Ask for one field, and note what it costs."""
    cdef nvmlFieldValue_t field = p.fields[i]
    cdef int reading = p.field_reading[i]
    cdef int64_t began_ns
    cdef nvmlReturn_t code
    field.nvmlReturn = NVML_ERROR_NOT_SUPPORTED
    p.lacks[reading] = False
    if not may(p, &p.call.nvmlDeviceGetFieldValues):
        return
    began_ns = <int64_t>p.place[0].entered_ns
    code = p.call.nvmlDeviceGetFieldValues(device, 1, &field)
    note_cost(p, i, began_ns)
    if answered(p, code):
        put_field(p, reading, &field)
    else:
        p.lacks[reading] = lacking(code)
    paced_call(p, i).lacks = p.lacks[reading]


cdef inline int plan_batch(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Read the fields that are asked for alone, and return how many are left for one call."""
    cdef int i, count = 0
    cdef bint measuring = p.paced != NULL and p.measuring[p.row] > 0
    if measuring:
        p.measuring[p.row] -= 1
    for i in range(p.field_count):
        if measuring or (is_slow_call(p, i) and p.turn == i):
            read_field_alone(p, device, i)
        elif is_slow_call(p, i):
            p.lacks[p.field_reading[i]] = paced_call(p, i).lacks
            hold(p, p.field_reading[i])
        else:
            p.batch[count] = p.fields[i]
            p.batch[count].nvmlReturn = NVML_ERROR_NOT_SUPPORTED  # should the driver pass one over
            p.batch_field[count] = i
            count += 1
    return count


cdef inline void measure_if_slow(Pass *p) noexcept nogil:
    """Have each field measured by itself, in the next sweeps, where the call for all is slow."""
    cdef uint64_t *at = &p.measured_at[p.row] if p.paced != NULL else NULL
    cdef int i
    if at == NULL or not is_slow_call(p, PACED_BATCH) or (at[0] and p.sweeps - at[0] < MEASURE_EVERY_SWEEPS):
        return
    at[0], p.measuring[p.row] = max(p.sweeps, <uint64_t>1), COSTS_KEPT
    paced_call(p, PACED_BATCH).made = 0
    for i in range(p.field_count):
        paced_call(p, i).made = 0


cdef inline void read_fields(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Ask for all fields at once, but for slow ones, which take turns. Where the driver does not have that call, each
    reading's own call is asked.

    After an error it is not: power by field is of this moment, by its own call of a second, and one must not stand
    in for the other now and then. A value type that is unknown leaves the reading missing.
    """
    cdef int i, count
    cdef int64_t began_ns
    cdef nvmlReturn_t code
    for i in range(p.wanted_count):
        p.lacks[p.wanted[i]] = True
    count = plan_batch(p, device)
    if not count or not may(p, &p.call.nvmlDeviceGetFieldValues):
        return
    began_ns = <int64_t>p.place[0].entered_ns
    code = p.call.nvmlDeviceGetFieldValues(device, count, p.batch)
    note_cost(p, PACED_BATCH, began_ns)
    measure_if_slow(p)
    if answered(p, code):
        for i in range(count):
            put_field(p, p.field_reading[p.batch_field[i]], &p.batch[i])
    elif not lacking(code):
        for i in range(count):
            p.lacks[p.field_reading[p.batch_field[i]]] = False
