"""Ledger of received frames: ranges of sequence numbers per host and run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

#: Ranges kept per run. Beyond this the narrowest gap is closed, so that a host that skips sequences
#: needs no more memory; a frame in that gap counts as received.
RANGES_MAX = 4096
#: Runs per host in memory: a host sends one, and briefly also the previous one. Each new spool is a
#: new run, as after a network boot; a malicious host can register any number of runs.
RUNS_IN_MEMORY = 2
#: Host and run id.
Run = tuple[str, bytes]
#: (host, run id, first sequence, last sequence), inclusive: a row of the table `received`.
SequenceRange = tuple[str, bytes, int, int]


class RangeSet:
    """A set of integers as sorted, disjoint, non-adjacent ranges."""

    __slots__ = ("firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self.firsts, number) - 1
        return index >= 0 and number <= self.lasts[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.firsts, self.lasts, strict=True))

    def add(self, first: int, last: int) -> None:
        """Add first..last, inclusive. Raises ValueError if last < first."""
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
        index = gaps.index(min(gaps))
        del self.lasts[index], self.firsts[index + 1]


class Ledger:
    """Received frames of the runs that are being sent, in memory; the table `received` has all
    runs.

    Owned by the writer thread. Call `add` only after the commit of both the rows and the ranges.
    Before `contains`, load a run that is not in memory (`missing`, `load`).
    """

    def __init__(self, rows: Iterable[SequenceRange] = ()) -> None:
        self._runs: dict[str, dict[bytes, RangeSet]] = {}  # per host, the most recent run last
        self._hosts_to_trim: set[str] = set()  # hosts that may have too many runs in memory
        for row in rows:
            self.add(row)
        self._hosts_to_trim.update(self._runs)

    def add(self, row: SequenceRange) -> None:
        """Add a received range."""
        host, run_id, first, last = row
        self._runs.setdefault(host, {}).setdefault(run_id, RangeSet()).add(first, last)

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Return those of *runs* that are not in memory."""
        return [(host, run) for host, run in runs if run not in self._runs.get(host, ())]

    def load(self, runs: Iterable[Run], rows: Iterable[SequenceRange]) -> None:
        """Add *runs*, with all their *rows* from the table."""
        for host, run_id in runs:
            self._runs.setdefault(host, {})[run_id] = RangeSet()
            self._hosts_to_trim.add(host)
        for row in rows:
            self.add(row)

    def surplus(self) -> list[Run]:
        """Return the runs to remove from memory: all but each host's last RUNS_IN_MEMORY."""
        return [
            (host, run)
            for host in self._hosts_to_trim
            for run in list(self._runs[host])[:-RUNS_IN_MEMORY]
        ]

    def forget(self, runs: Iterable[Run]) -> None:
        """Remove the *runs* returned by `surplus` from memory."""
        for host, run in runs:
            self._runs[host].pop(run, None)
        self._hosts_to_trim.clear()

    def contains(self, host: str, run_id: bytes, sequence: int) -> bool:
        """Return whether the frame is durable; its run must be in memory."""
        run = self._runs.get(host, {}).get(run_id)
        return run is not None and sequence in run

    def runs(self) -> list[Run]:
        """Return the runs in memory."""
        return [(host, run) for host, runs in self._runs.items() for run in runs]

    def rows(self, chosen: Iterable[Run] | None = None) -> list[SequenceRange]:
        """Return the ranges of *chosen* runs (default: all in memory) as the fewest rows."""
        return [
            (host, run, first, last)
            for host, run in (self.runs() if chosen is None else chosen)
            for first, last in self._runs[host][run]
        ]


def ranges_of(keys: Iterable[tuple[str, bytes, int]]) -> list[SequenceRange]:
    """Return frames (host, run id, sequence) as the fewest ranges."""
    runs: dict[tuple[str, bytes], list[int]] = {}
    for host, run_id, sequence in keys:
        runs.setdefault((host, run_id), []).append(sequence)
    range_sets = ((host, run, range_set(sequences)) for (host, run), sequences in runs.items())
    return [(host, run, first, last) for host, run, spans in range_sets for first, last in spans]


def range_set(sequences: Iterable[int]) -> RangeSet:
    """Return *sequences*, in any order, as ranges."""
    ordered = sorted(sequences)
    spans, begin = RangeSet(), 0
    for index, sequence in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] > sequence + 1:
            spans.add(ordered[begin], sequence)
            begin = index + 1
    return spans
