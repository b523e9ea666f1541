"""A histogram of seconds, in Prometheus' form, with quantiles for internal use."""

from __future__ import annotations

import resource
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


class Histogram:
    """Written by one thread, read by any: a reader may see an observation in one of its numbers only."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """*bounds*: the upper ends of the buckets, rising; what is longer goes in one more."""
        self.bounds = tuple(bounds)
        #: Observations by bucket.
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.max = 0.0

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count *value*."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.max = max(self.max, value)

    def quantile(self, share: float, before: Sequence[int] = ()) -> float | None:
        """Return the upper end of the bucket that *share* of the observations lie in or below.

        *before*: an earlier `counts`, what came until then is left out. None when nothing came; of the
        last bucket, which has no end, the longest ever observed.
        """
        earlier = before or [0] * len(self.counts)
        added = [now - then for now, then in zip(self.counts, earlier, strict=True)]
        wanted, cumulative = share * sum(added), 0
        for at, count in enumerate(added):
            cumulative += count
            if count and cumulative >= wanted:
                return self.bounds[at] if at < len(self.bounds) else self.max
        return None


# ----------------------------------------------------------------------
# gRPC calls counted: by method, and those that failed by status code.


class CallCounters:
    """Written by the loop's thread, read by any. Methods and codes are ours: their number is bounded."""

    def __init__(self) -> None:
        #: `TelemetryService/RegisterNode` -> calls begun.
        self.started: Counter[str] = Counter()
        #: (method, `RESOURCE_EXHAUSTED`) -> calls that ended so.
        self.failed: Counter[tuple[str, str]] = Counter()


# ----------------------------------------------------------------------
# Open files: as many as the system allows, and words when that is too few for the fleet.

#: Beside one connection a host: the store, its spill files, the journal, the API's callers.
RESERVED_DESCRIPTORS = 512


def raise_open_files_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one. Return both as they are then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def open_files_warning(allowed: int, hosts_max: int) -> str:
    """Return what to tell when *allowed* open files are too few for *hosts_max* hosts; else ""."""
    if allowed == resource.RLIM_INFINITY or allowed >= hosts_max + RESERVED_DESCRIPTORS:
        return ""
    hosts = max(0, allowed - RESERVED_DESCRIPTORS)
    return (
        f"{allowed} open files are allowed, hosts_max = {hosts_max} needs {hosts_max + RESERVED_DESCRIPTORS}: the "
        f"connection of about the {hosts + 1}th host will not be accepted; raise the hard limit "
        f"(LimitNOFILE={hosts_max + RESERVED_DESCRIPTORS} in the unit, or ulimit -Hn), or lower hosts_max"
    )
