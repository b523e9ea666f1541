"""Counters of the aggregator's gRPC calls, and the limit of open files."""

from __future__ import annotations

import resource
from collections import Counter

#: Descriptors besides a connection per host: store, spill files, journal, the API's callers.
RESERVED_DESCRIPTORS = 512


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
