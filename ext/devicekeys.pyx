# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which row each device has: (host, name) -> row, and back, in few bytes a device.

A dict of tuples takes 300 bytes a device, and a fleet has millions of them: links, PCIe functions. Names stand one after
another in one piece of memory; a table of rows, at most two thirds full, finds them.
"""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import os

cdef enum:
    FIRST = 64
    NAME_BYTES_MAX = 255
    ROWS_MAX = 0x7FFF0000


cdef class DeviceKeys:
    cdef Py_ssize_t count, room       # rows
    cdef Py_ssize_t used, text_room   # bytes of names
    cdef Py_ssize_t slot_count        # a power of two
    cdef uint8_t *text                # of each row its length and its name
    cdef uint64_t *begins
    cdef int32_t *hosts
    cdef int32_t *slots               # a row, or -1
    cdef uint64_t seed

    def __cinit__(self):
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.slot_count = FIRST
        self.slots = <int32_t *>_more(NULL, 4 * FIRST)
        memset(self.slots, 0xFF, 4 * FIRST)

    def __dealloc__(self):
        PyMem_Free(self.text)
        PyMem_Free(self.begins)
        PyMem_Free(self.hosts)
        PyMem_Free(self.slots)

    def __len__(self):
        return self.count

    def find(self, int32_t host, str name not None):
        cdef Py_ssize_t size = 0
        cdef const char *text = PyUnicode_AsUTF8AndSize(name, &size)
        return self.slots[self._slot(host, <const uint8_t *>text, size)]

    def add(self, int32_t host, str name not None):
        cdef Py_ssize_t size = 0, slot
        cdef const char *text = PyUnicode_AsUTF8AndSize(name, &size)
        if size > NAME_BYTES_MAX or self.count >= ROWS_MAX:
            raise ValueError(f"a name of {size} bytes, or {self.count} devices: at most {NAME_BYTES_MAX}, {ROWS_MAX}")
        slot = self._slot(host, <const uint8_t *>text, size)
        if self.slots[slot] >= 0:
            raise ValueError(f"device {name} of host {host} has row {self.slots[slot]}")
        self._fit(size)
        if 3 * (self.count + 1) > 2 * self.slot_count:
            self._spread()
            slot = self._slot(host, <const uint8_t *>text, size)
        self.begins[self.count], self.hosts[self.count] = self.used, host
        self.text[self.used] = <uint8_t>size
        memcpy(self.text + self.used + 1, text, size)
        self.used += 1 + size
        self.slots[slot] = <int32_t>self.count
        self.count += 1
        return self.count - 1

    def host(self, Py_ssize_t row):
        self._check(row)
        return self.hosts[row]

    def name(self, Py_ssize_t row):
        self._check(row)
        cdef const uint8_t *at = self.text + self.begins[row]
        return (<const char *>at)[1 : 1 + at[0]].decode()

    cdef int _check(self, Py_ssize_t row) except -1:
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of {self.count}")
        return 0

    cdef Py_ssize_t _slot(self, int32_t host, const uint8_t *name, Py_ssize_t size) noexcept nogil:
        """Return where the device's row stands, or where it would."""
        cdef Py_ssize_t at = _hash(self.seed, host, name, size) & (self.slot_count - 1)
        cdef int32_t row = self.slots[at]
        while row >= 0:
            if (self.hosts[row] == host and self.text[self.begins[row]] == size
                    and not memcmp(self.text + self.begins[row] + 1, name, size)):
                return at
            at = (at + 1) & (self.slot_count - 1)
            row = self.slots[at]
        return at

    cdef int _fit(self, Py_ssize_t size) except -1:
        """Make room for one more."""
        cdef Py_ssize_t more
        if self.count == self.room:
            more = max(<Py_ssize_t>FIRST, self.room + self.room // 4)
            self.begins = <uint64_t *>_more(self.begins, 8 * more)
            self.hosts = <int32_t *>_more(self.hosts, 4 * more)
            self.room = more
        if self.used + 1 + size > self.text_room:
            more = self.text_room + self.text_room // 4 + 1 + NAME_BYTES_MAX
            self.text = <uint8_t *>_more(self.text, more)
            self.text_room = more
        return 0

    cdef int _spread(self) except -1:
        """Double the slots."""
        cdef Py_ssize_t row, at
        cdef const uint8_t *name
        self.slots = <int32_t *>_more(self.slots, 8 * self.slot_count)
        self.slot_count *= 2
        memset(self.slots, 0xFF, 4 * self.slot_count)
        for row in range(self.count):
            name = self.text + self.begins[row]
            at = _hash(self.seed, self.hosts[row], name + 1, name[0]) & (self.slot_count - 1)
            while self.slots[at] >= 0:
                at = (at + 1) & (self.slot_count - 1)
            self.slots[at] = <int32_t>row
        return 0


cdef void *_more(void *before, Py_ssize_t size) except NULL:
    cdef void *found = PyMem_Realloc(before, size)
    if found == NULL:
        raise MemoryError()
    return found


cdef uint32_t _hash(uint64_t seed, int32_t host, const uint8_t *name, Py_ssize_t size) noexcept nogil:
    """FNV-1a of 64 bits, its halves folded. Seeded: names are the agents' to choose."""
    cdef uint64_t found = seed ^ <uint64_t><uint32_t>host
    cdef Py_ssize_t i
    found *= 1099511628211u
    for i in range(size):
        found = (found ^ name[i]) * 1099511628211u
    return <uint32_t>(found ^ found >> 32)
