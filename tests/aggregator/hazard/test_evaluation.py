"""`gangline admin evaluate hazard`: the model learns before the split; later days evaluate it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gangline import cli
from gangline.aggregator.hazard.baselines import BASELINES
from gangline.aggregator.hazard.evaluation import MODEL, ORACLE, EvaluationTerms, evaluate
from gangline.aggregator.hazard.evaluation_page import markdown
from gangline.aggregator.hazard.events import EventsError, parse_events
from gangline.aggregator.hazard.history import ALL, HARDWARE
from gangline.aggregator.hazard.metrics import NODES_POSITIVE_MIN
from tests.aggregator.hazard.fleets import Row, data_of, event, fault, recording

TERMS = EvaluationTerms(train_until=90, gang_nodes=80, lost_hours=1.0, draws=10)
#: Recordings of other owners: `../shared` beside the checkout, or beside the worktree's parent.
REAL = Path(__file__).parents[4] / "shared/data/faults/stepfun_400_nodes_days_0_208.json"

MOVED_DAYS = 208


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of an invented fleet."""
    path = tmp_path_factory.mktemp("events") / "made_up_100_nodes.json"
    path.write_bytes(data_of(recording(rate=0.006)))
    return path


def test_the_tables(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rankings by the same code, with intervals; nodes without a fault count; the days."""
    command = [
        "admin",
        "evaluate",
        "hazard",
        str(events),
        "--train-until",
        "90",
        "--bootstrap",
        "5",
    ]
    assert cli.main(command) == cli.OK
    output = capsys.readouterr().out
    assert "The model learns from days 0 to 90 and is judged on days 91 to 15" in output
    assert re.search(r"100 nodes\. The file does not name \d+ of them", output)
    for name in (MODEL, *BASELINES, ORACLE):
        assert output.count(f"| {name} ") == 2, name
    (model, *_) = (
        line.split("|") for line in output.splitlines() if line.startswith(f"| {MODEL} ")
    )
    assert re.fullmatch(r" 0\.\d{4}, at most 0\.\d{4} +", model[7]), "it can only be too low"


def test_a_disk_that_takes_no_tables_costs_no_work(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk left one error line after minutes of work; now the tables are printed."""
    command = [
        "admin",
        "evaluate",
        "hazard",
        str(events),
        "--train-until",
        "90",
        "--bootstrap",
        "5",
    ]
    assert cli.main([*command, "--out", "/dev/full"]) == cli.FAILED
    output = capsys.readouterr()
    assert "The model learns from days 0 to 90" in output.out
    assert "/dev/full: No space left" in output.err


def test_json_has_the_figures_and_no_nan(events: Path, tmp_path: Path) -> None:
    """The input of `make evaluate`; with repeated faults the model ranks like counts or better."""
    out = tmp_path / "out.json"
    command = [
        "admin",
        "evaluate",
        "hazard",
        str(events),
        "--train-until",
        "90",
        "--bootstrap",
        "5",
    ]
    assert cli.main([*command, "--json", "--quiet", "--out", str(out)]) == cli.OK
    result = json.loads(out.read_text(), parse_constant=lambda what: pytest.fail(what))
    rows = {row["name"]: row for row in result["tables"][0]["rows"]}
    assert rows[MODEL]["auc"]["value"] > 0.6
    assert rows[MODEL]["recall"]["value"] >= rows["lifetime count"]["recall"]["value"]
    assert rows[MODEL]["raw_ece"] is None
    assert rows[ORACLE]["saved"]["value"] >= rows[MODEL]["saved"]["value"]
    assert all(
        row["auc"]["value"] is None or 0 <= row["auc"]["value"] <= 1 for row in rows.values()
    )


@pytest.mark.slow
def test_what_comes_after_the_split_changes_nothing_that_is_learned() -> None:
    """Weights and calibration of the baselines depend only on the days before the split."""
    faults = parse_events(data_of(recording(rate=0.006)))
    late, ended_late = faults.start >= 91, faults.end >= 91
    assert late.sum() > 20 and (ended_late & ~late).any()
    assert faults.classes is not None
    moved = replace(
        faults,
        node=np.where(late, (faults.node + 1) % len(faults.nodes), faults.node),
        hardware=np.where(late, ~faults.hardware, faults.hardware),
        classes=faults.classes ^ late[:, None],
        end=np.where(ended_late, faults.end + 0.4, faults.end),
    )
    tables, moved_tables = (
        evaluate(table_input, replace(TERMS, draws=2)).tables for table_input in (faults, moved)
    )
    assert (
        [table.outcome for table in tables]
        == [table.outcome for table in moved_tables]
        == [ALL, HARDWARE]
    )
    for table, same in zip(tables, moved_tables, strict=True):
        assert table.model == same.model
        assert table.rate_learned == same.rate_learned
        assert table.rows != same.rows, "what is judged is of the days after"


def test_an_oracle_saves_what_there_is_to_save() -> None:
    """By hand: a node fails once; its held week saves an interruption less 168 node-hours."""
    rows = recording(rate=0.006, days=100)
    rows = [row for row in rows if row["event_time"] < 91] + fault("node-1", 99.5, 100.0)
    rows += fault("node-1", 106.9, 107.0)
    faults = parse_events(data_of(rows)).with_nodes(100)
    evaluation = evaluate(faults, replace(TERMS, train_until=92, gang_nodes=400, draws=2))
    # Each of the 8 judged days, 93 to 100, has one of the two starts within 7 days: (400 - 168)
    # each.
    units = 100 - 93 + 1
    positive = sum(any(day <= start < day + 7 for start in (99.5, 106.9)) for day in range(93, 101))
    assert evaluation.tables[0].positives == positive
    assert evaluation.tables[0].rows[-1].saved.value == pytest.approx(232 * positive / units)


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("159", "no unit after day 159"),
        ("8", "days 0 to 8: "),
        ("5", "days 0 to 5 are too few to learn from: expected a split at day 6 or later"),
    ],
)
def test_a_split_that_leaves_nothing_is_refused(
    events: Path, until: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A late split leaves no days for the evaluation, an early split no days for learning."""
    code = cli.main(["admin", "evaluate", "hazard", str(events), "--train-until", until, "--quiet"])
    assert (code, capsys.readouterr().out) == (cli.FAILED, "")
    with pytest.raises(EventsError) as refused:
        evaluate(parse_events(events.read_bytes()), replace(TERMS, train_until=int(until)))
    assert message in str(refused.value)


def test_a_recording_that_is_too_short_for_any_split_is_told_as_that() -> None:
    """The message asked for a split at day 2 or before, and then at day 6 or later."""
    rows = fault("a", 1.0, 2.0) + fault("b", 3.0, 10.0)
    for until in (2, 5):
        with pytest.raises(EventsError, match="the recording ends at day 10: expected 7 days to"):
            evaluate(parse_events(data_of(rows)).with_nodes(10), replace(TERMS, train_until=until))


def test_a_recording_without_hardware_faults_has_its_other_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another cluster has no hardware level: one table, and a reason in place of the other."""
    rows = recording(rate=0.006)
    for row in rows:
        row["fault_type"]["Level"] = "Other Failure"
    path = tmp_path / "other_100_nodes.json"
    path.write_bytes(data_of(rows))
    command = ["admin", "evaluate", "hazard", str(path), "--train-until", "90", "--bootstrap", "2"]
    assert cli.main([*command, "--quiet"]) == cli.OK
    output = capsys.readouterr().out
    assert output.count(f"| {MODEL} ") == 1
    assert "### Faults: hardware\n\nNo table: 0 of " in output
    assert "too few or too many to evaluate" in output


@pytest.mark.slow
@pytest.mark.parametrize("nodes_failing", [1, NODES_POSITIVE_MIN])
def test_a_few_nodes_that_fail_give_figures_without_an_interval(nodes_failing: int) -> None:
    """One positive node of 100 had "recall 0.870 [0.870, 0.870]"."""
    rows = [
        row
        for node in range(nodes_failing)
        for day in range(3, 150, 3)
        for row in fault(f"node-{node}", day + 0.3 + node / 20, day + 0.6 + node / 20)
    ]
    rows.sort(key=lambda row: float(row["event_time"]))
    faults = parse_events(data_of(rows)).with_nodes(100)
    evaluation = evaluate(faults, replace(TERMS, gang_nodes=100))
    (row, other_row, *_), table = evaluation.tables[0].rows, evaluation.tables[0]
    assert table.nodes_positive == nodes_failing
    few = nodes_failing < NODES_POSITIVE_MIN
    for figure in (row.auc, row.recall, other_row.auc_beyond_model, other_row.recall_beyond_model):
        assert np.isfinite(figure.value)
        assert np.isnan((figure.lower, figure.upper)).all() if few else figure.lower <= figure.upper
    assert ("AUC and recall have no interval" in markdown(evaluation)) == few


def moved(rows: list[Row], days: float) -> list[Row]:
    """Return a recording whose times count from *days* before its begin."""
    return [{**row, "event_time": row["event_time"] + days} for row in rows]


@pytest.mark.slow
def test_a_recording_whose_days_do_not_begin_at_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a trace with its own times: 208 unrecorded days counted as healthy days."""
    rows = [*recording(rate=0.006, days=120), event("node-9", 0.5, False)]
    # Binary fractions are exact after a move there and back.
    rows = [{**row, "event_time": round(row["event_time"] * 64) / 64} for row in rows]
    results: list[Any] = []
    for name, days, options in (
        ("plain", 0, ["--train-until", "80"]),
        ("moved", MOVED_DAYS, ["--train-until", "80", "--from", str(MOVED_DAYS)]),
        ("taken as it is", MOVED_DAYS, ["--train-until", str(MOVED_DAYS + 80)]),
    ):
        path = tmp_path / "rows_100_nodes.json"
        path.write_bytes(data_of(moved(rows, days)))
        command = [
            "admin",
            "evaluate",
            "hazard",
            str(path),
            "--bootstrap",
            "2",
            "--quiet",
            *options,
        ]
        assert cli.main([*command, "--json"]) == cli.OK, name
        results.append(json.loads(capsys.readouterr().out))
    plain, same, wrong = results
    assert plain.pop("terms") != same.pop("terms")
    assert same == plain
    note_text = f"no event before day {MOVED_DAYS}: these days count as days without a fault"
    assert not any(note_text in note for note in plain["notes"])
    assert any(note_text in note and "(--from DAY)" in note for note in wrong["notes"])
    assert wrong["tables"][0]["rate_learned"] < plain["tables"][0]["rate_learned"] / 2


@pytest.mark.slow
def test_days_before_a_recording_are_told_of_where_they_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "No fault in the second half": most of the days to learn from were never recorded."""
    path = tmp_path / "rows_100_nodes.json"
    path.write_bytes(data_of(moved(recording(rate=0.006, days=120), 900.0)))
    command = ["admin", "evaluate", "hazard", str(path), "--quiet", "--train-until"]
    assert cli.main([*command, "950"]) == cli.FAILED
    assert (
        "no event before day 903: these days count as days without a fault"
        in capsys.readouterr().err
    )
    assert cli.main([*command, "9", "--from", "2000"]) == cli.FAILED
    assert "expected a beginning before that, found day 2000" in capsys.readouterr().err
    assert cli.main([*command, "80", "--from", "900", "--bootstrap", "2"]) == cli.OK
    assert capsys.readouterr().out.startswith("Day 0 is day 900 of the file")


def test_three_nodes_and_a_split_near_the_end_give_figures() -> None:
    """A rack of three nodes is evaluated on its last two days."""
    faults = parse_events(data_of(recording(nodes=3, rate=0.05, days=120))).with_nodes(3)
    evaluation = evaluate(faults, replace(TERMS, train_until=int(faults.end_days) - 9))
    assert evaluation.last_day - evaluation.first_day <= 2
    (row, *_), model = evaluation.tables[0].rows, evaluation.tables[0].model
    assert 0.0 <= row.auc.value <= 1.0
    assert np.isfinite(model.weights).all()


def test_wrong_files_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors name the file, without a traceback."""
    command = ["admin", "evaluate", "hazard", "--train-until", "9"]
    assert cli.main([*command, str(tmp_path / "none.json")]) == cli.FAILED
    assert "none.json: No such file" in capsys.readouterr().err
    out = tmp_path / "none" / "out.json"
    assert cli.main([*command, str(tmp_path / "none.json"), "--out", str(out)]) == cli.FAILED
    assert f"{out}: there is no folder {out.parent}" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "none.json"), "--out", str(tmp_path)]) == cli.FAILED
    assert f"{tmp_path}: is a folder; name a file in it" in capsys.readouterr().err
    (tmp_path / "torn.json").write_text('[{"node_id"')
    assert cli.main([*command, str(tmp_path / "torn.json")]) == cli.FAILED
    assert "torn.json: not JSON" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=str(cli.USAGE)):
        cli.main(["admin", "evaluate", "nothing"])
    with pytest.raises(SystemExit):
        cli.main([*command, "x.json", "--nodes", "0"])
    assert "'0': expected a whole number from 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason=f"the recording is not at {REAL}")
def test_probabilities_hold_on_the_real_recording() -> None:
    """On unseen days, 2 % of the hosts with a probability of 2 % fail."""
    faults = parse_events(REAL.read_bytes()).with_nodes(400)
    evaluation = evaluate(faults, EvaluationTerms(120, 400, 1.0, draws=2))
    assert (evaluation.first_day, evaluation.last_day) == (121, 201)
    for table in evaluation.tables:
        model, *baselines = table.rows
        assert model.ece.value <= 0.02
        # The model names its ranking, and ranks like it.
        (same,) = (row for row in baselines if table.model.source.endswith(f"ranking: {row.name}"))
        assert (model.auc, model.recall) == (same.auc, same.recall)
