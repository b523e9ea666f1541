# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NVML by its C ABI: the library found at run time, and a sweep over all GPUs without the GIL.

Each symbol is looked up once; one that the driver does not export costs its reading and no other.
A sweep writes into memory made before, calls only what its readings need, and asks for all fields
of a GPU in one call. Readings are in base units, so that what lands in the memory is final.

The library stays loaded, for a thread may be inside it for ever; but when the driver was updated under it and
nobody has it open, it is let go of, or the process would go on with the old library until it is restarted.
"""

from collections import namedtuple

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from nvml_abi cimport *
from nvml_pass cimport *
from nvml_sweep cimport *

from .nvml_readings import NAMED, ROWS

cdef extern from "<dlfcn.h>" nogil:
    enum: RTLD_NOW
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *symbol)
    int dlclose(void *library)
    char *dlerror()

#: A count beyond this is not believed (the largest hosts have 16 GPUs).
GPUS_MAX = 128

#: In the order of `Calls` in nvml_abi.pxd (a test compares).
SYMBOLS = (
    "nvmlInitWithFlags", "nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetSerial",
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPerformanceState", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetViolationStatus",
    "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1", "nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts",
)
#: Without these no GPU can be found or named: what lacks them is not NVML, or older than driver 319.
REQUIRED = (
    "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetPciInfo_v3",
)
if sizeof(Calls) != len(SYMBOLS) * sizeof(void *):
    raise ImportError("nvml: SYMBOLS and Calls disagree")

if SYMBOLS[OPEN_SLOT] != "nvmlDeviceGetHandleByPciBusId_v2" or len(NAMED) != NAMED_COUNT:
    raise ImportError("nvml: nvml_pass.pxd disagrees with SYMBOLS or NAMED")

_KINDS = {
    "NVML_CLOCK_GRAPHICS": NVML_CLOCK_GRAPHICS, "NVML_CLOCK_SM": NVML_CLOCK_SM,
    "NVML_CLOCK_MEM": NVML_CLOCK_MEM, "NVML_CLOCK_VIDEO": NVML_CLOCK_VIDEO,
    "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN": NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    "NVML_TEMPERATURE_THRESHOLD_MEM_MAX": NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    "NVML_TEMPERATURE_THRESHOLD_GPU_MAX": NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    "NVML_VOLATILE_ECC": NVML_VOLATILE_ECC, "NVML_AGGREGATE_ECC": NVML_AGGREGATE_ECC,
}
_SHAPES = {
    ("uint", 0): AS_UINT, ("uint", 1): AS_UINT_OF_KIND, ("long", 0): AS_LONG, ("long", 2): AS_LONG_OF_KINDS,
    ("pair", 0): AS_PAIR,
}
#: Reading -> the type of its cells. Names are the catalogue's columns of the GPU tables.
READINGS = {row.name: float if row.is_float else int for row in ROWS}
cdef dict _INDEX = {name: i for i, name in enumerate(NAMED)}
for _row in ROWS:
    _INDEX.setdefault(_row.name, len(_INDEX))

cdef About ABOUT[READINGS_MAX]
cdef Ask ASKS[ASKS_MAX]
cdef int ASK_COUNT = 0


cdef _declare():
    """Turn the rows of nvml_readings.py into what a sweep works with."""
    global ASK_COUNT
    if len(_INDEX) != len(ROWS) or len(_INDEX) > READINGS_MAX:
        raise ImportError(f"nvml: a reading twice, or more than {READINGS_MAX}")
    for row in ROWS:
        ABOUT[<int>_INDEX[row.name]] = About(row.multiplier, row.divisor, row.raw_max, row.is_float, row.is_signed)
        if row.calls:
            if ASK_COUNT == ASKS_MAX:
                raise ImportError(f"nvml: more than {ASKS_MAX} calls of a common shape")
            kinds = [_KINDS[kind] for kind in row.kinds]
            slots = [SYMBOLS.index(call) for call in row.calls] + [-1]
            first, second = (kinds + [0, 0])[:2]
            ASKS[ASK_COUNT] = Ask(
                slots[0], slots[1], _SHAPES[row.shape, len(kinds)], first, second,
                _INDEX[row.name], _INDEX[row.second] if row.second else -1,
            )
            ASK_COUNT += 1


_declare()


class NvmlError(Exception):
    """NVML answered with an error; `code` is its nvmlReturn_t."""

    def __init__(self, words, code):
        super().__init__(words)
        self.code = code


class NvmlAbsent(Exception):
    """There is no NVML library here, or what is here is not one. The words say which."""


Device = namedtuple("Device", ["address", "uuid", "name", "serial"])

#: Libraries of `Nvml` objects that were closed, each once; and how many are open.
cdef list _LEFT = []
cdef int _OPEN = 0


cdef _leave(void *library, bint unload):
    """Keep the library loaded, once; or, where no `Nvml` is open, let the next one load what lies on the disk.

    Whoever is inside the library, or is opening it, has loaded it once more for itself: it is not unloaded under
    a thread. Of what was looked up in it nothing is called after `close` (`_check`, `initialised`).
    """
    if <size_t>library in _LEFT:
        _unload(library)
    else:
        _LEFT.append(<size_t>library)
    while unload and not _OPEN and _LEFT:
        _unload(<void *><size_t>_LEFT.pop())


cdef _unload(void *library):
    with nogil:
        dlclose(library)


cdef class Nvml:
    cdef Calls call
    cdef readonly bint initialised
    cdef readonly str path
    cdef readonly frozenset missing_symbols
    cdef readonly unsigned int counted
    cdef readonly str doing
    cdef void *library
    cdef dict addresses  # symbol -> where it is

    def __init__(self, str library="libnvidia-ml.so.1"):
        global _OPEN
        self.path, self.addresses, self.doing = library, {}, ""
        self._load(library.encode())
        cdef nvmlReturn_t code
        # NO_GPUS: a host whose GPUs are all gone is a host without GPUs, not a broken NVML. NO_ATTACH is
        # not asked for: since nvmlInit_v2 nothing is attached until a handle is asked for, and the
        # readings then need that GPU attached.
        with nogil:
            if self.call.nvmlInitWithFlags != NULL:
                code = self.call.nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS)
            else:
                code = self.call.nvmlInit_v2()
        if code != NVML_SUCCESS:
            error = self._error("nvmlInit", code)
            _leave(self.library, code == NVML_ERROR_LIB_RM_VERSION_MISMATCH)
            raise error
        _OPEN += 1
        self.initialised = True

    def _load(self, bytes path):
        cdef const char *name = path
        cdef void *library
        with nogil:
            library = dlopen(name, RTLD_NOW)
        cdef const char *why = dlerror()
        if library == NULL:
            raise NvmlAbsent(why.decode(errors="replace") if why != NULL else f"{self.path}: not loaded")
        self.library = library
        cdef void **slots = <void **>&self.call
        missing = []
        for i, symbol in enumerate(SYMBOLS):
            slots[<int>i] = dlsym(library, symbol.encode())
            if slots[<int>i] == NULL:
                missing.append(symbol)
        self.missing_symbols = frozenset(missing)
        if not self.missing_symbols.isdisjoint(REQUIRED):
            lacks = ", ".join(sorted(self.missing_symbols.intersection(REQUIRED)))
            _leave(library, False)
            raise NvmlAbsent(f"{self.path} is no NVML of driver 319 or later: it lacks {lacks}")

    def symbol_address(self, str name):
        self._check()
        known = self.addresses.get(name)
        if known is None:
            known = self.addresses[name] = <size_t>dlsym(self.library, name.encode())
        return known

    def handle_address(self, str address):
        return <size_t>self._handle(address)

    cdef nvmlDevice_t _handle(self, str address) except? NULL:
        """Attach the GPU at a PCI address; raise where that fails."""
        self._check()
        cdef nvmlDevice_t handle = NULL
        cdef bytes name = address.encode()
        cdef const char *bus_id = name
        cdef nvmlReturn_t code
        self.doing = f"GPU {address} in nvmlDeviceGetHandleByPciBusId_v2"
        with nogil:
            code = self.call.nvmlDeviceGetHandleByPciBusId_v2(bus_id, &handle)
        self.doing = ""
        if code != NVML_SUCCESS:
            raise self._error(f"nvmlDeviceGetHandleByPciBusId({address})", code)
        return handle

    def _error(self, str what, int code):
        cdef const char *words = NULL
        if self.call.nvmlErrorString != NULL:
            words = self.call.nvmlErrorString(code)
        said = words.decode(errors="replace") if words != NULL else "unknown"
        return NvmlError(f"{what}: {said} (NVML error {code})", code)

    def _check(self):
        if not self.initialised:
            raise NvmlError("NVML was let go of", NVML_ERROR_UNINITIALIZED)

    def close(self):
        global _OPEN
        if not self.initialised:
            return
        self.initialised = False
        with nogil:
            self.call.nvmlShutdown()
        _OPEN -= 1
        _leave(self.library, False)

    def driver_version(self):
        self._check()
        cdef char text[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE]
        if self.call.nvmlSystemGetDriverVersion == NULL:
            return ""
        memset(text, 0, sizeof(text))
        cdef nvmlReturn_t code
        with nogil:
            code = self.call.nvmlSystemGetDriverVersion(text, sizeof(text))
        return _text(code, text, sizeof(text))

    def devices(self):
        self._check()
        cdef unsigned int count = 0, index
        cdef nvmlDevice_t handle
        cdef nvmlReturn_t code
        self.doing = "nvmlDeviceGetCount_v2"
        with nogil:
            code = self.call.nvmlDeviceGetCount_v2(&count)
        self.doing = ""
        if code == NVML_ERROR_GPU_NOT_FOUND:
            return []
        if code != NVML_SUCCESS:
            raise self._error("nvmlDeviceGetCount", code)
        found = []
        self.counted = min(count, <unsigned int>GPUS_MAX)
        for index in range(self.counted):
            self.doing = f"GPU number {index} in nvmlDeviceGetHandleByIndex_v2"
            with nogil:
                code = self.call.nvmlDeviceGetHandleByIndex_v2(index, &handle)
            self.doing = f"GPU number {index} in nvmlDeviceGetPciInfo_v3"
            if code == NVML_ERROR_INVALID_ARGUMENT:
                self.counted = index  # the count promised more than there is
                break
            if code == NVML_SUCCESS:
                device = self._describe(handle)
                if device is not None:
                    found.append(device)
        self.doing = ""
        return found

    def device(self, str address):
        device = self._describe(self._handle(address))
        return Device(address, "", "", "") if device is None else device

    cdef _describe(self, nvmlDevice_t handle):
        """Return the device; None when it does not even know its address."""
        cdef nvmlPciInfo_t pci
        cdef nvmlReturn_t code
        memset(&pci, 0, sizeof(pci))
        with nogil:
            code = self.call.nvmlDeviceGetPciInfo_v3(handle, &pci)
        if code != NVML_SUCCESS or pci.bus > 0xFF or pci.device > 0x1F:
            return None
        address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        self.doing = f"GPU {address} in nvmlDeviceGetUUID, GetName or GetSerial"
        device = Device(address, self._uuid(handle), self._name(handle), self._serial(handle))
        self.doing = ""
        return device

    cdef _uuid(self, nvmlDevice_t handle):
        cdef char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE]
        memset(text, 0, sizeof(text))
        cdef nvmlReturn_t code = NVML_ERROR_FUNCTION_NOT_FOUND
        if self.call.nvmlDeviceGetUUID != NULL:
            with nogil:
                code = self.call.nvmlDeviceGetUUID(handle, text, sizeof(text))
        return _text(code, text, sizeof(text))

    cdef _name(self, nvmlDevice_t handle):
        cdef char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE]
        memset(text, 0, sizeof(text))
        cdef nvmlReturn_t code = NVML_ERROR_FUNCTION_NOT_FOUND
        if self.call.nvmlDeviceGetName != NULL:
            with nogil:
                code = self.call.nvmlDeviceGetName(handle, text, sizeof(text))
        return _text(code, text, sizeof(text))

    cdef _serial(self, nvmlDevice_t handle):
        cdef char text[NVML_DEVICE_SERIAL_BUFFER_SIZE]
        memset(text, 0, sizeof(text))
        cdef nvmlReturn_t code = NVML_ERROR_FUNCTION_NOT_FOUND
        if self.call.nvmlDeviceGetSerial != NULL:
            with nogil:
                code = self.call.nvmlDeviceGetSerial(handle, text, sizeof(text))
        return _text(code, text, sizeof(text))


cdef str _text(nvmlReturn_t code, const char *text, Py_ssize_t size):
    """Return what the driver wrote, never past the buffer; empty when it answered with an error."""
    return text[:size].partition(b"\0")[0].decode(errors="replace") if code == NVML_SUCCESS else ""


cdef class Sweep:
    cdef Pass state
    cdef Nvml nvml
    cdef list held
    cdef bint running
    cdef readonly tuple addresses

    def __cinit__(self, Nvml nvml not None, addresses, targets, fields=None):
        self.nvml, self.addresses, self.held = nvml, tuple(addresses), []
        cdef Pass *p = &self.state
        cdef int row, i
        p.call, p.rows, p.at = &nvml.call, len(self.addresses), -1
        p.addresses = <char *>calloc(p.rows + 1, ADDRESS_BYTES)
        p.devices = <nvmlDevice_t *>calloc(p.rows + 1, sizeof(nvmlDevice_t))
        p.opened = <nvmlReturn_t *>calloc(p.rows + 1, sizeof(nvmlReturn_t))
        p.failed = <uint64_t *>calloc(p.rows + 1, sizeof(uint64_t))
        p.refused = <int *>calloc(p.rows + 1, sizeof(int))
        if p.addresses == NULL or p.devices == NULL or p.opened == NULL or p.failed == NULL or p.refused == NULL:
            raise MemoryError
        memset(p.refused, 0xFF, (p.rows + 1) * sizeof(int))
        memcpy(p.about, ABOUT, sizeof(ABOUT))
        for row, address in enumerate(self.addresses):
            text = address.encode()
            if len(text) >= ADDRESS_BYTES:
                raise ValueError(f"a PCI address has fewer than {ADDRESS_BYTES} characters, got {address!r}")
            for i in range(len(text)):
                p.addresses[row * ADDRESS_BYTES + i] = text[i]
        for name, (cells, valid, column) in targets.items():
            self._aim(_INDEX[name], cells, valid, column)
        if p.cells[SRAM_PLACES] != NULL or p.cells[SRAM_PLACES_ERRORS] != NULL or p.cells[SRAM_PARITY_PLACES] != NULL:
            p.places = <nvmlEccSramUniqueUncorrectedErrorEntry_v1_t *>calloc(SRAM_PLACES_MAX, sizeof(p.places[0]))
            if p.places == NULL:
                raise MemoryError
        for name, (field_id, scope) in (fields or {}).items():
            self._ask_field(_INDEX[name], field_id, scope)
        for i in range(ASK_COUNT):
            if p.cells[ASKS[i].reading] != NULL or (ASKS[i].second >= 0 and p.cells[ASKS[i].second] != NULL):
                p.asks[p.ask_count] = ASKS[i]
                p.ask_count += 1

    def __dealloc__(self):
        free(self.state.addresses)
        free(self.state.devices)
        free(self.state.opened)
        free(self.state.failed)
        free(self.state.refused)
        free(self.state.places)

    cdef _aim(self, int reading, cells, valid, Py_ssize_t column):
        cdef uint8_t[::1] cell_bytes = cells
        cdef uint8_t[::1] valid_bytes = valid
        cdef Py_ssize_t first = column * self.state.rows, after = first + self.state.rows
        cdef Pass *p = &self.state
        if column < 0 or 8 * after > cell_bytes.shape[0] or after > valid_bytes.shape[0]:
            raise ValueError(f"column {column} of {p.rows} rows lies outside its memory")
        self.held += [cell_bytes, valid_bytes]  # keeps the memory where it is
        if not p.rows:
            return
        p.cells[reading] = <uint64_t *>&cell_bytes[8 * first]
        p.valid[reading] = &valid_bytes[first]

    cdef _ask_field(self, int reading, unsigned int field_id, unsigned int scope):
        """Ask for a field, if its reading is wanted."""
        cdef Pass *p = &self.state
        if p.cells[reading] == NULL:
            return
        if p.field_count == FIELDS_MAX:
            raise ValueError(f"a sweep asks for at most {FIELDS_MAX} fields")
        p.fields[p.field_count].fieldId, p.fields[p.field_count].scopeId = field_id, scope
        p.field_reading[p.field_count] = reading
        p.field_count += 1

    def run(self):
        self.nvml._check()
        if self.running:
            raise RuntimeError(f"the sweep before has not returned: {self.words()}")
        self.running = True
        with nogil:
            sweep(&self.state)
        self.running = False

    def stuck_at(self):
        cdef int at = self.state.at, row = self.state.row
        return (row, SYMBOLS[at]) if at >= 0 else None

    def words(self):
        place = self.stuck_at()
        return "between calls" if place is None else f"GPU {self.addresses[place[0]]} in {place[1]}"

    @property
    def calls(self):
        return self.state.calls

    @property
    def ended(self):
        return self.state.ended

    def refusals(self):
        return {
            self.addresses[row]: SYMBOLS[self.state.refused[row]]
            for row in range(self.state.rows)
            if self.state.refused[row] >= 0
        }


def abi():
    cdef nvmlPciInfo_t pci
    cdef nvmlUtilization_t utilization
    cdef nvmlMemory_t memory
    cdef nvmlMemory_v2_t memory2
    cdef nvmlTemperature_t temperature
    cdef nvmlMarginTemperature_t margin
    cdef nvmlFieldValue_t field
    return _abi_of_errors() | {
        "sizeof(nvmlPciInfo_t)": sizeof(pci),
        "offsetof(nvmlPciInfo_t, domain)": _at(&pci, &pci.domain),
        "offsetof(nvmlPciInfo_t, bus)": _at(&pci, &pci.bus),
        "offsetof(nvmlPciInfo_t, device)": _at(&pci, &pci.device),
        "offsetof(nvmlPciInfo_t, busId)": _at(&pci, &pci.busId),
        "sizeof(nvmlUtilization_t)": sizeof(utilization),
        "offsetof(nvmlUtilization_t, memory)": _at(&utilization, &utilization.memory),
        "sizeof(nvmlMemory_t)": sizeof(memory),
        "offsetof(nvmlMemory_t, total)": _at(&memory, &memory.total),
        "offsetof(nvmlMemory_t, used)": _at(&memory, &memory.used),
        "nvmlMemory_v2": memory_version(),
        "sizeof(nvmlMemory_v2_t)": sizeof(memory2),
        "offsetof(nvmlMemory_v2_t, total)": _at(&memory2, &memory2.total),
        "offsetof(nvmlMemory_v2_t, reserved)": _at(&memory2, &memory2.reserved),
        "nvmlTemperature_v1": temperature_version(),
        "sizeof(nvmlTemperature_t)": sizeof(temperature),
        "offsetof(nvmlTemperature_t, sensorType)": _at(&temperature, &temperature.sensorType),
        "offsetof(nvmlTemperature_t, temperature)": _at(&temperature, &temperature.temperature),
        "nvmlMarginTemperature_v1": margin_version(),
        "sizeof(nvmlMarginTemperature_t)": sizeof(margin),
        "offsetof(nvmlMarginTemperature_t, marginTemperature)": _at(&margin, &margin.marginTemperature),
        "sizeof(nvmlFieldValue_t)": sizeof(field),
        "offsetof(nvmlFieldValue_t, fieldId)": _at(&field, &field.fieldId),
        "offsetof(nvmlFieldValue_t, scopeId)": _at(&field, &field.scopeId),
        "offsetof(nvmlFieldValue_t, valueType)": _at(&field, &field.valueType),
        "offsetof(nvmlFieldValue_t, nvmlReturn)": _at(&field, &field.nvmlReturn),
        "offsetof(nvmlFieldValue_t, value)": _at(&field, &field.value),
        "sizeof(nvmlValue_t)": sizeof(nvmlValue_t),
        "sizeof(nvmlProcessInfo_t)": sizeof(nvmlProcessInfo_t),
    }


cdef dict _abi_of_errors():
    """The same of what tells of errors, and of what came with it."""
    cdef nvmlBAR1Memory_t bar1
    cdef nvmlViolationTime_t violation
    cdef nvmlRowRemapperHistogramValues_t banks
    cdef nvmlRepairStatus_t repair
    cdef nvmlEccSramErrorStatus_t sram
    cdef nvmlEccSramUniqueUncorrectedErrorEntry_v1_t place
    cdef nvmlEccSramUniqueUncorrectedErrorCounts_t places
    return {
        "sizeof(nvmlBAR1Memory_t)": sizeof(bar1),
        "offsetof(nvmlBAR1Memory_t, bar1Total)": _at(&bar1, &bar1.bar1Total),
        "offsetof(nvmlBAR1Memory_t, bar1Used)": _at(&bar1, &bar1.bar1Used),
        "sizeof(nvmlViolationTime_t)": sizeof(violation),
        "offsetof(nvmlViolationTime_t, violationTime)": _at(&violation, &violation.violationTime),
        "sizeof(nvmlRowRemapperHistogramValues_t)": sizeof(banks),
        "offsetof(nvmlRowRemapperHistogramValues_t, high)": _at(&banks, &banks.high),
        "offsetof(nvmlRowRemapperHistogramValues_t, partial)": _at(&banks, &banks.partial),
        "offsetof(nvmlRowRemapperHistogramValues_t, low)": _at(&banks, &banks.low),
        "offsetof(nvmlRowRemapperHistogramValues_t, none)": _at(&banks, &banks.none),
        "nvmlRepairStatus_v1": repair_version(),
        "sizeof(nvmlRepairStatus_t)": sizeof(repair),
        "offsetof(nvmlRepairStatus_t, bChannelRepairPending)": _at(&repair, &repair.bChannelRepairPending),
        "offsetof(nvmlRepairStatus_t, bTpcRepairPending)": _at(&repair, &repair.bTpcRepairPending),
        "sizeof(nvmlUnrepairableMemoryStatus_v1_t)": sizeof(nvmlUnrepairableMemoryStatus_v1_t),
        "nvmlEccSramErrorStatus_v1": sram_version(),
        "sizeof(nvmlEccSramErrorStatus_t)": sizeof(sram),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateUncParity)": _at(&sram, &sram.aggregateUncParity),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateUncSecDed)": _at(&sram, &sram.aggregateUncSecDed),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateCor)": _at(&sram, &sram.aggregateCor),
        "offsetof(nvmlEccSramErrorStatus_t, volatileUncParity)": _at(&sram, &sram.volatileUncParity),
        "offsetof(nvmlEccSramErrorStatus_t, volatileUncSecDed)": _at(&sram, &sram.volatileUncSecDed),
        "offsetof(nvmlEccSramErrorStatus_t, volatileCor)": _at(&sram, &sram.volatileCor),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateUncBucketL2)": _at(&sram, &sram.aggregateUncBucketL2),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateUncBucketSm)": _at(&sram, &sram.aggregateUncBucketSm),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateUncBucketPcie)": _at(&sram, &sram.aggregateUncBucketPcie),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateUncBucketMcu)": _at(&sram, &sram.aggregateUncBucketMcu),
        "offsetof(nvmlEccSramErrorStatus_t, aggregateUncBucketOther)": _at(&sram, &sram.aggregateUncBucketOther),
        "offsetof(nvmlEccSramErrorStatus_t, bThresholdExceeded)": _at(&sram, &sram.bThresholdExceeded),
        "sizeof(nvmlEccSramUniqueUncorrectedErrorEntry_v1_t)": sizeof(place),
        "offsetof(nvmlEccSramUniqueUncorrectedErrorEntry_v1_t, isParity)": _at(&place, &place.isParity),
        "offsetof(nvmlEccSramUniqueUncorrectedErrorEntry_v1_t, count)": _at(&place, &place.count),
        "nvmlEccSramUniqueUncorrectedErrorCounts_v1": sram_places_version(),
        "sizeof(nvmlEccSramUniqueUncorrectedErrorCounts_t)": sizeof(places),
        "offsetof(nvmlEccSramUniqueUncorrectedErrorCounts_t, entryCount)": _at(&places, &places.entryCount),
        "offsetof(nvmlEccSramUniqueUncorrectedErrorCounts_t, entries)": _at(&places, &places.entries),
    }


cdef Py_ssize_t _at(const void *whole, const void *member):
    return <const char *>member - <const char *>whole
