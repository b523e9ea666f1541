"""Choice of the default ranking of hosts: each simple ranking on each public record of faults.

    python -m bench.quality.default_ranking [EVENTS.json ...]

Each machine is learned from up to SPLIT_SHARE of its record, and judged on the days after. Below the tables: which ranking
would have been chosen by the other machines alone (the smallest mean loss of recall against the best simple one of each), and
what it loses on the one that was left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.quality.captures import DATA
from gangline.aggregator.commands.terminal import ProgressBar
from gangline.aggregator.hazard.events import FaultTable, Floats, nodes_in_file_name, read_events
from gangline.aggregator.hazard.features import SIMPLE_FORMS, features_of
from gangline.aggregator.hazard.history import ALL, HARDWARE, WINDOW_DAYS, Units, units_of
from gangline.aggregator.hazard.metrics import (
    BASELINES,
    BootstrapFigure,
    CalibrationBins,
    Ranking,
    bootstrap,
    fit_isotonic,
)
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.hazard.training import fit

#: Of a record's days; the model is of those before.
SPLIT_SHARE = 0.58
#: Of a large fleet every other day is judged, or fewer.
UNITS_MAX = 60_000
DRAWS, SEED = 200, 23
DEFAULT = SIMPLE_FORMS[0].name
#: What was the default before.
BEFORE = "time since return"


class JudgedRanking(NamedTuple):
    """One ranking of one machine, of faults of one outcome."""

    machine: str
    outcome: str
    ranking: str
    auc: BootstrapFigure
    recall: BootstrapFigure
    ece: BootstrapFigure


def judged(machine: str, faults: FaultTable, draws: int = DRAWS) -> Iterator[JudgedRanking]:
    """Yield each simple ranking, calibrated on the days before the split and judged on those after it."""
    split = int(SPLIT_SHARE * faults.end_days)
    daily = units_of(faults.before(split + 1.0), 1)
    before, after = units_of(faults.before(split + 1.0)), units_of(faults)
    after = after.between(split + 1, int(after.day.max()))
    after = after.take(after.day % (1 + len(after.day) // UNITS_MAX) == 0)
    nodes = len(faults.nodes)
    for outcome in (ALL, HARDWARE):
        occurred = after.positives(outcome)
        for name, rank_of in BASELINES.items():
            rank = rank_of(after.state)
            figures = (
                Ranking(rank, occurred).auc,
                Ranking(rank, occurred, after.day).recall,
                CalibrationBins(_chance(name, daily, before, after, outcome), occurred).error,
            )
            auc, recall, ece = (bootstrap(one, after.node, nodes, draws, SEED) for one in figures)
            yield JudgedRanking(machine, outcome, name, auc, recall, ece)


def _chance(name: str, daily: Units, before: Units, after: Units, outcome: str) -> Floats:
    """Return P(a fault within the window): of the default and of the one before by their forms, else by isotonic regression."""
    if name not in (DEFAULT, BEFORE):
        rank_of = BASELINES[name]
        return fit_isotonic(rank_of(before.state), before.positives(outcome))(rank_of(after.state))
    (form,) = (one for one in SIMPLE_FORMS if one.name == name)
    base, weights = fit(
        features_of(daily.state), daily.positives(outcome), form.ridge, form.names, form.ordered_by
    )
    return HazardModel("", False, outcome, base, weights).probability(after.state, WINDOW_DAYS)


def tables(found: Sequence[JudgedRanking]) -> list[str]:
    """Return a table for each machine and outcome: figures with 90 % intervals, and the default's less each ranking's."""
    lines: list[str] = []
    for key in dict.fromkeys((one.machine, one.outcome) for one in found):
        rows = [one for one in found if (one.machine, one.outcome) == key]
        (default_row,) = (one for one in rows if one.ranking == DEFAULT)
        lines += [
            f"**{key[0]}, {key[1]}**", "",
            "| ranking | AUC | recall, top 5 % a day | ECE | the default's AUC more | the default's recall more |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for one in rows:
            less = ("-", "-")
            if one is not default_row:
                less = (
                    _estimate_text(default_row.auc.minus(one.auc), "+"),
                    _estimate_text(default_row.recall.minus(one.recall), "+"),
                )
            figures = (
                _estimate_text(one.auc),
                _estimate_text(one.recall),
                _estimate_text(one.ece, ".4f"),
                *less,
            )
            name = f"{one.ranking} (the default)" if one is default_row else one.ranking
            lines.append(f"| {' | '.join((name, *figures))} |")
        lines.append("")
    return lines


def _estimate_text(one: BootstrapFigure, form: str = "") -> str:
    form = form if form.endswith("f") else f"{form}.3f"
    estimate = one.estimate()
    if form == ".4f":
        return f"{estimate.value:.4f}, at most {estimate.upper:.4f}"
    return f"{estimate.value:{form}} [{estimate.lower:{form}}, {estimate.upper:{form}}]"


def left_out(found: Sequence[JudgedRanking]) -> list[str]:
    """Return, for each machine, which ranking the others would have chosen, and what it loses there."""
    machines = list(dict.fromkeys(one.machine for one in found))
    loss = {
        (one.machine, one.outcome, one.ranking): max(
            other.recall.value for other in found
            if other[:2] == one[:2] and other.ranking != DEFAULT
        ) - one.recall.value
        for one in found
    }  # fmt: skip
    lines = [
        "| left out | chosen by the others | its recall less than the best's there, all classes | hardware |",
        "|---|---|---|---|",
    ]
    for machine in machines:
        mean = {
            name: np.mean([value for (of, _, ranking), value in loss.items() if of != machine and ranking == name])
            for name in BASELINES
        }  # fmt: skip
        best = min(mean, key=lambda name: mean[name])
        lost = [f"{loss[machine, outcome, best]:+.3f}" for outcome in (ALL, HARDWARE)]
        lines.append(f"| {machine} | {best} | {' | '.join(lost)} |")
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.default_ranking")
    parser.add_argument("events", nargs="*", type=Path, help="files of faults, their names with ..._NODES_nodes_...")  # fmt: skip
    files = parser.parse_args().events or sorted((DATA / "faults").glob("*.json"))
    if not files:
        parser.error(f"no file of faults is at {DATA / 'faults'}: name some")
    progress, found = ProgressBar(), list[JudgedRanking]()
    for path in files:
        faults = read_events(path)
        faults = faults.with_nodes(nodes_in_file_name(path) or len(faults.nodes))
        progress.begin(path.name, 0)
        found += judged(path.name.partition(f"_{len(faults.nodes)}_nodes")[0], faults)
    progress.end()
    print("\n".join([*tables(found), *(left_out(found) if len(files) > 1 else ())]))


if __name__ == "__main__":
    main()
