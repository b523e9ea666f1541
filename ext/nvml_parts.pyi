"""The parts of a GPU by NVML's C ABI: NVLink and C2C fields, MIG, processes, fabric, the event set.

GPUs are identified by the PCI address of `nvml.Device`. No call holds the GIL while it is in the
driver. A value is None if the driver or GPU lacks it; other errors raise `nvml.NvmlError`.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from typing_extensions import Buffer

from .nvml import Nvml

#: Counts are cut to these.
LINKS_MAX: Final[int]
MIG_DEVICES_MAX: Final[int]
PROCESSES_MAX: Final[int]
#: Every NVML function that is looked up; a driver may lack any.
SYMBOLS: Final[tuple[str, ...]]
#: Encodings of a field: an integer times its multiplier, the same as a double, or an encoded BER.
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
    """Whether a part was not permitted (NVML_ERROR_NO_PERMISSION)."""

class Process(NamedTuple):
    """A process in one of a GPU's three lists. It may be in several."""

    pid: int
    memory_bytes: int | None
    gpu_instance: int | None
    """None also without MIG."""
    compute_instance: int | None
    kinds: int

class Fabric(NamedTuple):
    """State of the NVLink fabric that a GPU belongs to."""

    cluster_uuid: bytes
    state: int
    """NVML_GPU_FABRIC_STATE_*: 0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: int
    """An nvmlReturn_t; meaningful only in state 3."""
    clique: int
    health_mask: int | None
    """None if the driver has no versioned call."""
    health_summary: int | None
    """NVML_GPU_FABRIC_HEALTH_SUMMARY_*; only with version 3 of that call."""

class Event(NamedTuple):
    """An NVML event; `data` is the XID of an XID event."""

    address: str
    type: int
    data: int
    gpu_instance: int | None
    compute_instance: int | None

def bit_error_ratio(code: int) -> float | None:
    """Return an encoded BER: bits 8-11 times ten to the minus bits 0-7.

    See nvml.h, NVML_NVLINK_ERROR_COUNTER_BER_GET. None for a code with other bits, or a ratio over
    1.
    """

class Parts:
    """GPUs of an initialized library, for a single thread. Calls over the limit raise NvmlError."""

    missing_symbols: frozenset[str]

    def __init__(self, nvml: Nvml) -> None: ...
    def open(self, address: str) -> None:
        """Attach a GPU; for other GPUs the other methods raise KeyError. Raises NvmlError."""

    def nvlink_count(self, address: str) -> int:
        """Return the number of the GPU's NVLinks, up or down; at most LINKS_MAX."""

    def nvlink_state(self, address: str, link: int) -> int | None:
        """Return 1 active, 0 inactive; None if the driver lacks it."""

    def c2c_count(self, address: str) -> int: ...
    def mig_mode(self, address: str) -> tuple[int, int] | None:
        """Return the (current, pending) mode: 1 on, 0 off."""

    def mig_devices_max(self, address: str) -> int | None: ...
    def mig_devices(self, address: str, most: int) -> list[MigDevice]:
        """Return up to *most* MIG devices. Makes a dozen calls each: not for every second."""

    def fabric(self, address: str) -> Fabric | None: ...

class ProcessLists:
    """Processes on some GPUs, read in one pass; objects are created only after a change."""

    def __init__(self, parts: Parts, addresses: Iterable[str]) -> None:
        """*addresses*: GPUs that *parts* has open, else KeyError."""

    def run(self) -> bool:
        """Read each GPU's lists; return whether all calls succeeded and nothing changed."""

    def of(self, address: str) -> list[Process]:
        """Return a GPU's compute, graphics and MPS lists in turn, each of at most PROCESSES_MAX.

        Raises the error of the GPU's call.
        """

class FieldPass:
    """Fields of many links, each into its own cell. Fields that a link lacks are read rarely."""

    codes: dict[str, int]
    """The nvmlReturn_t of each GPU whose fields failed in the last pass."""

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
        """Add a field of a link (*scope*). Of several fields for a cell the first value fills it.

        A raw value above *raw_max* (0: 64 bits divided by the multiplier) is missing. The memory
        must stay in place while this lives. Raises ValueError for a cell outside its memory.
        """

    def run(self) -> None:
        """Fill all cells. After a GPU's error its cells are missing, and `codes` has the error."""

class EventSet:
    """NVML events of some GPUs."""

    def __init__(self, parts: Parts) -> None:
        """Raises NvmlError, also if the driver has no events."""

    def register(self, address: str, wanted: int) -> int:
        """Register the *wanted* event types that the GPU supports; return them, 0 for none."""

    def wait(self, milliseconds: int) -> Event | None:
        """Return the next event; None after the timeout. Raises NvmlError."""

    def close(self) -> None: ...

#: Types of a system event: the driver is being unbound from a GPU, or was bound to it.
UNBIND: Final[int]
BIND: Final[int]

class SystemEvent(NamedTuple):
    """A change of a GPU's driver."""

    type: int
    address: str
    """PCI address, from the number in which NVML packs domain, bus and device."""

class SystemEventSet:
    """Events of drivers being unbound from GPUs or bound to them."""

    def __init__(self, parts: Parts) -> None:
        """Raises NvmlError, also if the driver has no such events."""

    def look(self) -> list[SystemEvent]:
        """Return received events without waiting, up to 16 per call. Raises NvmlError."""

    def close(self) -> None: ...

def abi() -> dict[str, int]:
    """Return sizes, offsets and version words of this module's ABI; keys are C expressions."""
