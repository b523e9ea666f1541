"""Which frames are durable: (host, run id) -> sequences, as ranges. A resend must never double."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

#: Ranges remembered per run. Beyond, the narrowest gap is closed, so that a host that skips on
#: purpose costs no memory; a frame that would have come into that gap counts as received.
RANGES_MAX = 4096

#: (host, run id, first sequence, last sequence), inclusive: a row of the table `received`.
Range = tuple[str, bytes, int, int]


class RangeSet:
    """A set of whole numbers as sorted, disjoint, non-touching ranges."""

    __slots__ = ("firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.firsts, number) - 1
        return at >= 0 and number <= self.lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.firsts, self.lasts, strict=True))

    def add(self, first: int, last: int) -> None:
        """Add first..last, inclusive. Raises ValueError when last < first."""
        if last < first:
            raise ValueError(f"range {first}..{last} ends before it begins")
        low = bisect_left(self.lasts, first - 1)
        high = bisect_right(self.firsts, last + 1)
        if low < high:
            first = min(first, self.firsts[low])
            last = max(last, self.lasts[high - 1])
        self.firsts[low:high] = [first]
        self.lasts[low:high] = [last]
        if len(self.firsts) > RANGES_MAX:
            self._close_narrowest()

    def _close_narrowest(self) -> None:
        gaps = [after - before for before, after in zip(self.lasts, self.firsts[1:], strict=False)]
        at = gaps.index(min(gaps))
        del self.lasts[at], self.firsts[at + 1]


class Ledger:
    """What has been received, in memory; the table `received` holds the same on disk.

    Owned by the writer thread. `add` only after the commit that holds both the rows and the ranges.
    """

    def __init__(self, rows: Iterable[Range] = ()) -> None:
        self._runs: dict[tuple[str, bytes], RangeSet] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Range) -> None:
        """Take a range as received."""
        host, run_id, first, last = row
        self._runs.setdefault((host, run_id), RangeSet()).add(first, last)

    def holds(self, host: str, run_id: bytes, sequence: int) -> bool:
        """Say whether the frame is durable."""
        run = self._runs.get((host, run_id))
        return run is not None and sequence in run

    def rows(self) -> list[Range]:
        """Return all as the fewest rows."""
        return [
            (host, run_id, first, last)
            for (host, run_id), run in self._runs.items()
            for first, last in run
        ]


def ranges_of(keys: Iterable[tuple[str, bytes, int]]) -> list[Range]:
    """Return frames (host, run id, sequence) as the fewest ranges."""
    runs: dict[tuple[str, bytes], list[int]] = {}
    for host, run_id, sequence in keys:
        runs.setdefault((host, run_id), []).append(sequence)
    found = ((host, run, joined(sequences)) for (host, run), sequences in runs.items())
    return [(host, run, first, last) for host, run, spans in found for first, last in spans]


def joined(sequences: Iterable[int]) -> RangeSet:
    """Return sequences, in any order, as ranges."""
    ordered = sorted(sequences)
    spans, begin = RangeSet(), 0
    for at, sequence in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] > sequence + 1:
            spans.add(ordered[begin], sequence)
            begin = at + 1
    return spans
