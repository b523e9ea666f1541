# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Index of devices: (host, name) -> row, and back, in few bytes per device.

A dict of tuples takes 300 bytes per device, and a fleet has millions of devices: links, PCIe
functions. Names are stored one after another in a block of memory, without the prefix that they
share with an earlier name: the links of a GPU begin with its UUID. A hash table of rows, at most
three quarters full, finds them.

When a row is reused for another device of its host, the new name is appended; all names are
rewritten after too many renames.
"""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import os

cdef enum:
    FIRST = 64
    NAME_BYTES_MAX = 255
    ROWS_MAX = 0x7FFF0000
    #: Names per entry of `begins`.
    BLOCK = 8
    #: Bytes before a name: its size, the length of a shared prefix, and then the distance to it.
    HEAD = 2
    HEAD_SHARED = 4
    BACK_MAX = 0xFFFF
    #: Slot of a renamed row's old name.
    GONE = -2
    #: Renames before all names are rewritten, plus an eighth of the rows.
    RENAMED_MIN = 64


cdef class DeviceKeys:
    cdef Py_ssize_t count
    cdef int32_t[::1] hosts           # host per row, in the caller's array
    cdef Py_ssize_t used, text_room   # bytes of names
    cdef Py_ssize_t blocks_room
    cdef Py_ssize_t slot_count        # a power of two
    cdef uint8_t *text                # names of the rows
    cdef uint64_t *begins             # position in `text` of each BLOCK of names
    cdef uint64_t whole               # position of the last name without a shared prefix
    cdef int32_t *slots               # a row, -1 (empty) or GONE
    cdef uint64_t seed
    cdef uint64_t *renamed            # per row 1 + position in `others`, or 0; may be NULL
    cdef Py_ssize_t renamed_room, renamed_count
    cdef uint8_t *others
    cdef Py_ssize_t others_used, others_room

    def __cinit__(self):
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.slot_count = FIRST
        self.slots = <int32_t *>_more(NULL, 4 * FIRST)
        memset(self.slots, 0xFF, 4 * FIRST)

    def __dealloc__(self):
        PyMem_Free(self.text)
        PyMem_Free(self.begins)
        PyMem_Free(self.slots)
        PyMem_Free(self.renamed)
        PyMem_Free(self.others)

    def __len__(self):
        return self.count

    def bind(self, int32_t[::1] hosts not None):
        if hosts.shape[0] < self.count:
            raise ValueError(f"room for the hosts of {hosts.shape[0]} rows, there are {self.count}")
        self.hosts = hosts

    def find(self, int32_t host, str name not None):
        cdef Py_ssize_t size = 0
        cdef const char *text = PyUnicode_AsUTF8AndSize(name, &size)
        return self.slots[self._slot(host, <const uint8_t *>text, size)]

    def add(self, int32_t host, str name not None):
        cdef Py_ssize_t size = 0
        cdef const char *text = PyUnicode_AsUTF8AndSize(name, &size)
        if size > NAME_BYTES_MAX or self.count >= ROWS_MAX:
            raise ValueError(f"a name of {size} bytes, or {self.count} devices: at most {NAME_BYTES_MAX}, {ROWS_MAX}")
        if self.hosts is None or self.count >= self.hosts.shape[0]:
            raise ValueError(f"no room for the host of row {self.count}")
        cdef Py_ssize_t slot = self._slot(host, <const uint8_t *>text, size)
        if self.slots[slot] >= 0:
            raise ValueError(f"device {name} of host {host} has row {self.slots[slot]}")
        self._add(host, <const uint8_t *>text, size)
        return self.count - 1

    cdef int _add(self, int32_t host, const uint8_t *name, Py_ssize_t size) except -1:
        self._fit(size)
        if 4 * (self.count + self.renamed_count + 1) > 3 * self.slot_count:
            self._spread()
        if self.count % BLOCK == 0:
            self.begins[self.count // BLOCK] = self.used
        self.hosts[self.count] = host
        self.slots[self._slot(host, name, size)] = <int32_t>self.count
        self._put(name, size)
        self.count += 1
        return 0

    def rename(self, Py_ssize_t row, str name not None):
        cdef Py_ssize_t size = 0
        cdef const char *text = PyUnicode_AsUTF8AndSize(name, &size)
        cdef uint8_t[NAME_BYTES_MAX] before
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of {self.count}")
        if size > NAME_BYTES_MAX:
            raise ValueError(f"a name of {size} bytes: at most {NAME_BYTES_MAX}")
        if self.slots[self._slot(self.hosts[row], <const uint8_t *>text, size)] >= 0:
            raise ValueError(f"device {name} of host {self.hosts[row]} has a row")
        self._fit_renamed(size)
        if 4 * (self.count + self.renamed_count + 1) > 3 * self.slot_count:
            self._spread()
        self.slots[self._slot(self.hosts[row], before, _take(self._at(row), before))] = GONE
        self.slots[self._slot(self.hosts[row], <const uint8_t *>text, size)] = <int32_t>row
        self.others[self.others_used], self.others[self.others_used + 1] = <uint8_t>size, 0
        memcpy(self.others + self.others_used + HEAD, text, size)
        self.renamed[row] = self.others_used + 1
        self.others_used += HEAD + size
        self.renamed_count += 1
        if self.renamed_count > RENAMED_MIN + self.count // 8:
            self._write_anew()

    cdef int _fit_renamed(self, Py_ssize_t size) except -1:
        """Reserve memory for another new name."""
        cdef Py_ssize_t more
        if self.renamed_room < self.count:
            more = self.count + self.count // 4
            self.renamed = <uint64_t *>_more(self.renamed, 8 * more)
            memset(self.renamed + self.renamed_room, 0, 8 * (more - self.renamed_room))
            self.renamed_room = more
        if self.others_used + HEAD + size > self.others_room:
            more = self.others_room + self.others_room // 4 + HEAD + NAME_BYTES_MAX
            self.others = <uint8_t *>_more(self.others, more)
            self.others_room = more
        return 0

    cdef int _write_anew(self) except -1:
        """Rewrite the names of all rows, and the table of rows without GONE slots."""
        cdef uint8_t[NAME_BYTES_MAX] name
        cdef Py_ssize_t row, size
        cdef DeviceKeys anew = DeviceKeys()
        anew.hosts, anew.seed = self.hosts, self.seed
        for row in range(self.count):
            size = _take(self._at(row), name)
            anew._add(self.hosts[row], name, size)
        self.text, anew.text = anew.text, self.text
        self.begins, anew.begins = anew.begins, self.begins
        self.slots, anew.slots = anew.slots, self.slots
        self.renamed, anew.renamed = anew.renamed, self.renamed
        self.others, anew.others = anew.others, self.others
        self.used, self.text_room, self.blocks_room = anew.used, anew.text_room, anew.blocks_room
        self.slot_count, self.whole = anew.slot_count, anew.whole
        self.renamed_room = self.renamed_count = self.others_used = self.others_room = 0
        return 0

    def name(self, Py_ssize_t row):
        cdef uint8_t[NAME_BYTES_MAX] name
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of {self.count}")
        return PyUnicode_DecodeUTF8(<const char *>name, _take(self._at(row), name), NULL)

    cdef void _put(self, const uint8_t *name, Py_ssize_t size) noexcept nogil:
        """Append a name, without the prefix that it shares with the last whole name.

        Only if the prefix is more than half of the name: otherwise later names, which resemble this
        name more, would share little.
        """
        cdef uint64_t back = self.used - self.whole
        cdef uint8_t *to = self.text + self.used
        cdef const uint8_t *whole = self.text + self.whole
        cdef Py_ssize_t shared = 0
        cdef uint16_t distance = <uint16_t>back
        if self.count and back <= BACK_MAX:
            while shared < size and shared < whole[0] and whole[HEAD + shared] == name[shared]:
                shared += 1
        to[0] = <uint8_t>size
        if 2 * shared > size and shared > HEAD_SHARED - HEAD:
            to[1] = <uint8_t>shared
            memcpy(to + HEAD, &distance, 2)
            to += HEAD_SHARED
        else:
            to[1], shared, self.whole = 0, 0, self.used
            to += HEAD
        memcpy(to, name + shared, size - shared)
        self.used = to + size - shared - self.text

    cdef const uint8_t *_at(self, Py_ssize_t row) noexcept nogil:
        """Return the position of a row's name."""
        if row < self.renamed_room and self.renamed[row]:
            return self.others + self.renamed[row] - 1
        cdef const uint8_t *at = self.text + self.begins[row // BLOCK]
        for _ in range(row % BLOCK):
            at = _next(at)
        return at

    cdef Py_ssize_t _slot(self, int32_t host, const uint8_t *name, Py_ssize_t size) noexcept nogil:
        """Return the slot of the device's row, or the slot for a new row."""
        cdef Py_ssize_t at = _hash(self.seed, host, name, size) & (self.slot_count - 1)
        cdef int32_t row = self.slots[at]
        while row != -1:
            if row >= 0 and self.hosts[row] == host and _is(self._at(row), name, size):
                return at
            at = (at + 1) & (self.slot_count - 1)
            row = self.slots[at]
        return at

    cdef int _fit(self, Py_ssize_t size) except -1:
        """Reserve memory for another row."""
        cdef Py_ssize_t more
        if self.count == self.blocks_room * BLOCK:
            more = max(<Py_ssize_t>FIRST, self.blocks_room + self.blocks_room // 4)
            self.begins = <uint64_t *>_more(self.begins, 8 * more)
            self.blocks_room = more
        if self.used + HEAD_SHARED + size > self.text_room:
            more = self.text_room + self.text_room // 4 + HEAD_SHARED + NAME_BYTES_MAX
            self.text = <uint8_t *>_more(self.text, more)
            self.text_room = more
        return 0

    cdef int _spread(self) except -1:
        """Double the slots."""
        cdef uint8_t[NAME_BYTES_MAX] name
        cdef const uint8_t *text = self.text
        cdef Py_ssize_t row, at, size
        self.slots = <int32_t *>_more(self.slots, 8 * self.slot_count)
        self.slot_count *= 2
        memset(self.slots, 0xFF, 4 * self.slot_count)
        for row in range(self.count):
            size = _take(self._at(row) if self.renamed_count else text, name)
            text = _next(text)
            at = _hash(self.seed, self.hosts[row], name, size) & (self.slot_count - 1)
            while self.slots[at] >= 0:
                at = (at + 1) & (self.slot_count - 1)
            self.slots[at] = <int32_t>row
        return 0


cdef inline const uint8_t *_next(const uint8_t *at) noexcept nogil:
    """Return the position of the next name."""
    return at + at[0] - at[1] + (HEAD_SHARED if at[1] else HEAD)


cdef inline const uint8_t *_shared(const uint8_t *at) noexcept nogil:
    """Return the whole name that has the shared prefix of the name at *at*."""
    cdef uint16_t back
    memcpy(&back, at + HEAD, 2)
    return at - back + HEAD


cdef Py_ssize_t _take(const uint8_t *at, uint8_t *name) noexcept nogil:
    """Copy the name at *at* to *name*; return its size."""
    if at[1]:
        memcpy(name, _shared(at), at[1])
        memcpy(name + at[1], at + HEAD_SHARED, at[0] - at[1])
    else:
        memcpy(name, at + HEAD, at[0])
    return at[0]


cdef bint _is(const uint8_t *at, const uint8_t *name, Py_ssize_t size) noexcept nogil:
    """Return whether the name at *at* equals *name*."""
    if at[0] != size:
        return False
    if not at[1]:
        return not memcmp(at + HEAD, name, size)
    return not memcmp(at + HEAD_SHARED, name + at[1], size - at[1]) and not memcmp(_shared(at), name, at[1])


cdef void *_more(void *before, Py_ssize_t size) except NULL:
    cdef void *found = PyMem_Realloc(before, size)
    if found == NULL:
        raise MemoryError()
    return found


cdef uint32_t _hash(uint64_t seed, int32_t host, const uint8_t *name, Py_ssize_t size) noexcept nogil:
    """Return a 64-bit FNV-1a hash, folded to 32 bits. Seeded: agents choose the names."""
    cdef uint64_t found = seed ^ <uint64_t><uint32_t>host
    cdef Py_ssize_t i
    found *= 1099511628211u
    for i in range(size):
        found = (found ^ name[i]) * 1099511628211u
    return <uint32_t>(found ^ found >> 32)
