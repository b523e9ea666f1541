"""Which frames are durable: (host, run id) -> sequences, as ranges. A resend must never double."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

#: Ranges remembered per run. Beyond, the narrowest gap is closed, so that a host that skips on
#: purpose costs no memory; a frame that would have come into that gap counts as received.
RANGES_MAX = 4096

#: Runs of a host in memory: it sends one, and for a moment those before. A new spool, as of a host that
#: boots from the network, is a new run; so is each registration of a host that means harm.
RUNS_IN_MEMORY = 2
#: Runs of a host on the ledger. Its spool is of one run: the others resend nothing, but for a disk that is put
#: back. Of more the oldest are forgotten, so that no host, whatever it says, fills the ledger.
RUNS_PER_HOST_MAX = 1000

#: Host and run id.
Run = tuple[str, bytes]
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
    """What has been received of the runs that send, in memory; the table `received` holds it of all.

    Owned by the writer thread. `add` only after the commit that holds both the rows and the ranges.
    A run that is not in memory is taken from the table before its frames are asked for (`lacking`, `take`).
    """

    def __init__(self, rows: Iterable[Range] = ()) -> None:
        self._runs: dict[str, dict[bytes, RangeSet]] = {}  # of each host the run last taken last
        self._crowded: set[str] = set()  # hosts that may have too many runs in memory
        for row in rows:
            self.add(row)
        self._crowded.update(self._runs)

    def add(self, row: Range) -> None:
        """Take a range as received."""
        host, run_id, first, last = row
        self._runs.setdefault(host, {}).setdefault(run_id, RangeSet()).add(first, last)

    def lacking(self, runs: Iterable[Run]) -> list[Run]:
        """Return those of *runs* that are not in memory."""
        return [(host, run) for host, run in runs if run not in self._runs.get(host, ())]

    def take(self, runs: Iterable[Run], rows: Iterable[Range]) -> None:
        """Take *runs* into memory, with all *rows* that the table has of them."""
        for host, run_id in runs:
            self._runs.setdefault(host, {})[run_id] = RangeSet()
            self._crowded.add(host)
        for row in rows:
            self.add(row)

    def surplus(self) -> list[Run]:
        """Return the runs that need no longer be in memory: of each host those before its last few."""
        return [
            (host, run)
            for host in self._crowded
            for run in list(self._runs[host])[:-RUNS_IN_MEMORY]
        ]

    def forget(self, runs: Iterable[Run]) -> None:
        """Leave *runs*, which `surplus` named, to the table."""
        for host, run in runs:
            self._runs[host].pop(run, None)
        self._crowded.clear()

    def holds(self, host: str, run_id: bytes, sequence: int) -> bool:
        """Say whether the frame is durable; its run must be in memory."""
        run = self._runs.get(host, {}).get(run_id)
        return run is not None and sequence in run

    def runs(self) -> list[Run]:
        """Return the runs in memory."""
        return [(host, run) for host, runs in self._runs.items() for run in runs]

    def rows(self, chosen: Iterable[Run] | None = None) -> list[Range]:
        """Return all of *chosen* runs, or of all in memory, as the fewest rows."""
        return [
            (host, run, first, last)
            for host, run in (self.runs() if chosen is None else chosen)
            for first, last in self._runs[host][run]
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
