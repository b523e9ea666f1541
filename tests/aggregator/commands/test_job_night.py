"""`gangline job`: the story of a job from a night with faults, and what wrong input is answered with."""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.commands import job
from gangline.aggregator.commands.job_queries import TimeRange
from gangline.aggregator.commands.job_story import make_timeline, timeline_lines
from gangline.aggregator.query import sandbox
from gangline.cli import NO_ANSWER, NOT_FOUND, USAGE
from gangline.contract.client.connection import CommandError
from tests.aggregator.night import night
from tests.aggregator.query.asking import rows_of

pytestmark = pytest.mark.usefixtures("operators_files")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    with night(folder):
        pass
    return folder


@pytest.fixture(scope="module")
def ask(folder: Path) -> Iterator[job.Ask]:
    with sandbox.open_snapshot(folder / "operators.duckdb") as connection:

        def answer(sql: str) -> list[dict[str, Any]]:
            names, rows = rows_of(connection, sql)
            return [dict(zip(names, row, strict=True)) for row in rows]

        yield answer


def _options(*arguments: str) -> argparse.Namespace:
    return job._parser().parse_args(arguments)


@pytest.mark.slow
def test_the_hot_host_of_the_night_is_the_straggler_of_its_job(
    ask: job.Ask, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The culprit is first in the timeline, with a cost; a pipe gets plain characters, and no line is too wide."""
    monkeypatch.setenv("COLUMNS", "80")
    job.show_past(_options("123"), ask)
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("sim-")]
    assert rows[0].startswith("sim-006") and "GPU-hours lost by cause" in text
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 80
    job.show_past(_options("123", "--json"), ask)
    straggler = json.loads(capsys.readouterr().out)["stragglers"][0]
    assert (straggler["host"], straggler["verdict"]) == ("sim-006", "node")
    assert straggler["slowdown_lower_ratio"] <= straggler["slowdown_ratio"]


@pytest.mark.slow
def test_wrong_input_is_answered_in_words(ask: job.Ask, tmp_path: Path) -> None:
    """An unknown job, a time without readings, a missing folder: an error message, no traceback."""
    for arguments, message in {
        ("124",): "did you mean 123?",
        ("no'such;job",): "no job",
        ("123", "--from", "2001-01-01", "--to", "2001-01-02"): "no readings of job '123'",
        ("123", "-o", str(tmp_path / "nowhere" / "a.svg")): "cannot write",
    }.items():
        with pytest.raises(CommandError, match=message.replace("?", r"\?")):
            job.show_past(_options(*arguments), ask)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_picture_is_well_formed(ask: job.Ask, tmp_path: Path) -> None:
    """A name may contain XML or terminal escapes."""
    story = job.read_story(ask, "123", TimeRange())
    story["job"]["job"] = "<script>&\x1b[31m"
    job.write_picture(story, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg") and "\x1b" not in text and "<script" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--last", "5m"],
        ["j", "--last", "0m"],
        ["j", "--last", "soon"],
        ["j", "--from", "yesterday"],
        ["j", "--last", "5m", "--from", "2026-01-01"],
        ["j", "--from", "2026-01-02", "--to", "2026-01-01"],
        ["j", "-o", "a.gif"],
        ["j" * 513],
        [""],
    ],
)
def test_wrong_arguments_are_refused_before_anybody_is_asked(arguments: list[str]) -> None:
    """A typo is reported at once, not after a connection."""
    with pytest.raises(SystemExit) as end:
        job.main(arguments)
    assert end.value.code == USAGE


def test_no_aggregator_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(["--aggregator", "127.0.0.1:1"]) == NO_ANSWER
    assert "no aggregator answers" in capsys.readouterr().err
    assert NOT_FOUND != NO_ANSWER


@pytest.mark.parametrize("hosts", [1, 16, 56])
def test_a_timeline_fits_however_many_hosts(hosts: int) -> None:
    """Sixteen rows and a line for the rest; the host that waits least is first; a gap is blank."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    states = dict.fromkeys(("host_stall_ratio", "checkpoint_ratio", "idle_ratio"), 0.0)
    phases = [
        {"time": begin + timedelta(seconds=10 * index), "host": f"h{host:03}", **states}
        | {"compute_ratio": 0.1 if host else 1.0, "wait_ratio": 0.9 if host else 0.0}
        for host in range(hosts)
        for index in (0, 1, 5)
    ]
    timeline = make_timeline(phases, [], [], 80)
    lines = timeline_lines(timeline, colour=False)
    assert lines[0] == "h000  ##   #"
    assert sum(line.startswith("h0") for line in lines) == min(hosts, 16)
    assert any("40 more" in line for line in lines) == (hosts == 56)
