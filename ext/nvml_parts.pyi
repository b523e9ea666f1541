"""The parts of a GPU by NVML's C ABI: NVLink and C2C fields, MIG, processes, fabric, the event set.

GPUs are known by their PCI address, as `nvml.Device` has it. No call holds the GIL while it is in the driver.
Where a driver or GPU does not have something, its value is None; other answers raise `nvml.NvmlError`.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from typing_extensions import Buffer

from .nvml import Nvml

#: Counts beyond these are not believed.
LINKS_MAX: Final[int]
MIG_DEVICES_MAX: Final[int]
PROCESSES_MAX: Final[int]
#: Every NVML function that is looked up; a driver may lack any.
SYMBOLS: Final[tuple[str, ...]]
#: How a field is written: an unsigned integer times its multiplier, the same as a double, or an encoded BER.
INTEGER: Final[int]
FLOAT: Final[int]
BIT_ERROR_RATIO: Final[int]
#: Bits of `Process.kinds`.
COMPUTE: Final[int]
GRAPHICS: Final[int]
MPS: Final[int]

class MigDevice(NamedTuple):
    """A MIG device: one compute instance of one GPU instance."""

    uuid: str
    gpu_instance: int | None
    compute_instance: int | None
    profile: int | None
    placement_start: int | None
    """First memory slice that the GPU instance occupies."""
    placement_slices: int | None
    gpu_slices: int | None
    compute_slices: int | None
    multiprocessors: int | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    sram_uncorrected_errors: int | None
    refused: bool
    """Whether some of it was not ours to see (NVML_ERROR_NO_PERMISSION)."""

class Process(NamedTuple):
    """A process in one of a GPU's three lists. The same process may stand in several."""

    pid: int
    memory_bytes: int | None
    gpu_instance: int | None
    """None also where the GPU has no MIG."""
    compute_instance: int | None
    kinds: int

class Fabric(NamedTuple):
    """What a GPU says of the NVLink fabric that it is part of."""

    cluster_uuid: bytes
    state: int
    """NVML_GPU_FABRIC_STATE_*: 0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: int
    """An nvmlReturn_t; means something in state 3 only."""
    clique: int
    health_mask: int | None
    """None where the driver has no versioned call."""
    health_summary: int | None
    """NVML_GPU_FABRIC_HEALTH_SUMMARY_*, of drivers that have version 3 of that call."""

class Event(NamedTuple):
    """An NVML event; `data` is the XID of an XID event."""

    address: str
    type: int
    data: int
    gpu_instance: int | None
    compute_instance: int | None

def bit_error_ratio(code: int) -> float | None:
    """Return what an encoded BER means: bits 8-11 times ten to the minus bits 0-7 (nvml.h,
    NVML_NVLINK_ERROR_COUNTER_BER_GET). None for a code with other bits, or a ratio above 1."""

class Parts:
    """Some GPUs of an initialised library. For one thread. A call over the GPU's cap raises NvmlError (LEFT_OUT)."""

    missing_symbols: frozenset[str]

    def __init__(self, nvml: Nvml) -> None: ...
    def open(self, address: str) -> None:
        """Attach a GPU; the other methods raise KeyError for one that is not. Raises NvmlError."""

    def nvlink_count(self, address: str) -> int:
        """Return how many NVLinks the GPU has, whether they are up or not; at most LINKS_MAX."""

    def nvlink_state(self, address: str, link: int) -> int | None:
        """Return 1 active, 0 inactive."""

    def c2c_count(self, address: str) -> int: ...
    def mig_mode(self, address: str) -> tuple[int, int] | None:
        """Return (current, pending) mode: 1 on, 0 off."""

    def mig_devices_max(self, address: str) -> int | None: ...
    def mig_devices(self, address: str, most: int) -> list[MigDevice]:
        """Return the MIG devices that there are now, of at most this many. A dozen calls each: not for every second."""

    def fabric(self, address: str) -> Fabric | None: ...

class ProcessLists:
    """Who is on some GPUs: asked in one pass, and made into objects only where it is not as it was."""

    def __init__(self, parts: Parts, addresses: Iterable[str]) -> None:
        """*addresses*: of GPUs that *parts* has open. KeyError for another."""

    def run(self) -> bool:
        """Ask each GPU for its lists; return whether all have answered, and say what they said before."""

    def of(self, address: str) -> list[Process]:
        """Return what a GPU said: the compute, graphics and MPS lists one after the other, each of at most
        PROCESSES_MAX. Raises the error with which it answered."""

class FieldPass:
    """Fields of many links, each into its own cell. What a link does not have is asked for rarely."""

    codes: dict[str, int]
    """Of the last pass: the nvmlReturn_t of each GPU whose fields could not be had."""

    def __init__(self, parts: Parts) -> None: ...
    def ask(
        self,
        address: str,
        field: int,
        scope: int,
        cells: Buffer,
        valid: Buffer,
        cell: int,
        form: int = ...,
        multiplier: int = 1,
        raw_max: int = 0,
    ) -> None:
        """Add a field of one link (*scope*). Of several asks for one cell the first that has a value fills it.

        A raw value above *raw_max* (0: what the multiplier leaves of 64 bits) is missing. The memory stays
        where it is as long as this lives. Raises ValueError for a cell outside its memory.
        """

    def run(self) -> None:
        """Fill all cells. A GPU that answers with an error, or is lost, is missing cells and a row of `codes`."""

class EventSet:
    """NVML's events of some GPUs."""

    def __init__(self, parts: Parts) -> None:
        """Raises NvmlError, also where the driver has no events."""

    def register(self, address: str, wanted: int) -> int:
        """Register those of the *wanted* event types that the GPU supports; return them, 0 for none."""

    def wait(self, milliseconds: int) -> Event | None:
        """Return the next event; None when none came in time. Raises NvmlError."""

    def close(self) -> None: ...

#: Of a system event: the driver is being taken off a GPU, or has been put onto it.
UNBIND: Final[int]
BIND: Final[int]

class SystemEvent(NamedTuple):
    """What became of the driver of a GPU."""

    type: int
    address: str
    """PCI address, of a number in which NVML packs domain, bus and device."""

class SystemEventSet:
    """The driver's coming and continuing the GPUs."""

    def __init__(self, parts: Parts) -> None:
        """Raises NvmlError, also where the driver has no such events."""

    def look(self) -> list[SystemEvent]:
        """Return what has come, without waiting; of more than 16 the rest the next time. Raises NvmlError."""

    def close(self) -> None: ...

def abi() -> dict[str, int]:
    """Return sizes, offsets and version words as this module was compiled with; keys are C expressions."""
