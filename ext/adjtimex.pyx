# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""adjtimex(2), which the standard library lacks: the kernel's state of its clock."""

from libc.errno cimport errno
from libc.string cimport memset

import os


cdef extern from "<sys/timex.h>" nogil:
    cdef struct timex:
        unsigned int modes
        long offset
        long freq
        long maxerror
        long esterror
        int status
        long constant
        int tai

    int adjtimex(timex *buf)


def read():
    cdef timex answer
    cdef int state, error
    with nogil:
        memset(&answer, 0, sizeof(timex))  # modes 0: read, set nothing
        state = adjtimex(&answer)
        error = errno
    if state < 0:
        raise OSError(error, os.strerror(error))
    return (
        state, answer.status, answer.offset, answer.freq, answer.maxerror, answer.esterror, answer.tai,
    )
