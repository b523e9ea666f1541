"""What each GPU does with its time: compute, wait, host stall, checkpoint or idle, from samples of it alone; and the last
minutes of those samples.

`PhaseTracker` takes samples of any pace (10 a second are meant) in C, from the ring of the agent or from `push` and
`push_samples`; NaN is missing. Nothing is allocated after it was made.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from typing_extensions import Buffer

#: The columns of `push_samples`, in their order.
SIGNALS: Final[tuple[str, ...]]
#: The five states; a state's number is its place.
STATES: Final[tuple[str, ...]]
#: The columns of `SampleHistory`; the last is the number of the state.
HISTORY_SIGNALS: Final[tuple[str, ...]]
#: What `summarise` fills, by the names of gpu_fast_1s.
SECOND_COLUMNS: Final[tuple[str, ...]]
#: What `summarise_jobs` fills, by the names of gpu_fast_10s.
JOB_COLUMNS: Final[tuple[str, ...]]
ROWS_MAX: Final[int]

class CellMemory(Protocol):
    """As a Block."""

    @property
    def cells(self) -> Buffer: ...
    @property
    def valid(self) -> Buffer: ...

class PhaseTracker:
    """Follows each GPU of a host. A row is a GPU; all times are nanoseconds of a clock that continues evenly (boottime).

    A sample that is not after the last one of its row is left out, unless it is 10 s older or more: then the clock is
    another, and time begins again. After a gap of more than 1.5 s segments and stretches begin again, levels stay.
    For one thread. Every method with a row raises IndexError for one that is not there.
    """

    def __init__(self, rows: int) -> None:
        """Raises ValueError for no rows, or more than ROWS_MAX."""

    @property
    def rows(self) -> int: ...
    @property
    def tracker_address(self) -> int:
        """Where the `Tracker` of phases_track.pxd is, for other extension modules; there as long as this is."""
    @property
    def memory_bytes(self) -> int: ...
    def push(
        self,
        row: int,
        now_ns: int,
        power: float = ...,
        clock: float = ...,
        reasons: float = ...,
        utilization: float = ...,
        sm_active: float = ...,
        tensor: float = ...,
        bandwidth: float = ...,
        pcie_transmitted: float = ...,
        pcie_received: float = ...,
        nvlink_received: float = ...,
        nvlink_transmitted: float = ...,
    ) -> None:
        """Take one sample: watts, hertz, flags, shares of 0 to 1, bytes a second; what is not given is missing.

        GPM may be given in each sample or in every second one: the last value stands for 0.25 s.
        """

    def push_samples(self, row: int, times_ns: Buffer, samples: Buffer) -> None:
        """Take several samples of a row: int64 of shape (n,) and float32 of shape (n, len(SIGNALS)), C-contiguous, as
        `array.array` and `memoryview.cast` or numpy give them. Raises ValueError for other shapes."""

    def begin_job(self, row: int, *, is_known: bool = True) -> None:
        """Another set of compute processes is on the GPU: forget what was learned. The job lasts until `end_job`.

        *is_known*: False where nobody knows which processes were there before, as at the first look: a job that the
        samples have shown continues.
        """

    def end_job(self, row: int) -> None:
        """No compute process is on the GPU: it is idle until it works all the same. Until `begin_job` or `end_job` is
        called for the first time, a job begins when the GPU is used and ends after 30 s without."""

    def set_step(self, row: int, seconds: float) -> None:
        """Tell the period of the job's step, NaN if not known: a cadence of less than three is not one of checkpoints."""

    def take_second(self, row: int) -> tuple[float, float, float, float, float, float] | None:
        """Return the shares of STATES over the samples since the last call, which add up to 1, and how sure they are (0 to
        1); None: no sample was known."""

    def summarise(self, block: CellMemory, columns: Sequence[int]) -> None:
        """Fill those of all rows, the columns of SECOND_COLUMNS by their numbers. Raises ValueError for a column outside."""

    def summarise_jobs(self, block: CellMemory, columns: Sequence[int], now_ns: int) -> None:
        """Fill what is known of each row's job, the columns of JOB_COLUMNS by their numbers; missing where it is not.
        Raises ValueError for a column outside."""

    def job(self, row: int, now_ns: int) -> dict[str, float]:
        """Return the same of one row, by JOB_COLUMNS; NaN: missing."""

    def current_job(self, row: int) -> tuple[int, int, int] | None:
        """Return the number of the job, the time of the last sample before it and of its last one of computing; None: no job."""

    def state(self, row: int) -> tuple[str, float]:
        """Return the state of the last sample, and its confidence."""

    def segments(self, row: int) -> list[tuple[str, int, int, float, float]]:
        """Return the last 128 at most, oldest first: state, begin and end in ns, confidence, mean watts (NaN: not known).

        A state of less than 0.5 s is part of the segment around it. A stretch that turns out to be a checkpoint later on
        is called one from then on.
        """

    def totals(self, row: int) -> dict[str, tuple[float, float]]:
        """Return of each state the seconds of this job's segments, and their mean watts (NaN: none)."""

    def scores(self, row: int) -> tuple[int, int, float]:
        """Return predictions of checkpoints that were decided, how many came true, and their Brier score (NaN: none)."""

    def left_out(self, row: int) -> int:
        """Return how many samples were duplicates or came out of order."""

class SampleHistory:
    """The last samples of HISTORY_SIGNALS of all GPUs; the oldest go. float32, NaN is missing. For one thread."""

    def __init__(self, rows: int, samples_max: int = 3000) -> None:
        """Raises ValueError for sizes that cannot be. 3000: 300 s at 10 Hz."""

    @property
    def rows(self) -> int: ...
    @property
    def count(self) -> int:
        """Samples ever taken."""
    @property
    def length(self) -> int:
        """Samples there are."""
    @property
    def last_ns(self) -> int:
        """When the last sample was taken; 0 before the first."""
    @property
    def history_address(self) -> int:
        """Where the `History` of phases_history.pxd is, for other extension modules; there as long as this is."""
    @property
    def memory_bytes(self) -> int: ...
    def begin(self, now_ns: int) -> None:
        """Begin a sample of all rows, all of it missing."""

    def put(self, row: int, column: int, value: float) -> None:
        """Set a value of the sample that was begun last. Raises IndexError, and ValueError before the first."""

    def copy_to(self, row: int, column: int, buffer: Buffer) -> int:
        """Copy the last samples into *buffer* (float32), oldest first; return how many: as many as fit. Raises IndexError."""

    def resample_to(self, row: int, columns: Sequence[int], period_ns: int, buffer: Buffer) -> None:
        """Fill *buffer* (float32, a row for each column) with a sample each *period_ns*, the newest last.

        NaN where there was none: a sampler that was late must not make time shorter. Raises IndexError, and ValueError for
        a period below 1 or a buffer of another shape.
        """

    def copy_times_to(self, buffer: Buffer) -> int:
        """Copy when they were taken (int64, ns) in the same manner."""
