"""NVML by its C ABI: loads the library at run time, and reads all GPUs without the GIL.

A device is identified by its PCI address (`0000:3b:00.0`) and UUID; an index only serves to find
it.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from typing_extensions import Buffer

#: A driver's count of GPUs is cut to this.
GPUS_MAX: Final[int]
#: Every NVML function that is looked up; a driver may lack any except REQUIRED.
SYMBOLS: Final[tuple[str, ...]]
REQUIRED: Final[tuple[str, ...]]
#: Every reading of a sweep, in base units -> the type of its cells.
READINGS: Final[Mapping[str, type[float | int]]]

#: Mask of `Rows` that uses all bits of the value.
ALL_BITS: Final[int]
#: Code of an NvmlError: the call was skipped, because of too many calls.
LEFT_OUT: Final[int]
#: Limits of calls on a GPU: on average, and at once. Further calls are skipped and counted.
CALLS_PER_SECOND_MAX: Final[int]
CALLS_AT_ONCE_MAX: Final[int]

class Account(NamedTuple):
    """Record of a GPU, shared by this process and those forked after this module was loaded."""

    address: str
    uuid: str
    calls: int
    left_out: int
    epoch: int
    lost: bool
    counts: tuple[int | None, ...]
    """Last counts of `Rows.fallen`, as raw 64 bits; None: unknown."""
    proofs: int
    """As set by `remember`."""

def account(address: str) -> Account:
    """Return the account of the GPU at *address*; "" is the driver. ValueError if too long."""

def accounts() -> list[Account]:
    """Return all accounts, the driver's first."""

def account_address(address: str) -> int:
    """Return the address of a GPU's `Account` (nvml_account.pxd), for other extension modules."""

def remember(
    address: str,
    uuid: str | None = None,
    epoch: int | None = None,
    lost: bool | None = None,
    proofs: int | None = None,
) -> None:
    """Store data of a GPU for the next process that samples it. Another UUID clears the other data.

    *proofs*: 32 bits.
    """

def cap(calls_per_second: int) -> None:
    """Limit the calls on each GPU; 0: no limit. The default is CALLS_PER_SECOND_MAX."""

def forget_accounts() -> None:
    """Reset all accounts."""

def is_loaded(library: str) -> bool:
    """Return whether this process has loaded *library*, by the loader's name or path."""

class NvmlAbsent(Exception):
    """There is no NVML library, or the file is not one; the message names it."""

class NvmlError(Exception):
    """NVML returned an error."""

    code: int
    """Its nvmlReturn_t, as in nvml.h: 4 no permission, 9 driver not loaded, 15 GPU is lost."""
    def __init__(self, words: str, code: int) -> None: ...

class Device(NamedTuple):
    """A GPU. Texts that the driver does not provide are empty."""

    address: str
    """PCI address as the kernel writes it: `0000:3b:00.0`."""
    uuid: str
    name: str
    serial: str

class Nvml:
    """The initialized library. No call holds the GIL while it is in the driver."""

    path: str
    missing_symbols: frozenset[str]
    """SYMBOLS that this driver does not export."""
    initialised: bool
    """False after `close`: then no looked-up function may be called, because it may be unloaded."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        """*library*: a name for the loader, or a path. Attaches no GPU.

        Raises NvmlAbsent, or NvmlError if the driver is not loaded, not permitted, or of another
        version.
        """

    def driver_version(self) -> str:
        """Return the version of the kernel's driver (`590.48.01`), or ""."""

    def count(self) -> int:
        """Return the number of GPUs, also unresponsive, up to GPUS_MAX. Raises NvmlError."""

    def devices(self, count: int | None = None) -> list[Device]:
        """Attach and return the first *count* GPUs in NVML's order (None: all) that can be opened.

        If an address is known, `device` attaches only that GPU.
        """

    def device(self, address: str) -> Device:
        """Attach and return the GPU at a PCI address. Raises NvmlError."""

    def uuid(self, address: str) -> str:
        """Return the UUID of the GPU at a PCI address, or "". Raises NvmlError."""

    def symbol_address(self, name: str) -> int:
        """Return the address of a library function, 0 if the driver does not export it; cached.

        For other extension modules, which cast it. Not to be called after `close`.
        """

    def handle_address(self, address: str) -> int:
        """Attach the GPU at a PCI address and return its nvmlDevice_t. Raises NvmlError."""

    def close(self) -> None:
        """Release every GPU that this object attached; then every method raises NvmlError.

        The process releases NVML once each `Nvml` is closed.
        """

class Sweep:
    """A pass over some GPUs into preallocated memory."""

    addresses: tuple[str, ...]
    calls: int
    """NVML calls so far."""
    ended: int
    """Abort of the last pass: nvmlReturn_t 1 uninitialized, 9 driver not loaded, 18 library and
    driver of different versions; 0: not aborted. The error is NVML's, not a single GPU's."""

    def __init__(
        self,
        nvml: Nvml,
        addresses: Iterable[str],
        targets: Mapping[str, tuple[Buffer, Buffer, int]],
        fields: Mapping[str, tuple[int, int]] | None = None,
        *,
        spared: Container[str] = (),
        budget_seconds: float = 0,
        skips: bool = False,
        first: bool = False,
        slow_seconds: float = 0,
    ) -> None:
        """*targets*: reading -> (cells, valid, column) as in `contract.block.Block`, a row per GPU.

        *fields*: reading -> (field id, scope id) of the present driver; one call requests all
        wanted fields of a GPU. A reading without a field has its own call, if any. *spared*:
        addresses that are not called, with missing rows. *budget_seconds*: time of a pass, in equal
        shares per GPU; a single GPU has all of it. Beyond its share no call of the GPU begins, and
        its readings are missing (0: no limit). *skips*: a GPU over its share is skipped in later
        passes, each time in more. *first*: readings whose calls are made even if others are
        skipped. *slow_seconds*: mean time per pass for a GPU's slow calls (over 0.2 ms; fields over
        0.05 ms), which take turns; between its turns a reading keeps its last value, or is missing
        if it grows all the time. 0: all calls are made in each pass.

        Only calls needed by the targets are made. Opens no GPU. Raises KeyError for an unknown
        reading, ValueError for an address that is too long or a column outside its memory.
        """

    def costs(self, address: str) -> dict[str, int]:
        """Return the measured cost of a GPU's calls and fields (`field 83`), in microseconds."""

    def run(self) -> None:
        """Fill all rows, without the GIL and without allocating.

        After a GPU's error the cells of its row are missing, counted in `calls_failed_errors`; a
        lost GPU has `lost_state` 1, and all else is missing. If NVML itself is gone (the driver was
        unloaded, or is being updated) everything is missing, and `ended` has the code. Raises
        NvmlError after `close`.
        """

    @property
    def pass_address(self) -> int:
        """Address of the `Pass` (nvml_pass.pxd) for other extensions; valid while this lives."""

    def slow(self) -> frozenset[str]:
        """Return the addresses of GPUs that exceeded their share in the last three passes.

        Empty if every GPU that is sampled together did.
        """

    @property
    def is_refused(self) -> bool:
        """Whether `refusals` is nonempty."""

    def refusals(self) -> dict[str, str]:
        """Return address -> NVML function that the last pass was not permitted to call."""

class Rows:
    """Compares columns of a block after each turn, and returns the rows to check in Python."""

    def __init__(
        self,
        rows: int,
        columns: Iterable[tuple[Buffer, Buffer, int, int]],
        addresses: Iterable[str] = (),
    ) -> None:
        """*columns*: (cells, valid, column, mask of the bits to compare). *addresses*: one per row.

        In their accounts `fallen` stores up to four counts, for later processes too. Raises
        ValueError for a column outside its memory.
        """

    def changed(self) -> Sequence[int]:
        """Return the rows that changed since the last call; all rows at the first call."""

    def fallen(self) -> Sequence[int]:
        """Return the rows in which a count is less than its last known value. Mask 0: doubles."""

    def forget(self, row: int) -> None:
        """Forget a row's counts, because they started over. Raises IndexError."""

def abi() -> dict[str, int]:
    """Return sizes, offsets and version words of this module's ABI; keys are C expressions."""
