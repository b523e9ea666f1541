"""Stragglers in the third world, which the judge was not developed on: scenarios and tables of the page.

`pipeline_world` says what is played, `pipeline_readings` what of it arrives, `pipeline_verdicts` who counts as named.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.quality.intervals import weighted_rate
from bench.quality.markdown import counted, most_common, table
from bench.quality.pipeline_readings import EVIDENCE
from bench.quality.pipeline_scenario import CONTROL_KINDS, FAULT_KINDS, GangScenario, HostFault
from bench.quality.pipeline_verdicts import GangOutcome, judge_scenario
from bench.quality.progress import Progress, in_processes
from bench.quality.straggler_replay import JUDGE_SECONDS, NAIVE, causes_f1
from gangline.aggregator.model import Reason

SLOWDOWNS = (0.05, 0.10, 0.15, 0.30)
#: Faults without a counter: only inference finds them.
INFERRED_KINDS = ("silent_host", "silent_gpu")
#: Reasons that name the cause of each kind.
CAUSES: dict[str, frozenset[Reason]] = {
    "thermal": frozenset({Reason.THERMAL_THROTTLE}),
    "power_cap": frozenset({Reason.POWER_CAP}),
    "silent_host": frozenset({Reason.STRAGGLER}),
    "silent_gpu": frozenset({Reason.STRAGGLER}),
    "pcie": frozenset({Reason.PCIE}),
    "nic": frozenset({Reason.FABRIC, Reason.RAIL_DOWN}),
    "host_cpu": frozenset({Reason.HOST_CPU}),
}
#: Runs of each cell; each control; each cell of a variation; each kind of an ablation.
PER_CELL, PER_CONTROL, PER_VARIATION, PER_ABLATION = 3, 2, 2, 2
ABLATION_SLOWDOWN = VARIATION_SLOWDOWN = 0.15
VARIATION_KINDS = ("silent_host", "silent_gpu", "host_cpu")
#: A fault that costs less of the gang's pace is hidden: in bubbles, behind slower parts, in the
#: spread of healthy parts.
COST_MIN = 0.02
#: Onset of healing, and seconds of a run that heals.
HEALS, HEALED_SECONDS = 330.0, 660

VARIATIONS = (
    "no GPM (A100 and older)", "two models of GPU", "slow from birth", "heals after 150 s", "two faults at once",
    "hosts leave or join", "two jobs share hosts", "clocks disagree", "its agent is silent, 40 to 160 s after",
    "two other agents are silent", "nobody says which hosts are a gang", "a mixture of experts",
)  # fmt: skip
#: Names of the evidence that an ablation removes.
ABLATIONS = (*EVIDENCE, "processes (attribution)", "ReportGangs", "processes and ReportGangs")
FAULT_HEADINGS = (
    "kind | slowdown | pace lost | named | cause right | GPU right | others named | delay s, p50 / "
    "p95 | by"
)
VARIED_HEADINGS = (
    f"what | {' | '.join(VARIATION_KINDS)} | all | costs less than 2 % | others named | delay s, "
    "p50 / p95"
)
CONTROL_HEADINGS = ("control", "runs", "hosts", "blamed", "WATCH only", "blamed, no GPM", *NAIVE)
ABLATION_HEADINGS = (
    f"evidence | culprits named | {' | '.join(FAULT_KINDS)} | cause right | others named | delay s,"
    " p50 / p95"
)


def scenario_of(kind: str, slowdown: float, seed: int) -> GangScenario:
    """Return a run with one fault, at a host chosen by the seed."""
    return GangScenario(seed, (HostFault(kind, slowdown, seed * 7 % 16, gpu=seed * 3 % 8),))


def control_of(control: str, seed: int, *, has_gpm: bool = True) -> GangScenario:
    silences = ((3, 100.0, 300.0), (9, 150.0, 1e9)) if control == "agents_silent" else ()
    return GangScenario(seed, control=control, has_gpm=has_gpm, silences=silences)


def _varied(name: str, one: GangScenario) -> GangScenario:
    fault = one.faults[0]
    match name:
        case "no GPM (A100 and older)":
            return replace(one, has_gpm=False)
        case "two models of GPU":
            return replace(one, control="mixed")
        case "slow from birth":
            return replace(one, faults=(replace(fault, onset=0.0),))
        case "heals after 150 s":
            return replace(one, faults=(replace(fault, heals=HEALS),), seconds=HEALED_SECONDS)
        case "two faults at once":
            other = HostFault("thermal", fault.slowdown, (fault.host + 7) % 16, onset=fault.onset)
            return replace(one, faults=(fault, other))
        case "hosts leave or join":
            host = fault.host % (one.hosts // 2)
            return replace(
                one, control="resize", faults=(replace(fault, host=host, onset=240.0),), seconds=540
            )
        case "two jobs share hosts":
            host = fault.host % (one.hosts // 2)
            return replace(
                one, control="shared", faults=(replace(fault, host=host, gpu=fault.gpu % 4),)
            )
        case "clocks disagree":
            return replace(one, control="skewed")
        case "its agent is silent, 40 to 160 s after":
            return replace(one, silences=((fault.host, fault.onset + 40, fault.onset + 160),))
        case "two other agents are silent":
            others = ((fault.host + 1) % 16, (fault.host + 5) % 16)
            return replace(one, silences=tuple((host, 100.0, 1e9) for host in others))
        case "nobody says which hosts are a gang":
            return replace(one, is_attributed=False, is_reported=False)
        case "a mixture of experts":
            return replace(one, control="moe")
    raise ValueError(f"no variation {name!r}, expected one of {VARIATIONS}")


def _without(name: str, one: GangScenario) -> GangScenario:
    if name in EVIDENCE:
        return replace(one, withheld=frozenset({name}))
    return replace(
        one, is_attributed="processes" not in name, is_reported="ReportGangs" not in name
    )


@dataclass(frozen=True)
class GangPlan:
    """The runs of a page, by part; all seeds follow from one seed."""

    faults: tuple[GangScenario, ...]
    controls: tuple[GangScenario, ...]
    varied: tuple[tuple[str, GangScenario], ...]
    ablated: tuple[tuple[str, GangScenario], ...]

    @classmethod
    def of_seed(cls, seed: int) -> GangPlan:
        first = 1000 * seed
        faults = tuple(
            scenario_of(kind, slowdown, first + 50 * index + number)
            for index, slowdown in enumerate(SLOWDOWNS) for kind in FAULT_KINDS for number in range(PER_CELL)
        )  # fmt: skip
        controls = tuple(
            control_of(kind, first + 300 + number)
            for kind in CONTROL_KINDS
            for number in range(PER_CONTROL)
        )
        controls += tuple(control_of(kind, first + 350, has_gpm=False) for kind in CONTROL_KINDS)
        varied = tuple(
            (name, _varied(name, scenario_of(kind, VARIATION_SLOWDOWN, first + 400 + number)))
            for name in VARIATIONS for kind in VARIATION_KINDS for number in range(PER_VARIATION)
        )  # fmt: skip
        base = [
            scenario for scenario in faults
            if scenario.faults[0].slowdown == ABLATION_SLOWDOWN and scenario.seed % 50 < PER_ABLATION
        ]  # fmt: skip
        ablated = tuple((name, _without(name, scenario)) for name in ABLATIONS for scenario in base)
        return cls(faults, controls, varied, ablated)


def _found(outcomes: Sequence[GangOutcome]) -> list[tuple[GangOutcome, HostFault, float]]:
    """Return each fault, and when its host was first named during the fault; NaN: never."""
    return [
        (outcome, fault, outcome.first_named(fault))
        for outcome in outcomes
        for fault in outcome.scenario.faults
    ]


def recall(outcomes: Sequence[GangOutcome]) -> str:
    """Return the share of named culprits, with the interval."""
    result = _found(outcomes)
    return counted(sum(not math.isnan(named_at) for _, _, named_at in result), len(result))


def recall_by_cost(outcomes: Sequence[GangOutcome]) -> str:
    """Return the recall of faults with a cost of COST_MIN or more, and of cheaper faults."""
    costly = [outcome for outcome in outcomes if outcome.pace_lost >= COST_MIN]
    cheap = [outcome for outcome in outcomes if outcome.pace_lost < COST_MIN]
    return f"{recall(costly)} where the gang loses {100 * COST_MIN:.0f} % of its pace or more; {recall(cheap)} where it loses less"


def precision(outcomes: Sequence[GangOutcome]) -> str:
    """Return the share of named hosts that are culprits, with the interval."""
    right = sum(not math.isnan(named_at) for _, _, named_at in _found(outcomes))
    return counted(right, right + sum(len(outcome.wrong) for outcome in outcomes))


def _delays(outcomes: Sequence[GangOutcome]) -> str:
    delays = sorted(
        named_at - fault.onset
        for _, fault, named_at in _found(outcomes)
        if not math.isnan(named_at)
    )
    if not delays:
        return "-"
    return f"{statistics.median(delays):.0f} / {delays[math.ceil(0.95 * len(delays)) - 1]:.0f}"


def _cause_right(outcomes: Sequence[GangOutcome]) -> str:
    named = [
        (outcome, fault)
        for outcome, fault, named_at in _found(outcomes)
        if not math.isnan(named_at)
    ]
    return f"{sum(bool(outcome.reasons(f.host) & CAUSES[f.kind]) for outcome, f in named)} of {len(named)}"


def _gpu_right(outcomes: Sequence[GangOutcome]) -> str:
    """Return how often only the slow GPU of its host was named."""
    named = [
        (outcome, fault) for outcome, fault, named_at in _found(outcomes)
        if not math.isnan(named_at) and fault.kind in ("silent_gpu", "pcie")
    ]  # fmt: skip
    if not named:
        return "-"
    return (
        f"{sum(one.gpus_named(fault.host) == {fault.gpu} for one, fault in named)} of {len(named)}"
    )


def _false_rate(outcomes: Sequence[GangOutcome]) -> str:
    """Return falsely blamed hosts per node-day, and the upper bound of 95 %."""
    wrong, days = (
        sum(len(outcome.wrong) for outcome in outcomes),
        sum(outcome.node_days for outcome in outcomes),
    )
    return f"{wrong} in {days:.1f} node-days: {wrong / days:.2f} a day, below {weighted_rate([1.0] * wrong, 1.0)[1] / days:.2f} at 95 %"


def macro_f1(outcomes: Sequence[GangOutcome]) -> float:
    """Return the mean F1 over causes of culprits."""
    reports = (
        (CAUSES[fault.kind], set() if math.isnan(named_at) else outcome.reasons(fault.host))
        for outcome, fault, named_at in _found(outcomes)
    )
    return causes_f1(reports, set(CAUSES.values()), CAUSES["silent_host"])


def _by(outcomes: Sequence[GangOutcome]) -> str:
    rules = Counter(
        rule
        for outcome in outcomes
        for host in outcome.scenario.culprits & outcome.verdicts.keys()
        for rule in {rule for rule, _ in outcome.verdicts[host].rules}
    )
    return ", ".join(f"{rule} {count}" for rule, count in most_common(rules))


def fault_rows(outcomes: Sequence[GangOutcome]) -> list[list[str]]:
    rows = []
    for kind in FAULT_KINDS:
        for slowdown in reversed(SLOWDOWNS):
            those = [o for o in outcomes if (o.fault.kind, o.fault.slowdown) == (kind, slowdown)]
            if those:
                lost = statistics.median(o.pace_lost for o in those)
                rows.append([
                    kind, f"{100 * slowdown:.0f} %", f"{100 * lost:.0f} %", recall(those), _cause_right(those), _gpu_right(those),
                    str(sum(len(o.wrong) for o in those)), _delays(those), _by(those),
                ])  # fmt: skip
    return rows


def variation_rows(varied: Sequence[tuple[str, GangOutcome]]) -> list[list[str]]:
    rows = []
    for name in dict.fromkeys(name for name, _ in varied):
        those = [outcome for other, outcome in varied if other == name]
        cells = []
        for kind in VARIATION_KINDS:
            result = [named_at for _, fault, named_at in _found(those) if fault.kind == kind]
            cells.append(f"{sum(not math.isnan(named_at) for named_at in result)} of {len(result)}")
        cheap, wrong = sum(o.pace_lost < COST_MIN for o in those), sum(len(o.wrong) for o in those)
        rows.append([name, *cells, recall(those), str(cheap), str(wrong), _delays(those)])
    return rows


def _blamed(outcomes: Sequence[GangOutcome]) -> str:
    verdicts = (outcome.verdicts[host] for outcome in outcomes for host in outcome.wrong)
    rules = sorted({rule for verdict in verdicts for rule, _ in verdict.rules})
    blamed = sum(len(outcome.wrong) for outcome in outcomes)
    return f"{blamed} ({', '.join(rules)})" if blamed else "0"


def control_rows(outcomes: Sequence[GangOutcome]) -> list[list[str]]:
    rows = []
    for kind in dict.fromkeys(outcome.scenario.control for outcome in outcomes):
        those = [outcome for outcome in outcomes if outcome.scenario.control == kind]
        gpm = [outcome for outcome in those if outcome.scenario.has_gpm]
        older = [outcome for outcome in those if not outcome.scenario.has_gpm]
        watched = sum(not v.named for outcome in those for v in outcome.verdicts.values())
        rows.append([
            kind, f"{len(gpm)} + {len(older)}", str(sum(outcome.scenario.hosts for outcome in those)), _blamed(gpm), str(watched),
            _blamed(older), *(str(sum(len(outcome.naive[name]) for outcome in those)) for name in NAIVE),
        ])  # fmt: skip
    return rows


def ablation_rows(
    base: Sequence[GangOutcome],
    ablated: Sequence[tuple[str, GangOutcome]],
    controls: Sequence[GangOutcome],
) -> list[list[str]]:
    """Return rows of all evidence, of ablations and of naive detectors, from the same runs."""

    def by_kind(hits: Callable[[GangOutcome], bool], those: Sequence[GangOutcome]) -> list[str]:
        return [
            f"{sum(hits(o) for o in those if o.fault.kind == kind)} of "
            f"{sum(o.fault.kind == kind for o in those)}" for kind in FAULT_KINDS
        ]  # fmt: skip

    def is_named(one: GangOutcome) -> bool:
        return not math.isnan(one.first_named(one.fault))

    groups = [("all of it", list(base))]
    groups += [(f"without {name}", [o for n, o in ablated if n == name]) for name in ABLATIONS]
    rows = [
        [name, recall(those), *by_kind(is_named, those), _cause_right(those), str(sum(len(o.wrong) for o in those)), _delays(those)]
        for name, those in groups
    ]  # fmt: skip
    for name in NAIVE:

        def is_found(one: GangOutcome, name: str = name) -> bool:
            return one.fault.host in one.naive[name]

        wrong = sum(len(outcome.naive[name] - outcome.scenario.culprits) for outcome in base)
        in_controls = sum(len(control.naive[name]) for control in controls)
        rows.append([
            f"naive: {name}", counted(sum(map(is_found, base)), len(base)), *by_kind(is_found, base), "-",
            f"{wrong}, in controls {in_controls}", "-",
        ])  # fmt: skip
    return rows


def healing_text(outcomes: Sequence[GangOutcome]) -> str:
    """Return how long a host was named after the end of its fault."""
    times = []
    for outcome, fault, named_at in _found(outcomes):
        if not math.isnan(named_at):
            seconds, is_over = outcome.healing_seconds(fault)
            text = f"{seconds + JUDGE_SECONDS:.0f}" if is_over else f"more than {seconds:.0f}"
            times.append(f"{fault.kind} {text} s")
    return ", ".join(sorted(times)) or "no fault that healed was named"


def section(seed: int, progress: Progress) -> str:
    plan = GangPlan.of_seed(seed)
    named_scenarios = (scenario for _, scenario in (*plan.varied, *plan.ablated))
    scenarios = [*plan.faults, *plan.controls, *named_scenarios]
    played_in_order = iter(in_processes(judge_scenario, scenarios, progress, "pipeline gangs"))
    faults = [next(played_in_order) for _ in plan.faults]
    controls = [next(played_in_order) for _ in plan.controls]
    varied = [(name, next(played_in_order)) for name, _ in plan.varied]
    ablated = [(name, next(played_in_order)) for name, _ in plan.ablated]
    played = [*faults, *controls, *(outcome for _, outcome in varied)]
    hidden = [outcome for outcome in faults if outcome.fault.kind in INFERRED_KINDS]
    by_slowdown, inferred = (
        "; ".join(
            f"{100 * s:.0f} %: {recall([o for o in outcomes if o.fault.slowdown == s])}"
            for s in SLOWDOWNS
        )
        for outcomes in (faults, hidden)
    )
    healed = [outcome for name, outcome in varied if name.startswith("heals")]
    bases = {(scenario.seed, scenario.faults[0]) for _, scenario in plan.ablated}
    base = [outcome for outcome in faults if (outcome.scenario.seed, outcome.fault) in bases]
    lines = [
        "## Stragglers in a third world", "",
        "*Simulated*, by a world that the judge was not developed with (`bench/quality/pipeline_world.py`), and on which no limit was",
        "set. It has pipeline, tensor and data parallel roles as events at 20 ms, mixtures of experts, lognormal steps, sequences",
        "of uneven length and evaluation. Power is a filtered reading; each part has its own gain error. Gangs have 16 hosts with 8",
        "GPUs and run for 480 s; the cause begins at second 180.",
        "",
        "- The slowdown is that of the culprit's own part of a step.",
        "- *Pace lost* is the loss of the whole gang compared with the same run without the fault: bubbles hide much of it.",
        "- Intervals are of 90 % (Wilson). Columns are as in the section before.",
        "",
        f"- **Precision**: {precision(played)}.",
        f"- **Recall by slowdown**: {by_slowdown}.",
        f"- **Recall by what it costs**: {recall_by_cost(faults)}.",
        f"- **Recall without a counter that shows it** (`silent_host`, `silent_gpu`): {inferred}.",
        f"- **Causes**: macro F1 {macro_f1(faults):.2f}. **Delay** p50 / p95: {_delays(faults)} s. **GPU named right**: {_gpu_right(faults)}.",
        f"- **False blame**: {_false_rate(played)}; in controls alone {_false_rate(controls)}.",
        f"- **Healing**: time for which hosts are still named after the fault's end: {healing_text(healed)}.", "",
        f"    python -m bench.quality.jobs --only pipeline_gangs --seed {seed}", "",
        "### Faults", "", table(FAULT_HEADINGS, fault_rows(faults)), "",
        f"### Circumstances, at {100 * VARIATION_SLOWDOWN:.0f} %", "", table(VARIED_HEADINGS, variation_rows(varied)), "",
        "### Controls: no host is to blame (third world)", "", table(CONTROL_HEADINGS, control_rows(controls)), "",
        f"### What each kind of evidence is worth, at {100 * ABLATION_SLOWDOWN:.0f} %", "",
        "The runs are the same each time; evidence that is left out never arrives. Naive detectors see the readings of the last 120 s.", "",
        table(ABLATION_HEADINGS, ablation_rows(base, ablated, controls)), "",
    ]  # fmt: skip
    return "\n".join(lines)
