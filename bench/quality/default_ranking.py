"""Why hosts are ranked as they are by default: each simple ranking on each public record of faults, and the choice of one.

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
from gangline.aggregator.commands.admin_store import Progress
from gangline.aggregator.hazard.events import Faults, Floats, nodes_told, read_events
from gangline.aggregator.hazard.features import SIMPLE, features_of
from gangline.aggregator.hazard.history import ALL, HARDWARE, WINDOW_DAYS, Units, units_of
from gangline.aggregator.hazard.metrics import (
    BASELINES,
    Calibrated,
    Drawn,
    Ranked,
    bootstrapped,
    isotonic,
)
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.hazard.training import fit

#: Of a record's days; the model is of those before.
SPLIT_SHARE = 0.58
#: Of a large fleet every other day is judged, or fewer.
UNITS_MAX = 60_000
DRAWS, SEED = 200, 23
DEFAULT = SIMPLE[0].name
#: What was the default before.
BEFORE = "time since return"


class Judged(NamedTuple):
    """One ranking of one machine, of faults of one outcome."""

    machine: str
    outcome: str
    ranking: str
    auc: Drawn
    recall: Drawn
    ece: Drawn


def judged(machine: str, faults: Faults, draws: int = DRAWS) -> Iterator[Judged]:
    """Yield each simple ranking, calibrated on the days before the split and judged on those after it."""
    split = int(SPLIT_SHARE * faults.end_days)
    daily = units_of(faults.before(split + 1.0), 1)
    before, after = units_of(faults.before(split + 1.0)), units_of(faults)
    after = after.between(split + 1, int(after.day.max()))
    after = after.take(after.day % (1 + len(after.day) // UNITS_MAX) == 0)
    nodes = len(faults.nodes)
    for outcome in (ALL, HARDWARE):
        came = after.came(outcome)
        for name, rank_of in BASELINES.items():
            rank = rank_of(after.state)
            figures = (
                Ranked(rank, came).auc,
                Ranked(rank, came, after.day).recall,
                Calibrated(_chance(name, daily, before, after, outcome), came).error,
            )
            auc, recall, ece = (
                bootstrapped(one, after.node, nodes, draws, SEED) for one in figures
            )
            yield Judged(machine, outcome, name, auc, recall, ece)


def _chance(name: str, daily: Units, before: Units, after: Units, outcome: str) -> Floats:
    """Return P(a fault within the window): of the default and of the one before by their forms, else by isotonic regression."""
    if name not in (DEFAULT, BEFORE):
        rank_of = BASELINES[name]
        return isotonic(rank_of(before.state), before.came(outcome))(rank_of(after.state))
    (form,) = (one for one in SIMPLE if one.name == name)
    base, weights = fit(
        features_of(daily.state), daily.came(outcome), form.ridge, form.names, form.ordered_by
    )
    return HazardModel("", False, outcome, base, weights).probability(after.state, WINDOW_DAYS)


def tables(found: Sequence[Judged]) -> list[str]:
    """Return a table for each machine and outcome: figures with 90 % intervals, and the default's less each ranking's."""
    lines: list[str] = []
    for key in dict.fromkeys((one.machine, one.outcome) for one in found):
        rows = [one for one in found if (one.machine, one.outcome) == key]
        (mine,) = (one for one in rows if one.ranking == DEFAULT)
        lines += [
            f"**{key[0]}, {key[1]}**", "",
            "| ranking | AUC | recall, top 5 % a day | ECE | the default's AUC more | the default's recall more |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for one in rows:
            less = ("-", "-")
            if one is not mine:
                less = (
                    _told(mine.auc.less(one.auc), "+"),
                    _told(mine.recall.less(one.recall), "+"),
                )
            figures = (_told(one.auc), _told(one.recall), _told(one.ece, ".4f"), *less)
            name = f"{one.ranking} (the default)" if one is mine else one.ranking
            lines.append(f"| {' | '.join((name, *figures))} |")
        lines.append("")
    return lines


def _told(one: Drawn, form: str = "") -> str:
    form = form if form.endswith("f") else f"{form}.3f"
    told = one.estimate()
    if form == ".4f":
        return f"{told.value:.4f}, at most {told.upper:.4f}"
    return f"{told.value:{form}} [{told.lower:{form}}, {told.upper:{form}}]"


def left_out(found: Sequence[Judged]) -> list[str]:
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
    progress, found = Progress(), list[Judged]()
    for path in files:
        faults = read_events(path)
        faults = faults.among(nodes_told(path) or len(faults.nodes))
        progress.begin(path.name, 0)
        found += judged(path.name.partition(f"_{len(faults.nodes)}_nodes")[0], faults)
    progress.end()
    print("\n".join([*tables(found), *(left_out(found) if len(files) > 1 else ())]))


if __name__ == "__main__":
    main()
