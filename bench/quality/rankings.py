"""How often the model of hazard ranks worse than something simpler, over fleets of many kinds that were made up.

    python -m bench.quality.rankings [--seeds N] [--seconds S]

What decides the rule by which a form is chosen (`aggregator/hazard/training.py`), so that no real recording has to.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gangline.aggregator.commands.progress import Progress
from gangline.aggregator.hazard.baselines import BASELINES
from gangline.aggregator.hazard.events import EventsError, Floats
from gangline.aggregator.hazard.history import WINDOW_DAYS, units_of
from gangline.aggregator.hazard.metrics import Calibrated, Ranked
from gangline.aggregator.hazard.training import ALL, outcome_of, train

from .made_up import KINDS, made_up

#: Nodes, days, split.
SIZES = ((400, 120, 70), (400, 208, 120), (400, 348, 208), (200, 208, 120), (400, 348, 120), (1000, 208, 120))  # fmt: skip
#: Less is no loss: about what the draw of nodes does to two rankings of one fleet.
AUC_LOSS, RECALL_LOSS = 0.005, 0.01
ECE_MAX = 0.02


class Compared(NamedTuple):
    """One fleet: AUC and recall by ranking, the model's first; and the model's ECE."""

    kind: str
    figures: dict[str, tuple[float, float]]
    ece: float
    form: str


def compared(kind: str, nodes: int, days: int, split: int, seed: int) -> Compared | None:
    """Learn before *split*, judge after it. None where there are too few faults to."""
    faults = made_up(kind, nodes, days, seed)
    units = units_of(faults)
    later = units.between(split + 1, int(units.day.max()))
    came = outcome_of(later, ALL)
    if not 0 < came.sum() < len(came):
        return None
    try:
        model = train(faults.before(split + 1.0), ALL, "made up")
    except EventsError:
        return None
    chance, even = model.probability(later.state, WINDOW_DAYS), np.ones(len(came))
    ranks = {"model": chance, **{name: rank(later.state) for name, rank in BASELINES.items()}}
    figures = {
        name: (Ranked(rank, came).auc(even), Ranked(rank, came, later.day).recall(even))
        for name, rank in ranks.items()
    }
    return Compared(kind, figures, Calibrated(chance, came).error(even), model.source)


def runs(seeds: int, seconds: float) -> Iterator[Compared]:
    """Yield what comes of all kinds and sizes, seed by seed, for so long."""
    progress, began = Progress(), time.monotonic()
    jobs = [(kind, *size, seed) for seed in range(seeds) for size in SIZES for kind in KINDS]
    for done, job in enumerate(jobs):
        if time.monotonic() - began > seconds:
            break
        progress.begin(f"{done} of {len(jobs)} fleets", 0)
        if (one := compared(*job)) is not None:
            yield one
    progress.end()


def table(found: list[Compared]) -> str:
    """Return how the model stands against each ranking, and against the best of each kind of fleet."""
    lines = [
        f"{len(found)} fleets; ECE above {ECE_MAX:g} in {np.mean([one.ece > ECE_MAX for one in found]):.1%}.",
        "",
        "| against | AUC more | recall more | AUC worse by 0.005 | recall worse by 0.01 | recall better by 0.01 |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(name, found, [name]) for name in BASELINES]
    lines.append(_row("the best of them, known afterwards", found, list(BASELINES)))
    lines += [
        "",
        "| kind of fleet | recall | best simple ranking | its recall |",
        "|---|---|---|---|",
    ]
    for kind in KINDS:
        of = [one for one in found if one.kind == kind]
        if not of:
            continue
        means = {
            name: np.mean([one.figures[name][1] for one in of]) for name in ("model", *BASELINES)
        }
        best = max(BASELINES, key=lambda name: means[name])
        lines.append(f"| {kind} | {means['model']:.3f} | {best} | {means[best]:.3f} |")
    return "\n".join(lines)


def _row(title: str, found: list[Compared], names: list[str]) -> str:
    """Return the model's AUC and recall less the best of *names* of each fleet, and how often that is a loss."""
    auc, recall = np.array(
        [
            [
                one.figures["model"][at] - max(one.figures[name][at] for name in names)
                for at in (0, 1)
            ]
            for one in found
        ]
    ).T
    shares = (auc < -AUC_LOSS).mean(), (recall < -RECALL_LOSS).mean(), (recall > RECALL_LOSS).mean()
    cells = (title, _mean(auc), _mean(recall), *(f"{share:.0%}" for share in shares))
    return f"| {' | '.join(cells)} |"


def _mean(values: Floats) -> str:
    """Return the mean with its 90 % interval over fleets."""
    reach = 1.645 * values.std() / np.sqrt(len(values))
    return f"{values.mean():+.4f} ± {reach:.4f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.rankings", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="fleets of each kind and size")
    parser.add_argument("--seconds", type=float, default=1e9, help="no more than so long")
    options = parser.parse_args()
    found = list(runs(options.seeds, options.seconds))
    print(table(found) if found else "No fleet had enough faults to be judged.")


if __name__ == "__main__":
    main()
