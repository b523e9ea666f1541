# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NVML by its C ABI: loads the library at run time, and reads all GPUs without the GIL.

Each symbol is looked up once; a symbol that the driver lacks costs only its reading. A sweep writes
into preallocated memory, makes only the calls that its readings need, and requests all fields of a
GPU in one call. Readings are in base units, so the values in memory are final.

The process's place (`place`) shows the current call and GPU, and each GPU has an account of its
calls.

The library stays loaded until the driver is updated and no `Nvml` is open. Then it is unloaded;
otherwise the process would use the old library until it is restarted.
"""

import mmap
from collections import namedtuple

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcmp, strncpy

from nvml_abi cimport *
from nvml_account cimport *
from nvml_pass cimport *
from nvml_sweep cimport *
from place_abi cimport Place, place_leave

from .nvml_readings import NAMED, ROWS
from .place import POINTER

cdef extern from "<dlfcn.h>" nogil:
    enum: RTLD_NOW, RTLD_NOLOAD
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *symbol)
    int dlclose(void *library)
    char *dlerror()

#: A driver's count is cut to this (the largest hosts have 16 GPUs).
GPUS_MAX = 128

# SYMBOLS: the members of `Calls` in their order; setup.py writes the file from nvml_abi.pxd.
include "nvml_symbols.pxi"
#: Without these no GPU can be found or named: another library, or a driver older than 319.
REQUIRED = (
    "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetPciInfo_v3",
)
if len(SYMBOLS) > 64 or NAMED_COUNT > 64:
    raise ImportError("nvml: more than 64 symbols or named readings")

if FIELDS_MAX + ASKS_MAX != PACED_STEPS or PACED_STEPS + STEPS_MAX != PACED_BATCH:
    raise ImportError("nvml: the slots of costs in nvml_pass.pxd disagree")
cdef Place **HERE = <Place **><uintptr_t>POINTER
cdef const char *NAMES[64]
_NAMES = [symbol.encode() for symbol in SYMBOLS]  # owns the bytes of NAMES
for _slot, _name in enumerate(_NAMES):
    NAMES[<int>_slot] = <const char *><bytes>_name

#: Mask of `Rows` that uses all bits of the value.
ALL_BITS = 2**64 - 1

CALLS_PER_SECOND_MAX, CALLS_AT_ONCE_MAX = ACCOUNT_CALLS_PER_SECOND_MAX, ACCOUNT_CALLS_AT_ONCE_MAX

# Shared with processes forked later: they continue with the counts of earlier processes.
_ACCOUNTS = mmap.mmap(-1, ACCOUNTS_MAX * sizeof(Account))
cdef unsigned char[::1] _accounts_memory = _ACCOUNTS
cdef Account *ACCOUNTS = <Account *>&_accounts_memory[0]
ACCOUNTS[0].taken = 1  # the driver's account


cdef dict _OWN_ACCOUNTS = {}  # address -> account, of GPUs beyond the shared memory's capacity


cdef Account *account_of(str address) except NULL:
    """Return a GPU's account, creating it. GPUs over capacity have accounts in each process."""
    cdef bytes text = address.encode()
    cdef const char *name = text
    cdef int i
    if len(text) >= ADDRESS_BYTES:
        raise ValueError(f"a PCI address has fewer than {ADDRESS_BYTES} characters, got {address!r}")
    for i in range(ACCOUNTS_MAX):
        if account_claim(&ACCOUNTS[i]):
            ACCOUNTS[i].price_ns = ACCOUNTS[0].price_ns
            strncpy(ACCOUNTS[i].address, name, ADDRESS_BYTES - 1)
        if not strcmp(ACCOUNTS[i].address, name):
            return &ACCOUNTS[i]
    if address not in _OWN_ACCOUNTS:
        own = bytearray(sizeof(Account))  # never moves: it is kept forever, and never grows
        _OWN_ACCOUNTS[address] = own
        _fresh(own, name)
    return _own(_OWN_ACCOUNTS[address])


cdef Account *_own(unsigned char[::1] memory) noexcept:
    return <Account *>&memory[0]


cdef _fresh(unsigned char[::1] memory, const char *name):
    cdef Account *account = <Account *>&memory[0]
    account.price_ns = ACCOUNTS[0].price_ns
    strncpy(account.address, name, ADDRESS_BYTES - 1)


def account_address(str address not None):
    return <uintptr_t>account_of(address)


def cap(unsigned int calls_per_second):
    cdef int i
    for i in range(ACCOUNTS_MAX):
        ACCOUNTS[i].price_ns = 1_000_000_000 // calls_per_second if calls_per_second else 0


cap(CALLS_PER_SECOND_MAX)

Account_ = namedtuple("Account", ["address", "uuid", "calls", "left_out", "epoch", "lost", "counts", "proofs"])


def account(str address not None):
    cdef Account *found = account_of(address)
    return Account_(
        address, found.uuid.decode(errors="replace"), found.calls, found.left_out, found.epoch, bool(found.lost),
        tuple([found.counts[i] if found.known[i] else None for i in range(ACCOUNT_COUNTS_MAX)]), found.proofs,
    )


def accounts():
    return [account(ACCOUNTS[i].address.decode()) for i in range(ACCOUNTS_MAX) if ACCOUNTS[i].taken]


def forget_accounts():
    memset(ACCOUNTS, 0, ACCOUNTS_MAX * sizeof(Account))
    ACCOUNTS[0].taken = 1
    cap(CALLS_PER_SECOND_MAX)


def remember(str address not None, str uuid=None, epoch=None, lost=None, proofs=None):
    cdef Account *known = account_of(address)
    cdef bytes text
    if uuid is not None:
        text = uuid.encode()[: sizeof(known.uuid) - 1]
        if text and known.uuid[0] and strcmp(known.uuid, <const char *>text):  # a replaced GPU
            memset(known.known, 0, sizeof(known.known))
            known.lost = known.proofs = 0
        memset(known.uuid, 0, sizeof(known.uuid))
        memcpy(known.uuid, <const char *>text, len(text))
    if epoch is not None:
        known.epoch = epoch
    if lost is not None:
        known.lost = lost
    if proofs is not None:
        known.proofs = proofs


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
cdef tuple _OF_KINDS = (AS_UINT_OF_KIND, AS_LONG_OF_KINDS)
#: Reading -> the type of its cells. Names are the catalog's columns of the GPU tables.
READINGS = {row.name: float if row.is_float else int for row in ROWS}
cdef tuple _NAMED = tuple(NAMED)
cdef dict _INDEX = {name: i for i, name in enumerate(NAMED)}
for _row in ROWS:
    _INDEX.setdefault(_row.name, len(_INDEX))

cdef About ABOUT[READINGS_MAX]
cdef Ask ASKS[ASKS_MAX]
cdef int ASK_COUNT = 0


cdef _declare():
    """Convert the rows of nvml_readings.py to the tables of a sweep."""
    global ASK_COUNT
    if len(_INDEX) != len(ROWS) or len(_INDEX) > READINGS_MAX:
        raise ImportError(f"nvml: a reading twice, or more than {READINGS_MAX}")
    for row in ROWS:
        ABOUT[<int>_INDEX[row.name]] = About(
            row.multiplier, row.divisor, row.raw_max, row.is_float, row.is_signed, row.is_long, row.holds)
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
    """NVML returned an error; `code` is its nvmlReturn_t."""

    def __init__(self, words, code):
        super().__init__(words)
        self.code = code


class NvmlAbsent(Exception):
    """There is no NVML library, or the file is not one; the message names it."""


ctypedef nvmlReturn_t (*TextCall)(nvmlDevice_t, char *, unsigned int) noexcept nogil

#: Code of an NvmlError: the call was skipped, because of too many calls.
LEFT_OUT = -1

Device = namedtuple("Device", ["address", "uuid", "name", "serial"])

#: Libraries of closed `Nvml` objects, each once; and the number of open objects.
cdef list _LEFT = []
cdef int _OPEN = 0


cdef _leave(void *library, bint unload):
    """Keep the library loaded, once; unload it if no `Nvml` is open, so that the next loads it.

    After `close` none of its functions is called (`_check`, `initialised`).
    """
    if <size_t>library in _LEFT:
        dlclose(library)
    else:
        _LEFT.append(<size_t>library)
    while unload and not _OPEN and _LEFT:
        dlclose(<void *><size_t>_LEFT.pop())


def is_loaded(str library not None):
    cdef bytes name = library.encode()
    cdef void *loaded = dlopen(name, RTLD_NOW | RTLD_NOLOAD)
    if loaded == NULL:
        dlerror()
        return False
    dlclose(loaded)
    return True


cdef class Nvml:
    cdef Calls call
    cdef readonly bint initialised
    cdef readonly str path
    cdef readonly frozenset missing_symbols
    cdef void *library
    cdef dict addresses  # symbol -> address

    def __init__(self, str library="libnvidia-ml.so.1"):
        global _OPEN
        self.path, self.addresses = library, {}
        self._load(library.encode())
        cdef nvmlReturn_t code
        # NO_GPUS: a host whose GPUs are all gone has no GPUs, but a working NVML. NO_ATTACH is not
        # used: a GPU is attached only for its handle anyway (nvml.h at nvmlInit_v2), and with it
        # drivers before 590.37 report no GPUs (DCGM omits it there, in DcgmHostEngineHandler.cpp).
        if self.call.nvmlInitWithFlags != NULL:
            self._enter("", &self.call.nvmlInitWithFlags)
            code = self.call.nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS)
        else:
            self._enter("", &self.call.nvmlInit_v2)
            code = self.call.nvmlInit_v2()
        place_leave(HERE[0])
        if code != NVML_SUCCESS:
            error = self._error("nvmlInit", code)
            _leave(self.library, code == NVML_ERROR_LIB_RM_VERSION_MISMATCH)
            raise error
        _OPEN += 1
        self.initialised = True

    cdef int _enter(self, str address, const void *slot) except -1:
        """Publish the call in *slot* of `call`. Raises NvmlError if the call must be skipped."""
        cdef int at = <int>((<char *>slot - <char *>&self.call) // sizeof(void *))
        if account_enter(account_of(address), HERE[0], NAMES[at], 0, 1) == 0:
            raise NvmlError(f"{SYMBOLS[at]}: left out, over {CALLS_PER_SECOND_MAX} calls a second", LEFT_OUT)
        return 0

    def _load(self, bytes path):
        cdef void *library = dlopen(path, RTLD_NOW)
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
        """Attach the GPU at a PCI address. Raises NvmlError."""
        self._check()
        cdef nvmlDevice_t handle = NULL
        cdef bytes name = address.encode()
        cdef const char *bus_id = name
        cdef nvmlReturn_t code
        self._enter(address, &self.call.nvmlDeviceGetHandleByPciBusId_v2)
        with nogil:
            code = self.call.nvmlDeviceGetHandleByPciBusId_v2(bus_id, &handle)
            place_leave(HERE[0])
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
        self._enter("", &self.call.nvmlShutdown)
        with nogil:
            self.call.nvmlShutdown()
            place_leave(HERE[0])
        _OPEN -= 1
        _leave(self.library, False)

    def driver_version(self):
        self._check()
        cdef char text[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE]
        if self.call.nvmlSystemGetDriverVersion == NULL:
            return ""
        memset(text, 0, sizeof(text))
        cdef nvmlReturn_t code
        self._enter("", &self.call.nvmlSystemGetDriverVersion)
        with nogil:
            code = self.call.nvmlSystemGetDriverVersion(text, sizeof(text))
            place_leave(HERE[0])
        return _text(code, text, sizeof(text))

    def count(self):
        self._check()
        cdef unsigned int count = 0
        cdef nvmlReturn_t code
        self._enter("", &self.call.nvmlDeviceGetCount_v2)
        with nogil:
            code = self.call.nvmlDeviceGetCount_v2(&count)
            place_leave(HERE[0])
        if code == NVML_ERROR_GPU_NOT_FOUND:
            return 0
        if code != NVML_SUCCESS:
            raise self._error("nvmlDeviceGetCount", code)
        return min(count, <unsigned int>GPUS_MAX)

    def devices(self, count=None):
        self._check()
        cdef unsigned int index, most = self.count() if count is None else count
        cdef nvmlDevice_t handle
        cdef nvmlReturn_t code
        found = []
        for index in range(min(most, <unsigned int>GPUS_MAX)):
            handle = NULL
            self._enter("", &self.call.nvmlDeviceGetHandleByIndex_v2)
            with nogil:
                code = self.call.nvmlDeviceGetHandleByIndex_v2(index, &handle)
                place_leave(HERE[0])
            if code == NVML_ERROR_INVALID_ARGUMENT:
                break  # fewer GPUs than counted
            if code == NVML_SUCCESS:
                device = self._describe(handle, "")
                if device is not None:
                    found.append(device)
        return found

    def device(self, str address):
        device = self._describe(self._handle(address), address)
        return Device(address, "", "", "") if device is None else device

    def uuid(self, str address):
        return self._uuid(self._handle(address), address)

    cdef _describe(self, nvmlDevice_t handle, str address):
        """Return the device; None without an address. *address*: as far as known."""
        cdef nvmlPciInfo_t pci
        cdef nvmlReturn_t code
        memset(&pci, 0, sizeof(pci))
        self._enter(address, &self.call.nvmlDeviceGetPciInfo_v3)
        with nogil:
            code = self.call.nvmlDeviceGetPciInfo_v3(handle, &pci)
            place_leave(HERE[0])
        if code != NVML_SUCCESS or pci.bus > 0xFF or pci.device > 0x1F:
            return None
        address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        uuid = self._uuid(handle, address)
        name = self._device_text(handle, address, &self.call.nvmlDeviceGetName, NVML_DEVICE_NAME_V2_BUFFER_SIZE)
        serial = self._device_text(handle, address, &self.call.nvmlDeviceGetSerial, NVML_DEVICE_SERIAL_BUFFER_SIZE)
        return Device(address, uuid, name, serial)

    cdef str _uuid(self, nvmlDevice_t handle, str address):
        return self._device_text(handle, address, &self.call.nvmlDeviceGetUUID, NVML_DEVICE_UUID_V2_BUFFER_SIZE)

    cdef str _device_text(self, nvmlDevice_t handle, str address, TextCall *slot, unsigned int size):
        """Return the answer of a call with a buffer of *size*; "" if the driver lacks the call."""
        cdef char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE]  # the longest
        cdef nvmlReturn_t code
        memset(text, 0, sizeof(text))
        if slot[0] == NULL:
            return ""
        self._enter(address, slot)
        with nogil:
            code = slot[0](handle, text, size)
            place_leave(HERE[0])
        return _text(code, text, size)


cdef str _text(nvmlReturn_t code, const char *text, Py_ssize_t size):
    """Return the driver's text, never past the buffer; "" after an error."""
    return text[:size].partition(b"\0")[0].decode(errors="replace") if code == NVML_SUCCESS else ""


cdef class Sweep:
    cdef Pass state
    cdef Nvml nvml
    cdef list held
    cdef readonly tuple addresses

    def __cinit__(self, Nvml nvml not None, addresses, targets, fields=None, *, spared=(), double budget_seconds=0,
                  bint skips=False, bint first=False, double slow_seconds=0):
        self.nvml, self.addresses, self.held = nvml, tuple(addresses), []
        cdef Pass *p = &self.state
        cdef int row, i
        p.call, p.rows, p.at, p.names, p.place = &nvml.call, len(self.addresses), -1, NAMES, HERE
        p.budget_ns, p.skips, p.is_first = <int64_t>(budget_seconds * 1e9), skips, first
        p.addresses = <char *>calloc(p.rows + 1, ADDRESS_BYTES)
        p.devices = <nvmlDevice_t *>calloc(p.rows + 1, sizeof(nvmlDevice_t))
        p.opened = <nvmlReturn_t *>calloc(p.rows + 1, sizeof(nvmlReturn_t))
        p.failed = <uint64_t *>calloc(p.rows + 1, sizeof(uint64_t))
        p.refused = <int *>calloc(p.rows + 1, sizeof(int))
        p.accounts = <Account **>calloc(p.rows + 1, sizeof(Account *))
        p.spared, p.over, p.last = <uint8_t *>calloc(p.rows + 1, 1), <uint8_t *>calloc(p.rows + 1, 1), <uint8_t *>calloc(p.rows + 1, 1)
        p.skip, p.skip_next = <int *>calloc(p.rows + 1, sizeof(int)), <int *>calloc(p.rows + 1, sizeof(int))
        if p.addresses == NULL or p.devices == NULL or p.opened == NULL or p.failed == NULL or p.refused == NULL:
            raise MemoryError
        if p.accounts == NULL or p.spared == NULL or p.over == NULL or p.last == NULL or p.skip == NULL or p.skip_next == NULL:
            raise MemoryError
        if slow_seconds > 0:
            self._pace(slow_seconds)
        memset(p.refused, 0xFF, (p.rows + 1) * sizeof(int))
        memcpy(p.about, ABOUT, sizeof(ABOUT))
        for row, address in enumerate(self.addresses):
            text = address.encode()
            if len(text) >= ADDRESS_BYTES:
                raise ValueError(f"a PCI address has fewer than {ADDRESS_BYTES} characters, got {address!r}")
            for i in range(len(text)):
                p.addresses[row * ADDRESS_BYTES + i] = text[i]
            p.accounts[row], p.spared[row] = account_of(address), address in spared
        for name, (cells, valid, column) in targets.items():
            self._aim(_INDEX[name], cells, valid, column)
        if p.cells[SRAM_PLACES] != NULL or p.cells[SRAM_PLACES_ERRORS] != NULL or p.cells[SRAM_PARITY_PLACES] != NULL:
            p.places = <nvmlEccSramUniqueUncorrectedErrorEntry_v1_t *>calloc(SRAM_PLACES_MAX, sizeof(p.places[0]))
            if p.places == NULL:
                raise MemoryError
        plan_steps(p)
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
        free(self.state.accounts)
        free(self.state.spared)
        free(self.state.over)
        free(self.state.last)
        free(self.state.skip)
        free(self.state.skip_next)
        free(self.state.paced)
        free(self.state.slow_from)
        free(self.state.measured_at)
        free(self.state.measuring)

    cdef _pace(self, double slow_seconds):
        cdef Pass *p = &self.state
        p.slow_microseconds = slow_seconds * 1e6
        p.paced = <PacedCall *>calloc(<size_t>(p.rows + 1) * PACED_MAX, sizeof(PacedCall))
        p.slow_from = <uint64_t *>calloc(p.rows + 1, sizeof(uint64_t))
        p.measured_at, p.measuring = <uint64_t *>calloc(p.rows + 1, sizeof(uint64_t)), <uint8_t *>calloc(p.rows + 1, 1)
        if p.paced == NULL or p.slow_from == NULL or p.measured_at == NULL or p.measuring == NULL:
            raise MemoryError

    cdef _aim(self, int reading, cells, valid, Py_ssize_t column):
        cdef uint8_t[::1] cell_bytes = cells
        cdef uint8_t[::1] valid_bytes = valid
        cdef Py_ssize_t first = column * self.state.rows, after = first + self.state.rows
        cdef Pass *p = &self.state
        if column < 0 or 8 * after > cell_bytes.shape[0] or after > valid_bytes.shape[0]:
            raise ValueError(f"column {column} of {p.rows} rows lies outside its memory")
        self.held += [cell_bytes, valid_bytes]  # keeps the memory in place
        if not p.rows:
            return
        if p.cells[reading] == NULL:
            p.wanted[p.wanted_count] = reading
            p.wanted_count += 1
        p.cells[reading] = <uint64_t *>&cell_bytes[8 * first]
        p.valid[reading] = &valid_bytes[first]

    cdef _ask_field(self, int reading, unsigned int field_id, unsigned int scope):
        """Request a field if its reading is wanted."""
        cdef Pass *p = &self.state
        if p.cells[reading] == NULL:
            return
        if p.field_count == FIELDS_MAX:
            raise ValueError(f"a sweep asks for at most {FIELDS_MAX} fields")
        p.fields[p.field_count].fieldId, p.fields[p.field_count].scopeId = field_id, scope
        p.field_reading[p.field_count] = reading
        p.field_count += 1

    def costs(self, str address not None):
        cdef Pass *p = &self.state
        cdef int at
        if p.paced == NULL or address not in self.addresses:
            return {}
        p.row = self.addresses.index(address)
        found = {f"field {p.fields[at].fieldId}": usual_microseconds(paced_call(p, at)) for at in range(p.field_count)}
        for at in range(p.ask_count):
            name = SYMBOLS[p.asks[at].slot] + (f"({p.asks[at].kind})" if p.asks[at].shape in _OF_KINDS else "")
            found[name] = usual_microseconds(paced_call(p, FIELDS_MAX + at))
        for at in range(p.step_count):
            first = next(reading for reading in range(64) if p.step_readings[at] >> <unsigned int>reading & 1)
            found[_NAMED[first]] = usual_microseconds(paced_call(p, PACED_STEPS + at))
        return {name: cost for name, cost in found.items() if cost}

    def run(self):
        self.nvml._check()
        with nogil:
            sweep(&self.state)

    @property
    def pass_address(self):
        return <uintptr_t>&self.state

    @property
    def calls(self):
        return self.state.calls

    @property
    def ended(self):
        return self.state.ended

    def slow(self):
        cdef int row, found = 0
        for row in range(self.state.rows):
            found += is_slow(&self.state, row)
        if not found:
            return _NONE_SLOW
        rows = range(self.state.rows)
        slow = frozenset(self.addresses[row] for row in rows if is_slow(&self.state, row))
        at_work = sum(not self.state.spared[row] for row in rows)
        return slow if len(slow) < at_work or at_work == 1 < len(rows) else frozenset()

    @property
    def is_refused(self):
        cdef int row
        for row in range(self.state.rows):
            if self.state.refused[row] >= 0:
                return True
        return False

    def refusals(self):
        return {
            self.addresses[row]: SYMBOLS[self.state.refused[row]]
            for row in range(self.state.rows)
            if self.state.refused[row] >= 0
        }


cdef class Rows:
    """See nvml.pyi."""

    cdef uint64_t **cells
    cdef uint8_t **valid
    cdef uint64_t *masks
    cdef uint64_t *last
    cdef uint8_t *last_valid
    cdef int rows, columns
    cdef Account **accounts  # per row: the account that stores its counts; NULL: none
    cdef list held

    def __cinit__(self, int rows, columns, addresses=()):
        cdef uint8_t[::1] cell_bytes
        cdef uint8_t[::1] valid_bytes
        cdef Py_ssize_t first
        cdef int i
        self.rows, self.columns, self.held = rows, len(columns), []
        self.cells = <uint64_t **>calloc(self.columns + 1, sizeof(uint64_t *))
        self.valid = <uint8_t **>calloc(self.columns + 1, sizeof(uint8_t *))
        self.masks = <uint64_t *>calloc(self.columns + 1, 8)
        self.last = <uint64_t *>calloc(self.columns * rows + 1, 8)
        self.last_valid = <uint8_t *>calloc(self.columns * rows + 1, 1)
        if self.cells == NULL or self.valid == NULL or self.masks == NULL or self.last == NULL or self.last_valid == NULL:
            raise MemoryError
        for i, (cells, valid, column, mask) in enumerate(columns):
            cell_bytes, valid_bytes, first = cells, valid, column * rows
            if column < 0 or 8 * (first + rows) > cell_bytes.shape[0] or first + rows > valid_bytes.shape[0]:
                raise ValueError(f"column {column} of {rows} rows lies outside its memory")
            self.held += [cell_bytes, valid_bytes]
            self.masks[i] = mask
            if rows:
                self.cells[i], self.valid[i] = <uint64_t *>&cell_bytes[8 * first], &valid_bytes[first]
        memset(self.last_valid, 2, self.columns * rows)    # neither 0 nor 1: every row is new
        if addresses:
            self._remember(list(addresses))

    cdef _remember(self, list addresses):
        """Continue with the counts of an earlier process, or of an earlier `Nvml` in this one."""
        cdef int row, i
        if self.columns > ACCOUNT_COUNTS_MAX or len(addresses) != self.rows:
            raise ValueError(f"{self.columns} counts of {self.rows} rows, at most {ACCOUNT_COUNTS_MAX} are remembered")
        self.accounts = <Account **>calloc(self.rows + 1, sizeof(Account *))
        if self.accounts == NULL:
            raise MemoryError
        for row, address in enumerate(addresses):
            self.accounts[row] = account_of(address)
            for i in range(self.columns):
                if self.accounts[row].known[i]:
                    self.last[i * self.rows + row], self.last_valid[i * self.rows + row] = self.accounts[row].counts[i], 1

    def __dealloc__(self):
        free(self.cells)
        free(self.valid)
        free(self.masks)
        free(self.last)
        free(self.last_valid)
        free(self.accounts)

    def changed(self):
        cdef int row, i, at
        cdef uint64_t value
        cdef uint8_t is_valid
        cdef bint differs
        found = None
        for row in range(self.rows):
            differs = False
            for i in range(self.columns):
                at, is_valid = i * self.rows + row, self.valid[i][row]
                value = self.cells[i][row] & self.masks[i] if is_valid else 0
                differs = differs or value != self.last[at] or is_valid != self.last_valid[at]
                self.last[at], self.last_valid[at] = value, is_valid
            if differs:
                found = [] if found is None else found
                found.append(row)
        return _NO_ROWS if found is None else found

    def fallen(self):
        cdef int row, i, at
        cdef bint fell
        found = None
        for row in range(self.rows):
            fell = False
            for i in range(self.columns):
                if self.valid[i][row]:  # an unreadable count keeps its last value
                    at = i * self.rows + row
                    fell = fell or (self.last_valid[at] == 1 and self._is_less(i, row, at))
                    self.last[at], self.last_valid[at] = self.cells[i][row], 1
                    if self.accounts != NULL:
                        self.accounts[row].counts[i], self.accounts[row].known[i] = self.cells[i][row], 1
            if fell:
                found = [] if found is None else found
                found.append(row)
        return _NO_ROWS if found is None else found

    cdef bint _is_less(self, int i, int row, int at) noexcept:
        """Return whether a count fell; mask 0 means doubles."""
        if self.masks[i] == 0:
            return (<double *>self.cells[i])[row] < (<double *>self.last)[at]
        return self.cells[i][row] < self.last[at]

    def forget(self, int row):
        cdef int i
        if not 0 <= row < self.rows:
            raise IndexError(f"there are {self.rows} rows, and no {row}")
        for i in range(self.columns):
            self.last_valid[i * self.rows + row] = 2
            if self.accounts != NULL:
                self.accounts[row].known[i] = 0


cdef list _NO_ROWS = []
cdef frozenset _NONE_SLOW = frozenset()


# LAYOUT: C expression -> value, of all structs in nvml_abi.pxd; setup.py writes the file from it.
include "nvml_layout.pxi"


def abi():
    return LAYOUT | {
        "nvmlMemory_v2": memory_version(),
        "nvmlTemperature_v1": temperature_version(),
        "nvmlMarginTemperature_v1": margin_version(),
        "nvmlRepairStatus_v1": repair_version(),
        "nvmlEccSramErrorStatus_v1": sram_version(),
        "nvmlEccSramUniqueUncorrectedErrorCounts_v1": sram_places_version(),
    }
