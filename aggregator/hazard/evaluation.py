"""Evaluates a hazard model and simpler rankings on days after the training days of a recording.

Unit: a node that is up at 00:00, and the day. Positive: a fault starts within 7 days. The model is
trained with the knowledge at the split, and evaluated on later days whose 7 days end within the
recording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import nan

import numpy as np

from ..arrays import Floats
from .baselines import BASELINES, fit_isotonic
from .events import EventsError, FaultTable
from .history import ALL, HARDWARE, WINDOW_DAYS, Units, units_of
from .metrics import (
    BootstrapFigure,
    CalibrationBins,
    Estimate,
    Ranking,
    bootstrap,
    draws_of_ranking,
)
from .model import HOURS_A_DAY, HazardModel
from .training import train

#: Maximum share of the up nodes that is held back.
HELD_BACK_SHARE = 0.02
MODEL, ORACLE = "model", "oracle"
_NOTHING = Estimate(nan, nan, nan)


@dataclass(frozen=True, slots=True)
class EvaluationTerms:
    """The parameters of an evaluation."""

    train_until: int  # the last training day
    gang_nodes: int  # nodes of the job that a fault interrupts
    lost_hours: float  # hours that each of these nodes loses per interruption
    draws: int = 200
    seed: int = 1
    from_day: int = 0  # day of the file that becomes day 0

    @property
    def interruption_node_hours(self) -> float:
        """Node-hours lost by an interruption."""
        return self.gang_nodes * self.lost_hours


@dataclass(frozen=True, slots=True)
class RankingRow:
    """The figures of a ranking."""

    name: str
    auc: Estimate
    recall: Estimate
    auc_beyond_model: Estimate  # AUC minus the model's, over the same fleets; NaN for the model
    recall_beyond_model: Estimate
    raw_ece: float  # ECE of the rank itself as a probability; NaN for the model and the oracle
    ece: Estimate  # calibrated; without lower bound
    saved: Estimate  # node-hours a week, if held where the calibrated probability expects a gain
    held: Estimate  # node-hours a week, if the worst are always held back


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """All rankings against an outcome."""

    outcome: str
    units: int
    positives: int
    nodes_positive: int  # below NODES_POSITIVE_MIN AUC and recall have no interval
    rate_learned: float  # positive share of the units before the split
    told: float  # mean probability of the model after the split
    observed: float
    model: HazardModel
    rows: tuple[RankingRow, ...]  # the model first, the oracle last


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of judging a model and the baselines on a recording."""

    terms: EvaluationTerms
    nodes: int
    nodes_named: int
    end_days: float
    first_day: int  # evaluated
    last_day: int
    notes: tuple[str, ...]
    tables: tuple[OutcomeTable, ...]
    #: Outcomes without a table, and the reason.
    left_out: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the evaluation as JSON-compatible objects."""
        return asdict(self)


def evaluate(
    faults: FaultTable,
    terms: EvaluationTerms,
    on_progress: Callable[[str], None] = lambda what: None,
) -> Evaluation:
    """Evaluate the model and its baselines, reporting each step. Raises EventsError."""
    notes = _start_notes(faults)
    try:
        evaluation = _evaluate(faults, terms, on_progress)
    except EventsError as error:
        raise EventsError("; ".join((str(error), *notes))) from error
    return replace(evaluation, notes=(*evaluation.notes, *notes))


def _start_notes(faults: FaultTable) -> list[str]:
    """Return a note on days before the first event, which may precede the recording."""
    first = faults.first_days
    if not WINDOW_DAYS <= first < np.inf:
        return []
    reason = "these days count as days without a fault; if the recording begins later than day 0, say when (--from DAY)"
    return [f"no event before day {int(first)}: {reason}"]


def _evaluate(
    faults: FaultTable, terms: EvaluationTerms, on_progress: Callable[[str], None]
) -> Evaluation:
    first = terms.train_until + 1
    units = units_of(faults)
    last = int(units.day.max())
    if last < WINDOW_DAYS:
        raise EventsError(
            f"the recording ends at day {faults.end_days:g}: expected {WINDOW_DAYS} days to train "
            f"on, one to evaluate, and {WINDOW_DAYS} more for its outcome"
        )
    judged = units.between(first, last)
    if not len(judged.day):
        raise EventsError(
            f"no unit after day {terms.train_until} has its {WINDOW_DAYS} days within the recording, which ends "
            f"at day {faults.end_days:g}: expected a split at day {last - 1} or before"
        )
    if first < WINDOW_DAYS:
        raise EventsError(
            f"days 0 to {terms.train_until} are too few to learn from: expected a split at day {WINDOW_DAYS - 1} or later"
        )
    known = faults.before(float(first))
    learned = units_of(known)
    tables = [_table(known, learned, judged, ALL, terms, on_progress)]
    left_out: list[tuple[str, str]] = []
    try:
        tables.append(_table(known, learned, judged, HARDWARE, terms, on_progress))
    except EventsError as error:  # a recording may lack this level
        left_out.append((HARDWARE, str(error)))
    return Evaluation(
        terms=terms,
        nodes=len(faults.nodes),
        nodes_named=len(set(faults.node.tolist())),
        end_days=faults.end_days,
        first_day=first,
        last_day=int(judged.day.max()),
        notes=faults.notes,
        tables=tuple(tables),
        left_out=tuple(left_out),
    )


def _table(
    known: FaultTable,
    learned: Units,
    judged: Units,
    outcome: str,
    terms: EvaluationTerms,
    on_progress: Callable[[str], None],
) -> OutcomeTable:
    positive = judged.positives(outcome)
    if not 0 < positive.sum() < len(positive):
        raise EventsError(
            f"{int(positive.sum())} of {len(positive)} units after the split are positive ({outcome}): "
            "too few or too many to evaluate"
        )
    on_progress(f"{outcome}: learning")
    days = f"days 0 to {terms.train_until}"
    try:
        model = train(known, outcome, days)
    except EventsError as error:
        raise EventsError(f"{days}: {error}") from error
    chance = model.probability(judged.state, WINDOW_DAYS)
    judge = _Judge(judged, positive, outcome, len(known.nodes), terms, chance)
    on_progress(f"{outcome}: {MODEL}")
    rows = [judge.row(MODEL, chance, nan, chance)]
    before = learned.positives(outcome)
    for name, rank_of in BASELINES.items():
        on_progress(f"{outcome}: {name}")
        rank = rank_of(judged.state)
        calibrated = fit_isotonic(rank_of(learned.state), before)(rank)
        raw = CalibrationBins(np.clip(rank, 0.0, 1.0), positive).error(np.ones(len(positive)))
        rows.append(judge.row(name, rank, raw, calibrated))
    return OutcomeTable(
        outcome=outcome,
        units=len(positive),
        positives=int(positive.sum()),
        nodes_positive=len(np.unique(judged.node[positive > 0])),
        rate_learned=float(before.mean()),
        told=float(chance.mean()),
        observed=float(positive.mean()),
        model=model,
        rows=(*rows, judge.oracle()),
    )


class _Judge:
    """Evaluates rankings on the units after the split, against an outcome."""

    def __init__(
        self,
        units: Units,
        positive: Floats,
        outcome: str,
        nodes: int,
        terms: EvaluationTerms,
        model: Floats,
    ) -> None:
        """*model*: its probabilities, the reference for the other rankings."""
        self._units = units
        self._positive = positive
        self._starts = units.starts if outcome == ALL else units.hardware_starts
        self._nodes = nodes
        self._terms = terms
        self._model = self._ranking_figures(model)

    def _ranking_figures(self, rank: Floats) -> tuple[BootstrapFigure, BootstrapFigure]:
        pooled = Ranking(rank, self._positive)
        daily = Ranking(rank, self._positive, self._units.day)
        draws = draws_of_ranking(self._units.node[self._positive > 0], self._terms.draws)
        return self._bootstrap(pooled.auc, draws), self._bootstrap(daily.recall, draws)

    def row(self, name: str, rank: Floats, raw_ece: float, chance: Floats) -> RankingRow:
        """Return the figures of a ranking, and of its probabilities."""
        is_model = name == MODEL
        auc, recall = self._model if is_model else self._ranking_figures(rank)
        return RankingRow(
            name=name,
            auc=auc.estimate(),
            recall=recall.estimate(),
            auc_beyond_model=_NOTHING if is_model else auc.minus(self._model[0]).estimate(),
            recall_beyond_model=_NOTHING if is_model else recall.minus(self._model[1]).estimate(),
            raw_ece=raw_ece,
            ece=self._bootstrap(CalibrationBins(chance, self._positive).error).at_most(),
            saved=self._saved(chance, chance),
            held=self._saved(rank, None),
        )

    def oracle(self) -> RankingRow:
        """Return the optimum, for known failures and the same maximum of held nodes."""
        return RankingRow(
            name=ORACLE,
            auc=_NOTHING,
            recall=_NOTHING,
            auc_beyond_model=_NOTHING,
            recall_beyond_model=_NOTHING,
            raw_ece=nan,
            ece=_NOTHING,
            saved=self._saved(self._starts, self._starts),
            held=self._saved(self._starts, None),
        )

    def _saved(self, rank: Floats, expected: Floats | None) -> Estimate:
        """Return node-hours saved per week by holding the worst nodes back for 7 days.

        *expected*: expected faults in the 7 days, to hold only where it pays; None: hold the
        allowed maximum. Saved hours are faults times the cost of an interruption, minus the hours
        held back; each day's choice counts as a week's.
        """
        cost, hold_hours = self._terms.interruption_node_hours, WINDOW_DAYS * HOURS_A_DAY
        pays = True if expected is None else expected * cost > hold_hours
        ranking = Ranking(
            rank, np.where(pays, self._starts * cost - hold_hours, 0.0), self._units.day
        )
        days = len(np.unique(self._units.day))
        return self._bootstrap(
            lambda weight: ranking.top(weight, HELD_BACK_SHARE) / days
        ).estimate()

    def _bootstrap(
        self, figure: Callable[[Floats], float], draws: int | None = None
    ) -> BootstrapFigure:
        draws = self._terms.draws if draws is None else draws
        return bootstrap(figure, self._units.node, self._nodes, draws, self._terms.seed)
