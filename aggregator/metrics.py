"""Counters of the aggregator: a histogram of seconds, gRPC calls, and the limit of open files."""

from __future__ import annotations

import resource
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

#: Descriptors besides a connection per host: store, spill files, journal, the API's callers.
RESERVED_DESCRIPTORS = 512


class Histogram:
    """A histogram in Prometheus' form, written by one thread.

    Other threads may read it, and may see an observation in only some of its numbers.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """*bounds*: ascending upper bounds of the buckets; a last bucket has no bound."""
        self.bounds = tuple(bounds)
        #: Observations by bucket.
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.max = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count *value*."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.max = max(self.max, value)

    def quantile(self, share: float, before: Sequence[int] = ()) -> float | None:
        """Return the upper bound of the bucket with the quantile *share*.

        None without observations.

        *before*: an earlier `counts`, whose observations are excluded. For the last bucket, which
        has no bound, return the maximum ever observed.
        """
        earlier = before or [0] * len(self.counts)
        added = [now - then for now, then in zip(self.counts, earlier, strict=True)]
        wanted, cumulative = share * sum(added), 0
        for index, count in enumerate(added):
            cumulative += count
            if count and cumulative >= wanted:
                return self.bounds[index] if index < len(self.bounds) else self.max
        return None


class CallCounters:
    """Counts of calls of known gRPC methods, written in the loop's thread, read in any thread."""

    def __init__(self) -> None:
        #: `TelemetryService/RegisterNode` -> started calls.
        self.started: Counter[str] = Counter()
        #: (method, `RESOURCE_EXHAUSTED`) -> failed calls.
        self.failed: Counter[tuple[str, str]] = Counter()


def raise_open_files_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard limit; return both."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def open_files_warning(allowed: int, hosts_max: int) -> str:
    """Return a warning if *allowed* open files are too few for *hosts_max* hosts; else ""."""
    if allowed == resource.RLIM_INFINITY or allowed >= hosts_max + RESERVED_DESCRIPTORS:
        return ""
    hosts = max(0, allowed - RESERVED_DESCRIPTORS)
    return (
        f"{allowed} open files are allowed, hosts_max = {hosts_max} needs {hosts_max + RESERVED_DESCRIPTORS}: the "
        f"connection of about the {hosts + 1}th host will not be accepted; raise the hard limit "
        f"(LimitNOFILE={hosts_max + RESERVED_DESCRIPTORS} in the unit, or ulimit -Hn), or lower hosts_max"
    )
