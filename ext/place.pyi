"""Publishes in shared memory where this process is in a driver, so that another can watch it."""

from typing import NamedTuple

#: Of one place.
SIZE_BYTES: int
#: Address of the pointer to this process's place, for other Cython modules.
POINTER: int

class Seen(NamedTuple):
    """What a place shows. `entered_ns` is CLOCK_BOOTTIME as the call began; 0: in no call, and of no device."""

    entered_ns: int
    calls: int
    collector: str
    device: str
    call: str

def use(memory: memoryview | bytearray) -> None:
    """Tell it in *memory* from now on. ValueError unless that has SIZE_BYTES."""

def collector(name: bytes) -> None:
    """Note whose turn it is, and that it is in no call: one before it that raised in a call has returned from it."""

def enter(device: bytes, call: bytes) -> None:
    """Note that a call on a device begins; what is too long is cut."""

def leave() -> None:
    """Note that the call has returned."""

def call(memory: memoryview | bytearray) -> None:
    """Have the process that tells it in *memory* look at what was sent to it."""

def called() -> bool:
    """Return whether somebody has called this process since it was last asked."""

def read(memory: memoryview | bytearray | bytes) -> Seen:
    """Return what a place shows; text that is no UTF-8 comes as escapes."""

def here() -> Seen:
    """Return what this process's place shows."""
