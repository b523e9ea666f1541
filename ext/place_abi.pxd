# cython: language_level=3
"""A process's place: its current call, device and start of the call. C only.

The memory may be shared with a watching process, which then sees a call that does not return. The
text is written before the time, so that a reader that sees a time sees its text; a reader reads the
time twice to be sure. A watcher can notify the process in the same memory; the process then reads
its messages.
"""

from libc.stdint cimport uint64_t, uintptr_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <time.h>

    enum { PLACE_COLLECTOR_BYTES = 32, PLACE_DEVICE_BYTES = 64, PLACE_CALL_BYTES = 88 };

    typedef struct {
        uint64_t entered_ns;  /* CLOCK_BOOTTIME of the call's start; 0: no call */
        uint64_t calls;       /* number of calls so far */
        char collector[PLACE_COLLECTOR_BYTES], device[PLACE_DEVICE_BYTES], call[PLACE_CALL_BYTES];
        uint64_t called;      /* not 0: notified, and not yet read */
    } Place;

    static inline void place_copy(char *to, const char *from, int bytes)
    {
        int at = 0;
        for (; at < bytes - 1 && from[at]; at++)
            to[at] = from[at];
        to[at] = 0;
    }

    /* `device` may be NULL: as in the previous call. */
    static inline void place_enter(Place *place, const char *device, const char *call)
    {
        struct timespec now;
        if (device)
            place_copy(place->device, device, PLACE_DEVICE_BYTES);
        place_copy(place->call, call, PLACE_CALL_BYTES);
        clock_gettime(CLOCK_BOOTTIME, &now);
        place->calls++;
        __atomic_store_n(&place->entered_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                         __ATOMIC_RELEASE);
    }

    static inline void place_leave(Place *place)
    {
        __atomic_store_n(&place->entered_ns, 0, __ATOMIC_RELEASE);
        __atomic_thread_fence(__ATOMIC_RELEASE); /* never this time with the next text */
    }

    static inline uint64_t place_entered(const Place *place)
    {
        return __atomic_load_n(&place->entered_ns, __ATOMIC_ACQUIRE);
    }

    /* Copy a place. 0: it was in no call, or the call ended meanwhile. */
    static inline int place_copy_call(Place *to, const Place *from)
    {
        uint64_t entered_ns = place_entered(from);
        if (!entered_ns)
            return 0;
        memcpy(to, from, sizeof *to);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        return to->entered_ns == entered_ns && place_entered(from) == entered_ns;
    }

    static inline void place_call(Place *place)
    {
        __atomic_store_n(&place->called, 1, __ATOMIC_RELEASE);
    }

    /* Call this before reading the messages: later senders notify again. */
    static inline int place_hear(Place *place)
    {
        return __atomic_exchange_n(&place->called, 0, __ATOMIC_ACQ_REL) != 0;
    }

    static inline int place_is_called(const Place *place)
    {
        return __atomic_load_n(&place->called, __ATOMIC_ACQUIRE) != 0;
    }
    """
    ctypedef struct Place:
        uint64_t entered_ns
        uint64_t calls
        char collector[32]
        char device[64]
        char call[88]
        uint64_t called
    int PLACE_COLLECTOR_BYTES
    void place_copy(char *, const char *, int) noexcept nogil
    void place_enter(Place *, const char *, const char *) noexcept nogil
    void place_leave(Place *) noexcept nogil
    bint place_copy_call(Place *, const Place *) noexcept nogil
    void place_call(Place *) noexcept nogil
    int place_hear(Place *) noexcept nogil
    int place_is_called(const Place *) noexcept nogil
