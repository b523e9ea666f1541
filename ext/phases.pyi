"""Classifies each GPU's time from its samples, and keeps the last minutes of samples.

States are compute, wait, host stall, checkpoint and idle.

`PhaseTracker` gets samples at any pace (typically 10 per second) in C, from the agent's ring or
from `push` and `push_samples`; NaN is missing. Nothing is allocated after its creation.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from typing_extensions import Buffer

#: Columns of `push_samples`, in order.
SIGNALS: Final[tuple[str, ...]]
#: The five states; a state's number is its index.
STATES: Final[tuple[str, ...]]
#: Columns of `SampleHistory`; the last is the state's number.
HISTORY_SIGNALS: Final[tuple[str, ...]]
#: Values of `summarise`, by the names of gpu_fast_1s.
SECOND_COLUMNS: Final[tuple[str, ...]]
#: Values of `summarise_jobs`, by the names of gpu_fast_10s.
JOB_COLUMNS: Final[tuple[str, ...]]
ROWS_MAX: Final[int]

class CellMemory(Protocol):
    """A Block's buffers."""

    @property
    def cells(self) -> Buffer: ...
    @property
    def valid(self) -> Buffer: ...

class PhaseTracker:
    """Tracks each GPU of a host; a row is a GPU. Times are ns of a steady clock (boottime).

    A sample that is not later than its row's last one is dropped, unless it is 10 s older or more:
    then the clock is another, and time starts again. After a gap of more than 1.5 s segments and
    stretches start again; levels stay. For a single thread. Methods with a row raise IndexError.
    """

    def __init__(self, rows: int) -> None:
        """Raises ValueError for no rows, or more than ROWS_MAX."""

    @property
    def rows(self) -> int: ...
    @property
    def tracker_address(self) -> int:
        """Address of the `Tracker` (phases_track.pxd) for extensions; valid while this lives."""
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
        """Add a sample: watts, hertz, flags, shares of 0 to 1, bytes per second; default: missing.

        GPM may be in each sample or in every second one: its last value is used for 0.25 s.
        """

    def push_samples(self, row: int, times_ns: Buffer, samples: Buffer) -> None:
        """Add samples of a row: int64 of shape (n,) and float32 of shape (n, len(SIGNALS)).

        C-contiguous, as from `array.array`, `memoryview.cast` or numpy. Raises ValueError for other
        shapes.
        """

    def begin_job(self, row: int, *, is_known: bool = True) -> None:
        """Forget everything learned: the GPU has other processes. The job ends at `end_job`.

        *is_known*: False if the earlier processes are unknown, as at the first check: a job that
        the samples have shown continues.
        """

    def end_job(self, row: int) -> None:
        """Treat the GPU as idle until it works again: it has no compute process.

        Before the first call of `begin_job` or `end_job`, a job begins when the GPU is used and
        ends after 30 s without use.
        """

    def set_step(self, row: int, seconds: float) -> None:
        """Set the period of the job's step, or NaN: checkpoints are at least three steps apart."""

    def take_second(self, row: int) -> tuple[float, float, float, float, float, float] | None:
        """Return the shares of STATES since the last call, with sum 1, and the confidence, 0 to 1.

        None: no sample was known.
        """

    def summarise(self, block: CellMemory, columns: Sequence[int]) -> None:
        """Fill these of all rows, into *columns* (SECOND_COLUMNS). Raises ValueError."""

    def summarise_jobs(self, block: CellMemory, columns: Sequence[int], now_ns: int) -> None:
        """Fill each row's job values into *columns* (JOB_COLUMNS); unknown ones are missing.

        Raises ValueError for a column outside.
        """

    def job(self, row: int, now_ns: int) -> dict[str, float]:
        """Return a row's values of its job, by JOB_COLUMNS; NaN: missing."""

    def current_job(self, row: int) -> tuple[int, int, int] | None:
        """Return the job's number, and the times of the sample before it and its last computing."""

    def state(self, row: int) -> tuple[str, float]:
        """Return the state of the last sample, and its confidence."""

    def segments(self, row: int) -> list[tuple[str, int, int, float, float]]:
        """Return up to 128 segments, oldest first: state, begin, end (ns), confidence, mean watts.

        Watts are NaN if unknown. A state of less than 0.5 s is part of the segment around it. A
        stretch that is later recognized as a checkpoint is relabeled.
        """

    def totals(self, row: int) -> dict[str, tuple[float, float]]:
        """Return per state the seconds of this job's segments, and their mean watts or NaN."""

    def scores(self, row: int) -> tuple[int, int, float]:
        """Return decided predictions of checkpoints, hits, and their Brier score or NaN."""

    def left_out(self, row: int) -> int:
        """Return the number of samples that were duplicates or out of order."""

class SampleHistory:
    """The last samples of HISTORY_SIGNALS of all GPUs; NaN is missing. For a single thread."""

    def __init__(self, rows: int, samples_max: int = 3000) -> None:
        """Raises ValueError for impossible sizes. 3000: 300 s at 10 Hz."""

    @property
    def rows(self) -> int: ...
    @property
    def count(self) -> int:
        """Samples so far."""
    @property
    def length(self) -> int:
        """Stored samples."""
    @property
    def last_ns(self) -> int:
        """Time of the last sample; 0 before the first."""
    @property
    def history_address(self) -> int:
        """Address of the `History` (phases_history.pxd) for extensions; valid while this lives."""
    @property
    def memory_bytes(self) -> int: ...
    def begin(self, now_ns: int) -> None:
        """Add a sample of all rows, with all values missing."""

    def put(self, row: int, column: int, value: float) -> None:
        """Set a value of the last sample. Raises IndexError, and ValueError before the first."""

    def copy_to(self, row: int, column: int, buffer: Buffer) -> int:
        """Copy the last samples that fit into *buffer* (float32), oldest first; return how many."""

    def resample_to(self, row: int, columns: Sequence[int], period_ns: int, buffer: Buffer) -> None:
        """Fill *buffer* (float32, a row per column) with a sample per *period_ns*, the newest last.

        NaN without a sample: a late sampler must not shorten time. Raises IndexError, and
        ValueError for a period below 1 or a buffer of another shape.
        """

    def copy_times_to(self, buffer: Buffer) -> int:
        """Copy the samples' times (int64, ns) in the same way."""
