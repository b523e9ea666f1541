# cython: language_level=3
"""Publishes in shared memory where this process is in a driver, so that another can watch it. See place_abi.pxd."""

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memset

from place_abi cimport *

from typing import NamedTuple

cdef Place _own  # until `use` names other memory
cdef Place *_here = &_own
cdef object _kept = None  # what _here stands in

memset(&_own, 0, sizeof(Place))

SIZE_BYTES = sizeof(Place)
#: Address of the pointer to this process's place, for other Cython modules: `(<Place **><uintptr_t>POINTER)[0]`.
POINTER = <uintptr_t>&_here


class Seen(NamedTuple):
    """What a place shows. `entered_ns` is CLOCK_BOOTTIME as the call began; 0: in no call, and of no device."""

    entered_ns: int
    calls: int
    collector: str
    device: str
    call: str


def use(unsigned char[::1] memory not None):
    """Tell it in *memory* from now on. ValueError unless that has SIZE_BYTES."""
    global _here, _kept
    if memory.shape[0] != sizeof(Place):
        raise ValueError(f"a place has {sizeof(Place)} bytes, got {memory.shape[0]}")
    memset(&memory[0], 0, sizeof(Place))
    _kept = memory
    _here = <Place *>&memory[0]


def collector(bytes name not None):
    """Note whose turn it is, and that it is in no call: one before it that raised in a call has returned from it."""
    place_leave(_here)
    place_copy(_here.collector, name, PLACE_COLLECTOR_BYTES)


def enter(bytes device not None, bytes call not None):
    """Note that a call on a device begins; what is too long is cut."""
    place_enter(_here, device, call)


def leave():
    """Note that the call has returned."""
    place_leave(_here)


def call(unsigned char[::1] memory not None):
    """Have the process that tells it in *memory* look at what was sent to it."""
    if memory.shape[0] != sizeof(Place):
        raise ValueError(f"a place has {sizeof(Place)} bytes, got {memory.shape[0]}")
    place_call(<Place *>&memory[0])


def called():
    """Return whether somebody has called this process since it was last asked."""
    return bool(place_is_called(_here) and place_hear(_here))


def read(const unsigned char[::1] memory not None):
    """Return what a place shows; text that is no UTF-8 comes as escapes."""
    cdef Place seen
    if memory.shape[0] != sizeof(Place):
        raise ValueError(f"a place has {sizeof(Place)} bytes, got {memory.shape[0]}")
    if not place_copy_call(&seen, <const Place *>&memory[0]):  # as a rule: what is far from here is another process's
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
    """Return what this process's place shows."""
    return read(<unsigned char[:sizeof(Place)]><unsigned char *>_here)
