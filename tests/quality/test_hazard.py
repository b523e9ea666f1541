"""docs/quality.md, the table of hazard: the command's own output, with a proof that the table can be empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.quality import hazard
from bench.quality.hazard import section, shuffled
from gangline.aggregator.hazard.evaluation import EvaluationTerms, evaluate
from gangline.aggregator.hazard.evaluation_page import markdown
from gangline.aggregator.hazard.events import parse_events
from tests.aggregator.hazard.fleets import data_of, recording


@pytest.mark.slow
def test_the_section_is_the_commands_table_and_a_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's tables must come from the command that it names."""
    monkeypatch.setattr(hazard, "TRAIN_UNTIL", 90)
    monkeypatch.setattr(hazard, "CONTROLS", 1)
    monkeypatch.setattr(hazard, "DRAWS", 4)
    path = tmp_path / "made_up_100_nodes.json"
    path.write_bytes(data_of(recording(rate=0.006)))
    progress: list[str] = []
    lines = section(3, lambda what, share: progress.append(what), path)
    faults = parse_events(path.read_bytes()).with_nodes(100)
    assert lines.startswith("## Real: hazard\n")
    assert markdown(evaluate(faults, EvaluationTerms(90, 100, 1.0, 4, seed=3))) in lines
    assert "### Negative control" in lines and "negative controls" in progress
    assert "is not here" in section(3, lambda what, share: None, tmp_path / "none.json")


@pytest.mark.slow
def test_faults_without_a_history_cannot_be_ranked() -> None:
    """The table must show no skill on faults without history."""
    faults = parse_events(data_of(recording(rate=0.006, nodes=150))).with_nodes(150)
    terms = EvaluationTerms(90, 150, 1.0, draws=2)
    real, control = (
        evaluate(variant, terms).tables[0].rows[0].auc.value
        for variant in (faults, shuffled(faults, 1))
    )
    assert real > 0.65
    assert control == pytest.approx(0.5, abs=0.06)
    assert np.array_equal(shuffled(faults, 1).start, faults.start)
