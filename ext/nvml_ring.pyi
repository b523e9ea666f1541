"""Ring of the last samples of a few readings per GPU, filled without Python, with summaries by second."""

from collections.abc import Iterable
from typing import Final, Protocol

from typing_extensions import Buffer

from .nvml import Sweep
from .nvml_gpm import Gpm
from .phases import PhaseTracker, SampleHistory

#: Summaries of samples. SHARE: of samples with any of some bits. COUNT: of samples with a reading.
MEAN: Final[int]
LEAST: Final[int]
MOST: Final[int]
SHARE: Final[int]
COUNT: Final[int]

class Cells(Protocol):
    """A Block's buffers."""

    @property
    def cells(self) -> Buffer: ...
    @property
    def valid(self) -> Buffer: ...

class SampleRing:
    """The last samples of a sweep and of GPM, which fill the same cells. For a single thread."""

    count: int
    """Samples so far."""
    gpm_spacing: int
    """GPM is queried at every n-th sample."""
    well_ns: int
    """Time of the last sample in which a GPU responded, and GPM on every GPU that did; 0: none."""

    def __init__(
        self,
        swept: Sweep,
        gpm: Gpm,
        cells: Buffer,
        valid: Buffer,
        rows: int,
        targets: Iterable[tuple[int, int, int, float, int]],
        period_ns: int,
        samples_max: int = 64,
        gpm_every: int = 1,
        tracker: PhaseTracker | None = None,
        history: SampleHistory | None = None,
        sources: Iterable[int] = (),
        gpm_seconds: float = 0,
    ) -> None:
        """*cells*, *valid*: filled by both, by column; the first is a double that every GPU has.

        *targets*: per column of the summary its form, source column, bits of SHARE, maximum (0:
        any) and number. *gpm_every*: GPM is queried at every n-th sample, and missing in the
        others: its samples must be more than 100 ms apart (nvml.h), and a mean covers the time
        between two; in the others the sweep uses its own calls (utilization). *gpm_seconds*: GPM is
        queried less often if a GPU would take longer than this per second (`gpm_spacing`); 0: no
        limit. *tracker*, *history* get each sample too; *sources*: the column of each of
        `phases.SIGNALS`, negative for none. Raises ValueError for arguments that do not fit.
        """

    def rest(self, until_ns: int) -> None:
        """Take a sample at each multiple of the period since boot, up to and including *until_ns*.

        Returns earlier, within a period, when this process is notified (`ext.place`). Without the
        GIL.
        """

    def sample(self, now_ns: int) -> None:
        """Take a sample now. *now_ns*: of any steady clock."""

    def samples(self, column: int, row: int) -> list[int | None]:
        """Return a reading's samples, oldest first, as raw 64 bits or None. Raises IndexError."""

    def summarise(self, block: Cells) -> int:
        """Summarize the samples since the last call; return their number. Raises ValueError."""
