"""Memory of the aggregator per connected host: two fleet sizes, the slope, and the limit.

Also the bounded extra memory while the operators' file is written: the limit is for the peak.
"""

from __future__ import annotations

from .judging import LIMIT_BYTES
from .load.fleet_run import run as run_load
from .measure import Result

#: The smaller fleet sends more often: DuckDB holds the same readings in both.
SIZES = (300, 1800)
SECONDS = 6
FLEET_HOSTS = 10_000
#: Seconds between operators' files: 3600 means never; 1 is for a second run of the larger size.
OPS_SECONDS = (3600, 1)


def run(seed: int) -> list[Result]:
    """Measure three loads."""
    never, often = OPS_SECONDS
    reports = [
        run_load([(hosts, SECONDS)], seed, warm=0, period_seconds=SECONDS * hosts // SIZES[1], probe=False,
                 settings=(f"ops_seconds={ops}",))
        for hosts, ops in ((SIZES[0], never), (SIZES[1], never), (SIZES[1], often))
    ]  # fmt: skip
    *reports, writing = reports
    ends = [report.seconds[-1]["memory_bytes"] for report in reports]
    connected = [report.memory_connected_bytes for report in reports]
    hosts = SIZES[1] - SIZES[0]
    each, idle = (ends[1] - ends[0]) / hosts, (connected[1] - connected[0]) / hosts
    whole = ends[0] + each * (FLEET_HOSTS - SIZES[0])
    large = reports[-1]
    on_top = writing.memory_peak_bytes - ends[1]
    wrote = (
        f"VmHWM with {SIZES[1]} hosts, {on_top / 1e6:.0f} MB above the one that writes none, on top of the above; by "
        f"`python -m bench.load --hosts {FLEET_HOSTS} --every-seconds 60` without extrapolation"
    )
    notes = (
        f"{each / 1024:.0f} KiB a host that has sent all its tables, {idle / 1024:.0f} KiB of them once it is "
        f"registered and connected; from {SIZES[0]} and {SIZES[1]} hosts, not run at {FLEET_HOSTS}"
    )
    per_registration = large.connect_cpu_seconds / large.connections * 1e3
    rate = large.connections / large.connect_seconds
    return [
        Result(f"memory of the aggregator with {FLEET_HOSTS} hosts", whole / 1e6, "MB",
               "limit", LIMIT_BYTES / 1e6, notes),
        Result("at its peak, the operators' file being written", (whole + on_top) / 1e6, "MB",
               "limit", LIMIT_BYTES / 1e6, wrote),
        Result("a host's registration", per_registration, "ms CPU", "what 10,000 in a minute leave of a core",
               6.0, f"{rate:.0f} a second, one after another"),
    ]  # fmt: skip
