"""The log: one line a record, one record a cause a minute."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent import log


def record(words: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord(
        "gangline.agent.transport.client", logging.WARNING, "", 7, words, None, None
    )
    made.__dict__.update(extra)
    return made


def test_one_line_a_cause_a_minute_that_counts_what_it_stands_for() -> None:
    """An aggregator was away for a night; the agents' logs filled the root disks of a fleet."""
    now = [0.0]
    once = log.OncePerMinute(lambda: now[0])
    passed = []
    for second in range(180):
        now[0] = float(second)
        made = record("no answer")
        if once.filter(made):
            passed.append((second, made.__dict__["repeated"]))
    assert passed == [(0, 0), (60, 59), (120, 59)]


def test_different_causes_do_not_hold_each_other_back() -> None:
    once = log.OncePerMinute(lambda: 0.0)
    assert once.filter(record("a", cause="collector.gpu"))
    assert once.filter(record("a", cause="collector.net"))
    assert not once.filter(record("b", cause="collector.net"))
    assert once.filter(record("a"))


def test_causes_without_end_take_no_memory_without_end() -> None:
    once = log.OncePerMinute(lambda: 0.0)
    for number in range(10 * log.CAUSES_MAX):
        assert once.filter(record("a", cause=f"cause {number}"))
    assert len(once._seen) == log.CAUSES_MAX


@given(st.text())
def test_any_words_are_one_line(words: str) -> None:
    """A driver's message with a line break in it forged a second record."""
    line = log.Line().format(record(words.replace("%", "")))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_a_failure_of_our_own_carries_its_trace_in_the_same_line() -> None:
    stream = io.StringIO()
    handler = log.start(stream)
    try:
        try:
            raise ValueError("odd\nthing")
        except ValueError:
            logging.getLogger("gangline.agent.daemon").exception("a tick failed")
    finally:
        log.stop(handler)
    (line,) = stream.getvalue().splitlines()
    assert " level=error cause=gangline.agent.daemon:" in line
    trace = json.loads(line.partition(" trace=")[2])
    assert "ValueError: odd\nthing" in trace
    assert __file__ in trace


def test_a_stream_that_is_gone_matters_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """journald was restarted and stderr with it: EPIPE must not end the daemon."""

    class Gone(io.StringIO):
        def write(self, _: str, /) -> int:
            raise BrokenPipeError("gone")

    handler = log.start(Gone())
    try:
        logging.getLogger("gangline.agent").error("anything")
    finally:
        log.stop(handler)
    assert capsys.readouterr().err == "", "logging complained about itself"
