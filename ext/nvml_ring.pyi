"""Ring of the last samples of a few readings per GPU, filled without Python, with summaries by second."""

from collections.abc import Iterable
from typing import Final, Protocol

from typing_extensions import Buffer

from .nvml import Sweep
from .nvml_gpm import Gpm
from .phases import PhaseTracker, SampleHistory

#: How a reading's samples become one value. SHARE: of the samples with one of some bits. COUNT: of those with any reading.
MEAN: Final[int]
LEAST: Final[int]
MOST: Final[int]
SHARE: Final[int]
COUNT: Final[int]

class Cells(Protocol):
    """As a Block."""

    @property
    def cells(self) -> Buffer: ...
    @property
    def valid(self) -> Buffer: ...

class SampleRing:
    """Samples of a sweep and of GPM, which fill the same cells; the oldest goes. For one thread."""

    count: int
    """Samples ever taken."""
    gpm_spacing: int
    """GPM is queried at every n-th sample."""
    well_ns: int
    """When the last sample was in which a GPU answered, and GPM at every GPU that did; 0: none was."""

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
        """*cells*, *valid*: what both fill, column by column, the first column a double that every GPU has.

        *targets*: of each column of the summary its form, the column it is made from, the bits of SHARE, the most it
        can be (0: any), and its number. *gpm_every*: GPM is queried at every n-th sample, and missing in the others:
        its samples must be more than 100 ms apart (nvml.h), and a mean is over all the time between two; what the sweep
        has a call of its own for (utilisation) is asked in the others. *gpm_seconds*: where GPM of a GPU would take longer
        than this in each second it is queried more seldom (`gpm_spacing`); 0: no limit. *tracker*,
        *history*: each sample goes to them too; *sources*: of each of `phases.SIGNALS` its column, below 0 for none.
        Raises ValueError for what does not fit.
        """

    def rest(self, until_ns: int) -> None:
        """Take a sample at each multiple of the period since boot, up to that boot time and with it.

        Returns earlier when this process is called (`ext.place`): within a period. Without the GIL.
        """

    def sample(self, now_ns: int) -> None:
        """Take one sample now. *now_ns*: of any clock that continues evenly."""

    def samples(self, column: int, row: int) -> list[int | None]:
        """Return what is kept of a reading, oldest first, as raw 64 bits; None: missing. Raises IndexError."""

    def summarise(self, block: Cells) -> int:
        """Fill the summary of the samples since the last call, and return how many they are.

        Raises ValueError for a column outside the block.
        """
