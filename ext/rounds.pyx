# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False
"""Encodes rounds of turns as bytes, and decodes them, with few allocations.

A message is its length and its kind, then its body. A round's body is a RoundHead, the slow
devices' names, and per turn a TurnHead, its message and its blocks. A block is the length of its
shape (0: unchanged), the shape, its cells and its valid bytes. agent/sampler/messages.py defines
the bytes of shapes and names, and the other messages. Both sides run this code on the same machine,
so numbers are in C's native form.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport INFINITY
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

cdef enum:
    HEAD = 5  # bytes before a body: its size in 32 bits, its kind in 8
    BLOCKS_MAX = 255  # per turn
    WORDS_MAX = 4096  # bytes of a turn's message; see `collector.MESSAGE_CHARACTERS_MAX`
    TURNS_MAX = 65535
    ROOM = 1 << 14  # initial size of a buffer

#: Kind of a message that is a round.
ROUND_KIND = 1
#: Size of a message: 4,096 rows of 200 signals with names are far below it.
MESSAGE_BYTES_MAX = 16 << 20
cdef Py_ssize_t BYTES_MAX = MESSAGE_BYTES_MAX
#: The usual value of *slow*.
NOBODY = frozenset()

ctypedef struct RoundHead:
    uint64_t grid_ns
    double cpu_seconds
    uint64_t memory_bytes
    uint64_t dropped
    uint32_t slow_bytes
    uint32_t turns

ctypedef struct TurnHead:
    uint64_t began_ns
    double seconds
    uint16_t collector
    uint16_t words_bytes
    uint8_t outcome
    uint8_t blocks


class CodecError(ValueError):
    """A message is malformed or too long."""


@cython.no_gc  # a block never refers back here; a collection would drop unreleased buffers
cdef class _Known:
    """A block whose shape both sides know. It holds the block's buffers in place."""

    cdef object block
    cdef Py_buffer cells, valid

    def __cinit__(self, block, int flags):
        self.block = block
        PyObject_GetBuffer(block.cells, &self.cells, flags)
        PyObject_GetBuffer(block.valid, &self.valid, flags)

    def __dealloc__(self):
        PyBuffer_Release(&self.cells)
        PyBuffer_Release(&self.valid)


cdef class Writer:
    cdef dict index
    cdef object shape_bytes, names_bytes
    cdef list known  # per collector: its blocks as last written
    cdef bytearray out
    cdef Py_ssize_t end

    def __init__(self, collectors, shape_bytes, names_bytes):
        self.index = {name: at for at, name in enumerate(collectors)}
        self.shape_bytes, self.names_bytes = shape_bytes, names_bytes
        self.out = bytearray(ROOM)
        self.forget()

    def forget(self):
        self.known = [[] for _ in self.index]

    def encode(self, grid_ns, cpu_seconds, memory_bytes, dropped, turns, slow):
        cdef RoundHead head
        try:
            head.grid_ns, head.cpu_seconds, head.memory_bytes, head.dropped = grid_ns, cpu_seconds, memory_bytes, dropped
            return self.put_round(&head, turns, self.names_bytes(slow) if slow else b"")
        except OverflowError as error:
            raise CodecError(str(error)) from error

    cdef bytes put_round(self, RoundHead *head, turns, bytes slow):
        head.slow_bytes, head.turns = <uint32_t>_limited(len(slow), BYTES_MAX), <uint32_t>_limited(len(turns), TURNS_MAX)
        self.end = HEAD
        self.put(head, sizeof(RoundHead))
        self.put(PyBytes_AS_STRING(slow), len(slow))
        for timed in turns:
            self.put_turn(_fields(timed, 2))
        cdef char *data = PyByteArray_AS_STRING(self.out)
        cdef uint32_t size = <uint32_t>(self.end - HEAD)
        memcpy(data, &size, 4)
        data[4] = ROUND_KIND
        return PyBytes_FromStringAndSize(data, self.end)

    cdef int put_turn(self, tuple timed) except -1:
        cdef TurnHead head
        cdef Py_ssize_t number = 0
        cdef tuple turn = _fields(timed[1], 5)
        name, blocks, words = turn[0], turn[1], turn[4]
        cdef bytes said = words.encode("utf-8", "replace")[:WORDS_MAX] if words else b""
        head.began_ns, head.collector, head.seconds, head.outcome = timed[0], self.index[name], turn[2], turn[3]
        head.words_bytes, head.blocks = <uint16_t>len(said), <uint8_t>_limited(len(blocks), BLOCKS_MAX)
        self.put(&head, sizeof(head))
        self.put(PyBytes_AS_STRING(said), len(said))
        cdef list known = <list>self.known[head.collector]
        for block in blocks:
            self.put_block(known, number, block)
            number += 1
        return 0

    cdef int put_block(self, list known, Py_ssize_t number, block) except -1:
        cdef uint32_t shape_bytes = 0
        if number < len(known) and (<_Known>known[number]).block is block:
            self.put(&shape_bytes, 4)
        else:
            self.put_shape(block)
            known[number:number + 1] = [_Known(block, PyBUF_SIMPLE)]
        cdef _Known here = <_Known>known[number]
        self.put(here.cells.buf, here.cells.len)
        self.put(here.valid.buf, here.valid.len)
        return 0

    cdef int put_shape(self, block) except -1:
        cdef bytes shape = self.shape_bytes(block)
        cdef uint32_t shape_bytes = <uint32_t>_limited(len(shape), BYTES_MAX)
        self.put(&shape_bytes, 4)
        self.put(PyBytes_AS_STRING(shape), len(shape))
        return 0

    cdef int put(self, const void *data, Py_ssize_t count) except -1:
        if self.end + count > HEAD + BYTES_MAX:
            raise CodecError(f"a message of {self.end + count - HEAD} bytes or more; at most {MESSAGE_BYTES_MAX}")
        if count > len(self.out) - self.end:
            PyByteArray_Resize(self.out, 2 * (self.end + count))
        memcpy(PyByteArray_AS_STRING(self.out) + self.end, data, count)
        self.end += count
        return 0


cdef class Reader:
    cdef tuple names, outcomes
    cdef type round, timed, turn
    cdef object shaped, names_of, others
    cdef list known  # per collector: the blocks that its turns fill
    cdef list told  # per collector: these blocks as of the last turn
    cdef bytearray data
    cdef Py_ssize_t at, stop, end  # next byte, end of the message, end of the received bytes
    cdef Py_ssize_t lent  # exported buffers; the memory cannot move meanwhile

    def __init__(self, collectors, outcomes, shapes, shaped, names_of, others):
        self.names, self.outcomes = tuple(collectors), tuple(outcomes)
        self.round, self.timed, self.turn = shapes
        self.shaped, self.names_of, self.others = shaped, names_of, others
        self.known = [[] for _ in self.names]
        self.told = [()] * len(self.names)
        self.data = bytearray()

    def __getbuffer__(self, Py_buffer *room, int flags):
        self.make_room()
        cdef char *free = PyByteArray_AS_STRING(self.data) + self.end
        PyBuffer_FillInfo(room, self, free, len(self.data) - self.end, 0, flags)
        self.lent += 1

    def __releasebuffer__(self, Py_buffer *_):
        self.lent -= 1

    cdef int make_room(self) except -1:
        """Move the waiting bytes to the front, and make space behind them."""
        if self.lent:
            raise BufferError("the room is lent already")
        cdef Py_ssize_t waiting = self.end - self.at
        if self.at:
            memmove(PyByteArray_AS_STRING(self.data), PyByteArray_AS_STRING(self.data) + self.at, waiting)
            self.at, self.end = 0, waiting
        if len(self.data) - waiting < ROOM:
            PyByteArray_Resize(self.data, 2 * waiting + ROOM)
        return 0

    def came(self, Py_ssize_t count):
        if not 0 <= count <= len(self.data) - self.end:
            raise ValueError(f"{count} bytes came, there was room for {len(self.data) - self.end}")
        self.end += count
        return self.end == len(self.data)

    @property
    def waiting(self):
        return self.end - self.at >= HEAD and self.end - self.at - HEAD >= <Py_ssize_t>self.body_bytes()

    cdef uint32_t body_bytes(self) noexcept:
        cdef uint32_t size
        memcpy(&size, PyByteArray_AS_STRING(self.data) + self.at, 4)
        return size

    def next(self):
        if self.end - self.at < HEAD:
            return None
        cdef Py_ssize_t size = self.body_bytes()
        if size > BYTES_MAX:
            raise CodecError(f"a message of {size} bytes; at most {MESSAGE_BYTES_MAX}")
        if size > self.end - self.at - HEAD:
            return None
        cdef uint8_t kind = <uint8_t>PyByteArray_AS_STRING(self.data)[self.at + 4]
        self.at += HEAD
        self.stop = self.at + size
        try:
            return self.read_round() if kind == ROUND_KIND else self.others(kind, self.take_bytes(size))
        finally:
            self.at = self.stop

    cdef object read_round(self):
        cdef RoundHead head
        memcpy(&head, self.take(sizeof(head)), sizeof(head))
        if not 0.0 <= head.cpu_seconds < INFINITY:
            raise CodecError(f"a process of {head.cpu_seconds} CPU seconds")
        slow = self.names_of(self.take_bytes(head.slow_bytes)) if head.slow_bytes else NOBODY
        turns = [self.read_turn() for _ in range(head.turns)]
        if self.at != self.stop:
            raise CodecError(f"{self.stop - self.at} bytes too many")
        return _named(self.round, (head.grid_ns, head.cpu_seconds, head.memory_bytes, head.dropped, turns, slow))

    cdef object read_turn(self):
        cdef TurnHead head
        memcpy(&head, self.take(sizeof(head)), sizeof(head))
        if head.collector >= len(self.names) or head.outcome >= len(self.outcomes):
            raise CodecError(f"no collector {head.collector}, or no outcome {head.outcome}")
        if not 0.0 <= head.seconds < INFINITY:
            raise CodecError(f"a turn of {head.seconds} seconds")
        words = self.take_words(head.words_bytes) if head.words_bytes else ""
        blocks = self.read_blocks(head.collector, head.blocks) if head.blocks else ()
        told = (self.names[head.collector], blocks, head.seconds, self.outcomes[head.outcome], words)
        return _named(self.timed, (head.began_ns, _named(self.turn, told)))

    cdef tuple read_blocks(self, Py_ssize_t collector, Py_ssize_t count):
        cdef list known = <list>self.known[collector]
        cdef Py_ssize_t number
        cdef uint32_t shape_bytes
        for number in range(count):
            memcpy(&shape_bytes, self.take(4), 4)
            if shape_bytes:
                known[number:number + 1] = [self.read_shape(shape_bytes)]
                self.told[collector] = ()
            elif number >= len(known):
                raise CodecError(f"cells of a table without rows and columns: {self.names[collector]}, block {number}")
            self.fill(<_Known>known[number])
        if len(<tuple>self.told[collector]) != count:
            self.told[collector] = tuple([(<_Known>each).block for each in known[:count]])
        return <tuple>self.told[collector]

    cdef _Known read_shape(self, uint32_t shape_bytes):
        shape = self.take_bytes(shape_bytes)
        return _Known(self.shaped(shape, self.stop - self.at), PyBUF_WRITABLE)

    cdef int fill(self, _Known known) except -1:
        memcpy(known.cells.buf, self.take(known.cells.len), known.cells.len)
        memcpy(known.valid.buf, self.take(known.valid.len), known.valid.len)
        return 0

    cdef bytes take_bytes(self, Py_ssize_t count):
        return PyBytes_FromStringAndSize(<const char *>self.take(count), count)

    cdef str take_words(self, Py_ssize_t count):
        return PyUnicode_DecodeUTF8(<const char *>self.take(count), count, "replace")

    cdef const uint8_t *take(self, Py_ssize_t count) except NULL:
        """Return the next *count* bytes of this message. Raises CodecError if it has fewer."""
        if count > self.stop - self.at:
            raise CodecError(f"{count} bytes expected, {self.stop - self.at} are left")
        self.at += count
        return <const uint8_t *>PyByteArray_AS_STRING(self.data) + self.at - count


cdef tuple _fields(named, Py_ssize_t count):
    """Return a named tuple as a plain tuple. Raises TypeError unless it has *count* fields."""
    if not isinstance(named, tuple) or len(<tuple>named) != count:
        raise TypeError(f"expected a tuple of {count}, got {type(named).__name__}")
    return <tuple>named


cdef object _named(type kind, tuple fields):
    """Return the named tuple *kind* of these fields, as its `_make` does."""
    cdef tuple given = (fields,)
    return (<PyTypeObject *>tuple).tp_new(kind, <PyObject *>given, NULL)


cdef Py_ssize_t _limited(Py_ssize_t count, Py_ssize_t count_max) except -1:
    if count > count_max:
        raise CodecError(f"{count} is too many: at most {count_max}")
    return count
