# cython: language_level=3
"""Where a sampler is: which call on which device it is in, and since when. C only, no Python object.

The memory may be shared with the process that watches: it sees a call that does not return. The text is written
before the time, so that a reader who sees a time sees the words that belong to it; it reads twice to be sure.
Who watches can call the process in the same memory: it then comes and hears what was sent to it.
"""

from libc.stdint cimport uint64_t, uintptr_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <time.h>

    enum { PLACE_COLLECTOR_BYTES = 32, PLACE_DEVICE_BYTES = 64, PLACE_CALL_BYTES = 88 };

    typedef struct {
        uint64_t entered_ns;  /* CLOCK_BOOTTIME as the call began; 0: in none */
        uint64_t calls;       /* ever entered */
        char collector[PLACE_COLLECTOR_BYTES], device[PLACE_DEVICE_BYTES], call[PLACE_CALL_BYTES];
        uint64_t called;      /* not 0: something was sent to the process, and it has not looked yet */
    } Place;

    static inline void place_copy(char *to, const char *from, int bytes)
    {
        int at = 0;
        for (; at < bytes - 1 && from[at]; at++)
            to[at] = from[at];
        to[at] = 0;
    }

    /* `device` may be NULL: the one of the call before. */
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
        __atomic_thread_fence(__ATOMIC_RELEASE); /* nobody sees the words of the next call beside this one's time */
    }

    static inline uint64_t place_entered(const Place *place)
    {
        return __atomic_load_n(&place->entered_ns, __ATOMIC_ACQUIRE);
    }

    /* Copy all that a place shows. False: it was in no call, or has come out of one meanwhile. */
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

    /* Before what was sent is looked at: who sends more meanwhile calls again. */
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
