# cython: language_level=3, boundscheck=False, wraparound=False
"""DCGM by its C ABI: loads the library, and connects to a running host engine. See dcgm.pyi.

It never starts or embeds a host engine: the functions for this are not even looked up. The
process's place (`place`) shows the current call, so a call that does not return is detected.
"""

from collections import namedtuple

from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from dcgm_abi cimport *
from place_abi cimport Place, place_enter, place_leave

from .place import POINTER

cdef extern from "<dlfcn.h>" nogil:
    enum: RTLD_NOW, RTLD_LOCAL
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *symbol)
    char *dlerror()

#: Newest first. Major versions differ in structs and exported functions.
LIBRARIES = ("libdcgm.so.4", "libdcgm.so.3")
#: In the order of `DcgmCalls` in dcgm_abi.pxd.
SYMBOLS = (
    "dcgmInit", "dcgmShutdown", "errorString", "dcgmConnect_v2", "dcgmDisconnect", "dcgmGetAllDevices",
    "dcgmEntitiesGetLatestValues", "dcgmGroupGetAllIds", "dcgmHealthGet", "dcgmHealthCheck", "dcgmHealthSet_v2",
    "dcgmPolicyRegister_v2", "dcgmPolicyRegister", "dcgmFieldGroupCreate", "dcgmFieldGroupDestroy",
    "dcgmWatchFields", "dcgmUnwatchFields", "dcgmGetEntityGroupEntities", "dcgmGroupCreate", "dcgmGroupAddEntity",
    "dcgmVersionInfo", "dcgmHostengineVersionInfo",
)
REQUIRED = SYMBOLS[:7]
if sizeof(DcgmCalls) != len(SYMBOLS) * sizeof(void *):
    raise ImportError("dcgm: SYMBOLS and DcgmCalls disagree")

VALUES_MAX = 4096
ALL_GPUS, ALL_SWITCHES = 0x7FFFFFFF, 0x7FFFFFFE
#: dcgm_field_entity_group_t
ENTITY_GPU, ENTITY_VGPU, ENTITY_SWITCH, ENTITY_LINK = 1, 2, 3, 6
FLAG_LIVE = 1
#: dcgmReturn_t
(OK, NOT_SUPPORTED, TIMEOUT, VERSION_MISMATCH, NO_DATA, NOT_WATCHED, NO_PERMISSION, CONNECTION_NOT_VALID) = (
    0, -6, -11, -12, -14, -16, -17, -21
)
IN_USE, MODULE_NOT_LOADED, INSUFFICIENT_SIZE = -34, -33, -31
FUNCTION_NOT_FOUND = -20
#: DCGM_INT64_BLANK and DCGM_FP64_BLANK of dcgm_structs.h: greater values are blanks too.
BLANK_INT, BLANK_FLOAT = 0x7FFFFFFFFFFFFFF0, 140737488355328.0
NO_GPU = 0xFFFFFFFF

FieldValue = namedtuple("FieldValue", "entity field status timestamp_us value")
Incident = namedtuple("Incident", "entity_group entity system health code message")
Violation = namedtuple("Violation", "gpu condition timestamp_us first second")

cdef enum:
    GROUP_EMPTY = 1

cdef Place **HERE = <Place **><uintptr_t>POINTER


class DcgmAbsent(Exception):
    """There is no DCGM library, or the file is not one."""


class DcgmError(Exception):
    """A call failed; `code` is its dcgmReturn_t, `call` its name."""

    def __init__(self, words, code, call):
        super().__init__(words)
        self.code, self.call = code, call


cdef class Dcgm:
    """See dcgm.pyi."""

    cdef DcgmCalls _calls
    cdef uintptr_t _handle
    cdef DcgmFieldValue *_values
    cdef void *_health
    cdef readonly int major
    cdef readonly str library
    cdef readonly bint is_connected

    def __cinit__(self, str library=""):
        cdef void *opened = NULL
        cdef bytes name
        errors = []
        for candidate in (library,) if library else LIBRARIES:
            name = candidate.encode()
            opened = dlopen(name, RTLD_NOW | RTLD_LOCAL)
            if opened != NULL:
                break
            errors.append((dlerror() or b"").decode(errors="replace"))
        if opened == NULL:
            raise DcgmAbsent("; ".join(errors))
        self.library = candidate
        self._look_up(opened)
        self.major = 4 if self._calls.policy_register_2 != NULL and not candidate.endswith(".so.3") else 3
        self._check("dcgmInit", self._init())

    def __dealloc__(self):
        free(self._values)
        free(self._health)

    cdef _look_up(self, void *opened):
        cdef void **slots = <void **>&self._calls
        cdef bytes name
        cdef int i = 0
        for symbol in SYMBOLS:
            name = symbol.encode()
            slots[i] = dlsym(opened, name)
            if slots[i] == NULL and symbol in REQUIRED:
                raise DcgmAbsent(f"{self.library}: no {symbol}")
            i += 1

    cdef int _init(self) noexcept:
        cdef int code
        place_enter(HERE[0], b"", b"dcgmInit")
        with nogil:
            code = self._calls.init()
        place_leave(HERE[0])
        return code

    cdef _check(self, str call, int code):
        if code == OK:
            return
        cdef const char *text = self._calls.words(code)
        words = text.decode(errors="replace") if text != NULL else ""
        raise DcgmError(f"{call}: {words or 'unknown error'} ({code})", code, call)

    cdef _need(self, void *function, str call):
        if function == NULL:
            raise DcgmError(f"{call}: this DCGM library does not have it", FUNCTION_NOT_FOUND, call)

    cdef int _end(self, str call, int code) except -1:
        """End the published call. Raises DcgmError if it failed."""
        place_leave(HERE[0])
        self._check(call, code)
        return 0

    def connect(self, str address not None, int timeout_ms):
        cdef DcgmConnectParams params
        cdef bint is_unix = address.startswith("unix:")
        cdef bytes where = address.removeprefix("unix:").encode()
        cdef const char *text = where
        cdef int code
        if not where:
            raise ValueError("an address: without one DCGM would run a host engine in this process")
        self.disconnect()
        params.version = _word(sizeof(params), 2)
        params.persist_after_disconnect = 0
        params.timeout_ms = timeout_ms
        params.is_unix_socket = is_unix
        place_enter(HERE[0], b"", b"dcgmConnect_v2")
        with nogil:
            code = self._calls.connect(text, &params, &self._handle)
        self._end("dcgmConnect_v2", code)
        self.is_connected = True

    def versions(self):
        cdef DcgmVersion info
        cdef int code = FUNCTION_NOT_FOUND
        cdef int of_engine = FUNCTION_NOT_FOUND
        info.version = _word(sizeof(info), 2)
        place_enter(HERE[0], b"", b"dcgmVersionInfo")
        if self._calls.library_version != NULL:
            with nogil:
                code = self._calls.library_version(&info)
        library = _version(info.build) if code == OK else ""
        info.version = _word(sizeof(info), 2)
        place_enter(HERE[0], b"", b"dcgmHostengineVersionInfo")
        if self._calls.engine_version != NULL:
            with nogil:
                of_engine = self._calls.engine_version(self._handle, &info)
        place_leave(HERE[0])
        return library, _version(info.build) if of_engine == OK else ""

    def disconnect(self):
        if not self.is_connected:
            return
        self.is_connected = False
        place_enter(HERE[0], b"", b"dcgmDisconnect")
        with nogil:
            self._calls.disconnect(self._handle)
        place_leave(HERE[0])

    def devices(self):
        cdef unsigned[DCGM_GPUS_MAX] ids
        cdef int count = 0, code
        place_enter(HERE[0], b"", b"dcgmGetAllDevices")
        with nogil:
            code = self._calls.devices(self._handle, ids, &count)
        self._end("dcgmGetAllDevices", code)
        return [ids[i] for i in range(max(0, min(count, DCGM_GPUS_MAX)))]

    def entities(self, unsigned group):
        cdef unsigned[DCGM_ENTITIES_MAX] ids
        cdef int count = DCGM_ENTITIES_MAX, code
        self._need(<void *>self._calls.entities, "dcgmGetEntityGroupEntities")
        place_enter(HERE[0], b"", b"dcgmGetEntityGroupEntities")
        with nogil:
            code = self._calls.entities(self._handle, group, ids, &count, 0)
        self._end("dcgmGetEntityGroupEntities", code)
        return [ids[i] for i in range(max(0, min(count, DCGM_ENTITIES_MAX)))]

    def latest(self, entities, fields, bint live=False, unsigned group=ENTITY_GPU):
        cdef DcgmEntity[DCGM_GPUS_MAX] asked
        cdef unsigned short[128] ids
        cdef unsigned count = len(entities), field_count = len(fields), i, flags = FLAG_LIVE if live else 0
        cdef int code
        if count > DCGM_GPUS_MAX or field_count > 128 or count * field_count > VALUES_MAX:
            raise ValueError(f"at most {DCGM_GPUS_MAX} entities and 128 fields, got {count} and {field_count}")
        if not count or not field_count:
            return []
        if self._values == NULL:
            self._values = <DcgmFieldValue *>calloc(VALUES_MAX, sizeof(DcgmFieldValue))
            if self._values == NULL:
                raise MemoryError
        for i in range(count):
            asked[i].group, asked[i].id = group, entities[i]
        for i in range(field_count):
            ids[i] = fields[i]
        for i in range(count * field_count):
            self._values[i].version, self._values[i].status = 0, NO_DATA
        place_enter(HERE[0], b"", b"dcgmEntitiesGetLatestValues")
        with nogil:
            code = self._calls.latest(
                self._handle, asked, count, ids, field_count, flags, self._values
            )
        self._end("dcgmEntitiesGetLatestValues", code)
        return [_field_value(&self._values[i]) for i in range(count * field_count)]

    def groups(self):
        cdef uintptr_t[DCGM_GROUPS_MAX] ids
        cdef unsigned count = DCGM_GROUPS_MAX
        cdef int code
        self._need(<void *>self._calls.groups, "dcgmGroupGetAllIds")
        place_enter(HERE[0], b"", b"dcgmGroupGetAllIds")
        with nogil:
            code = self._calls.groups(self._handle, ids, &count)
        self._end("dcgmGroupGetAllIds", code)
        return [ids[i] for i in range(min(count, <unsigned>DCGM_GROUPS_MAX))]

    def health_systems(self, uintptr_t group):
        cdef uint32_t systems = 0
        cdef int code
        self._need(<void *>self._calls.health_get, "dcgmHealthGet")
        place_enter(HERE[0], b"", b"dcgmHealthGet")
        with nogil:
            code = self._calls.health_get(self._handle, group, &systems)
        self._end("dcgmHealthGet", code)
        return systems

    def health(self, uintptr_t group):
        cdef DcgmHealthV5 *answer
        cdef uint32_t i
        cdef int code
        self._need(<void *>self._calls.health_check, "dcgmHealthCheck")
        if self._health == NULL:
            self._health = calloc(1, sizeof(DcgmHealthV5))
            if self._health == NULL:
                raise MemoryError
        answer = <DcgmHealthV5 *>self._health
        code = self._health_check(group, answer)
        if code == VERSION_MISMATCH and self.major == 4:  # the name does not show the major
            self.major = 3
            code = self._health_check(group, answer)
        self._check("dcgmHealthCheck", code)
        room = DCGM_INCIDENTS_MAX_V4 if self.major == 3 else DCGM_INCIDENTS_MAX_V5
        return [_incident(&answer.incidents[i]) for i in range(min(answer.count, room))]

    cdef int _health_check(self, uintptr_t group, DcgmHealthV5 *answer) noexcept:
        cdef int code
        answer.count = 0
        answer.version = (
            _word(sizeof(DcgmHealthV4), 4) if self.major == 3 else _word(sizeof(DcgmHealthV5), 5)
        )
        place_enter(HERE[0], b"", b"dcgmHealthCheck")
        with nogil:
            code = self._calls.health_check(self._handle, group, answer)
        place_leave(HERE[0])
        return code

    def watch_health(self, uintptr_t group, uint32_t systems, double seconds):
        cdef DcgmHealthSet params
        cdef int code
        self._need(<void *>self._calls.health_set, "dcgmHealthSet_v2")
        memset(&params, 0, sizeof(params))
        params.version = _word(sizeof(params), 2)
        params.group, params.systems = group, systems
        params.update_us, params.keep_seconds = <long long>(seconds * 1e6), 10 * seconds
        place_enter(HERE[0], b"", b"dcgmHealthSet_v2")
        with nogil:
            code = self._calls.health_set(self._handle, &params)
        self._end("dcgmHealthSet_v2", code)

    def create_group(self, str name, unsigned entity_group, entities):
        cdef bytes text = name.encode()
        cdef const char *words = text
        cdef uintptr_t group = 0
        cdef unsigned entity
        cdef int code
        for call, slot in (("dcgmGroupCreate", <uintptr_t>self._calls.group_create),
                           ("dcgmGroupAddEntity", <uintptr_t>self._calls.group_add)):
            self._need(<void *><uintptr_t>slot, call)
        place_enter(HERE[0], b"", b"dcgmGroupCreate")
        with nogil:
            code = self._calls.group_create(self._handle, GROUP_EMPTY, words, &group)
        self._end("dcgmGroupCreate", code)
        for each in entities:
            entity = each
            place_enter(HERE[0], b"", b"dcgmGroupAddEntity")
            with nogil:
                code = self._calls.group_add(self._handle, group, entity_group, entity)
            self._end("dcgmGroupAddEntity", code)
        return group

    def watch_fields(self, uintptr_t group, fields, str name, double seconds):
        cdef unsigned short[128] ids
        cdef int count = len(fields), code, i
        cdef uintptr_t field_group = 0
        cdef bytes text = name.encode()
        cdef const char *words = text
        cdef long long every_us = <long long>(seconds * 1e6)
        if count > 128:
            raise ValueError(f"at most 128 fields, got {count}")
        for call, slot in (("dcgmFieldGroupCreate", <uintptr_t>self._calls.field_group_create),
                           ("dcgmWatchFields", <uintptr_t>self._calls.watch)):
            self._need(<void *><uintptr_t>slot, call)
        for i in range(count):
            ids[i] = fields[i]
        place_enter(HERE[0], b"", b"dcgmFieldGroupCreate")
        with nogil:
            code = self._calls.field_group_create(self._handle, count, ids, words, &field_group)
        self._end("dcgmFieldGroupCreate", code)
        place_enter(HERE[0], b"", b"dcgmWatchFields")
        with nogil:
            code = self._calls.watch(self._handle, group, field_group, every_us, 10 * seconds, 0)
        try:
            self._end("dcgmWatchFields", code)
        except DcgmError:
            if self._calls.field_group_destroy != NULL:
                self._calls.field_group_destroy(self._handle, field_group)
            raise

    def listen_to_policies(self, uintptr_t group, uint32_t conditions):
        cdef int code
        cdef bint with_gpu = self._calls.policy_register_2 != NULL
        call = "dcgmPolicyRegister_v2" if with_gpu else "dcgmPolicyRegister"
        if not with_gpu:
            self._need(<void *>self._calls.policy_register, call)
        place_enter(HERE[0], b"", b"dcgmPolicyRegister")
        with nogil:
            if with_gpu:
                code = self._calls.policy_register_2(self._handle, group, conditions, dcgm_violated, 0)
            else:
                code = self._calls.policy_register(
                    self._handle, group, conditions, dcgm_violated_alone, NULL
                )
        self._end(call, code)

    def violations(self):
        cdef DcgmViolation violation
        taken = []
        while dcgm_take(&violation):
            taken.append(
                Violation(
                    violation.gpu, violation.condition, violation.value.timestamp_us,
                    violation.value.first, violation.value.second,
                )
            )
        return taken

    @property
    def lost_violations(self):
        return dcgm_ring.lost


cdef str _version(char *build):
    """Return the value of `version:` in a build description, or ""."""
    for part in _text(build, 512).split(";"):
        if part.startswith("version:"):
            return part.removeprefix("version:")
    return ""


cdef uint32_t _word(size_t size, int version) noexcept nogil:
    """Return a struct's version word: MAKE_DCGM_VERSION of dcgm_structs.h."""
    return <uint32_t>(size | <size_t>version << 24)


cdef _text(const char *text, size_t room):
    return (<bytes>text[:room]).split(b"\0", 1)[0].decode(errors="replace")


cdef _field_value(DcgmFieldValue *it):
    value = None
    if it.status == OK:
        if it.field_type == c"d":
            value = it.value.f64 if it.value.f64 < BLANK_FLOAT else None
        elif it.field_type in (c"i", c"t"):
            value = it.value.i64 if it.value.i64 < BLANK_INT else None
        elif it.field_type == c"s":
            value = _text(it.value.text, 256)
            if value.startswith("<<<"):  # DCGM_STR_BLANK and the other text blanks
                value = None
        elif it.field_type == c"b":
            value = <bytes>it.value.text[:DCGM_BLOB_BYTES]
    return FieldValue(it.entity_id, it.field_id, it.status, it.timestamp_us, value)


cdef _incident(DcgmIncident *it):
    return Incident(
        it.entity.group, it.entity.id, it.system, it.health, it.code, _text(it.message, DCGM_MESSAGE_BYTES)
    )


def sizes():
    return {
        "dcgmConnectV2Params_v2": _word(sizeof(DcgmConnectParams), 2),
        "dcgmFieldValue_v2": _word(sizeof(DcgmFieldValue), 2),
        "dcgmHealthResponse_v4": _word(sizeof(DcgmHealthV4), 4),
        "dcgmHealthResponse_v5": _word(sizeof(DcgmHealthV5), 5),
        "dcgmHealthSetParams_v2": _word(sizeof(DcgmHealthSet), 2),
        "dcgmPolicyCallbackResponse_v2": _word(sizeof(DcgmViolation), 2),
        "dcgmVersionInfo_v2": _word(sizeof(DcgmVersion), 2),
    }
