# cython: language_level=3
"""DCGM's C ABI as used by the agent: dcgm_structs.h and dcgm_agent.h of DCGM 3.1 to 4.6. C only.

A struct begins with its version word, `size | version << 24`, which the library checks.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #include <time.h>

    enum { DCGM_GPUS_MAX = 32, DCGM_ENTITIES_MAX = 1024, DCGM_GROUPS_MAX = 64, DCGM_BLOB_BYTES = 256, DCGM_MESSAGE_BYTES = 1024, DCGM_VALUE_BYTES = 4096 };
    enum { DCGM_INCIDENTS_MAX_V4 = 64, DCGM_INCIDENTS_MAX_V5 = 1024 };

    typedef struct { uint32_t version, persist_after_disconnect, timeout_ms, is_unix_socket; } DcgmConnectParams;
    typedef struct { uint32_t version; char build[512]; } DcgmVersion; /* dcgmVersionInfo_v2: "version:4.2.3;arch:x86_64;..." */

    typedef struct { uint32_t group, id; } DcgmEntity;

    typedef struct {
        uint32_t version, entity_group, entity_id;
        unsigned short field_id, field_type;
        int status;
        uint32_t unused;
        int64_t timestamp_us;
        union { int64_t i64; double f64; char text[DCGM_VALUE_BYTES]; } value;
    } DcgmFieldValue;

    typedef struct {
        uint32_t system, health;
        char message[DCGM_MESSAGE_BYTES];
        uint32_t code;
        DcgmEntity entity;
    } DcgmIncident;

    /* Version 4 (DCGM 3) holds 64 incidents, version 5 (DCGM 4) 1024; otherwise they are equal. */
    typedef struct { uint32_t version, health, count; DcgmIncident incidents[DCGM_INCIDENTS_MAX_V4]; } DcgmHealthV4;
    typedef struct { uint32_t version, health, count; DcgmIncident incidents[DCGM_INCIDENTS_MAX_V5]; } DcgmHealthV5;

    typedef struct {
        uint32_t version;
        uintptr_t group;
        uint32_t systems;
        int64_t update_us;
        double keep_seconds;
    } DcgmHealthSet;

    /* Version 1 (DCGM 3) ends with `value`; version 2 (DCGM 4) adds the GPU. */
    typedef struct {
        uint32_t version, condition;
        struct { int64_t timestamp_us; uint32_t first, second; } value;
        uint32_t gpu;
    } DcgmViolation;

    /* Violations from a thread of the library, for the next turn. One writer, one reader. */
    enum { DCGM_RING = 256 };
    typedef struct { DcgmViolation entries[DCGM_RING]; uint64_t written, read, lost; } DcgmRing;

    static DcgmRing dcgm_ring;

    static int dcgm_violated(DcgmViolation *violation, uint64_t unused)
    {
        uint64_t at = __atomic_load_n(&dcgm_ring.written, __ATOMIC_RELAXED);
        (void)unused;
        if (at - __atomic_load_n(&dcgm_ring.read, __ATOMIC_ACQUIRE) >= DCGM_RING) {
            __atomic_fetch_add(&dcgm_ring.lost, 1, __ATOMIC_RELAXED);
            return 0;
        }
        DcgmViolation *entry = &dcgm_ring.entries[at % DCGM_RING];
        /* In version 1 the struct ends after `value`. */
        int is_first = violation->version >> 24 == 1;
        memcpy(entry, violation, is_first ? offsetof(DcgmViolation, gpu) : sizeof(*entry));
        if (is_first)
            entry->gpu = UINT32_MAX;
        __atomic_store_n(&dcgm_ring.written, at + 1, __ATOMIC_RELEASE);
        return 0;
    }

    /* DCGM 3.0 to 3.1 call back with the violation alone. */
    static int dcgm_violated_alone(void *violation) { return dcgm_violated((DcgmViolation *)violation, 0); }

    static int dcgm_take(DcgmViolation *to)
    {
        uint64_t at = dcgm_ring.read;
        if (at == __atomic_load_n(&dcgm_ring.written, __ATOMIC_ACQUIRE))
            return 0;
        *to = dcgm_ring.entries[at % DCGM_RING];
        __atomic_store_n(&dcgm_ring.read, at + 1, __ATOMIC_RELEASE);
        return 1;
    }

    typedef struct {
        int (*init)(void);
        int (*shut_down)(void);
        const char *(*words)(int);
        int (*connect)(const char *, DcgmConnectParams *, uintptr_t *);
        int (*disconnect)(uintptr_t);
        int (*devices)(uintptr_t, unsigned *, int *);
        int (*latest)(uintptr_t, DcgmEntity *, unsigned, unsigned short *, unsigned, unsigned, DcgmFieldValue *);
        int (*groups)(uintptr_t, uintptr_t *, unsigned *);
        int (*health_get)(uintptr_t, uintptr_t, uint32_t *);
        int (*health_check)(uintptr_t, uintptr_t, void *);
        int (*health_set)(uintptr_t, DcgmHealthSet *);
        int (*policy_register_2)(uintptr_t, uintptr_t, uint32_t, int (*)(DcgmViolation *, uint64_t), uint64_t);
        int (*policy_register)(uintptr_t, uintptr_t, uint32_t, int (*)(void *), int (*)(void *));
        int (*field_group_create)(uintptr_t, int, unsigned short *, const char *, uintptr_t *);
        int (*field_group_destroy)(uintptr_t, uintptr_t);
        int (*watch)(uintptr_t, uintptr_t, uintptr_t, long long, double, int);
        int (*unwatch)(uintptr_t, uintptr_t, uintptr_t);
        int (*entities)(uintptr_t, uint32_t, unsigned *, int *, unsigned);
        int (*group_create)(uintptr_t, uint32_t, const char *, uintptr_t *);
        int (*group_add)(uintptr_t, uintptr_t, uint32_t, unsigned);
        int (*library_version)(DcgmVersion *);
        int (*engine_version)(uintptr_t, DcgmVersion *);
    } DcgmCalls;
    """
    enum: DCGM_GPUS_MAX, DCGM_ENTITIES_MAX, DCGM_GROUPS_MAX, DCGM_BLOB_BYTES, DCGM_MESSAGE_BYTES, DCGM_VALUE_BYTES
    enum: DCGM_INCIDENTS_MAX_V4, DCGM_INCIDENTS_MAX_V5
    ctypedef struct DcgmVersion:
        uint32_t version
        char[512] build
    ctypedef struct DcgmConnectParams:
        uint32_t version, persist_after_disconnect, timeout_ms, is_unix_socket
    ctypedef struct DcgmEntity:
        uint32_t group, id
    ctypedef union DcgmValue:
        int64_t i64
        double f64
        char text[4096]
    ctypedef struct DcgmFieldValue:
        uint32_t version, entity_group, entity_id
        unsigned short field_id, field_type
        int status
        int64_t timestamp_us
        DcgmValue value
    ctypedef struct DcgmIncident:
        uint32_t system, health
        char message[1024]
        uint32_t code
        DcgmEntity entity
    ctypedef struct DcgmHealthV4:
        uint32_t version, health, count
        DcgmIncident *incidents
    ctypedef struct DcgmHealthV5:
        uint32_t version, health, count
        DcgmIncident *incidents
    ctypedef struct DcgmHealthSet:
        uint32_t version
        uintptr_t group
        uint32_t systems
        int64_t update_us
        double keep_seconds
    ctypedef struct DcgmViolationValue:
        int64_t timestamp_us
        uint32_t first, second
    ctypedef struct DcgmViolation:
        uint32_t version, condition
        DcgmViolationValue value
        uint32_t gpu
    ctypedef struct DcgmRing:
        uint64_t written, read, lost
    DcgmRing dcgm_ring
    int dcgm_violated(DcgmViolation *, uint64_t) noexcept nogil
    int dcgm_violated_alone(void *) noexcept nogil
    int dcgm_take(DcgmViolation *) noexcept nogil
    ctypedef struct DcgmCalls:
        int (*init)() noexcept nogil
        int (*shut_down)() noexcept nogil
        const char *(*words)(int) noexcept nogil
        int (*connect)(const char *, DcgmConnectParams *, uintptr_t *) noexcept nogil
        int (*disconnect)(uintptr_t) noexcept nogil
        int (*devices)(uintptr_t, unsigned *, int *) noexcept nogil
        int (*latest)(uintptr_t, DcgmEntity *, unsigned, unsigned short *, unsigned, unsigned, DcgmFieldValue *) noexcept nogil
        int (*groups)(uintptr_t, uintptr_t *, unsigned *) noexcept nogil
        int (*health_get)(uintptr_t, uintptr_t, uint32_t *) noexcept nogil
        int (*health_check)(uintptr_t, uintptr_t, void *) noexcept nogil
        int (*health_set)(uintptr_t, DcgmHealthSet *) noexcept nogil
        int (*policy_register_2)(uintptr_t, uintptr_t, uint32_t, int (*)(DcgmViolation *, uint64_t) noexcept nogil, uint64_t) noexcept nogil
        int (*policy_register)(uintptr_t, uintptr_t, uint32_t, int (*)(void *) noexcept nogil, int (*)(void *) noexcept nogil) noexcept nogil
        int (*field_group_create)(uintptr_t, int, unsigned short *, const char *, uintptr_t *) noexcept nogil
        int (*field_group_destroy)(uintptr_t, uintptr_t) noexcept nogil
        int (*watch)(uintptr_t, uintptr_t, uintptr_t, long long, double, int) noexcept nogil
        int (*unwatch)(uintptr_t, uintptr_t, uintptr_t) noexcept nogil
        int (*entities)(uintptr_t, uint32_t, unsigned *, int *, unsigned) noexcept nogil
        int (*group_create)(uintptr_t, uint32_t, const char *, uintptr_t *) noexcept nogil
        int (*group_add)(uintptr_t, uintptr_t, uint32_t, unsigned) noexcept nogil
        int (*library_version)(DcgmVersion *) noexcept nogil
        int (*engine_version)(uintptr_t, DcgmVersion *) noexcept nogil
