"""How far something long has come: a bar where somebody looks, lines where a log is kept, nothing beside JSON."""

from __future__ import annotations

import io

from gangline.aggregator.commands.admin_store import LINE_SECONDS, ProgressBar


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


def test_a_bar_on_a_terminal() -> None:
    """Redrawn in place, full at the end, and what follows begins on a line of its own."""
    said = told(Terminal())
    assert said.count("\r") >= 10 and said.count("\n") == 2
    assert f"[{'#' * 15}{'.' * 15}] the store: 5.0 MB of 10.0 MB" in said
    assert f"[{'#' * 30}] the store: 10.0 MB of 10.0 MB\n" in said


def test_lines_in_a_log() -> None:
    """A bar of carriage returns made a mail of cron's unreadable."""
    said = told(io.StringIO())
    assert "\r" not in said and "\x1b" not in said
    assert said.splitlines() == [
        "the store: 10.0 MB",
        "the store: 10.0 MB of 10.0 MB",
        "nothing ...",
    ]
    assert LINE_SECONDS == 10.0


def test_nothing_beside_json() -> None:
    """`--json` is for programs."""
    assert told(Terminal(), quiet=True) == ""
