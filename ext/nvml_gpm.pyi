from collections.abc import Iterable, Sequence

from .nvml import Nvml, NvmlError

METRICS_MAX: int
SYMBOLS: tuple[str, ...]
#: The function that samples a GPU instance of MIG; the others are of use without it.
MIG_SYMBOL: str
#: Sizes of our structs in bytes, by the header's names; of the last one, up to its array.
LAYOUT: dict[str, int]

class Gpm:
    """Reads GPM metrics of several GPUs into memory that was made before. For one thread."""

    def __init__(
        self,
        nvml: Nvml,
        handles: Iterable[int],
        targets: Iterable[tuple[int, float, float, bytearray, bytearray, int]],
        instances: Iterable[int] | None = None,
        *,
        addresses: Iterable[str] | None = None,
    ) -> None:
        """*handles*: `Nvml.handle_address` of each row's GPU, 0 for one that is not open.

        *targets*: (metric id of nvml.h, scale, most before scaling, cells, valid, column): doubles,
        column-major, as of a Block. Raises ValueError for a column outside its memory. A driver
        without GPM, or a GPU older than Hopper, has no cell that is ever valid. *instances*: the GPU
        instance of MIG that each row is about, below 0 for the whole GPU; None: all are whole GPUs. *addresses*:
        whose accounts the calls are counted in.
        """

    @property
    def pass_address(self) -> int:
        """Where the `GpmPass` of nvml_gpm_pass.pxd is, for other extension modules; there as long as this is."""
    @property
    def supported(self) -> Sequence[bool]:
        """Of each row, whether its GPU has GPM."""
    @property
    def failed(self) -> int:
        """Calls that answered with an error, since the beginning."""
    def failing(self, row: int) -> bool:
        """Return whether the last sample of a row's GPU was answered with an error. Raises IndexError."""
    def error(self, row: int) -> NvmlError | None:
        """Return what a row's last call answered, be it for support, a sample or a comparison; None: all was well.

        Raises IndexError.
        """
    def run(self, now_ns: int) -> None:
        """Take a sample of each GPU; fill its cells with the means since the sample before.

        Without the GIL. A GPU's first sample, and the first after an error, fills none; nor does one
        that comes less than 100 ms after the one before (nvml.h), which is left out. *now_ns*: of any
        clock that continues evenly. Raises NvmlError once the library is closed.
        """
    def close(self) -> None:
        """Free the samples. Before the library is closed: after that there is nothing to free."""
