# cython: language_level=3
"""Process calls of Linux and glibc: name, parent-death signal (prctl(2)), and memory trimming."""

from cpython.mem cimport PyObject_Free, PyObject_Malloc
from libc.stdlib cimport free, malloc

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, ...)
    int PR_SET_NAME, PR_SET_PDEATHSIG

cdef extern from "<signal.h>" nogil:
    int SIGKILL

cdef extern from "Python.h":
    unsigned int PyType_ClearCache()

cdef extern from *:
    """
    #include <stdlib.h>
    #include <unistd.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    static int give_back(void) { return malloc_trim(0); }
    static int one_arena(void) { return mallopt(M_ARENA_MAX, 1); }
    static int large_apart(void) { return mallopt(M_MMAP_THRESHOLD, 128 * 1024); }
    #else
    static int give_back(void) { return 0; }
    static int one_arena(void) { return 0; }
    static int large_apart(void) { return 0; }
    #endif
    /* Where the heap ends that was ever given out; NULL: not known. */
    static char *heap_end(void) {
    #if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
        return (char *)sbrk(0) - mallinfo2().keepcost;
    #else
        return NULL;
    #endif
    }
    """
    int give_back() nogil
    int one_arena() nogil
    int large_apart() nogil
    char *heap_end() nogil


def name(bytes words not None):
    """Show as *words* in `ps -o comm` and `top`; Linux keeps 15 bytes."""
    cdef const char *text = words
    prctl(PR_SET_NAME, text, 0, 0, 0)


def die_with_parent(int signal_number=SIGKILL):
    """Have the kernel send this process a signal when the thread that forked it ends. Ask getppid() after it: it may have ended."""
    prctl(PR_SET_PDEATHSIG, <unsigned long>signal_number, 0, 0, 0)


def trim():
    """Give memory that was freed back to the kernel, where the C library keeps it (malloc_trim(3))."""
    give_back()


def be_small():
    """Have threads share one arena of malloc(3) rather than fill one each: few of ours, and they allocate little."""
    one_arena()


def keep_large_apart():
    """Have malloc(3) keep pieces of 128 KiB and more in mappings of their own, so that they go back when freed.

    Left to itself it does so until the first of them is freed, and from then on puts them among all others.
    """
    large_apart()


cdef enum:
    #: Of obmalloc.c: pools are aligned to their size and begin with a head, blocks are multiples of ALIGNMENT.
    POOL_BYTES = 1 << 14
    POOL_HEAD_BYTES = 48
    ALIGNMENT_BYTES = 16
    SMALL_BYTES_MAX = 512
    #: Of malloc(3): the largest free piece that is taken whole, and the largest whose size is kept to a step.
    LARGE_BYTES_MAX = 1 << 16
    EXACT_BYTES_MAX = 1 << 10
    #: Of one size no more is taken, should an allocator be another one than these.
    TAKEN_BYTES_MAX = 1 << 18


cdef class Filling:
    """Holds what was free between the objects of this process, for as long as it lives itself. Before a fork.

    What a process makes after the fork then goes to pages of its own, rather than here and there into pages that
    it shares, each of which would be copied for it. What is held costs no page that was not touched already.
    """

    cdef void *small  # each block begins with the address of the next
    cdef void *large

    def __cinit__(self):
        PyType_ClearCache()  # it holds on to the names that were last looked up, wherever they lie
        cdef size_t size = LARGE_BYTES_MAX
        while size >= ALIGNMENT_BYTES:
            self.fill_large(size)
            size -= ALIGNMENT_BYTES if size <= EXACT_BYTES_MAX else size // 8 // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        for size in range(ALIGNMENT_BYTES, SMALL_BYTES_MAX + 1, ALIGNMENT_BYTES):
            self.fill_small(size)

    cdef void fill_small(self, size_t size) noexcept:
        cdef void *block
        for _ in range(TAKEN_BYTES_MAX // size):
            block = PyObject_Malloc(size)
            if block == NULL:
                return
            # A pool's head begins with the number of its blocks. One that has but this was empty: no other has room.
            if <size_t>block % POOL_BYTES == POOL_HEAD_BYTES and (<unsigned int *>(<char *>block - POOL_HEAD_BYTES))[0] == 1:
                PyObject_Free(block)
                return
            (<void **>block)[0] = self.small
            self.small = block

    cdef void fill_large(self, size_t size) noexcept:
        cdef char *end = heap_end()
        cdef void *block
        for _ in range(TAKEN_BYTES_MAX // size if end != NULL else 0):
            block = malloc(size)
            if block == NULL or <char *>block >= end:
                free(block)
                return
            (<void **>block)[0] = self.large
            self.large = block

    def __dealloc__(self):
        cdef void *block
        while self.small != NULL:
            block = self.small
            self.small = (<void **>block)[0]
            PyObject_Free(block)
        while self.large != NULL:
            block = self.large
            self.large = (<void **>block)[0]
            free(block)
