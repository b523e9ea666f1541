# cython: language_level=3
"""Publishes in shared memory which driver call this process is in. See place.pyi, place_abi.pxd."""

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memset

from place_abi cimport *

from collections import namedtuple

cdef Place _own  # used until `use` sets other memory
cdef Place *_here = &_own
cdef object _kept = None  # the owner of *_here

memset(&_own, 0, sizeof(Place))

SIZE_BYTES = sizeof(Place)
#: Address of the pointer to this process's place, for other Cython modules: `(<Place **><uintptr_t>POINTER)[0]`.
POINTER = <uintptr_t>&_here


Seen = namedtuple("Seen", ["entered_ns", "calls", "collector", "device", "call"])


def use(unsigned char[::1] memory not None):
    global _here, _kept
    if memory.shape[0] != sizeof(Place):
        raise ValueError(f"a place has {sizeof(Place)} bytes, got {memory.shape[0]}")
    memset(&memory[0], 0, sizeof(Place))
    _kept = memory
    _here = <Place *>&memory[0]


def collector(bytes name not None):
    place_leave(_here)
    place_copy(_here.collector, name, PLACE_COLLECTOR_BYTES)


def enter(bytes device not None, bytes call not None):
    place_enter(_here, device, call)


def leave():
    place_leave(_here)


def call(unsigned char[::1] memory not None):
    if memory.shape[0] != sizeof(Place):
        raise ValueError(f"a place has {sizeof(Place)} bytes, got {memory.shape[0]}")
    place_call(<Place *>&memory[0])


def called():
    return bool(place_is_called(_here) and place_hear(_here))


def read(const unsigned char[::1] memory not None):
    cdef Place seen
    if memory.shape[0] != sizeof(Place):
        raise ValueError(f"a place has {sizeof(Place)} bytes, got {memory.shape[0]}")
    if not place_copy_call(&seen, <const Place *>&memory[0]):  # in no call, which is usual
        memset(&seen, 0, sizeof(Place))
        memcpy(&seen.calls, &memory[sizeof(seen.entered_ns)], <uintptr_t>&seen.device - <uintptr_t>&seen.calls)
    seen.collector[sizeof(seen.collector) - 1] = 0
    seen.device[sizeof(seen.device) - 1] = 0
    seen.call[sizeof(seen.call) - 1] = 0
    words = (_text(seen.collector), _text(seen.device), _text(seen.call))
    return tuple.__new__(Seen, (seen.entered_ns, seen.calls, *words))


cdef str _text(const char *text):
    return (<bytes>text).decode("utf-8", "backslashreplace") if text[0] else ""


def here():
    return read(<unsigned char[:sizeof(Place)]><unsigned char *>_here)
