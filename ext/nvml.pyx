# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NVML by its C ABI: the library found at run time, and a sweep over all GPUs without the GIL.

Each symbol is looked up once; one that the driver does not export costs its reading and no other.
A sweep writes into memory made before, calls only what its readings need, and asks for all fields
of a GPU in one call. Readings are in base units, so that what lands in the memory is final.

The library is never unloaded: a thread may be inside it for ever.
"""

from collections import namedtuple

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from nvml_abi cimport *
from nvml_sweep cimport *

cdef extern from "<dlfcn.h>" nogil:
    enum: RTLD_NOW
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *symbol)
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
)
#: Without these no GPU can be found or named: what lacks them is not NVML, or older than driver 319.
REQUIRED = (
    "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetPciInfo_v3",
)
if sizeof(Calls) != len(SYMBOLS) * sizeof(void *):
    raise ImportError("nvml: SYMBOLS and Calls disagree")

cdef About ABOUT[READING_COUNT]
#: Reading -> the type of its cells. Names are the catalogue's columns of the GPU tables.
READINGS = {}
cdef dict _INDEX = {}


cdef _gauge(int reading, str name, double multiplier=1, double divisor=1, uint64_t raw_max=0, int field=0):
    READINGS[name], _INDEX[name] = float, reading
    ABOUT[reading] = About(multiplier, divisor, raw_max, field, True)


cdef _integer(int reading, str name, uint64_t raw_max=0, int field=0):
    READINGS[name], _INDEX[name] = int, reading
    ABOUT[reading] = About(1, 1, raw_max, field, False)


_gauge(SM_CLOCK, "sm_clock_hertz", 1e6, 1, 100_000)  # MHz
_gauge(MEMORY_CLOCK, "memory_clock_hertz", 1e6, 1, 100_000)
_gauge(SM_CLOCK_MAX, "sm_clock_max_hertz", 1e6, 1, 100_000)
_integer(EVENT_REASONS, "clock_event_reasons_flags")
_integer(VIOLATION_POWER, "violation_power_nanoseconds", 0, NVML_FI_DEV_PERF_POLICY_POWER)
_integer(VIOLATION_THERMAL, "violation_thermal_nanoseconds", 0, NVML_FI_DEV_PERF_POLICY_THERMAL)
_integer(VIOLATION_SYNC_BOOST, "violation_sync_boost_nanoseconds", 0, NVML_FI_DEV_PERF_POLICY_SYNC_BOOST)
_gauge(POWER, "power_watts", 1, 1e3, 100_000_000, NVML_FI_DEV_POWER_INSTANT)  # mW
_gauge(POWER_AVERAGE, "power_average_watts", 1, 1e3, 100_000_000, NVML_FI_DEV_POWER_AVERAGE)
_gauge(POWER_LIMIT, "power_limit_watts", 1, 1e3, 100_000_000)
_gauge(ENERGY, "energy_joules", 1, 1e3, 0, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)  # mJ
_gauge(TEMPERATURE, "temperature_celsius", 1, 1, 1_000)
_gauge(MEMORY_TEMPERATURE, "memory_temperature_celsius", 1, 1, 1_000, NVML_FI_DEV_MEMORY_TEMP)
_gauge(MARGIN, "temperature_margin_celsius", 1, 1, 1_000)
_gauge(SLOWDOWN, "temperature_slowdown_celsius", 1, 1, 1_000)
_gauge(UTILIZATION, "utilization_ratio", 1, 100, 100)  # percent
_gauge(MEMORY_UTILIZATION, "memory_utilization_ratio", 1, 100, 100)
_gauge(MEMORY_USED, "memory_used_bytes", 1, 1, 1 << 50)
_gauge(MEMORY_TOTAL, "memory_total_bytes", 1, 1, 1 << 50)
_gauge(MEMORY_RESERVED, "memory_reserved_bytes", 1, 1, 1 << 50)
_integer(ECC_CORRECTED_VOLATILE, "ecc_corrected_volatile_errors", 0, NVML_FI_DEV_ECC_SBE_VOL_TOTAL)
_integer(ECC_UNCORRECTED_VOLATILE, "ecc_uncorrected_volatile_errors", 0, NVML_FI_DEV_ECC_DBE_VOL_TOTAL)
_integer(ECC_CORRECTED_LIFETIME, "ecc_corrected_lifetime_errors", 0, NVML_FI_DEV_ECC_SBE_AGG_TOTAL)
_integer(ECC_UNCORRECTED_LIFETIME, "ecc_uncorrected_lifetime_errors", 0, NVML_FI_DEV_ECC_DBE_AGG_TOTAL)
_integer(REMAPPED_CORRECTABLE, "remapped_correctable_rows", 1 << 24)
_integer(REMAPPED_UNCORRECTABLE, "remapped_uncorrectable_rows", 1 << 24)
_integer(REMAP_PENDING, "remap_pending_state", 1)
_integer(REMAP_FAILED, "remap_failed_state", 1)
_gauge(PCIE_GENERATION, "pcie_generation_number", 1, 1, 16)
_gauge(PCIE_GENERATION_MAX, "pcie_generation_max_number", 1, 1, 16)
_gauge(PCIE_WIDTH, "pcie_width_lanes", 1, 1, 64)
_gauge(PCIE_WIDTH_MAX, "pcie_width_max_lanes", 1, 1, 64)
_integer(PCIE_REPLAYS, "pcie_replays_count", 0, NVML_FI_DEV_PCIE_REPLAY_COUNTER)
_integer(PERFORMANCE_STATE, "performance_state", 15)  # 32 is NVML_PSTATE_UNKNOWN
_integer(RECOVERY_ACTION, "recovery_action_state", 255, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
_gauge(PROCESSES, "processes_count", 1, 1, 65_536)
_integer(CALLS_FAILED, "calls_failed_errors")
_integer(SLOW_CALLS_FAILED, "slow_calls_failed_errors")
_integer(LOST, "lost_state")


class NvmlError(Exception):
    """NVML answered with an error; `code` is its nvmlReturn_t."""

    def __init__(self, words, code):
        super().__init__(words)
        self.code = code


class NvmlAbsent(Exception):
    """There is no NVML library here, or what is here is not one. The words say which."""


Device = namedtuple("Device", ["address", "uuid", "name", "serial"])


cdef class Nvml:
    cdef Calls call
    cdef bint initialised
    cdef readonly str path
    cdef readonly frozenset missing_symbols

    def __init__(self, str library="libnvidia-ml.so.1"):
        self.path = library
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
            raise self._error("nvmlInit", code)
        self.initialised = True

    def _load(self, bytes path):
        cdef const char *name = path
        cdef void *library
        with nogil:
            library = dlopen(name, RTLD_NOW)
        cdef const char *why = dlerror()
        if library == NULL:
            raise NvmlAbsent(why.decode(errors="replace") if why != NULL else f"{self.path}: not loaded")
        cdef void **slots = <void **>&self.call
        missing = []
        for i, symbol in enumerate(SYMBOLS):
            slots[<int>i] = dlsym(library, symbol.encode())
            if slots[<int>i] == NULL:
                missing.append(symbol)
        self.missing_symbols = frozenset(missing)
        if not self.missing_symbols.isdisjoint(REQUIRED):
            lacks = ", ".join(sorted(self.missing_symbols.intersection(REQUIRED)))
            raise NvmlAbsent(f"{self.path} is no NVML of driver 319 or later: it lacks {lacks}")

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
        if not self.initialised:
            return
        self.initialised = False
        with nogil:
            self.call.nvmlShutdown()

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
        with nogil:
            code = self.call.nvmlDeviceGetCount_v2(&count)
        if code == NVML_ERROR_GPU_NOT_FOUND:
            return []
        if code != NVML_SUCCESS:
            raise self._error("nvmlDeviceGetCount", code)
        found = []
        for index in range(min(count, <unsigned int>GPUS_MAX)):
            with nogil:
                code = self.call.nvmlDeviceGetHandleByIndex_v2(index, &handle)
            if code == NVML_ERROR_INVALID_ARGUMENT:
                break  # the count promised more than there is
            if code == NVML_SUCCESS:
                device = self._describe(handle)
                if device is not None:
                    found.append(device)
        return found

    def device(self, str address):
        self._check()
        cdef nvmlDevice_t handle = NULL
        cdef bytes name = address.encode()
        cdef const char *bus_id = name
        cdef nvmlReturn_t code
        with nogil:
            code = self.call.nvmlDeviceGetHandleByPciBusId_v2(bus_id, &handle)
        if code != NVML_SUCCESS:
            raise self._error(f"nvmlDeviceGetHandleByPciBusId({address})", code)
        device = self._describe(handle)
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
        return Device(address, self._uuid(handle), self._name(handle), self._serial(handle))

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

    def __cinit__(self, Nvml nvml not None, addresses, targets):
        self.nvml, self.addresses, self.held = nvml, tuple(addresses), []
        cdef Pass *p = &self.state
        cdef int row, i
        p.call, p.rows, p.at = &nvml.call, len(self.addresses), -1
        p.addresses = <char *>calloc(p.rows + 1, ADDRESS_BYTES)
        p.devices = <nvmlDevice_t *>calloc(p.rows + 1, sizeof(nvmlDevice_t))
        p.opened = <nvmlReturn_t *>calloc(p.rows + 1, sizeof(nvmlReturn_t))
        p.failed = <uint64_t *>calloc(p.rows + 1, sizeof(uint64_t))
        if p.addresses == NULL or p.devices == NULL or p.opened == NULL or p.failed == NULL:
            raise MemoryError
        memcpy(p.about, ABOUT, sizeof(ABOUT))
        for row, address in enumerate(self.addresses):
            text = address.encode()
            if len(text) >= ADDRESS_BYTES:
                raise ValueError(f"a PCI address has fewer than {ADDRESS_BYTES} characters, got {address!r}")
            for i in range(len(text)):
                p.addresses[row * ADDRESS_BYTES + i] = text[i]
        for name, (cells, valid, column) in targets.items():
            self._aim(_INDEX[name], cells, valid, column)

    def __dealloc__(self):
        free(self.state.addresses)
        free(self.state.devices)
        free(self.state.opened)
        free(self.state.failed)

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
        if ABOUT[reading].field:
            if p.field_count == FIELDS_MAX:
                raise ValueError(f"a sweep asks for at most {FIELDS_MAX} fields")
            p.fields[p.field_count].fieldId = ABOUT[reading].field
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


def abi():
    cdef nvmlPciInfo_t pci
    cdef nvmlUtilization_t utilization
    cdef nvmlMemory_t memory
    cdef nvmlMemory_v2_t memory2
    cdef nvmlTemperature_t temperature
    cdef nvmlMarginTemperature_t margin
    cdef nvmlFieldValue_t field
    return {
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


cdef Py_ssize_t _at(const void *whole, const void *member):
    return <const char *>member - <const char *>whole
