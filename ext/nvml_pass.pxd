# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The state of one pass over the GPUs, the checks of NVML's answers, and the calls of the common shapes.

A value that NVML does not give is missing, never zero: after an error, for a blank (all ones, or DCGM's 2^63-16 and
up), and for a value beyond the maximum of the reading. C only, no Python object.
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
    #: A larger number of SRAM locations with lost data is discarded as implausible: these entries fill 112 KiB.
    SRAM_PLACES_MAX = 4096
    #: A GPU that could not be opened is tried again after this many sweeps: an attach may take seconds.
    OPEN_EVERY_SWEEPS = 60
    #: Slots of a row's costs: its fields, its calls of the common shapes, its steps, and the call for all fields.
    PACED_STEPS = 160
    PACED_BATCH = 176
    PACED_MAX = 177
    #: Slow calls of a row take turns. A field is slow from a lower limit, because there are many fields.
    SLOW_CALL_MICROSECONDS = 200
    SLOW_FIELD_MICROSECONDS = 50
    #: The cost of a call is the minimum of its last COSTS_KEPT calls: a preempted process does not make it slow.
    COSTS_KEPT = 3
    #: Minimum sweeps between two measurements of a row's single fields, which find the fields that make the batch slow.
    MEASURE_EVERY_SWEEPS = 600
    #: A GPU counts as not answering when more than this many calls fail per value received.
    FAILED_PER_GIVEN_MIN = 4
    #: A GPU is slow after this many consecutive passes over its time.
    SLOW_PASSES = 3
    #: A slow GPU is skipped for this many passes, and for twice as many each time, up to one minute.
    SKIP_PASSES = 8
    SKIP_PASSES_MAX = 480

# Readings that have a call of their own shape, NAMED_COUNT in all, and OPEN_SLOT, the slot of
# nvmlDeviceGetHandleByPciBusId_v2 in Calls; setup.py writes the file from nvml_readings.py and nvml_abi.pxd. The other
# readings are numbered in the order of nvml.pyx.
include "nvml_named.pxi"

# Signature of a call: (device, uint *), (device, kind, uint *), (device, ulonglong *), (device, uint *, uint *),
# (device, kind, kind, ulonglong *).
cdef enum:
    AS_UINT, AS_UINT_OF_KIND, AS_LONG, AS_PAIR, AS_LONG_OF_KINDS

# How a raw value becomes a reading: NVML's unit times `multiplier` over `divisor` (x / 1000 is exact, x * 0.001 is
# not). A value above `raw_max` (0: no limit), or a negative value without `is_signed`, is missing.
cdef struct About:
    double multiplier
    double divisor
    uint64_t raw_max
    bint is_float
    bint is_signed
    bint is_long  # a field whose type is not unsigned 64 bits is a different quantity, and is ignored
    bint holds  # the value of a slow call stays valid until its next turn; otherwise it is missing in between

# Cost of a call, a field or a step of a row.
cdef struct PacedCall:
    uint32_t microseconds[COSTS_KEPT]  # the last calls
    uint32_t made  # calls since the measurement began
    uint64_t made_at  # sweep of the last call
    bint lacks  # the driver answered that it does not have the field

# A call of a common shape and its one or two readings; `second` is -1 without a second reading. The call is left out if
# a field gave the readings. `other_slot` is used if the driver does not export `slot`: some calls have two names.
cdef struct Ask:
    int slot
    int other_slot
    int shape
    unsigned int kind
    unsigned int kind2
    int reading
    int second

# A call with a shape of its own, which also stores its readings.
cdef struct Pass
ctypedef void (*Step)(Pass *, nvmlDevice_t) noexcept nogil

# The state of a sweep, prepared before it begins. `cells` and `valid` point at a reading's row 0; NULL: not wanted.
cdef struct Pass:
    Calls *call
    const char **names  # names of the members of Calls, by slot
    Place **place  # where this process publishes its current call
    int rows
    char *addresses  # ADDRESS_BYTES per row
    Account **accounts  # per row
    uint8_t *spared  # per row: no calls are made
    int64_t budget_ns  # for all rows together; 0: no limit
    bint skips  # a row that is over its time is skipped in the next passes
    bint is_first  # may use the part of the call cap that is reserved (nvml_account.pxd)
    uint8_t *over  # per row: consecutive passes over its time
    uint8_t *last  # rows that are read last
    int *skip  # per row: passes left to skip
    int *skip_next  # per row: passes to skip after the next time
    nvmlDevice_t *devices  # NULL: not open
    nvmlReturn_t *opened  # last result of opening the device
    uint64_t *failed  # per row: failed calls since the sweep object was created
    int *refused  # per row: slot of the last call in this pass that failed with NO_PERMISSION; -1: none
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
    int row  # current row
    int given  # values that this row gave in this pass
    int row_failed  # failed calls of this row in this pass
    nvmlReturn_t row_code  # code of the first failure; RESET_REQUIRED if any call returned that
    int at  # slot in Calls of the last call
    int64_t until_ns  # deadline of this row; 0: none
    bint late  # the deadline has passed: no further calls for this row
    bint lost  # the GPU of this row is lost
    bint mute  # this GPU reports that NVML ended, but NVML still works: no further calls for this row
    nvmlReturn_t ended  # not 0: NVML itself ended (uninitialized, unloaded, of another version)
    nvmlEccSramUniqueUncorrectedErrorEntry_v1_t *places  # SRAM_PLACES_MAX; NULL: not wanted
    int wanted[READINGS_MAX]  # the readings that have cells
    int wanted_count
    uint8_t lacks[READINGS_MAX]  # this row has no such field: use the reading's own call
    PacedCall *paced  # PACED_MAX per row; NULL: every call is made in each sweep
    double slow_microseconds  # average time per sweep and row for slow calls
    uint64_t *slow_from  # per row: first sweep in which a slow call may be made
    uint64_t *measured_at  # per row: sweep at which its fields were last measured one by one
    uint8_t *measuring  # per row: sweeps of this measurement that are left
    int turn  # slow call of the current row that is made in this sweep; -1: none
    uint8_t was_valid[READINGS_MAX]  # `valid` of the current row before this sweep
    nvmlFieldValue_t batch[FIELDS_MAX]
    int batch_field[FIELDS_MAX]
    uint64_t step_readings[STEPS_MAX]  # readings of each step: a bit for each of the first 64

ctypedef nvmlReturn_t (*UintCall)(nvmlDevice_t, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*UintOfKindCall)(nvmlDevice_t, unsigned int, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*LongCall)(nvmlDevice_t, unsigned long long *) noexcept nogil
ctypedef nvmlReturn_t (*PairCall)(nvmlDevice_t, unsigned int *, unsigned int *) noexcept nogil
ctypedef nvmlReturn_t (*LongOfKindsCall)(nvmlDevice_t, unsigned int, unsigned int, unsigned long long *) noexcept nogil


cdef inline bint lacking(nvmlReturn_t code) noexcept nogil:
    """Return whether the code means that this driver or GPU lacks the function, which does not count as a failure."""
    return code in (
        NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND,
        NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_DEPRECATED,
    )


cdef inline bint of_nvml(nvmlReturn_t code) noexcept nogil:
    """Return whether the code concerns NVML as a whole: the driver was unloaded, or is being updated."""
    return code in (NVML_ERROR_UNINITIALIZED, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH)


cdef inline bint may(Pass *p, const void *slot) noexcept nogil:
    """Return whether the call in *slot* of Calls may be made now; if so, publish and count it."""
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
    """Check with NVML itself whether it ended, so that one GPU's answer does not cost the other GPUs their readings."""
    cdef unsigned int count = 0
    if may(p, &p.call.nvmlDeviceGetCount_v2) and of_nvml(p.call.nvmlDeviceGetCount_v2(&count)):
        p.ended = code
    else:
        p.mute = True
        note_failure(p, code)


cdef inline bint answered(Pass *p, nvmlReturn_t code) noexcept nogil:
    """Return whether the call gave a value. Otherwise note a loss, a refusal, an end of NVML or a failure.

    Call this right after the NVML call: it also publishes that the call has returned.
    """
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
    """Return the error code of a GPU that must be reset or answers (almost) no call; NVML_SUCCESS for other GPUs.

    A few values do not count: the library answers some calls from its own memory, without the GPU.
    """
    if p.row_code == NVML_ERROR_RESET_REQUIRED or FAILED_PER_GIVEN_MIN * p.given < p.row_failed:
        return p.row_code
    return NVML_SUCCESS


cdef inline bint blank(uint64_t value) noexcept nogil:
    """Return whether drivers write this value for "not available" (`unsigned` -1 of 32 or 64 bits, DCGM's blanks)."""
    cdef uint64_t all_ones = ~<uint64_t>0
    return value == all_ones >> 32 or value == all_ones or value >> 4 == all_ones >> 5


cdef inline void put_float(Pass *p, int reading, double value) noexcept nogil:
    """Write a gauge; a value that is not finite, is too large, or has a sign the reading lacks stays missing."""
    cdef About *about = &p.about[reading]
    if p.cells[reading] == NULL or not isfinite(value) or (about.raw_max and fabs(value) > about.raw_max):
        return
    if value < 0 and not about.is_signed:
        return
    (<double *>p.cells[reading])[p.row] = value * about.multiplier / about.divisor
    p.valid[reading][p.row] = 1
    p.given += 1


cdef inline void put(Pass *p, int reading, uint64_t value) noexcept nogil:
    """Write an unsigned value in the reading's unit; a blank, or a value above the maximum, stays missing."""
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
    """Write a signed value. Only a margin may be negative: other negative values are error codes."""
    if p.about[reading].is_float:
        put_float(p, reading, <double>value)
    elif value >= 0:
        put(p, reading, <uint64_t>value)


cdef inline uint32_t usual_microseconds(PacedCall *call) noexcept nogil:
    """Return the cost of a call in microseconds; 0 until COSTS_KEPT calls were measured."""
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
    """Return whether a call is slow and does not have the turn."""
    return is_slow_call(p, at) and p.turn != at


cdef inline void note_cost(Pass *p, int at, int64_t began_ns) noexcept nogil:
    """Note the duration of a call that began at *began_ns*. A slow call uses up the time of several sweeps."""
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
    """Give the turn to the slow call that was made longest ago, once the time of the previous slow call is paid for."""
    cdef int at, first
    p.turn = -1
    if p.paced == NULL or p.sweeps < p.slow_from[p.row]:
        return
    for at in range(PACED_BATCH):
        if is_slow_call(p, at) and (p.turn < 0 or paced_call(p, at).made_at < paced_call(p, p.turn).made_at):
            p.turn = at


cdef inline void hold(Pass *p, int reading) noexcept nogil:
    """Keep the reading's last value valid if the reading holds its value between turns."""
    if p.cells[reading] != NULL and p.about[reading].holds and p.was_valid[reading]:
        p.valid[reading][p.row] = 1


cdef inline bint wanted(Pass *p, int reading) noexcept nogil:
    return p.cells[reading] != NULL


cdef inline void make(Pass *p, nvmlDevice_t device, Ask *ask, int at) noexcept nogil:
    """Make one call of a common shape, and write its readings. *at*: slot of its cost."""
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
    """Make the calls whose readings no field of this row gave."""
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


cdef inline void put_field(Pass *p, int reading, nvmlFieldValue_t *field) noexcept nogil:
    """Write one field. INVALID_ARGUMENT here means that the driver does not know the field's id."""
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
    """Read one field with a call of its own, and note the cost of that call."""
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
    """Read the fields that need a call of their own, and return the number of fields left for the common call."""
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
            p.batch[count].nvmlReturn = NVML_ERROR_NOT_SUPPORTED  # in case the driver skips a field
            p.batch_field[count] = i
            count += 1
    return count


cdef inline void measure_if_slow(Pass *p) noexcept nogil:
    """Start to measure each field alone, for the next sweeps, if the common call is slow."""
    cdef uint64_t *at = &p.measured_at[p.row] if p.paced != NULL else NULL
    cdef int i
    if at == NULL or not is_slow_call(p, PACED_BATCH) or (at[0] and p.sweeps - at[0] < MEASURE_EVERY_SWEEPS):
        return
    at[0], p.measuring[p.row] = max(p.sweeps, <uint64_t>1), COSTS_KEPT
    paced_call(p, PACED_BATCH).made = 0
    for i in range(p.field_count):
        paced_call(p, i).made = 0


cdef inline void read_fields(Pass *p, nvmlDevice_t device) noexcept nogil:
    """Read all fields in one call, except slow fields, which take turns.

    If the driver lacks that call, each reading's own call is made. After an error it is not made: power by field is
    instantaneous, but its own call returns an average over 1 s, and the two must not alternate in one series. A value
    of unknown type is missing.
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
