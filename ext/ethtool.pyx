# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A network driver's own statistics, by the ethtool ioctl (include/uapi/linux/ethtool.h)."""

from libc.errno cimport ENODEV, EOPNOTSUPP, errno
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.ioctl cimport ioctl
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE, mmap, mprotect, munmap,
)
from posix.unistd cimport close as c_close

import os
import socket

cdef extern from "<linux/sockios.h>" nogil:
    unsigned long SIOCETHTOOL

cdef enum:
    NAME_BYTES = 32  # ETH_GSTRING_LEN
    INTERFACE_BYTES = 16  # IFNAMSIZ, its zero byte included
    PAGE_BYTES = 4096
    LIMIT = 16384
    # The kernel writes all values of the driver, regardless of the buffer's size. So the buffer has
    # the accepted maximum, and the page after it is not writable: EFAULT, no damage.
    ROOM_BYTES = LIMIT * NAME_BYTES + PAGE_BYTES

    CMD_GDRVINFO = 0x03
    CMD_GSTRINGS = 0x1B
    CMD_GSTATS = 0x1D
    CMD_GSSET_INFO = 0x37
    SET_STATISTICS = 1  # ETH_SS_STATS

STATISTICS_MAX = LIMIT

cdef struct Request:  # struct ifreq
    char name[INTERFACE_BYTES]
    void *data
    char rest[16]

cdef packed struct SetInfo:
    uint32_t cmd
    uint32_t reserved
    uint64_t mask
    uint32_t count

cdef struct Header:  # ETHTOOL_GSTRINGS has three words, ETHTOOL_GSTATS two
    uint32_t cmd
    uint32_t first
    uint32_t second

cdef struct Driver:
    uint32_t cmd
    char driver[32]
    char version[32]
    char firmware[32]
    char bus[32]
    char rest[36 + 32]


cdef class DriverStatistics:
    cdef int fd
    cdef uint8_t *room
    cdef bint busy

    def __cinit__(self):
        self.fd = -1
        self.room = NULL

    def __init__(self):
        cdef void *mapped
        if self.room != NULL:
            raise RuntimeError("DriverStatistics is made once")
        mapped = mmap(NULL, ROOM_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if mapped == MAP_FAILED:
            raise MemoryError()
        self.room = <uint8_t *>mapped
        if mprotect(self.room + ROOM_BYTES, PAGE_BYTES, PROT_NONE) != 0:
            raise OSError(errno, "mprotect")
        self.fd = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC).detach()

    def driver(self, interface):
        cdef Driver *info = <Driver *>self.room
        self._begin()
        memset(info, 0, sizeof(Driver))
        info.cmd = CMD_GDRVINFO
        self._ask(interface)
        return tuple(_text(&field[0]) for field in (info.driver, info.version, info.firmware, info.bus))

    def names(self, interface):
        cdef uint32_t count = self._count(interface), i
        cdef Header *header = <Header *>self.room
        if not count:
            return []
        self._begin()
        memset(self.room, 0, sizeof(Header) + count * NAME_BYTES)
        header.cmd = CMD_GSTRINGS
        header.first = SET_STATISTICS
        header.second = count
        self._ask(interface)
        if header.second > LIMIT:
            raise OverflowError(f"{interface!r} says it has {header.second} statistics; at most {LIMIT} are read")
        return [_text(<char *>self.room + sizeof(Header) + i * NAME_BYTES) for i in range(header.second)]

    cdef uint32_t _count(self, interface) except? 0:
        cdef SetInfo *info = <SetInfo *>self.room
        self._begin()
        memset(info, 0, sizeof(SetInfo))
        info.cmd = CMD_GSSET_INFO
        info.mask = 1 << SET_STATISTICS
        self._ask(interface)
        if not info.mask:
            raise OSError(EOPNOTSUPP, os.strerror(EOPNOTSUPP), interface)
        if info.count > LIMIT:
            raise OverflowError(f"{interface!r} says it has {info.count} statistics; at most {LIMIT} are read")
        return info.count

    def read(self, interface, const int32_t[::1] picks not None, uint64_t[::1] values not None, Py_ssize_t expected):
        cdef Header *header = <Header *>self.room
        cdef Py_ssize_t i, count
        if picks.shape[0] != values.shape[0]:
            raise ValueError(f"{picks.shape[0]} picks need as many values, got {values.shape[0]}")
        if not 0 <= expected <= LIMIT:
            raise ValueError(f"expected: 0 to {LIMIT} statistics, got {expected}")
        for i in range(picks.shape[0]):
            if not 0 <= picks[i] < expected:
                raise ValueError(f"pick {picks[i]} is none of {expected} statistics")
        self._begin()
        header.cmd = CMD_GSTATS
        header.first = <uint32_t>expected
        self._ask(interface)
        count = header.first
        if count == expected:
            for i in range(picks.shape[0]):
                memcpy(&values[i], self.room + 8 + 8 * picks[i], 8)
        return count

    cdef int _begin(self) except -1:
        if self.busy:
            raise RuntimeError("a question is under way in another thread")
        if self.fd < 0:
            raise ValueError("these statistics are closed")
        return 0

    cdef int _ask(self, interface) except -1:
        """Send the request in the buffer; the answer replaces it. Raises OSError."""
        cdef Request request
        cdef bytes name = os.fsencode(interface)
        cdef int fd = self.fd, result, error
        if not 0 < len(name) < INTERFACE_BYTES or b"\0" in name:
            raise OSError(ENODEV, os.strerror(ENODEV), interface)
        memset(&request, 0, sizeof(request))
        memcpy(request.name, <const char *>name, len(name))
        request.data = self.room
        self.busy = True
        with nogil:
            result = ioctl(fd, SIOCETHTOOL, &request)
            error = errno
        self.busy = False
        if result < 0:
            raise OSError(error, os.strerror(error), interface)
        return 0

    def close(self):
        if not self.busy and self.fd >= 0:
            c_close(self.fd)
            self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)
        if self.room != NULL:
            munmap(self.room, ROOM_BYTES + PAGE_BYTES)


cdef bytes _text(const char *field):
    """Return a field of up to 32 bytes, to its first zero byte if it has one."""
    cdef Py_ssize_t size = 0
    while size < NAME_BYTES and field[size]:
        size += 1
    return field[:size]
