"""A real aggregator with declarations: they are in force, SIGHUP reloads them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gangline import cli
from tests.processes import Process, until

WINDOW = '[[maintenance]]\nhosts = ["h1"]\nbegin = 2026-01-01T00:00:00Z\nend = 2026-01-02T00:00:00Z\nwho = "a"\nwhy = "b"\n'


@pytest.mark.slow
def test_sighup_and_a_bad_file(tmp_path: Path) -> None:
    """`systemctl reload` ended the aggregator; errors of the files must be in its log."""
    declared, data = tmp_path / "declared", tmp_path / "data"
    declared.mkdir()
    (declared / "a.toml").write_text(WINDOW)
    settings = (
        "--set",
        f"declared={declared}",
        "--set",
        "history_on=false",
        "--set",
        "ops_seconds=0.5",
    )
    arguments = ["aggregator", "--data", str(data), "--listen", "127.0.0.1:0", *settings]
    with Process(arguments, tmp_path / "log") as aggregator:
        until(lambda: "listening on" in aggregator.said(), "it listens")
        assert "declarations: version 1 is in force (a.toml)" in aggregator.said()
        (declared / "b.csv").write_text("host,rack\nh1,r1\n")
        assert aggregator.child is not None
        aggregator.child.send_signal(signal.SIGHUP)
        until(lambda: "version 2 is in force (a.toml, b.csv)" in aggregator.said(), "it took them")
        (declared / "b.csv").write_text("host,rak\nh1,r1\n")
        aggregator.child.send_signal(signal.SIGHUP)
        log_line = "is not used, version 2 stays in force: b.csv:1: column 'rak' is unknown: did you mean rack?"
        until(lambda: log_line in aggregator.said(), "it told what is wrong")
        check = ["admin", "declared", "check", str(declared / "a.toml"), "--data", str(data)]
        until(lambda: (data / "operators.duckdb").exists(), "the operators' file")
        assert cli.main(check) == cli.OK
        assert aggregator.stop() == 0
