"""NVML by its C ABI: loads the library at run time, and reads all GPUs without the GIL.

A device is known by its PCI address (`0000:3b:00.0`) and its UUID; an index is used to find it and never kept.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from typing_extensions import Buffer

#: A driver's count of GPUs beyond this is not believed.
GPUS_MAX: Final[int]
#: Every NVML function that is looked up; a driver may lack all but REQUIRED.
SYMBOLS: Final[tuple[str, ...]]
REQUIRED: Final[tuple[str, ...]]
#: Every reading a sweep can give, in base units, and the type of its cells.
READINGS: Final[Mapping[str, type[float | int]]]

#: As a mask of `Rows`: all of the value counts.
ALL_BITS: Final[int]
#: As the code of an NvmlError: the call was left out, there had been too many.
LEFT_OUT: Final[int]
#: A GPU is called no more often than this on average, and at once; what is beyond it is left out, and counted.
CALLS_PER_SECOND_MAX: Final[int]
CALLS_AT_ONCE_MAX: Final[int]

class Account(NamedTuple):
    """What is known of a GPU by this process, those it was forked from after this module was loaded, and theirs."""

    address: str
    uuid: str
    calls: int
    left_out: int
    epoch: int
    lost: bool
    counts: tuple[int | None, ...]
    """What `Rows.fallen` last compared, as raw 64 bits; None: not known."""
    proofs: int
    """As it was remembered."""

def account(address: str) -> Account:
    """Return the account of the GPU at a PCI address; empty: of the driver as a whole. ValueError if it is too long."""

def accounts() -> list[Account]:
    """Return all accounts, that of the driver first."""

def account_address(address: str) -> int:
    """Return where a GPU's account is, for other extension modules: `Account` of nvml_account.pxd."""

def remember(
    address: str,
    uuid: str | None = None,
    epoch: int | None = None,
    lost: bool | None = None,
    proofs: int | None = None,
) -> None:
    """Note what is known of a GPU, for whichever process samples it next; of one with another UUID nothing else is.
    *proofs*: 32 bits."""

def cap(calls_per_second: int) -> None:
    """Cap the calls on each GPU; 0: no cap. CALLS_PER_SECOND_MAX until told so."""

def forget_accounts() -> None:
    """Begin all accounts again."""

def is_loaded(library: str) -> bool:
    """Return whether this process has a library loaded, by the name or path that the loader knows it by."""

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

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        """*library*: a name for the loader, or a path. Attaches no GPU.

        Raises NvmlAbsent, or NvmlError when the driver is not loaded, not permitted, or of another version.
        """

    def driver_version(self) -> str:
        """Return the version of the kernel's driver (`590.48.01`), or an empty text."""

    def count(self) -> int:
        """Return how many GPUs there are, also those that do not answer; at most GPUS_MAX. Raises NvmlError."""

    def devices(self, count: int | None = None) -> list[Device]:
        """Attach and return the first *count* GPUs, as NVML numbers them (None: all); those that cannot be opened are
        left out.

        Where an address is known, `device` attaches that one alone.
        """

    def device(self, address: str) -> Device:
        """Attach and return the GPU at a PCI address. Raises NvmlError."""

    def uuid(self, address: str) -> str:
        """Return the UUID of the GPU at a PCI address, or an empty text. Raises NvmlError."""

    def symbol_address(self, name: str) -> int:
        """Return where any function of the library is, 0 where the driver does not export it; looked up
        once. For other extension modules, which cast it. Not to be called after `close`."""

    def handle_address(self, address: str) -> int:
        """Attach the GPU at a PCI address and return its nvmlDevice_t. Raises NvmlError."""

    def close(self) -> None:
        """Release every GPU that this object made NVML attach; then every method raises NvmlError.

        The process as a whole lets go once each `Nvml` is closed.
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
        *,
        spared: Container[str] = (),
        budget_seconds: float = 0,
        skips: bool = False,
        first: bool = False,
        slow_seconds: float = 0,
    ) -> None:
        """*targets*: reading -> (cells, valid, column), as in `contract.block.Block`: a row for each address.
        *fields*: reading -> (field id, scope id) as the driver at hand has them; all of a GPU's wanted ones are
        asked for in one call. A reading without a field comes from a call of its own, if it has one.

        *spared*: addresses whose rows are missing, and that are asked nothing. *budget_seconds*: of a pass, each GPU its
        share, one that is alone all of it; beyond it no call of that GPU begins, and what it would say is missing (0:
        no limit). *skips*: a GPU that was over its share is left out of the next passes, each time of more. *first*:
        its calls are still made when those of others are left out. *slow_seconds*: time for slow calls (over 0.2 ms; fields
        over 0.05 ms) of a GPU in each pass, on average; they take turns. Between its turns a reading has its last value,
        or is missing if it grows all the time. 0: all are made in each pass.

        Only the calls that the targets need are ever made. Opens no GPU. Raises KeyError for a reading that
        does not exist, ValueError for an address that is too long or a column outside its memory.
        """

    def costs(self, address: str) -> dict[str, int]:
        """Return what calls and fields (`field 83`) cost, in microseconds, as far as it was measured; those of this GPU."""

    def run(self) -> None:
        """Fill all rows, without the GIL and without allocating. A GPU's error is missing cells of its row,
        counted in `calls_failed_errors`; a lost GPU is `lost_state` 1 and all else missing. Where NVML itself
        is gone (the driver was unloaded, or is being updated) everything is missing, and `ended` says so.

        Raises NvmlError after `close`.
        """

    @property
    def pass_address(self) -> int:
        """Where the `Pass` of nvml_pass.pxd is, for other extension modules; there as long as this is."""

    def slow(self) -> frozenset[str]:
        """Return the addresses of GPUs that took longer than their part of the time in the last three passes, be they
        asked together or one apart from the others; none when all that are asked together did."""

    @property
    def is_refused(self) -> bool:
        """Whether `refusals` has any."""

    def refusals(self) -> dict[str, str]:
        """Return address -> NVML function of what the last pass was not permitted to ask: blind, not broken."""

class Rows:
    """Looks at some columns of a block after each turn, and says which rows a look in Python is worth."""

    def __init__(
        self,
        rows: int,
        columns: Iterable[tuple[Buffer, Buffer, int, int]],
        addresses: Iterable[str] = (),
    ) -> None:
        """*columns*: cells, valid, column and mask of each: bits of the value that count. *addresses*: one for each
        row, in whose accounts `fallen` remembers up to four counts, for processes that come after too. Raises
        ValueError for a column outside its memory."""

    def changed(self) -> Sequence[int]:
        """Return the rows that are not as they were at the last call; all of them at the first."""

    def fallen(self) -> Sequence[int]:
        """Return the rows in which a count is less than when it was last known. Here a mask of 0 says: doubles."""

    def forget(self, row: int) -> None:
        """Have `fallen` compare with nothing: the counts started over. Raises IndexError."""

def abi() -> dict[str, int]:
    """Return sizes, offsets and version words as this module was compiled with; keys are C expressions."""
