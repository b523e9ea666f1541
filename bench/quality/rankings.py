"""How often the hazard model ranks worse than something simpler, over synthetic fleets of many kinds.

    python -m bench.quality.rankings [--first-seed N] [--seeds N] [--unseen] [--seconds S]
    python -m bench.quality.rankings --recording EVENTS.json --until DAY SPLIT...

What the rule by which a form is chosen (`aggregator/hazard/training.py`) is held against, so that it need not be a real
recording's later days. With a recording: earlier splits of it, and nothing of what comes after a day.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.quality.made_up import KINDS, UNSEEN, SyntheticKind, made_up
from gangline.aggregator.commands.terminal import ProgressBar
from gangline.aggregator.hazard.events import (
    EventsError,
    FaultTable,
    Floats,
    nodes_in_file_name,
    read_events,
)
from gangline.aggregator.hazard.history import ALL, HARDWARE, WINDOW_DAYS, units_of
from gangline.aggregator.hazard.metrics import BASELINES, CalibrationBins, Ranking
from gangline.aggregator.hazard.training import GAINS_MIN, train

#: Nodes, days, split.
SIZES = ((400, 120, 70), (400, 208, 120), (400, 348, 208), (200, 208, 120), (400, 348, 120), (1000, 208, 120))  # fmt: skip
#: Less is no loss.
AUC_LOSS, RECALL_LOSS = GAINS_MIN
ECE_MAX = 0.02


class Compared(NamedTuple):
    """One fleet: AUC and recall by ranking, the model's first; and the model's ECE."""

    kind: str
    figures: dict[str, tuple[float, float]]
    ece: float
    form: str


def compared(kind: str, nodes: int, days: int, split: int, seed: int) -> Compared | None:
    """Make a fleet up, learn before *split*, judge after it. None where there are too few faults to."""
    return judged(kind, made_up(kind, nodes, days, seed), split)


def judged(kind: str, faults: FaultTable, split: int, outcome: str = ALL) -> Compared | None:
    """Learn from *faults* up to the day *split*, judge on those after. None where there are too few to."""
    units = units_of(faults)
    later = units.between(split + 1, int(units.day.max()))
    occurred = later.positives(outcome)
    if not 0 < occurred.sum() < len(occurred):
        return None
    try:
        model = train(faults.before(split + 1.0), outcome, "made up")
    except EventsError:
        return None
    chance, even = model.probability(later.state, WINDOW_DAYS), np.ones(len(occurred))
    ranks = {"model": chance, **{name: rank(later.state) for name, rank in BASELINES.items()}}
    figures = {
        name: (Ranking(rank, occurred).auc(even), Ranking(rank, occurred, later.day).recall(even))
        for name, rank in ranks.items()
    }
    return Compared(kind, figures, CalibrationBins(chance, occurred).error(even), model.source)


def earlier(faults: FaultTable, until: int, splits: Sequence[int]) -> Iterator[Compared]:
    """Yield what comes of each of *splits*, in a recording that ends with the day *until*."""
    known = faults.before(until + 1.0)
    for outcome in (ALL, HARDWARE):
        for split in splits:
            if one := judged(f"{outcome}, until {split}", known, split, outcome):
                yield one


def runs(
    kinds: Mapping[str, SyntheticKind], first_seed: int, seeds: int, seconds: float
) -> Iterator[Compared]:
    """Yield what comes of all kinds and sizes, seed by seed, for this long."""
    progress, began = ProgressBar(), time.monotonic()
    jobs = [
        (kind, *size, seed)
        for seed in range(first_seed, first_seed + seeds)
        for size in SIZES
        for kind in kinds
    ]
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
    for kind in dict.fromkeys(one.kind for one in found):
        of = [one for one in found if one.kind == kind]
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


def splits_table(found: Sequence[Compared]) -> str:
    """Return AUC and recall of each ranking by split, and what was chosen."""
    lines = [
        f"| learned from | ranking chosen | {' | '.join(('model', *BASELINES))} | ECE |",
        f"|---|---|{'---|' * (len(BASELINES) + 1)}---|",
    ]
    for one in found:
        cells = [f"{auc:.3f} / {recall:.3f}" for auc, recall in one.figures.values()]
        chosen = one.form.rpartition(": ")[2]
        lines.append(f"| {one.kind} | {chosen} | {' | '.join(cells)} | {one.ece:.4f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.rankings")
    parser.add_argument("splits", nargs="*", type=int, help="last days that are learned from")
    parser.add_argument("--recording", type=Path, help="a recording, in place of fleets made up")
    parser.add_argument("--until", type=int, help="the last day of it that is looked at")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="fleets of each kind and size")
    parser.add_argument("--unseen", action="store_true", help="kinds that made no rule")
    parser.add_argument("--seconds", type=float, default=1e9, help="no more than so long")
    options = parser.parse_args()
    if options.recording:
        if options.until is None or not options.splits:
            parser.error("with --recording: expected --until DAY and the splits")
        faults = read_events(options.recording)
        faults = faults.with_nodes(nodes_in_file_name(options.recording) or len(faults.nodes))
        print(splits_table(list(earlier(faults, options.until, options.splits))))
        return
    kinds = UNSEEN if options.unseen else KINDS
    found = list(runs(kinds, options.first_seed, options.seeds, options.seconds))
    print(table(found) if found else "No fleet had enough faults to be judged.")


if __name__ == "__main__":
    main()
