"""The table of hosts as text, at any width and with any name."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.commands.explain import explained
from gangline.aggregator.commands.table import render, wants_colour
from gangline.aggregator.commands.watch import placed
from gangline.fingerprints.wire import score_pb2


def score(name: str, **fields: object) -> score_pb2.NodeScore:
    made = score_pb2.NodeScore(node=f"nodes/{name}", relative_speed=math.nan)
    for field, value in {"state": score_pb2.HEALTHY, **fields}.items():
        setattr(made, field, value)
    return made


def test_an_empty_fleet_is_said_in_words() -> None:
    """An empty table looks like a broken command."""
    assert "none has registered" in render([], 80)


def test_simulated_hosts_are_marked() -> None:
    """Nobody must mistake a simulated fault for a real one."""
    text = render([score("a", simulated=True), score("b")], 120)
    b, a = text.splitlines()[1:]
    assert "[simulated]" in a and "[simulated]" not in b


def test_what_is_not_known_is_a_dash_and_never() -> None:
    """A host without GPUs has no relative speed; one never heard has no age."""
    cells = render([score("a")], 120).splitlines()[1].split()
    assert cells[4] == "-" and cells[5] == "never"


def test_nothing_certain_is_shown_that_is_not() -> None:
    """A virtual machine's 0.99996 read 1.0000: never 1 while anything can fail."""
    assert "0.9999 " in render([score("a", score=0.99996)], 120)


def test_a_hazard_past_all_sense_is_cut() -> None:
    """1,440 interruptions a day is a number nobody can use."""
    assert ">99" in render([score("a", hazard_per_hour=60.0)], 120)


@given(st.lists(st.text(min_size=1, max_size=40), max_size=6), st.integers(20, 200), st.text())
def test_it_fits_and_shows_no_control_characters(names: list[str], width: int, reason: str) -> None:
    """A host's name is the agent's to choose: it must not move our cursor or break a line."""
    scores = [score(n, reason_words=reason, state=2) for n in names]
    text = render(scores, width)
    assert all(len(line) <= max(width, 20) or not names for line in text.split("\n"))
    assert text.count("\n") == len(names)
    assert "\x1b" not in text


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR is honoured, and a file gets none."""

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    assert "\x1b[31m" in render([score("a", state=score_pb2.UNHEALTHY)], 80, colour=True)


def test_in_place_the_last_lines_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 hosts on 24 lines: the heading and the worst, not the best."""
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "80")
    text = placed("\n".join(["HOST", *(f"h{i}" for i in range(100))]), in_place=True)
    assert "HOST" in text and "h99" in text and "h50" not in text
    assert text.count("\n") == 9


def test_explain_wraps_words_and_leaves_sql_whole() -> None:
    """A query that was wrapped can not be copied."""
    made = score("a", reason_words="slow")
    sql = "SELECT time, " + ", ".join(f"c{i}" for i in range(60)) + " FROM readings.gpu_1s"
    made.contributions.add(signal="s", device="d", words="word " * 60, evidence_sql=sql, unit="u")
    lines = explained(made, 60).split("\n")
    assert f"   {sql}" in lines
    assert all(len(line) <= 60 for line in lines if "SELECT" not in line)
