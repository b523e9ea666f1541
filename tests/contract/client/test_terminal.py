"""Output of commands: tables in a pipe and on a terminal, a view in place, progress as a bar or as lines of a log."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from gangline.contract.client.terminal import (
    LINE_SECONDS,
    ProgressBar,
    clean_texts,
    refreshed,
    table,
)
from gangline.contract.wire import score_pb2

ROWS = [
    ("NAME", "GPUS", "WHY"),
    ("a\x1b[31m", "8", "one two three four five six seven"),
    ("b", "16", "-"),
]


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


def told(out: io.StringIO, *, quiet: bool = False) -> str:
    """A copy of 10 MB, one a second."""
    now = [0.0]
    progress = ProgressBar(quiet=quiet, out=out, monotonic=lambda: now[0])
    progress.begin("the store", 10_000_000)
    for _ in range(10):
        now[0] += 1.0
        progress.advance(1_000_000)
    progress.begin("nothing", 0)
    progress.end()
    return out.getvalue()


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redrawn in place, full at the end, the cursor is back, and what follows begins on a line of its own."""
    for name, text in (("TERM", "xterm"), ("COLUMNS", "100"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, text)
    output = told(Terminal())
    assert output.count("\r") >= 2 and output.count("\n") == 2 and output.endswith("\x1b[?25h")
    assert "the store" in output and "10.0 MB of 10.0 MB" in output and "━" * 40 in output


def test_a_failure_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk left the shell without a cursor."""
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with contextlib.suppress(OSError), ProgressBar(out=out) as progress:
        progress.begin("the store", 10)
        raise OSError
    assert out.getvalue().endswith("\x1b[?25h")


def test_lines_in_a_log() -> None:
    """A bar of carriage returns made a mail of cron's unreadable."""
    output = told(io.StringIO())
    assert "\r" not in output and "\x1b" not in output
    assert output.splitlines() == [
        "the store: 10.0 MB",
        "the store: 10.0 MB of 10.0 MB",
        "nothing ...",
    ]
    assert LINE_SECONDS == 10.0


def test_nothing_beside_json() -> None:
    """`--json` is for programs."""
    assert told(Terminal(), quiet=True) == ""


def test_a_table_in_a_pipe_is_for_programs() -> None:
    """Scripts cut columns: a row is always a single line, without terminal escapes."""
    assert table(ROWS, 0, right=["GPUS"]).splitlines() == [
        "NAME    GPUS  WHY",
        "a?[31m     8  one two three four five six seven",
        "b         16  -",
    ]
    assert table(ROWS[:1], 0) == "NAME  GPUS  WHY"


def test_a_table_wraps_or_cuts_where_the_terminal_is_narrow() -> None:
    """At 80 columns the terminal broke each row at its edge, and no column was below its heading."""
    assert table(ROWS, 24).splitlines() == [
        "NAME    GPUS",
        "    WHY",
        "a?[31m  8",
        "    one two three four",
        "    five six seven",
        "b       16",
        "    -",
    ]
    numbers = [("LOST GPU-HOURS", "SPANS", "N"), ("1,234.56", "1 leaf, 2 racks", "12")]
    assert table(numbers, 24).splitlines() == [
        "LOST",
        "GPU-HOURS  SPANS      N",
        "1,234.56   1 leaf, 2  12",
        "           racks",
    ]
    assert table(numbers, 5).count("1,234.56") == 1, "no number is cut"
    lines = table(ROWS, 40, one_line=True).splitlines()
    assert lines == [
        "NAME    GPUS  WHY",
        "a?[31m  8     one two three four five s…",
        "b       16    -",
    ]


def test_a_table_is_painted_by_row() -> None:
    """The style of a row ends with the row; a row without a style has no escapes."""
    heading, first, second = table(ROWS, 80, styles=["red", ""]).splitlines()
    assert heading.startswith("\x1b[1m") and first.startswith("\x1b[31m") and "\x1b" not in second
    assert "\x1b" not in table(ROWS, 80)


def test_a_view_in_place_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal's own content returns when the view ends, also by Ctrl-C; the last table stays for the operator."""
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    with contextlib.suppress(KeyboardInterrupt), refreshed(in_place=True) as show:
        show("first")
        show("second")
        raise KeyboardInterrupt
    view, _, after = out.getvalue().partition("\x1b[?1049l")
    assert view.startswith("\x1b[?1049h") and "first" in view
    assert after.endswith("second\n") and "first" not in after


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_view_elsewhere_is_one_text_below_the_other(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log got sequences of a terminal, and so did an editor's shell."""
    monkeypatch.setenv("TERM", term)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    with refreshed(in_place=term == "dumb") as show:
        show("first")
        show("second")
    assert out.getvalue() == "first\nsecond\n"


def test_no_text_of_a_host_is_more_than_a_line() -> None:
    """A process named "x\\nHEALTHY" forged a line of `gangline explain`."""
    score = score_pb2.NodeScore(node="nodes/h1", reason_message="a\nb\x1b[2J")
    score.contributions.add(device="GPU\n\nVerdict: HEALTHY", message="x\ry")
    clean_texts(score)
    assert score.reason_message == "a?b?[2J"
    assert (score.contributions[0].device, score.contributions[0].message) == (
        "GPU??Verdict: HEALTHY",
        "x?y",
    )
