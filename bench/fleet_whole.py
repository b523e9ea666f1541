"""What a connected host costs the aggregator in memory, and what a fleet would: two sizes, the slope, and the limit."""

from __future__ import annotations

from .load.fleet_run import run as run_load
from .measure import Result

#: Of the smaller one each host speaks as much more often: what DuckDB holds of readings is the same of both.
SIZES = (300, 1800)
SECONDS = 6
FLEET_HOSTS, LIMIT_BYTES = 10_000, 1.5e9


def run(seed: int) -> list[Result]:
    """Measure. The operators' file is left out: its writing takes memory for a moment, told by `bench.load`."""
    reports = [
        run_load([(hosts, SECONDS)], seed, warm=0, period_seconds=SECONDS * hosts / SIZES[1], probe=False,
                 settings=("ops_seconds=3600",))
        for hosts in SIZES
    ]  # fmt: skip
    ends = [report.seconds[-1]["memory_bytes"] for report in reports]
    connected = [report.memory_connected_bytes for report in reports]
    hosts = SIZES[1] - SIZES[0]
    each, idle = (ends[1] - ends[0]) / hosts, (connected[1] - connected[0]) / hosts
    whole = ends[0] + each * (FLEET_HOSTS - SIZES[0])
    large = reports[-1]
    notes = (
        f"{each / 1024:.0f} KiB a host that has told all its tables, {idle / 1024:.0f} KiB of them once it is "
        f"registered and connected; from {SIZES[0]} and {SIZES[1]} hosts, not run at {FLEET_HOSTS}"
    )
    per_registration = large.connect_cpu_seconds / large.connections * 1e3
    rate = large.connections / large.connect_seconds
    return [
        Result(f"memory of the aggregator with {FLEET_HOSTS} hosts", whole / 1e6, "MB",
               "limit", LIMIT_BYTES / 1e6, notes),
        Result("a host's registration", per_registration, "ms CPU", "what 10,000 in a minute leave of a core",
               6.0, f"{rate:.0f} a second, one after another"),
    ]  # fmt: skip
