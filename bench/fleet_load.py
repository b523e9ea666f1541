"""Rising fleet load until receipts fall behind, and the CPU per row at the largest sustained load.

Peer: a raw Arrow insert of the same number of GPU rows. `python -m bench.load` runs longer, and
other loads.
"""

from __future__ import annotations

import os

from .ingest_cost import raw_costs
from .load.fleet import GPUS
from .load.fleet_run import run as run_load
from .measure import Result

STEPS = (50, 100, 200, 300, 400)
STEP_SECONDS = 8
#: Design target for one machine.
FLEET_HOSTS = 10_000


def run(seed: int) -> list[Result]:
    """Measure; 40 s of load."""
    report = run_load([(hosts, STEP_SECONDS) for hosts in STEPS], seed, warm=STEP_SECONDS)
    steps = report.steps()
    sustained = [step for step in steps if step["sustained"]]
    best = sustained[-1] if sustained else steps[0]
    cost = best["aggregator_cpu"] / best["rows"] * 1e6
    notes = (
        f"{'at least' if steps[-1]['sustained'] else 'largest'} {best['hosts']:.0f} hosts = "
        f"{best['gpu_rows']:.0f} GPU rows/s and {best['rows']:.0f} rows/s of all tables, receipts p99 "
        f"{best['p99']:.1f} s; of it in the loop {best['aggregator_loop_cpu'] / best['aggregator_cpu']:.0%}; "
        f"generator's own {best['cpu_seconds']:.2f} cores not counted; rows stored "
        f"{report.stored_gpu_rows} of {report.seconds[-1]['receipted'] * GPUS} receipted"
    )
    host_seconds = best["aggregator_cpu"] / best["frames"]
    return [
        *(Result("aggregator, all tables of a fleet", cost, "us CPU a row",
                 f"raw Arrow insert of GPU rows, {rows} a commit", raw, notes)
          for rows, raw in raw_costs(seed).items()),
        Result(f"cores for {FLEET_HOSTS} hosts of 8 GPUs at this cost", host_seconds * FLEET_HOSTS,
               "cores", "of this machine, which the generator shares", float(os.cpu_count() or 1),
               "extrapolated, not run"),
    ]  # fmt: skip
