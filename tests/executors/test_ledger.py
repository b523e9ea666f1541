"""The ledger of an executor: written entries survive a kill, and an invalid file is refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gangline import cli
from gangline.executors import command
from gangline.executors.ledger import (
    ENTRIES_MAX,
    FILE_BYTES_MAX,
    HOLD,
    REPORTED_MAX,
    Entry,
    ExecutorLedger,
    JobProgress,
    LedgerError,
    locked,
)
from gangline.executors.model import DoctorLevel
from gangline.executors.settings import ExecutorConfig
from gangline.executors.slurm.site import SlurmSite

#: Written by an executor that was still a part of `aggregator/`.
EARLIER = """{"format": 1, "entries": [{"advisory": "a6", "node": "gpu3", "action": "EVICT_NOW", "owner": "executor slurm head",
"token": 5, "accepted": 1795992217.85, "expires": 1795999417.83, "mark": "hold", "hold": "gangline_a6_evict", "phase": "set",
"set_at": 1795992217.93, "ends": 1795999417.84, "before_state": "MIXED", "before_reason": "", "answered": "", "evict_at": 0.0,
"replicas": "", "reported": "job 4 was left", "jobs": {"4": {"state": "left", "restarts": 0, "note": "job 4 was left",
"requeued": 0.0, "waiting": 0.0, "started": 0.0, "attempts": 1, "returns": 0, "retry": 1795992223.12}}}],
"tokens": {"a6": 5}, "store": "acab0e18a7ca49a2", "reported": ["gpu4"], "weights": {"gpu1": [1, 4, 1]}}"""


def entry(name: str = "a1") -> Entry:
    return Entry(
        name, "gpu1", "EVICT_NOW", "executor", 7, 1.0, 2.0, HOLD, f"gangline_{name}", "set",
        jobs={"12": JobProgress("start", 1)},
    )  # fmt: skip


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    ledger.add(entry())
    ledger.save()
    again = ExecutorLedger(tmp_path / "ledger.json")
    assert again.entries == ledger.entries and again.tokens == {"a1": 7}


def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """An upgrade of a running executor must find each mark that the earlier version set."""
    (tmp_path / "ledger.json").write_text(EARLIER)
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    assert ledger.entries["a6"].hold == "gangline_a6_evict" and ledger.tokens == {"a6": 5}
    assert ledger.entries["a6"].jobs["4"].attempts == 1 and ledger.weights["gpu1"].before == 1


def test_a_shadow_stores_no_ledger(tmp_path: Path) -> None:
    """A shadow beside an acting executor replaced its ledger; without one it failed at each turn."""
    site = SlurmSite(ExecutorConfig(ledger=str(tmp_path / "executor")))
    with site.own_ledger(threading.Event(), shadow=True) as shadow:
        assert shadow is not None
        shadow.save()
    assert not (tmp_path / "executor").exists()
    with site.own_ledger(threading.Event(), shadow=False) as ledger:
        assert ledger is not None
        ledger.add(entry())
        ledger.save()
        with site.own_ledger(threading.Event(), shadow=True) as shadow:
            assert shadow is not None and shadow.entries == ledger.entries
            shadow.remove("a1")
            shadow.save()
    assert site.read_ledger().entries == ledger.entries


def test_reported_nodes_have_a_limit(tmp_path: Path) -> None:
    """The ledger stays small when a whole cluster is down; an older ledger has no such nodes."""
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    ledger.reported = frozenset(f"n{index}" for index in range(REPORTED_MAX + 1))
    ledger.save()
    assert len(ExecutorLedger(tmp_path / "ledger.json").reported) == REPORTED_MAX
    (tmp_path / "ledger.json").write_text('{"format": 1, "entries": [], "tokens": {}}')
    assert not ExecutorLedger(tmp_path / "ledger.json").reported


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a valid ledger"),
        ("{", "not a valid ledger"),
        ("[]", "not a valid ledger"),
        ('{"format": 2, "entries": [], "tokens": {}}', "format 2, this version reads 1"),
        ('{"format": 1, "entries": [{"advisory": 3}], "tokens": {}}', "not a valid ledger"),
        ('{"format": 1, "entries": {"a": 1}, "tokens": {}}', "not a valid ledger"),
        ('{"format": 1, "entries": [], "tokens": {"a1": "x"}}', "not a valid ledger"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """If the executor silently began a new ledger, it would take its own marks for foreign ones;
    the message names the remedy.
    """
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(LedgerError, match=message) as error:
        ExecutorLedger(path)
    assert "undo --all" in str(error.value)


def test_a_wrong_field_is_refused(tmp_path: Path) -> None:
    """A state that this version does not know is not acted on."""
    path = tmp_path / "ledger.json"
    ledger = ExecutorLedger(path)
    ledger.add(entry())
    ledger.save()
    for field, value in (("phase", "gone"), ("mark", "paint"), ("token", "7"), ("expires", None)):
        document = json.loads(path.read_text())
        document["entries"][0][field] = value
        wrong = tmp_path / "wrong.json"
        wrong.write_text(json.dumps(document))
        with pytest.raises(LedgerError, match="not a valid ledger"):
            ExecutorLedger(wrong)


def test_limits(tmp_path: Path) -> None:
    """Neither a huge file nor too many entries take the machine's memory."""
    path = tmp_path / "ledger.json"
    with open(path, "wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(LedgerError, match="larger than"):
        ExecutorLedger(path)
    ledger = ExecutorLedger(tmp_path / "other.json")
    ledger.entries = {f"a{index}": entry(f"a{index}") for index in range(ENTRIES_MAX)}
    with pytest.raises(LedgerError, match="nothing more is accepted"):
        ledger.add(entry("a99999999"))


def test_one_executor_has_a_ledger(tmp_path: Path) -> None:
    """Two executors would undo each other's marks."""
    with locked(tmp_path), pytest.raises(LedgerError, match="another executor"), locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "actions=DRAIN"], "actions among AVOID"),
        (["--set", "mark=paint"], "one of auto, hold, drain"),
        (["--set", "poll_seconds=0"], "expected 0.2 to 60"),
        (["--set", "node_map=/nonexistent"], "No such file"),
        (["--set", "polls=3"], "unknown setting 'polls'"),
        (["undo"], "confirm with --all"),
        (["run", "--json"], "--json is for doctor and status"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(["executor", "slurm", *arguments])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2 and message in capsys.readouterr().err


def test_doctor_survives_an_unreadable_ledger(tmp_path: Path) -> None:
    """`doctor` as another user than the executor's ended with a traceback."""
    finding = command._ledger_finding(tmp_path / ("a" * 300))
    assert finding.level is not DoctorLevel.OK and "does not exist yet" in finding.text


def test_status_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A monitor had to parse the columns of `executor slurm status`."""
    command = ["executor", "slurm", "status", "--json", "--set", f"ledger={tmp_path}"]
    assert cli.main(command) == cli.OK
    assert json.loads(capsys.readouterr().out) == {"format": cli.JSON_FORMAT, "entries": []}
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    ledger.add(entry("a1"))
    ledger.save()
    assert cli.main(command) == cli.OK
    (row,) = json.loads(capsys.readouterr().out)["entries"]
    assert (row["advisory"], row["node"], row["mark"], row["hold"], row["phase"]) == (
        "a1",
        "gpu1",
        "hold",
        "gangline_a1",
        "set",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu1\n", ":1: expected `NODE HOST`"),
        ("gpu1 a\ngpu2 a\n", ":2: gpu2 or a is named twice"),
        ("gpu1 a;b\n", ":1: expected `NODE HOST`"),
    ],
)
def test_a_map_of_names_is_read_strictly(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong line would have sent a drain to another node."""
    (tmp_path / "map").write_text(text)
    assert cli.main(["executor", "slurm", "--set", f"node_map={tmp_path / 'map'}"]) == 2
    assert message in capsys.readouterr().err
