"""Where this process is in a driver, told in memory that another process may watch."""

from typing import NamedTuple

#: Of one place.
SIZE_BYTES: int
#: Address of the pointer to this process's place, for other Cython modules.
POINTER: int

class Seen(NamedTuple):
    """What a place shows. `entered_ns` is CLOCK_BOOTTIME as the call began; 0: in no call."""

    entered_ns: int
    calls: int
    collector: str
    device: str
    call: str

def use(memory: memoryview | bytearray) -> None:
    """Tell it in *memory* from now on. ValueError unless that has SIZE_BYTES."""

def collector(name: bytes) -> None:
    """Note whose turn it is."""

def enter(device: bytes, call: bytes) -> None:
    """Note that a call on a device begins; what is too long is cut."""

def leave() -> None:
    """Note that the call has returned."""

def read(memory: memoryview | bytearray | bytes) -> Seen:
    """Return what a place shows; text that is no UTF-8 comes as escapes."""

def here() -> Seen:
    """Return what this process's place shows."""
