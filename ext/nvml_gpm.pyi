from collections.abc import Iterable, Sequence

from .nvml import Nvml, NvmlError

METRICS_MAX: int
SYMBOLS: tuple[str, ...]
#: The function that samples a MIG GPU instance; the others work without it.
MIG_SYMBOL: str
#: Sizes of our structs in bytes, by the header's names; of the last struct, up to its array.
LAYOUT: dict[str, int]

class Gpm:
    """Reads GPM metrics of several GPUs into preallocated memory. For a single thread."""

    def __init__(
        self,
        nvml: Nvml,
        handles: Iterable[int],
        targets: Iterable[tuple[int, float, float, bytearray, bytearray, int]],
        instances: Iterable[int] | None = None,
        *,
        addresses: Iterable[str] | None = None,
    ) -> None:
        """*handles*: `Nvml.handle_address` of each row's GPU; 0: not open.

        *targets*: (metric id of nvml.h, scale, maximum before scaling, cells, valid, column):
        doubles, column-major, as in a Block. Raises ValueError for a column outside its memory.
        With a driver without GPM, or a GPU older than Hopper, no cell is ever valid. *instances*:
        each row's MIG GPU instance, negative for the whole GPU; None: all whole GPUs. *addresses*:
        GPUs whose accounts count the calls.
        """

    @property
    def pass_address(self) -> int:
        """Address of the `GpmPass` (nvml_gpm_pass.pxd) for extensions; valid while this lives."""
    @property
    def supported(self) -> Sequence[bool]:
        """Per row, whether its GPU has GPM."""
    @property
    def failed(self) -> int:
        """Number of failed calls so far."""
    def failing(self, row: int) -> bool:
        """Return whether the last sample of a row's GPU failed. Raises IndexError."""
    def error(self, row: int) -> NvmlError | None:
        """Return the error of a row's last call, or None. Raises IndexError."""
    def run(self, now_ns: int) -> None:
        """Sample each GPU; fill its cells with means since the previous sample. Without the GIL.

        No cell is filled by a GPU's first sample, or the first after an error. A sample less than
        100 ms after the previous one (nvml.h) is skipped. *now_ns*: of any steady clock. Raises
        NvmlError once the library is closed.
        """
    def close(self) -> None:
        """Free the samples. Call it before the library is closed; later it does nothing."""
