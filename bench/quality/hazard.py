"""The hazard model and its baselines on a real recording of faults, by the code of `gangline
admin evaluate hazard`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.quality.captures import DATA
from gangline.aggregator.hazard.evaluation import EvaluationTerms, evaluate
from gangline.aggregator.hazard.evaluation_page import markdown
from gangline.aggregator.hazard.events import FaultTable, nodes_in_file_name, read_events

RECORDING = DATA / "faults/stepfun_400_nodes_days_0_208.json"
TRAIN_UNTIL = 120
#: Cost of an interruption per node of a job on the whole fleet (assumed).
LOST_HOURS = 1.0
CONTROLS, DRAWS = 20, 200


def section(seed: int, progress: Callable[[str, float], None], recording: Path = RECORDING) -> str:
    """Return the tables as Markdown. *seed* is for drawn fleets and for controls."""
    if not recording.exists():
        return "\n".join((*_head(), "The recording is not here.", ""))
    faults = read_events(recording)
    faults = faults.with_nodes(nodes_in_file_name(recording) or len(faults.nodes))
    terms = EvaluationTerms(TRAIN_UNTIL, len(faults.nodes), LOST_HOURS, DRAWS, seed)
    result = evaluate(faults, terms, lambda what: progress(what, 0.0))
    return "\n".join((*_head(), markdown(result), *_controls(faults, terms, progress), ""))


def _head() -> list[str]:
    return [
        "## Real: hazard",
        "",
        "    python -m bench.quality --only hazard",
        f"    gangline admin evaluate hazard ../shared/data/faults/{RECORDING.name} --train-until {TRAIN_UNTIL}",
        "",
        "Faults of StepFun's 400 nodes (stepfun-ai/InfiniteHBD-Trace, Apache-2.0; not part of the project). [hazard](hazard.md) has the definitions, the model,",
        "the data of each choice, and which days were looked at when. The model ranks hosts by a weak signal; it does not predict which host fails.",
        "",
    ]


def shuffled(faults: FaultTable, seed: int) -> FaultTable:
    """Return the same faults on random nodes, so that no node's history predicts anything."""
    indexes = np.random.default_rng(seed).integers(0, len(faults.nodes), len(faults.node))
    return replace(faults, node=indexes.astype(np.intp))


def _controls(
    faults: FaultTable, terms: EvaluationTerms, progress: Callable[[str, float], None]
) -> list[str]:
    rows = []
    for index in range(CONTROLS):
        progress("negative controls", index / CONTROLS)
        few = replace(terms, draws=2)
        result = evaluate(shuffled(faults, terms.seed * CONTROLS + index), few).tables[0]
        rows.append([getattr(result.rows[0], name).value for name in ("auc", "recall", "ece")])
    low, middle, high = np.quantile(rows, (0.05, 0.5, 0.95), axis=0)
    texts = [
        f"{name} {m:.3f} [{a:.3f}, {b:.3f}]"
        for name, a, m, b in zip(("AUC", "recall", "ECE"), low, middle, high, strict=True)
    ]
    return [
        "### Negative control",
        "",
        f"The same faults, each given to a random node, learned and judged in the same way ({CONTROLS} draws, all classes; the median, and the range of 90 % of them):",
        f"{', '.join(texts)}. AUC 0.5 and recall 0.05 mean that there is nothing to find.",
    ]  # fmt: skip
