"""Delay from a reading until the API shows it, and until its receipt, under a fleet's load; against
the limit.
"""

from __future__ import annotations

from gangline.aggregator.config import AggregatorConfig

from .load.fleet_run import run as run_load
from .measure import Result

HOSTS, SECONDS, WARM_SECONDS = 200, 30, 6
LIMIT_SECONDS = 2.0
#: A commit contains everything since the previous commit: its first frame has waited this long.
FLOOR_SECONDS = AggregatorConfig.commit_seconds


def run(seed: int) -> list[Result]:
    """Measure at one load; the notes show whether it was sustained."""
    report = run_load([(HOSTS, SECONDS)], seed, warm=WARM_SECONDS)
    (step,) = report.steps()
    fresh, receipts = report.probe["fresh"], report.last["receipts"]
    load = (
        f"{step['gpu_rows']:.0f} GPU rows/s, {step['rows']:.0f} of all tables, "
        f"{'kept up' if step['sustained'] else 'NOT kept up'}"
    )
    nan = float("nan")
    return [
        Result("reading to visible in the API, p99", fresh.get("p99", nan), "s", "limit", LIMIT_SECONDS,
               f"{load}; p50 {fresh.get('p50', nan):.2f} s, {fresh['count']} readings searched for, "
               f"{report.probe['late']} not seen within 10 s"),
        Result("reading to receipt, p99", receipts["p99"], "s", "a commit's wait", FLOOR_SECONDS,
               f"{load}; p50 {receipts['p50']:.2f} s, max {receipts['max']:.1f} s of {receipts['count']}"),
    ]  # fmt: skip
