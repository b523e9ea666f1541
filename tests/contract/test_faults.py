"""The table of faults: each is declared once, and its page is of this table."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from gangline.aggregator.rule_catalogue import RULES
from gangline.aggregator.rule_catalogue.faults import EVENT_KINDS, READINGS, _holds
from gangline.contract.faults import table
from gangline.contract.faults.policy import PolicyError
from gangline.contract.faults.policy_file import parse_condition
from gangline.contract.faults.table import FOLDER, builtin, fleet_rules
from tests.contract.faults_page import page

ROW = """[[fault]]
name = "gpu.odd"
when = ["gpu.lost_state == 7"]
severity = "hazard"
message = "is odd"
action = "look at it"
scope = "gpu"
clears = "reading"
source = "assumed"
fleet = { state = "WATCH", reason = "GPU_UNUSABLE", hazard_factor = 3, clears = "it is even" }
"""


def test_the_page_is_of_this_table() -> None:
    """An operator who looks a finding up must find its real limit and action."""
    docs = Path(__file__).parents[2] / "docs" / "faults.md"
    assert docs.read_text() == page(), "run `make docs`"


def test_host_and_fleet_use_the_same_text() -> None:
    """`gangline check` and `gangline explain` named the same fault in different words."""
    texts = {row.name: row.message for row in builtin().rows}
    shared = 0
    for path in FOLDER.glob("*.toml"):
        for fault in tomllib.loads(path.read_text())["fault"]:
            name = fault.get("finding", fault["name"].replace(".", "_"))
            if (
                name in texts
                and isinstance(fault.get("fleet"), dict)
                and "message" not in fault["fleet"]
            ):
                shared += 1
                (rule,) = [rule for rule in fleet_rules() if rule.name == fault["name"]]
                assert rule.message == texts[name]
    assert shared > 30


def test_one_row_adds_a_finding_and_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault was two declarations, with two limits that could differ."""
    (tmp_path / "odd.toml").write_text(ROW)
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    (rule,) = fleet_rules()
    (finding,) = table._findings()
    assert finding.name == "gpu_odd" and rule.name == "gpu.odd"
    assert finding.when == (rule.condition,) and finding.message == rule.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("gpu.lost_state == 7", "gpu.last_state == 7"), "no signal is called"),
        (('severity = "hazard"', 'severity = "bad"'), "severity: expected one of"),
        (('source = "assumed"', ""), "source: state the source"),
        (('action = "look at it"', ""), "expected severity, message, action and clears"),
    ],
)
def test_a_wrong_row_names_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], message: str
) -> None:
    """A contributor sees which row is wrong, and the correct form."""
    (tmp_path / "odd.toml").write_text(ROW.replace(*change))
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    with pytest.raises(PolicyError, match=r"fault 'gpu\.odd'") as caught:
        list(table._findings())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "when",
    [
        '["gpu.pcie_width_lanes < gpu.pcie_width_max_lanes"]',
        '["gpu.clock_event_reasons_flags has 0x40"]',
        '["gpu.lost_state == 7", "gpu.lost_state != 8"]',
    ],
)
def test_a_limit_that_the_fleet_cannot_compare_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The aggregator would not start, and the message named neither row nor form."""
    (tmp_path / "odd.toml").write_text(ROW.replace('["gpu.lost_state == 7"]', when))
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    with pytest.raises(PolicyError, match=r"fault 'gpu\.odd': when: .* single comparison"):
        list(fleet_rules())


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ('"gpu.lost_state == 7"', "when: expected a list"),
        ('["gpu.lost_state is 7"]', 'expected "signal == 1"'),
    ],
)
def test_a_condition_in_a_wrong_form_names_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, message: str
) -> None:
    """A `when` without brackets stopped every aggregator with "'g': expected ...", and no fault's name."""
    (tmp_path / "odd.toml").write_text(ROW.replace('["gpu.lost_state == 7"]', when))
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    with pytest.raises(PolicyError, match=rf"fault 'gpu\.odd': .*{message}"):
        list(fleet_rules())


@pytest.mark.parametrize("comparison", ["== 1", "!= 1", "> 0.5", "< 2", "beyond 0.5", "in 1,2"])
def test_a_missing_reading_is_no_fault(comparison: str) -> None:
    """A host whose GPU cannot be read must not be drained for it."""
    holds = _holds(parse_condition(f"gpu.lost_state {comparison}"), np.array([math.nan]))
    assert not holds.any()


def test_every_rule_of_the_table_is_a_rule_of_the_aggregator() -> None:
    """A row that no detector reads would be a promise without a check."""
    rules = {row.rule.name for row in READINGS} | {kind.rule.name for kind in EVENT_KINDS.values()}
    assert rules <= RULES.keys() and len(rules) > 80
