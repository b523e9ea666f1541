"""Publishes in shared memory which driver call this process is in, so that another can watch it."""

from typing import NamedTuple

#: Size of a place.
SIZE_BYTES: int
#: Address of the pointer to this process's place, for other Cython modules.
POINTER: int

class Seen(NamedTuple):
    """The content of a place. `entered_ns`: CLOCK_BOOTTIME of the call's start; 0: no call."""

    entered_ns: int
    calls: int
    collector: str
    device: str
    call: str

def use(memory: memoryview | bytearray) -> None:
    """Publish in *memory* from now on. Raises ValueError unless it has SIZE_BYTES."""

def collector(name: bytes) -> None:
    """Set the collector whose turn it is, and end a call that an exception left unfinished."""

def enter(device: bytes, call: bytes) -> None:
    """Record the start of a call on a device; long names are cut."""

def leave() -> None:
    """Record the end of the call."""

def call(memory: memoryview | bytearray) -> None:
    """Notify the process that publishes in *memory*: it then reads its messages."""

def called() -> bool:
    """Return whether this process was notified since the last call."""

def read(memory: memoryview | bytearray | bytes) -> Seen:
    """Return a place's content; bytes that are not UTF-8 are escaped."""

def here() -> Seen:
    """Return the content of this process's place."""
