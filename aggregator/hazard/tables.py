"""An evaluation as Markdown, for a terminal and for docs/quality.md."""

from __future__ import annotations

from math import isnan

from .evaluation import HELD_SHARE, Evaluation, Row, Table
from .features import NAMES
from .history import WINDOW_DAYS
from .metrics import BINS, NODES_POSITIVE_MIN, Estimate


def markdown(found: Evaluation) -> str:
    """Return the tables with what they are of."""
    lines = [*_head(found), *(line for one in found.tables for line in _table(one))]
    for outcome, words in found.left_out:
        lines += [f"### Faults: {outcome}", "", f"No table: {words}.", ""]
    return "\n".join(lines)


def _head(found: Evaluation) -> list[str]:
    terms, silent = found.terms, found.nodes - found.nodes_named
    lines = [
        (
            f"Learned from days 0 to {terms.train_until}, judged on days {found.first_day} to {found.last_day}; the "
            f"recording ends at day {found.end_days:.2f}, and only days whose {WINDOW_DAYS} days end within it are judged."
        ),
        (
            f"{found.nodes} nodes, of which {silent} are not named in the file: they never failed."
            if silent
            else f"{found.nodes} nodes, all that the file names. Those that never failed are not in it, so that who is "
            "named has or will have a fault: say how many there are with --nodes."
        ),
        (
            f"In brackets the 90 % interval over {terms.draws} fleets drawn node by node with replacement, seed "
            f"{terms.seed}. ECE: {BINS} bins of equal mass, calibrated with what 95 % of these fleets do not exceed (drawing "
            "adds chance to it, which makes it larger: it has no lower end). Recall: in the top 5 % of the up nodes of each day."
        ),
        (
            f"Saved: node-hours a week against doing nothing, holding back for {WINDOW_DAYS} days at most {HELD_SHARE:.0%} "
            "of the up nodes, the worst, and only those for whom it is expected to pay; an interruption costs "
            f"{terms.gang_nodes} nodes x {terms.lost_hours:g} h. In the last column all {HELD_SHARE:.0%} are held back, "
            "whether it is expected to pay or not. Baselines are calibrated by isotonic regression before the split."
        ),
    ]
    if terms.from_day:
        lines.insert(0, f"Day 0 is day {terms.from_day} of the file; nothing before it counts.")
    lines += [f"Odd in the file: {'; '.join(found.notes)}."] if found.notes else []
    return [line for pair in ((one, "") for one in lines) for line in pair]


def _table(table: Table) -> list[str]:
    model = table.model
    weights = ", ".join(
        f"{name} {weight:.2f}" for name, weight in zip(NAMES, model.weights, strict=True) if weight
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
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    ruled = [tuple("-" * width for width in widths)]
    return [
        f"### Faults: {table.outcome}",
        "",
        (
            f"{table.units} units, {table.positives} positive, of {table.nodes_positive} nodes. Positive share before the "
            f"split {table.rate_learned:.2%}, after it {table.observed:.2%} (the model told {table.told:.2%})."
            f"{_few(table)}"
        ),
        (
            f"Model: {model.source}; ridge {model.ridge:g}; {weights}. Out of fold before the split: AUC "
            f"{model.metrics['auc']:.3f}, recall {model.metrics['recall']:.3f}, ECE {model.metrics['ece']:.4f}; "
            f"a host's own hazard within a factor of {model.spread:.1f} of what is told of it (90 %)."
        ),
        "",
        *(
            "| " + " | ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) + " |"
            for row in (cells[0], *ruled, *cells[1:])
        ),
        "",
    ]


def _few(table: Table) -> str:
    if table.nodes_positive >= NODES_POSITIVE_MIN:
        return ""
    return (
        f" AUC and recall have no interval: drawing anew of fewer than {NODES_POSITIVE_MIN} nodes with a fault does not "
        "show how far they are by chance."
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        _told(row.auc, ".3f"),
        _told(row.recall, ".3f"),
        _told(row.auc_beyond_model, "+.3f"),
        _told(row.recall_beyond_model, "+.3f"),
        "-" if isnan(row.raw_ece) else f"{row.raw_ece:.4f}",
        _told(row.ece, ".4f"),
        _told(row.saved, ".0f"),
        _told(row.held, ".0f"),
    )


def _told(one: Estimate, form: str) -> str:
    if isnan(one.value):
        return "-"
    if isnan(one.upper):
        return f"{one.value:{form}}"
    if isnan(one.lower):
        return f"{one.value:{form}}, at most {one.upper:{form}}"
    return f"{one.value:{form}} [{one.lower:{form}}, {one.upper:{form}}]"
