"""The last samples of a few gauges of every GPU, and what a second of them amounts to.

Samples come up to ten times a second and are kept for as long as a phase of a workload may last; what
travels is a summary a second. Memory is made once: it does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence

#: At 8 Hz a minute and four seconds: two of the longest steps of a job.
SAMPLES_MAX = 512


class Ring:
    """Samples of *columns* doubles of *rows* devices, column by column as in a Block.

    For one writer and one reader: a sample is whole before it is counted.
    """

    def __init__(self, columns: int, rows: int, samples_max: int = SAMPLES_MAX) -> None:
        self._width = columns * rows
        self._rows = rows
        self._samples_max = samples_max
        self._cells = bytearray(8 * self._width * samples_max)
        self._floats = memoryview(self._cells).cast("d")
        self._ints = memoryview(self._cells).cast("Q")
        self._valid = bytearray(self._width * samples_max)
        self._times = [0] * samples_max
        self.count = 0  # samples ever taken

    def put(self, boottime_ns: int, cells: bytearray, valid: bytearray) -> None:
        """Take a copy of a block's *cells* and *valid* of that moment; the oldest sample goes."""
        at = self.count % self._samples_max
        self._cells[8 * self._width * at : 8 * self._width * (at + 1)] = cells
        self._valid[self._width * at : self._width * (at + 1)] = valid
        self._times[at] = boottime_ns
        self.count += 1

    def since(self, boottime_ns: int) -> list[int]:
        """Return the numbers of the samples after that time, oldest first; at most all there are."""
        oldest = max(0, self.count - self._samples_max)
        first = self.count
        while first > oldest and self._times[(first - 1) % self._samples_max] > boottime_ns:
            first -= 1
        return list(range(first, self.count))

    def time_ns(self, number: int) -> int:
        """Return when a sample was taken."""
        return self._times[number % self._samples_max]

    def floats(self, numbers: Sequence[int], column: int, row: int) -> list[float]:
        """Return what is known of a gauge over those samples."""
        return [self._floats[place] for place in self._known(numbers, column, row)]

    def ints(self, numbers: Sequence[int], column: int, row: int) -> list[int]:
        """Return what is known of a state over those samples."""
        return [self._ints[place] for place in self._known(numbers, column, row)]

    def _known(self, numbers: Sequence[int], column: int, row: int) -> list[int]:
        offset = column * self._rows + row
        places = (self._width * (number % self._samples_max) + offset for number in numbers)
        return [place for place in places if self._valid[place]]
