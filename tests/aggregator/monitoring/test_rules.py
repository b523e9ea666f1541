"""The shipped alert rules, checked by promtool, and that they name existing figures."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gangline.aggregator.monitoring.metrics import FIGURES, PREFIX
from gangline.executors.metrics import ExecutorFigures
from tests.promtool import PROMTOOL, needs_promtool

RULES = Path(__file__).parents[3] / "packaging" / "prometheus" / "gangline.rules.yml"
TESTS = Path(__file__).with_name("executor_rules.yml")


@needs_promtool
def test_the_rules_fire_where_they_should(tmp_path: Path) -> None:
    """A rule that never fires is found out in the night in which it was needed."""
    tests = tmp_path / "tests.yml"
    tests.write_text(TESTS.read_text().replace("[RULES]", f"[{RULES}]"))
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(tests)]):
        done = subprocess.run([PROMTOOL, *command], check=False, capture_output=True, text=True, timeout=60)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_rules_name_figures_that_there_are() -> None:
    """A figure was renamed, and its rule never fired again."""
    named = set(re.findall(r"gangline_(?:executor|aggregator)_[a-z_]+", RULES.read_text()))
    known = {family.name for family in ExecutorFigures().families()}
    known |= {PREFIX + figure.name for figure in FIGURES}
    known |= {f"{PREFIX}{name}" for name in ("alarm", "commit_seconds_bucket")}
    assert {series.removesuffix("_total") for series in named} <= known
