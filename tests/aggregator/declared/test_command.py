"""`gangline admin declared check`: the aggregator's verdict on files, before they are in force."""

from __future__ import annotations

import json
import time
from pathlib import Path

import duckdb
import pytest

from gangline import cli
from gangline.aggregator.declared import rows
from gangline.aggregator.declared.host_placement import HostPlacement, PlaceSource
from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.store.duckdb_file import migrations

NOW_NS = 1_795_168_800 * 10**9  # 2026-11-20 10:00 UTC
BEFORE = """\
[[place]]
hosts = ["gpu-[001-003]"]
rack = "r1"
[[maintenance]]
hosts = ["gpu-001"]
begin = 2026-11-20T00:00:00Z
end = 2026-11-21T00:00:00Z
who = "alice"
why = "new fans"
[thresholds]
"host.cpu_steal_ratio" = 0.2
"""
AFTER = (
    BEFORE.replace("gpu-[001-003]", "gpu-[002-004]")
    .replace("0.2", "0.3")
    .replace('["gpu-001"]', '["gpu-*"]')
)


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the clock to the files' day, in a folder without an aggregator."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS)
    monkeypatch.chdir(tmp_path)


def test_what_is_wrong_is_told_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeline that distributes the files stops on the exit code."""
    (tmp_path / "a.toml").write_text(BEFORE.replace("rack", "rak"))
    assert cli.main(["admin", "declared", "check", "a.toml"]) == cli.FAILED
    output = capsys.readouterr()
    assert output.out == "" and output.err.splitlines() == [
        "a.toml:3: rak: unknown here; did you mean rack?",
        "gangline admin declared: the aggregator would reject all of it",
    ]
    assert cli.main(["admin", "declared", "check", "none.toml"]) == cli.FAILED


def test_a_folder_without_files_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path to the parent folder gave "good", and all declarations would have been lost."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.toml").write_text(BEFORE)
    assert cli.main(["admin", "declared", "check", str(tmp_path), "--against", "below"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[1] == "note: no file there ends in .toml, .csv, .json, so nothing would be declared"
    )
    assert "against below: it would change" in lines
    assert cli.main(["admin", "declared", "check", "below"]) == cli.OK
    assert "note: no file" not in capsys.readouterr().out


def test_what_would_change_against_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a change is distributed, its effect is listed."""
    (tmp_path / "a.toml").write_text(AFTER)
    (tmp_path / "old.toml").write_text(BEFORE)
    assert cli.main(["admin", "declared", "check", "a.toml", "--against", "old.toml"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "good: 1 file, 3 places of hosts, 0 kinds of hosts expected, 1 maintenance window"
    )
    assert lines[1:] == [
        "maintenance now: gpu-*: 3 of 3 known hosts (a.toml:4)",
        "against old.toml: it would change",
        "- places: gpu-001 rack = r1",
        "+ places: gpu-004 rack = r1",
        "+ maintenance of gpu-*: 2026-11-20 00:00 UTC to 2026-11-21 00:00 UTC, new fans (alice)",
        "- maintenance of gpu-001: 2026-11-20 00:00 UTC to 2026-11-21 00:00 UTC, new fans (alice)",
        "~ thresholds: host.cpu_steal_ratio: 0.2 -> 0.3",
    ]


def test_a_pipeline_reads_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A review of a change had to parse sentences for the list of changes."""
    check = ["admin", "declared", "check", "--json"]
    (tmp_path / "a.toml").write_text(AFTER)
    (tmp_path / "old.toml").write_text(BEFORE)
    assert cli.main([*check, "a.toml", "--against", "old.toml"]) == cli.OK
    document = json.loads(capsys.readouterr().out)
    assert document["valid"] and document["against"] == "old.toml" and len(document["hash"]) > 8
    assert document["changes"][0] == "- places: gpu-001 rack = r1" and len(document["changes"]) == 5
    (tmp_path / "a.toml").write_text(BEFORE.replace("rack", "rak"))
    assert cli.main([*check, "a.toml"]) == cli.FAILED
    assert json.loads(capsys.readouterr().out) == {
        "format": cli.JSON_FORMAT,
        "valid": False,
        "problems": ["a.toml:3: rak: unknown here; did you mean rack?"],
    }


def test_what_holds_where_a_threshold_is_not_rolled_out_yet_is_a_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "Nothing would change" was printed, and the threshold of 99 hosts in a hundred changed."""
    text = '[thresholds]\n"host.cpu_steal_ratio" = { value = 0.3, rollout = 0.01, before = %s }\n'
    (tmp_path / "a.toml").write_text(text % "0.15")
    (tmp_path / "old.toml").write_text(text % "0.12")
    assert cli.main(["admin", "declared", "check", "a.toml", "--against", "old.toml"]) == cli.OK
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "against old.toml: it would change",
        "~ not rolled out yet: host.cpu_steal_ratio: 0.12 -> 0.15",
    ]


def test_against_what_is_in_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The operators' file has the version in force and the hosts; no aggregator is needed."""
    with duckdb.connect(str(tmp_path / "operators.duckdb")) as base:
        for _, text in migrations():
            base.execute(text)
        base.execute("INSERT INTO hosts (host) VALUES ('gpu-001'), ('gpu-009'), ('login')")
        label = PlaceSource("label", "", HostPlacement(rack="r9", rails=("l0", "l1")))
        hardware = PlaceSource("hardware", "", HostPlacement(nvlink_domain="c.1"))
        declared = parse_files([DeclaredFile("a.toml", BEFORE.encode())], NOW_NS, number=7)
        declared = declared.with_reported({"login": (label, hardware)})
        rows.put_version(base, declared, [], NOW_NS)
        rows.put_places(base, declared)
        assert rows.reported_places(base) == declared.reported_places
    (tmp_path / "a.toml").write_text(BEFORE)
    assert cli.main(["admin", "declared", "check", "a.toml", "--data", "."]) == cli.OK
    assert capsys.readouterr().out.splitlines()[1:] == [
        "note: no agent has registered as gpu-002, gpu-003: 2 of 3 hosts with a place",
        "maintenance now: gpu-001: 1 of 5 known hosts (a.toml:4)",
        "against version 7, in force in .: nothing would change",
    ]
    (tmp_path / "a.toml").write_text(BEFORE.replace('hosts = ["gpu-001"]', 'racks = ["r9"]'))
    assert cli.main(["admin", "declared", "check", "a.toml", "--data", "."]) == cli.OK
    assert "rack r9: 1 of 5 known hosts" in capsys.readouterr().out, (
        "who stands there by its labels"
    )
    (tmp_path / "a.toml").write_text(AFTER)
    assert cli.main(["admin", "declared", "check", "a.toml", "--data", "."]) == cli.OK
    output = capsys.readouterr().out
    assert "gpu-*: 5 of 6 known hosts" in output
    assert "~ thresholds: host.cpu_steal_ratio: 0.2 -> 0.3" in output
    assert cli.main(["admin", "declared", "check", "a.toml", "--data", "none"]) == cli.USAGE
    assert "nothing to compare with" in capsys.readouterr().err
