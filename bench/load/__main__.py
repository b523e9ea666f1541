"""`make load`: a fleet of simulated hosts against a local aggregator, and the sustained load.

    python -m bench.load --hosts 400 --seconds 60 --seed 1        one load
    python -m bench.load --steps 200,400,800,1600 --seconds 60    rising, to find the largest
    python -m bench.load --hosts 10000 --every-seconds 60         10,000 that send rarely

Each host has its own connection and sends all tables of an eight-GPU host as differences. The
generator is a separate process; its CPU is shown beside the aggregator's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..__main__ import machine
from .fleet import GPUS
from .fleet_run import LoadReport, run

_BAR = 30


def progress(at: int, length: int, line: dict[str, Any]) -> None:
    """Draw the bar, with the current figures."""
    at = min(at, length)
    done = "#" * (_BAR * at // length)
    waiting = line["flying"] + line["held"]
    text = f"{line['active']} hosts, {waiting} frames without receipt"
    print(f"\r[{done:<{_BAR}}] {at}/{length} s  {text:<46}", end="", file=sys.stderr, flush=True)


def tables(report: LoadReport) -> str:
    """Return the results of a run, as Markdown."""
    rows = [
        (
            "| hosts | GPU rows/s | all rows/s | receipted/s | receipt p50, worst second | p99 | "
            "without receipt at end | aggregator CPU (its loop) | generator CPU | RSS | credit stalls/s | kept up |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for step in report.steps():
        rows.append(
            f"| {step['hosts']:.0f} | {step['gpu_rows']:.0f} | {step['rows']:.0f} | "
            f"{step['receipted_rows']:.0f} | {step['p50']:.2f} s | {step['p99']:.2f} s | "
            f"{step['flying']:.0f} | {step['aggregator_cpu']:.2f} ({step['aggregator_loop_cpu']:.2f}) | "
            f"{step['cpu_seconds']:.2f} | {step['memory_bytes'] / 1e6:.0f} MB | "
            f"{step['stalls']:.0f} | {'yes' if step['sustained'] else 'no'} |"
        )
    return "\n".join([*rows, "", *_sums(report)])


def _sums(report: LoadReport) -> list[str]:
    last, figures = report.seconds[-1], report.figures
    grown = report.memory_connected_bytes - report.memory_before_bytes
    receipts, fresh = report.last["receipts"], report.probe.get("fresh", {})
    commits = figures.get("commits_total", 0.0) or 1.0
    lines = [
        (f"connected: {report.connections} in {report.connect_seconds:.1f} s "
        f"({report.connections / report.connect_seconds:.0f}/s, {report.connect_cpu_seconds:.1f} s of the "
        f"aggregator's CPU), {grown / report.connections / 1024:.0f} KiB of its memory each"),
        (f"memory: {last['memory_bytes'] / 1e6:.0f} MB at the end, {report.memory_peak_bytes / 1e6:.0f} MB at most (VmHWM), "
        "the operators' file being written, with its other processes"),
        f"receipt after the reading: {_summary(receipts)}",
        f"visible in the API after the reading: {_summary(fresh)}; not within 10 s: {report.probe.get('late', 0)}",
        (f"frames sent {last['frames']}, receipted {last['receipted']}, refused {last['refused']}, left out for "
        f"want of credit {last['dropped']}; broken streams {last['broken']} {last['words']}"),
        f"GPU rows receipted {last['receipted'] * GPUS}, in the store {report.stored_gpu_rows}",
        (f"commits: {commits:.0f}, {figures.get('commit_duration_seconds_total', 0) / commits:.3f} s each; "
        f"operators' file: {figures.get('snapshot_write_seconds', 0):.1f} s; judging: "
        f"{figures.get('judge_seconds', 0):.3f} s; loop late by {figures.get('loop_lag_seconds', 0):.2f} s"),
        f"the generator was late by {_summary(report.last['late'])}",
    ]  # fmt: skip
    if (lost := last["receipted"] * GPUS - report.stored_gpu_rows) > 0:
        lines.append(f"LOST: {lost} rows were receipted and are not in the store")
    return lines


def _summary(found: dict[str, float]) -> str:
    if not found.get("count"):
        return "nothing was measured"
    return f"p50 {found['p50']:.2f} s, p99 {found['p99']:.2f} s, max {found['max']:.2f} s"


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def main() -> int:
    """Run, and print the tables; return 1 if the run failed, or a receipted row was not stored."""
    parser = argparse.ArgumentParser(
        prog="make load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=_count, default=400)
    parser.add_argument("--seconds", type=_count, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=_counts, help="hosts of each step, of --seconds together")
    parser.add_argument(
        "--every-seconds", type=_count, default=1, help="whole seconds between frames of a host"
    )
    parser.add_argument("--data", type=Path, help="an empty folder; else a temporary one")
    parser.add_argument("--set", action="append", default=[], help="a setting of the aggregator")
    options = parser.parse_args()
    steps = options.steps or [options.hosts]
    plan = [(hosts, max(2, options.seconds // len(steps))) for hosts in steps]
    try:
        report = run(
            plan, options.seed, period_seconds=options.every_seconds, settings=options.set,
            folder=options.data, progress=progress,
        )  # fmt: skip
    except RuntimeError as error:
        print(f"make load: {error}", file=sys.stderr)
        return 1
    print(file=sys.stderr)
    print(f"{machine()}, seed {options.seed}\n\n{tables(report)}")
    return int(report.seconds[-1]["receipted"] * GPUS > report.stored_gpu_rows)


if __name__ == "__main__":
    sys.exit(main())
