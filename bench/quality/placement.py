"""Placement on real data, scored by later faults and run times; into docs/quality_placement.md.

The text of each section describes its method. Nothing in the planner is fitted to the recordings of
faults and of GPU speed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.quality.captures import DATA
from bench.quality.hazard import RECORDING, TRAIN_UNTIL, shuffled
from bench.quality.head import DATA_TEXT, ReportHead, commit_of
from bench.quality.markdown import table, wrapped
from bench.quality.pipeline_scenario import Floats
from bench.quality.placement_packing import is_here, packing_section
from bench.quality.placement_recovery import recovery_section
from bench.quality.placement_scaling import RUNS, scaling_section
from bench.quality.placement_simulated import simulated_section
from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions.repeatability import lasting_speeds
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.hazard.events import FaultTable, nodes_in_file_name, read_events
from gangline.aggregator.hazard.history import ALL, units_of
from gangline.aggregator.hazard.training import train
from tests.aggregator.decisions.fleets import Node, table_of

LOADS = (0.64, 0.71, 0.78, 0.85, 0.92)
CONTROLS = 5
FAULTS_WANTED, ORDER_WANTED = 0.85, 1.02
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality_placement.md"
KEPT = ROOT / "build" / "quality_placement"
PUBLISHED_SEED = 1
#: Seed of packing, simulated fleets and recovery; their seeds 1 to 9 are for tuning. Each look
#: at this seed is in looks.md.
JUDGED_SEED = 30
WORKLOADS = ("sgemm", "resnet", "pagerank")
GANGS = (16, 64, 128)
POOL_SHARE = 1.25
DRAWS = 100
#: Minimum runs of a GPU, on both sides of the split together.
RUNS_MIN = 3
SERIES_GAP_SECONDS = 3600.0
#: Wanted share of the oracle's gain; and the largest claimed gain for memory-bound work.
CONTROL = "control: sgemm, earlier runs of other GPUs"
SHARE_WANTED, CLAIM_MAX = 0.90, 0.003
SPEED_TEXT = """\
Runs of SGEMM, ResNet and PageRank on each GPU of one cluster (recordings of hal-uw/blox-pal, MIT). The runs of each GPU
are split in the middle of their order in time.

- The planner sees one node per GPU. Its speed is the median of the earlier runs, relative to the middle of all GPUs,
  and moved toward the middle by the share of the variance that is within GPUs over time (empirical Bayes). A GPU with a
  single earlier run counts as the middle.
- The planner takes a gang from a pool that is a quarter larger. A gang takes as long as its slowest member's later runs.
- This measures the choice, not how the service learns speed: it learns from clocks and from gangs, not from run times.

Results:

- SGEMM: the same GPUs are slow in earlier and later runs. The plan takes nearly all of the possible gain.
- PageRank: memory limits it, and the plan claims little.
- **ResNet: GPUs that are slow in earlier runs are not slow in later ones**, because whole hosts start cold for one run.
  The plan claims nothing and has no gain. By raw medians it claimed 7 to 12 %. Leaving out the first run of each series
  (an hour or longer after the one before) does not change that."""


FAULTS_TEXT = f"""\
Faults of StepFun's 400 nodes (stepfun-ai/InfiniteHBD-Trace, Apache-2.0). The hazard model learns from days 0 to {TRAIN_UNTIL}.
On each later day at 00:00 the planner takes a share of the nodes that are up, in one gang. It uses the hazard alone,
because the recording has neither speed nor topology.

- The figures count fault starts on members until the next midnight. Ratios are to the average of as many random nodes.
- `since return` takes the nodes that came back longest ago, ties shuffled. `oracle` takes nodes without a fault that day.
- The control gives each fault to a random node, then learns and judges in the same way.

The same days were used before, for [hazard](hazard.md)."""


@dataclass(frozen=True)
class FaultRow:
    """Fault starts on members, over all judged days; `expected`: on equally many random nodes."""

    load: float
    expected: float
    planned: float
    since_return: float
    oracle: float


@dataclass(frozen=True)
class GpuTimes:
    """Run time of each GPU, its earlier and its later runs (medians; shapes: GPUs)."""

    earlier: Floats
    later: Floats
    #: of the earlier runs, relative to the median GPU, and shrunk by the unrepeatable share
    speed: Floats


@dataclass(frozen=True)
class GainRow:
    """Gains over random members, as shares of the step time; means over all draws."""

    workload: str
    gpus: int
    gang: int
    claimed: float
    gained: float
    oracle: float
    random: float


def gpu_times(path: Path, *, warm: bool) -> GpuTimes:
    """Return the GPUs with enough runs. *warm*: without the first run of each series."""
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            runs[row["uuid"]].append((float(row["ts"]), float(row["perf"])))
    halves: list[tuple[float, float]] = []
    firsts: list[Floats] = []
    for uuid in sorted(runs):
        ordered = sorted(runs[uuid])
        begins = [float("-inf"), *(time for time, _ in ordered)]
        times = [
            perf
            for (time, perf), before in zip(ordered, begins, strict=False)
            if not warm or time - before < SERIES_GAP_SECONDS
        ]
        middle = len(times) // 2
        if len(times) >= RUNS_MIN:
            halves.append((float(np.median(times[:middle])), float(np.median(times[middle:]))))
            firsts.append(np.array(times[:middle]))
    pairs = np.array(halves).reshape(-1, 2)
    center = float(np.median(pairs[:, 0]))
    speeds = [center / runs for runs in firsts]
    spread = sum(float(np.square(runs - runs.mean()).sum()) for runs in speeds)
    variance = spread / max(sum(runs.size - 1 for runs in speeds), 1)
    # A single run does not show the variance of this GPU.
    within = np.array([variance / runs.size if runs.size > 1 else np.nan for runs in speeds])
    return GpuTimes(pairs[:, 0], pairs[:, 1], lasting_speeds(center / pairs[:, 0], within))


def chosen_of(speeds: Floats, gang: int) -> list[int]:
    """Return the nodes of a plan among nodes that differ only by *speeds*."""
    nodes = [Node(f"g{index}", speed=float(speed), gpus=1) for index, speed in enumerate(speeds)]
    nodes_table, candidates = table_of(nodes)
    result = planner.plan(nodes_table, candidates, GangRequirements(gang, gpus_per_node=1))
    assert result  # all nodes are free and healthy
    return [int(at) for at in result[0].nodes]


def measure(
    workload: str,
    times: GpuTimes,
    gang: int,
    seed: int,
    draws: int = DRAWS,
    *,
    is_control: bool = False,
) -> GainRow:
    """Return the plans' gain over random members, in pools drawn with *seed*.

    *is_control*: the speeds are those of other GPUs' earlier runs.
    """
    source = np.random.default_rng(seed)
    pool_size = min(round(gang * POOL_SHARE), times.later.size)
    result = np.zeros((draws, 4))
    for draw in range(draws):
        # Shuffled: the files list GPUs in a systematic order.
        pool = source.permutation(times.later.size)[:pool_size]
        speed, later = times.speed[pool], times.later[pool]
        if is_control:
            speed = source.permutation(speed)
        chosen = chosen_of(speed, gang)
        # Random members; the gang is a subset of the pool, and a single draw is noisy.
        blind = [source.permutation(pool_size)[:gang] for _ in range(20)]
        slowest = float(np.mean([later[members].max() for members in blind]))
        expected = float(np.mean([1.0 / speed[members].min() for members in blind]))
        result[draw] = (
            1.0 - 1.0 / speed[chosen].min() / expected,
            1.0 - later[chosen].max() / slowest,
            1.0 - np.sort(later)[:gang].max() / slowest,
            slowest,
        )
    claimed, gained, oracle, slowest = (float(value) for value in result.mean(axis=0))
    return GainRow(workload, times.later.size, gang, claimed, gained, oracle, slowest)


def fault_rows(faults: FaultTable, seed: int, loads: Sequence[float] = LOADS) -> list[FaultRow]:
    """Return a row for each share of the nodes that are up."""
    source = np.random.default_rng(seed)
    units = units_of(faults, 1)
    judged = units.between(TRAIN_UNTIL + 1, int(units.day.max()))
    model = train(faults.before(TRAIN_UNTIL + 1.0), ALL, f"days 0 to {TRAIN_UNTIL}")
    hazards = -np.log1p(-model.probability(judged.state, 1)) / 24.0
    totals = np.zeros((len(loads), 4))
    for day in np.unique(judged.day):
        # Shuffled: the file names nodes in the order of their failures.
        rows = source.permutation(np.flatnonzero(judged.day == day))
        starts, hours = judged.starts[rows], hazards[rows]
        returned = np.argsort(-judged.state.since_return_days[rows], kind="stable")
        nodes = [
            Node(f"n{index}", hazard=float(hazard), gpus=1) for index, hazard in enumerate(hours)
        ]
        nodes_table, candidates = table_of(nodes)
        for index, load in enumerate(loads):
            count = max(1, round(load * rows.size))
            needs = GangRequirements(count, gpus_per_node=1, hours=24.0)
            chosen = planner.plan(nodes_table, candidates, needs)[0].nodes
            totals[index] += (
                count * starts.mean(),
                starts[chosen].sum(),
                starts[returned[:count]].sum(),
                np.sort(starts)[:count].sum(),
            )
    return [FaultRow(load, *(float(value) for value in total)) for load, total in zip(loads, totals, strict=True)]  # fmt: skip


def pooled(rows: Sequence[FaultRow], name: str) -> float:
    """Return fault starts of a method relative to random members, all loads together."""
    return sum(float(getattr(row, name)) for row in rows) / sum(row.expected for row in rows)


def fault_section(seed: int) -> str:
    faults = read_events(RECORDING)
    faults = faults.with_nodes(nodes_in_file_name(RECORDING) or len(faults.nodes))
    rows = fault_rows(faults, seed)
    cells = [
        (
            f"{row.load:.0%}", f"{row.expected:.0f}", f"{row.planned:.0f}", f"{row.planned / row.expected:.2f}",
            f"{row.since_return / row.expected:.2f}", f"{row.planned / row.since_return:.2f}", f"{row.oracle / row.expected:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    heads = (
        "load | random | plan | plan / random | since return / random | plan / since return | "
        "oracle / random"
    )
    controls = [pooled(fault_rows(shuffled(faults, seed * CONTROLS + index), seed), "planned") for index in range(CONTROLS)]  # fmt: skip
    worst = max(row.planned / row.since_return for row in rows)
    text = f"""{table(heads, cells)}

All loads together, as a ratio to random: plan {pooled(rows, "planned"):.3f} (target: {FAULTS_WANTED:g}), since return {pooled(rows, "since_return"):.3f}. The largest ratio to the
order by return at any load: {worst:.3f} (target: {ORDER_WANTED:g}). Control, {CONTROLS} draws: {min(controls):.2f} to {max(controls):.2f}. The highest load has {rows[-1].expected:.0f} starts, so
a difference of a tenth is chance. Seed {seed}."""
    return f"## Real: faults\n\n{FAULTS_TEXT}\n\n{text}"


def speed_rows(
    seed: int, folder: Path = DATA / "gpu_speed", draws: int = DRAWS, *, warm: bool = False
) -> list[GainRow]:
    """Return a row for each workload and size of gang with enough GPUs; the last is the control."""
    rows: list[GainRow] = []
    for workload in WORKLOADS:
        times = gpu_times(folder / f"{workload}-longhorn.csv", warm=warm)
        sizes = [gang for gang in GANGS if round(gang * POOL_SHARE) <= times.later.size]
        rows += [measure(workload, times, gang, seed, draws) for gang in sizes]
    times = gpu_times(folder / f"{WORKLOADS[0]}-longhorn.csv", warm=warm)
    control = measure(CONTROL, times, GANGS[0], seed, draws, is_control=True)
    return [*rows, control]


def text_of(rows: Sequence[GainRow], seed: int) -> str:
    cells = [
        (
            row.workload, str(row.gpus), str(row.gang), f"{row.claimed:+.1%}", f"{row.gained:+.1%}", f"{row.oracle:+.1%}",
            f"{row.gained / row.oracle:.0%}" if row.oracle > 0.001 else "-",
        )
        for row in rows
    ]  # fmt: skip
    heads = "workload | GPUs | gang | claimed | gained | oracle | share of the oracle's gain"
    result: list[str] = []
    for workload in WORKLOADS:
        of_it = [row for row in rows if row.workload == workload]
        if of_it:
            share = sum(row.gained for row in of_it) / sum(row.oracle for row in of_it)
            result.append(f"{workload} {share:.0%}")
    return f"""{table(heads, cells)}

Gain: step time saved against random members; {DRAWS} pools of {POOL_SHARE:g} times the gang, seed {seed}. All sizes
together, share of the oracle's gain: {", ".join(result)}. Targets: {SHARE_WANTED:.0%}, and for memory-bound work (PageRank) a claim of at most {CLAIM_MAX:.1%}."""


def speed_section(seed: int) -> str:
    texts = [
        f"{title}:\n\n{text_of(speed_rows(seed, warm=warm), seed)}"
        for title, warm in (("All runs", False), ("Without the first run of each series", True))
    ]
    return "\n\n".join(["## Real: speed of each GPU", SPEED_TEXT, *texts])


def packing_or_words(seed: int) -> str:
    """Return the section of packing, or a note that its recordings are missing."""
    if is_here():
        return packing_section(seed)
    print(f"left out: packing: its recordings are not in {DATA_TEXT}", file=sys.stderr)
    return f"## Real: packing\n\nLeft out: its recordings are not in {DATA_TEXT}."


#: Section -> its function, and whether its seed is JUDGED_SEED; in the order of the page.
SECTIONS: dict[str, tuple[Callable[[int], str], bool]] = {
    "faults": (fault_section, False),
    "speed": (speed_section, False),
    "scaling": (lambda _: scaling_section(), False),
    "packing": (packing_or_words, True),
    "simulated": (simulated_section, True),
    "recovery": (recovery_section, True),
}


def made_section(name: str, seed: int, commit: str, resume: bool) -> str:
    """Return one section of SECTIONS; it is stored for `--resume`."""
    file = KEPT / f"{name}-{seed}-{'-'.join(commit.split())}.md"
    if resume and file.exists():
        return file.read_text()
    text = SECTIONS[name][0](seed)
    KEPT.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return text


def made_sections(names: Sequence[str], seed: int, judged_seed: int, *, resume: bool) -> list[str]:
    """Return sections, computed by two processes, the longest first."""
    commit = commit_of(ROOT)
    with ProcessPoolExecutor(2) as pool:
        result = {}
        for name in reversed(names):
            own_seed = judged_seed if SECTIONS[name][1] else seed
            result[name] = pool.submit(made_section, name, own_seed, commit, resume)
        return [result[name].result() for name in names]


def main() -> int:
    """Print the sections, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.placement", description=__doc__)
    parser.add_argument("--seed", type=int, default=PUBLISHED_SEED)
    parser.add_argument(
        "--judged-seed",
        type=int,
        default=JUDGED_SEED,
        help="of packing, simulated fleets, recovery",
    )
    parser.add_argument(
        "--resume", action="store_true", help="take sections that were made before from the same commit by the same seeds"
    )  # fmt: skip
    parser.add_argument("--only", choices=SECTIONS, help="print this section; write nothing")
    parser.add_argument("--write", action="store_true", help="write docs/quality_placement.md")
    options = parser.parse_args()
    if not (DATA / "gpu_speed").is_dir() or not RECORDING.exists() or not RUNS.exists():
        # A clean clone has no recordings: `make evaluate` continues, and the page stays unchanged.
        print(f"left out: placement: its recordings are not in {DATA_TEXT}", file=sys.stderr)
        return 0
    names = [options.only] if options.only else list(SECTIONS)
    sections = made_sections(names, options.seed, options.judged_seed, resume=options.resume)
    text = "\n\n".join(sections)
    if options.only or not options.write:
        print(text)
        return 0
    head_facts = ReportHead.now(
        options.seed, f"python -m bench.quality.placement --write --seed {options.seed}", ROOT
    )
    lines = [
        "# How good placement is", "",
        f"Made on {head_facts.date} from commit {head_facts.commit} by `{head_facts.command}`, with {head_facts.versions}. Do not edit this page by hand.",
        "[placement](placement.md) explains how plans are made and priced. For packing, simulated fleets and recovery, seeds 1 to 9 are for",
        f"tuning. Nobody looked at seed {options.judged_seed} before this page was made.", "",
        text, "",
    ]  # fmt: skip
    PAGE.write_text(wrapped("\n".join(lines)))
    print(f"wrote {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
