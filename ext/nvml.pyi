"""NVML by its C ABI: the library found at run time, and a sweep over all GPUs without the GIL.

A device is known by its PCI address (`0000:3b:00.0`) and its UUID; an index is used to find it and never kept.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from typing_extensions import Buffer

#: A driver's count of GPUs beyond this is not believed.
GPUS_MAX: Final[int]
#: Every NVML function that is looked up; a driver may lack all but REQUIRED.
SYMBOLS: Final[tuple[str, ...]]
REQUIRED: Final[tuple[str, ...]]
#: Every reading a sweep can give, in base units, and the type of its cells.
READINGS: Final[Mapping[str, type[float | int]]]

class NvmlAbsent(Exception):
    """There is no NVML library here, or what is here is not one. The words say which."""

class NvmlError(Exception):
    """NVML answered with an error."""

    code: int
    """Its nvmlReturn_t, as in nvml.h: 4 no permission, 9 driver not loaded, 15 GPU is lost."""
    def __init__(self, words: str, code: int) -> None: ...

class Device(NamedTuple):
    """A GPU. What the driver does not tell is an empty text."""

    address: str
    """PCI address as the kernel writes it: `0000:3b:00.0`."""
    uuid: str
    name: str
    serial: str

class Nvml:
    """The library, loaded and initialised. No call holds the GIL while it is in the driver."""

    path: str
    missing_symbols: frozenset[str]
    """Those of SYMBOLS that this driver does not export."""
    initialised: bool
    """Until `close`. After it nothing that was looked up in the library may be called: it may be unloaded."""

    doing: str
    """For another thread: GPU and call that `devices`, `device` or `handle_address` is in; empty: none."""
    counted: int
    """How many GPUs `devices` was last told that there are: with those that did not answer."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        """*library*: a name for the loader, or a path. Attaches no GPU.

        Raises NvmlAbsent, or NvmlError when the driver is not loaded, not permitted, or of another version.
        """

    def driver_version(self) -> str:
        """Return the version of the kernel's driver (`590.48.01`), or an empty text."""

    def devices(self) -> list[Device]:
        """Attach and return every GPU that can be opened; the others are left out. Raises NvmlError."""

    def device(self, address: str) -> Device:
        """Attach and return the GPU at a PCI address. Raises NvmlError."""

    def symbol_address(self, name: str) -> int:
        """Return where any function of the library is, 0 where the driver does not export it; looked up
        once. For other extension modules, which cast it. Not to be called after `close`."""

    def handle_address(self, address: str) -> int:
        """Attach the GPU at a PCI address and return its nvmlDevice_t. Raises NvmlError."""

    def close(self) -> None:
        """Let go of every GPU that this object made NVML attach; then every method raises NvmlError.

        The process as a whole lets go once each `Nvml` is closed. Not while a sweep runs.
        """

class Sweep:
    """One pass over some GPUs into memory made before."""

    addresses: tuple[str, ...]
    calls: int
    """NVML calls made since this was made."""
    ended: int
    """Why the last pass was broken off: nvmlReturn_t 1 uninitialised, 9 driver not loaded, 18 library and driver
    of different versions; 0: it was not. NVML itself said so, not one GPU alone."""

    def __init__(
        self,
        nvml: Nvml,
        addresses: Iterable[str],
        targets: Mapping[str, tuple[Buffer, Buffer, int]],
        fields: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """*targets*: reading -> (cells, valid, column), as in `fingerprints.block.Block`: a row for each address.
        *fields*: reading -> (field id, scope id) as the driver at hand has them; all of a GPU's wanted ones are
        asked for in one call. A reading without a field comes from a call of its own, if it has one.

        Only the calls that the targets need are ever made. Opens no GPU. Raises KeyError for a reading that
        does not exist, ValueError for an address that is too long or a column outside its memory.
        """

    def run(self) -> None:
        """Fill all rows, without the GIL and without allocating. A GPU's error is missing cells of its row,
        counted in `calls_failed_errors`; a lost GPU is `lost_state` 1 and all else missing. Where NVML itself
        is gone (the driver was unloaded, or is being updated) everything is missing, and `ended` says so.

        Raises NvmlError after `close`, RuntimeError while another thread is still inside this sweep.
        """

    def stuck_at(self) -> tuple[int, str] | None:
        """Return (row, NVML function) of the call being made now, or None. For another thread's use."""

    def refusals(self) -> dict[str, str]:
        """Return address -> NVML function of what the last pass was not permitted to ask: blind, not broken."""

    def words(self) -> str:
        """Return the same in words: `GPU 0000:3b:00.0 in nvmlDeviceGetPowerUsage`."""

def abi() -> dict[str, int]:
    """Return sizes, offsets and version words as this module was compiled with; keys are C expressions."""
