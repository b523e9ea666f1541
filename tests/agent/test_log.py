"""The log: one line a record, one record a cause a minute."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent import log

SECRET = "hunter2-hunter2"  # no log may show it


def record(message: str, **extra: object) -> logging.LogRecord:
    log_record = logging.LogRecord(
        "gangline.agent.transport.client", logging.WARNING, "", 7, message, None, None
    )
    log_record.__dict__.update(extra)
    return log_record


def test_one_line_a_cause_a_minute_that_counts_what_it_stands_for() -> None:
    """An aggregator was unreachable for a night; the agents' logs filled the root disks of a fleet."""
    now = [0.0]
    once = log.RateLimitFilter(lambda: now[0])
    passed = []
    for second in range(180):
        now[0] = float(second)
        log_record = record("no answer")
        if once.filter(log_record):
            passed.append((second, log_record.__dict__["repeated"]))
    assert passed == [(0, 0), (60, 59), (120, 59)]


def test_different_causes_do_not_hold_each_other_back() -> None:
    once = log.RateLimitFilter(lambda: 0.0)
    assert once.filter(record("a", cause="collector.gpu"))
    assert once.filter(record("a", cause="collector.net"))
    assert not once.filter(record("b", cause="collector.net"))
    assert once.filter(record("a"))


def test_a_recovery_is_told_at_once_where_trouble_was_told_last() -> None:
    """A collector recovered within a minute of its last recovery: the log ended with its error."""
    now = [0.0]
    once = log.RateLimitFilter(lambda: now[0])
    passed = []
    for second in range(60):
        now[0] = float(second)
        well = second % 2 == 1
        cause = "collector.gpu.ok" if well else "collector.gpu.error"
        if once.filter(record("a", cause=cause, topic="collector.gpu", well=well)):
            passed.append((second, cause))
        once.filter(record("a", cause="collector.net.ok", topic="collector.net", well=True))
    assert passed == [(0, "collector.gpu.error"), (1, "collector.gpu.ok")]
    for second, well, passes in ((60, False, True), (61, True, True), (62, True, False)):
        now[0] = float(second)
        cause = "collector.gpu.ok" if well else "collector.gpu.error"
        log_record = record("a", cause=cause, topic="collector.gpu", well=well)
        assert once.filter(log_record) is passes
    for number in range(10 * log.CAUSES_MAX):
        once.filter(record("a", cause=f"c{number}", topic=f"t{number}", well=False))
    assert len(once._failing_topics) <= log.CAUSES_MAX


def test_causes_without_end_are_told_as_one() -> None:
    """A library put a counter in its error message, and each line was a cause of its own."""
    now = [0.0]
    once = log.RateLimitFilter(lambda: now[0])
    created = [record("a", cause=f"cause {number}") for number in range(10 * log.CAUSES_MAX)]
    passed = [entry.__dict__["cause"] for entry in created if once.filter(entry)]
    assert passed == [*(f"cause {number}" for number in range(log.CAUSES_MAX)), log.OTHERS_CAUSE]
    assert len(once._causes) <= log.CAUSES_MAX + 1
    now[0] = log.REPEAT_SECONDS_MIN
    again = record("a", cause="cause 7")
    assert once.filter(again) and again.__dict__["repeated"] == 0
    fresh = record("a", cause="one more")
    assert once.filter(fresh) and fresh.__dict__["cause"] == "one more"


def test_what_a_forgotten_cause_kept_back_is_not_lost() -> None:
    now = [0.0]
    once = log.RateLimitFilter(lambda: now[0])
    for _ in range(5):
        once.filter(record("a", cause="rare"))
    now[0] = log.REPEAT_SECONDS_MIN
    records = [record("a", cause=f"cause {number}") for number in range(log.CAUSES_MAX + 1)]
    for entry in records:
        once.filter(entry)
    others = [entry for entry in records if entry.__dict__["cause"] == log.OTHERS_CAUSE]
    assert [other.__dict__["repeated"] for other in others] == [4]


def test_many_threads_may_speak_at_once() -> None:
    """The client's thread logged with the loop; a changed dict ended the loop's tick."""
    once = log.RateLimitFilter(lambda: 0.0)
    passed: list[bool] = []

    def speak(name: str) -> None:
        for number in range(500):
            passed.append(once.filter(record("a", cause=f"{name} {number}")))

    threads = [threading.Thread(target=speak, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 2000
    assert sum(passed) == log.CAUSES_MAX + 1


@pytest.mark.parametrize(
    "message",
    [
        f"token={SECRET}",
        f"--set api_key = '{SECRET}'",
        f'{{"client_secret": "{SECRET}", "a": 1}}',
        f"GANGLINE_PASSWORD: {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"https://operator:{SECRET}@metrics.cluster/push refused",
        f"aggregator = 'operator:{SECRET}@10.0.0.5:7600': expected host:port",
        f"exit 1: {SECRET}, of the environment",
    ],
)
def test_no_secret_in_any_line(message: str) -> None:
    """A proxy's password was in an error message, and in the journal of ten thousand hosts."""
    environment = {"GANGLINE_PUSH_TOKEN": SECRET, "HOME": "/root", "TOKEN": "1"}
    try:
        raise OSError(message)
    except OSError:
        log_record = record(message.replace("%", "%%"), exc_info=sys.exc_info())
    line = log.LogfmtFormatter(environment).format(log_record)
    assert SECRET not in line
    assert log.HIDDEN in line


@pytest.mark.parametrize(
    "message",
    [
        "aggregator 'nowhere': expected HOST:PORT, such as 127.0.0.1:7600",
        "collector gpu_1s: hung nvmlDeviceGetFieldValues of 0000:9b:00.0 for 3.1 s",
        "/var/lib/gangline/spool is held by process 17: stop that agent",
        "no answer: basic health check",
    ],
)
def test_words_without_a_secret_stay_as_they_are(message: str) -> None:
    assert log.redact(message, log.secret_values({"TOKEN": "1", "HOME": "/var"})) == message


@given(st.text())
def test_any_words_are_one_line(message: str) -> None:
    """A driver's message with a line break forged a second record."""
    line = log.LogfmtFormatter().format(record(message.replace("%", "")))
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
    package_logger = logging.getLogger("gangline")
    assert package_logger.propagate and package_logger.level == logging.NOTSET, "a later test's"
    (line,) = stream.getvalue().splitlines()
    assert " level=error cause=gangline.agent.daemon:" in line
    trace = json.loads(line.partition(" trace=")[2])
    assert "ValueError: odd\nthing" in trace
    assert __file__ in trace


def test_a_stream_that_is_gone_matters_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """journald was restarted, which closed stderr: EPIPE must not end the daemon."""

    class Gone(io.StringIO):
        def write(self, _: str, /) -> int:
            raise BrokenPipeError("gone")

    handler = log.start(Gone())
    try:
        logging.getLogger("gangline.agent").error("anything")
    finally:
        log.stop(handler)
    assert capsys.readouterr().err == "", "logging complained about itself"
