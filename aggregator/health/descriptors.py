"""Open files: as many as the system allows, and words when that is too few for the fleet."""

from __future__ import annotations

import resource

#: Beside one connection a host: the store, its spill files, the journal, the API's callers.
BESIDE = 512


def raise_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one. Return both as they are then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def words(allowed: int, hosts_max: int) -> str:
    """Return what to tell when *allowed* open files are too few for *hosts_max* hosts; else ""."""
    if allowed == resource.RLIM_INFINITY or allowed >= hosts_max + BESIDE:
        return ""
    hosts = max(0, allowed - BESIDE)
    return (
        f"{allowed} open files are allowed, hosts_max = {hosts_max} needs {hosts_max + BESIDE}: the "
        f"connection of about the {hosts + 1}th host will not be accepted; raise the hard limit "
        f"(LimitNOFILE={hosts_max + BESIDE} in the unit, or ulimit -Hn), or lower hosts_max"
    )
