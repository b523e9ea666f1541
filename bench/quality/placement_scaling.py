"""Sizes of gangs on real data (MLPerf training v5.0): predicted throughput of a left-out size.

Regret: work lost by choosing a size from it, relative to the best measured size; a free node counts
as a share v of a working node. The form of the curve and the assumed exponent were chosen with this
file, so these are in-sample errors.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.quality.captures import DATA
from bench.quality.markdown import table
from gangline.aggregator.decisions.scaling import scaling_curve

RUNS = DATA / "scaling" / "mlperf_training.csv"
LLM = ("v5.0", "llama31_405b")
SUBMITTER, SYSTEM = "NVIDIA", re.compile(r"eos[-a-z]*(?:_n(\d+))?_ngc")
SIZES_MIN = 3
FREE_VALUES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
ERROR_WANTED, REGRET_WANTED = 0.02, 0.03
TEXT = """\
Throughput by nodes of public training runs (MLPerf training v4.0 and v5.0, derived and unverified, one submitter and one
kind of system; mlcommons/training_results, Apache-2.0). Each size is left out in turn and estimated from the others.
Regret is that of the size which such estimates choose: the largest over values of a free node from 0 to 0.9. The forms
of the curve were chosen by looking at this file."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One size, estimated without it.

    `regret`: the regret of the size chosen by this estimate, the largest over FREE_VALUES.
    """

    workload: str
    nodes: int
    place: str
    error: float
    is_within: bool
    regret: float


def throughputs(path: Path = RUNS) -> dict[tuple[str, str], dict[int, float]]:
    """Return throughput by nodes, of each (round, benchmark) with enough sizes. Raises OSError."""
    result: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            match = SYSTEM.match(row["system"])
            if row["submitter"] == SUBMITTER and match and float(row["throughput_median"] or 0):
                sizes = result[row["round"], row["benchmark"]]
                sizes[int(match[1] or 1)] = float(row["throughput_median"])
    return {key: dict(sorted(row.items())) for key, row in result.items() if len(row) >= SIZES_MIN}


def regret(
    measured: Mapping[int, float], estimated: Mapping[int, float], free_value: float
) -> float:
    """Return the share of work lost by the best size according to *estimated*."""
    maximum = max(measured)

    def work(nodes: int, throughput: Mapping[int, float]) -> float:
        per_node = max(row / size for size, row in throughput.items())
        return throughput[nodes] / per_node + free_value * (maximum - nodes)

    chosen = max(estimated, key=lambda nodes: work(nodes, estimated))
    best = max(work(nodes, measured) for nodes in measured)
    return 1.0 - work(chosen, measured) / best


def left_out(workload: str, measured: Mapping[int, float]) -> list[LeftOut]:
    """Return a row for each size."""
    rows: list[LeftOut] = []
    for nodes, throughput in measured.items():
        rest = {size: row for size, row in measured.items() if size != nodes}
        estimate = scaling_curve(list(rest.items())).estimates([nodes])[0]
        place = "between" if min(rest) < nodes < max(rest) else "outside"
        place = "beyond twice" if nodes > 2 * max(rest) else place
        estimated = {**rest, nodes: estimate.value}
        rows.append(
            LeftOut(
                workload, nodes, place, estimate.value / throughput - 1.0,
                estimate.lower <= throughput <= estimate.upper,
                max(regret(measured, estimated, value) for value in FREE_VALUES),
            )
        )  # fmt: skip
    return rows


def section(rows: Sequence[LeftOut]) -> str:
    cells = [
        (
            row.workload, str(row.nodes), row.place, f"{row.error:+.1%}", "yes" if row.is_within else "no",
            f"{row.regret:.1%}",
        )
        for row in rows
    ]  # fmt: skip
    heads = "workload | nodes left out | relative to the others | error | within its 90 % | regret"
    llm = [row for row in rows if row.workload == " ".join(LLM)]
    inside = [row for row in llm if row.place == "between"]
    others = [row for row in rows if row.place == "between" and row not in inside]
    summary = (
        f"{' '.join(LLM)}, sizes between others: error at most {max(abs(row.error) for row in inside):.1%} (target {ERROR_WANTED:.0%}), regret at most "
        f"{max(row.regret for row in inside):.1%} (target {REGRET_WANTED:.0%}). All its sizes: regret at most {max(row.regret for row in llm):.1%}. "
        f"The other workloads have three sizes each, so two remain: error up to {max(abs(row.error) for row in others):.0%} between them. "
        f"{sum(row.is_within for row in rows)} of {len(rows)} rows are within their interval."
    )
    return "\n\n".join(["## Real: sizes of a gang", TEXT, table(heads, cells), summary])


def scaling_section() -> str:
    result = throughputs()
    keys = [LLM, *(key for key in sorted(result) if key != LLM)]
    return section([row for key in keys for row in left_out(" ".join(key), result[key])])


if __name__ == "__main__":
    if not RUNS.exists():
        print(f"left out: {RUNS.name} is not in {DATA}", file=sys.stderr)
    else:
        print(scaling_section())
