# cython: language_level=3
"""The accounts of the calls per GPU, which count and cap them, and publish each call. C only, no Python object.

An account is in memory that processes forked later share, so that its counts continue in the next process.
The cap is a token bucket: CALLS_PER_SECOND_MAX on average, and CALLS_AT_ONCE_MAX in one second, which is enough for
every lane and for the search for MIG devices. A call beyond that is left out and counted. A quarter of the bucket is
reserved for the lane of 1 s, by which a GPU is judged, so that it still has its calls when another lane makes too many.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from place_abi cimport Place

cdef extern from *:
    """
    #include <string.h>

    enum {
        ACCOUNTS_MAX = 129, ACCOUNT_CALLS_PER_SECOND_MAX = 120, ACCOUNT_CALLS_AT_ONCE_MAX = 400,
        ACCOUNT_CALLS_KEPT = 100, ACCOUNT_COUNTS_MAX = 4
    };

    typedef struct {
        char address[32];       /* PCI address, ends with 0; empty: the driver as a whole, which has no cap */
        uint64_t calls, left_out;
        int64_t paid_until_ns;  /* CLOCK_BOOTTIME up to which the calls so far use up the cap */
        int64_t price_ns;       /* of one call; 0: no cap. The fields up to here share one cache line. */
        char uuid[48];          /* as last read; empty: not known */
        uint64_t epoch;
        uint64_t counts[ACCOUNT_COUNTS_MAX]; /* counters that never decrease while a GPU runs, as last read; raw */
        uint8_t known[ACCOUNT_COUNTS_MAX];   /* whether each counter was ever read */
        uint32_t taken, lost, proofs; /* `proofs`: state bits of agent/collectors/gpu_field_check.py */
    } Account;

    /* Take a free account; only one of several competing processes gets it. */
    static inline int account_claim(Account *account)
    {
        uint32_t free = 0;
        return __atomic_compare_exchange_n(&account->taken, &free, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }

    static inline int64_t account_boottime_ns(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_BOOTTIME, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }

    /* Return 1 if the call may be made, and publish that it begins. 0: over the cap. -1: later than `until_ns`
       (0: no limit). `first`: may use the reserved part of the bucket too. */
    static inline int account_enter(Account *account, Place *place, const char *call, int64_t until_ns, int first)
    {
        int64_t now, paid, kept = first ? 0 : ACCOUNT_CALLS_KEPT;
        memcpy(place->device, account->address, sizeof account->address);
        place_enter(place, NULL, call);
        now = (int64_t)place->entered_ns;
        if (until_ns && now > until_ns) {
            place_leave(place);
            return -1;
        }
        if (account->price_ns && account->address[0]) {
            paid = now - ACCOUNT_CALLS_AT_ONCE_MAX * account->price_ns;
            paid = (account->paid_until_ns > paid ? account->paid_until_ns : paid) + account->price_ns;
            if (paid > now - kept * account->price_ns) {
                account->left_out++;
                place_leave(place);
                return 0;
            }
            account->paid_until_ns = paid;
        }
        __atomic_add_fetch(&account->calls, 1, __ATOMIC_RELAXED);
        return 1;
    }
    """
    ctypedef struct Account:
        char address[32]
        uint64_t calls
        uint64_t left_out
        int64_t paid_until_ns
        int64_t price_ns
        char uuid[48]
        uint64_t epoch
        uint64_t counts[4]
        uint8_t known[4]
        uint32_t taken
        uint32_t lost
        uint32_t proofs
    int ACCOUNTS_MAX
    int ACCOUNT_CALLS_PER_SECOND_MAX
    int ACCOUNT_CALLS_AT_ONCE_MAX
    int ACCOUNT_COUNTS_MAX
    int account_claim(Account *) noexcept nogil
    int64_t account_boottime_ns() noexcept nogil
    int account_enter(Account *, Place *, const char *, int64_t, int) noexcept nogil
