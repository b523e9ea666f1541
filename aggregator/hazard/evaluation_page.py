"""An evaluation of a hazard model as Markdown, for a terminal and for docs/quality.md."""

from __future__ import annotations

from math import isnan

from .evaluation import HELD_BACK_SHARE, Evaluation, OutcomeTable, RankingRow
from .features import FEATURE_NAMES
from .history import WINDOW_DAYS
from .metrics import BINS, NODES_POSITIVE_MIN, Estimate


def markdown(found: Evaluation) -> str:
    """Return the evaluation as Markdown."""
    lines = [*_head(found), *(line for table in found.tables for line in _table_lines(table))]
    for outcome, reason in found.left_out:
        lines += [f"### Faults: {outcome}", "", f"No table: {reason}.", ""]
    return "\n".join(lines)


def _head(evaluation: Evaluation) -> list[str]:
    terms, silent = evaluation.terms, evaluation.nodes - evaluation.nodes_named
    lines = [
        (
            f"The model learns from days 0 to {terms.train_until} and is judged on days "
            f"{evaluation.first_day} to {evaluation.last_day}. The "
            f"recording ends at day {evaluation.end_days:.2f}. A day is judged only if its "
            f"{WINDOW_DAYS} days end before that."
        ),
        (
            f"{evaluation.nodes} nodes. The file does not name {silent} of them: they never failed."
            if silent
            else f"{evaluation.nodes} nodes, all that the file names. Nodes that never failed are not in the file, so each named "
            "node has a fault at some time. Give the number of nodes with --nodes."
        ),
        (
            f"Brackets give the 90 % interval over {terms.draws} fleets drawn node by node with replacement, seed {terms.seed}. "
            f'ECE has {BINS} bins of equal mass; "at most" is what 95 % of these fleets do not exceed. It has no lower end, '
            "because drawing makes it larger. Recall is in the top 5 % of the up nodes of each day."
        ),
        (
            f'"Saved a week" is in node-hours, compared with doing nothing. The worst {HELD_BACK_SHARE:.0%} of the up nodes at most are '
            f"held back for {WINDOW_DAYS} days, and only if that is expected to pay. An interruption costs {terms.gang_nodes} nodes "
            f"x {terms.lost_hours:g} h. In the last column all {HELD_BACK_SHARE:.0%} are held back in any case. Isotonic regression "
            "on the days before the split calibrates the baselines."
        ),
    ]
    if terms.from_day:
        lines.insert(0, f"Day 0 is day {terms.from_day} of the file; nothing before it counts.")
    lines += [f"Notes on the file: {'; '.join(evaluation.notes)}."] if evaluation.notes else []
    return [line for pair in ((line, "") for line in lines) for line in pair]


def _table_lines(table: OutcomeTable) -> list[str]:
    model = table.model
    weights = ", ".join(
        f"{name} {weight:.2f}"
        for name, weight in zip(FEATURE_NAMES, model.weights, strict=True)
        if weight
    )
    heads = (
        "ranking",
        "AUC",
        "recall, top 5 %",
        "AUC less the model's",
        "recall less the model's",
        "ECE as it is",
        "ECE calibrated",
        "saved a week",
        "2 % always held",
    )
    cells = [heads, *(_cells(row) for row in table.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    ruled = [tuple("-" * width for width in widths)]
    return [
        f"### Faults: {table.outcome}",
        "",
        (
            f"{table.units} units, {table.positives} positive, of {table.nodes_positive} nodes. Positive share before the "
            f"split {table.rate_learned:.2%}, after it {table.observed:.2%} (the model predicted {table.told:.2%})."
            f"{_few_nodes_note(table)}"
        ),
        (
            f"Model: {model.source}; ridge {model.ridge:g}; {weights}. Out of fold before the split: AUC "
            f"{model.metrics['auc']:.3f}, recall {model.metrics['recall']:.3f}, ECE {model.metrics['ece']:.4f}; "
            f"a host's own hazard is within a factor of {model.spread:.1f} of the prediction (90 %)."
        ),
        "",
        *(
            "| " + " | ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) + " |"
            for row in (cells[0], *ruled, *cells[1:])
        ),
        "",
    ]


def _few_nodes_note(table: OutcomeTable) -> str:
    if table.nodes_positive >= NODES_POSITIVE_MIN:
        return ""
    return (
        f" AUC and recall have no interval: resampling fewer than {NODES_POSITIVE_MIN} nodes with "
        "a fault does not show their chance variation."
    )


def _cells(row: RankingRow) -> tuple[str, ...]:
    return (
        row.name,
        _estimate_text(row.auc, ".3f"),
        _estimate_text(row.recall, ".3f"),
        _estimate_text(row.auc_beyond_model, "+.3f"),
        _estimate_text(row.recall_beyond_model, "+.3f"),
        "-" if isnan(row.raw_ece) else f"{row.raw_ece:.4f}",
        _estimate_text(row.ece, ".4f"),
        _estimate_text(row.saved, ".0f"),
        _estimate_text(row.held, ".0f"),
    )


def _estimate_text(estimate: Estimate, form: str) -> str:
    if isnan(estimate.value):
        return "-"
    if isnan(estimate.upper):
        return f"{estimate.value:{form}}"
    if isnan(estimate.lower):
        return f"{estimate.value:{form}}, at most {estimate.upper:{form}}"
    return f"{estimate.value:{form}} [{estimate.lower:{form}}, {estimate.upper:{form}}]"
