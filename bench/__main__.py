"""`make bench`: runs each benchmark against its floor or peer in the same run, and prints ratios."""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import sys

from .measure import HEADING, Result

#: Name -> subject. Each is a module of this package with `run(seed) -> list[Result]`.
BENCHES = {
    "codec": "a stream of frames: bytes a row and CPU against remote-write and deflating",
    "agent_cost": "the agent's CPU, memory, wake-ups and writes against a C program with the same reads and calls",
    "nvml_cost": "NVML's time per second of an H200 by recorded costs, against every call at its collector's pace",
    "dcgm_cost": "the agent with DCGM's host engine to listen to against the same agent without",
    "amd_sweep": "the sweep over eight AMD GPUs against a C program that reads the same files",
    "phases": "tracker, history and period of eight GPUs at 10 Hz against a C loop that only copies the ring",
    "check": "`gangline check` of a prolog against the bare start of an interpreter",
    "fault_to_advice": "a line of the kernel's log to the host's own verdict and to a proposed advisory, against the limit",
    "ingest_cost": "the aggregator's CPU a row, from the wire to durable, against a raw Arrow insert",
    "hostile_agent": "honest agents' receipts while others are hostile in all ways at once, against the same without",
    "fleet_load": "all that a fleet sends, rising until receipts fall behind: CPU a row against a raw Arrow insert",
    "small_fleet": "what 33 simulated hosts cost the aggregator in CPU and memory, against the budget",
    "fleet_whole": "what a connected host costs the aggregator in memory, against the limit for 10,000",
    "freshness": "from a reading to the API and to its receipt while a fleet speaks, against the limit",
    "segments": "readings in Parquet against the live file: bytes and CPU a row, and commits beside an export",
    "judging": "judging 10,000 hosts each second against a core, and against one numpy pass over the same arrays",
    "fingerprints": "runs of 200 jobs on 8,192 GPUs, and a search over 100,000 runs, against plain numpy passes",
    "operator_answers": "`hosts`, `explain`, `job` and `advise` at the client, for 32 and 1,000 hosts, against an echo",
    "score_nodes": "ScoreNodes over 10,000 hosts against an echo of as many bytes: idle, judged, with ingest; 100 watchers",
    "failover": "from a line of the kernel's log until the job runs elsewhere: real agent, aggregator, executor and Slurm",
    "executor": "an executor in a real Slurm: from PROPOSED to the last command, until the job runs elsewhere, 10,000 nodes",
    "extender": "the scheduler extender of Kubernetes: its answer against an echo",
    "kubernetes": "an executor at a real API server of Kubernetes: from PROPOSED to a taint that others read, and to a gang that is evicted",
    "launchers": "the real client of NVIDIA's launcher at the agent's health check against an echo, at attribution against the limit",
    "slurm_gang": "a lost node until all ranks run again: `gangline gang` with a spare against a requeue, in a real Slurm",
    "slurm_submit": "`sbatch` to a slurmctld with job_submit.lua and a mirror of 10,000 nodes against one without a plugin",
    "steps": "a training step of 1 ms that is reported against one that is not, and the hook against a call of nothing",
    "placement": "plans for 4,096 of 10,000 nodes against an echo of as many bytes: idle, and judged with ingest; blockers",
}


def machine() -> str:
    day = datetime.date.today().isoformat()
    return (
        f"{day}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("bench", nargs="*", choices=[*BENCHES, []], default=[])
    options = parser.parse_args()
    results: list[Result] = []
    names = options.bench or list(BENCHES)
    for index, name in enumerate(names, 1):
        print(f"[{index}/{len(names)}] {name}: {BENCHES[name]}", file=sys.stderr, flush=True)
        results += importlib.import_module(f".{name}", __package__).run(options.seed)
    print(f"{machine()}\n\n{HEADING}")
    print("\n".join(result.row() for result in results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
