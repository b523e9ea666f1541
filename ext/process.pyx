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
    /* End of the used heap; NULL: unknown. */
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
    cdef const char *text = words
    prctl(PR_SET_NAME, text, 0, 0, 0)


def die_with_parent(int signal_number=SIGKILL):
    prctl(PR_SET_PDEATHSIG, <unsigned long>signal_number, 0, 0, 0)


def trim():
    give_back()


def be_small():
    one_arena()


def keep_large_apart():
    """Keep malloc(3) blocks of 128 KiB and more in mappings that are returned when freed.

    By default malloc(3) stops doing so once the first such block is freed.
    """
    large_apart()


cdef enum:
    #: obmalloc.c: pools are aligned to their size and start with a head; blocks are aligned too.
    POOL_BYTES = 1 << 14
    POOL_HEAD_BYTES = 48
    ALIGNMENT_BYTES = 16
    SMALL_BYTES_MAX = 512
    #: malloc(3): the largest block to fill, and the largest size up to which every size is filled.
    LARGE_BYTES_MAX = 1 << 16
    EXACT_BYTES_MAX = 1 << 10
    #: Limit per size, in case another allocator is in use.
    TAKEN_BYTES_MAX = 1 << 18


cdef class Filling:
    cdef void *small  # each block begins with the address of the next
    cdef void *large

    def __cinit__(self):
        PyType_ClearCache()  # it keeps recently looked-up names alive, in any page
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
            # A pool's head starts with its number of blocks. 1: a new pool, so no gap is left.
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
