"""A driver that does not return: the daemon continues, reports it, and uses it again later."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.collector import Collector, CollectOutcome, DeadlineThread, NoData
from gangline.contract.block import Block
from gangline.contract.signal import Pace
from tests.hosts.reading import StoppedClock
from tests.processes import GUARD_SECONDS

SECOND = 1_000_000_000


class Driver(Collector):
    """A collector whose call returns on the test's command."""

    name = "gpu"
    pace = Pace.SECOND
    enters_driver = True

    def __init__(self) -> None:
        self.calls = 0
        self.threads: set[int] = set()
        self.gate = threading.Semaphore(0)
        self.inside = threading.Semaphore(0)

    def collect(self) -> Sequence[Block]:
        self.calls += 1
        self.threads.add(threading.get_ident())
        self.inside.release()
        assert self.gate.acquire(timeout=GUARD_SECONDS)
        raise NoData(f"call {self.calls}")


def make() -> tuple[Driver, DeadlineThread]:
    driver = Driver()
    return driver, DeadlineThread(driver, StoppedClock(), deadline_ns=3 * SECOND)


def test_a_turn_comes_back_once_with_what_the_collector_said() -> None:
    driver, probe = make()
    assert probe.poll(0) is None
    assert probe.wait(0)
    assert probe.begin(0)
    assert probe.poll(1) is None
    driver.gate.release()
    assert probe.wait(GUARD_SECONDS)
    turn = probe.poll(SECOND)
    assert turn is not None
    assert (turn.collector, turn.outcome, turn.message) == ("gpu", CollectOutcome.NO_DATA, "call 1")
    assert probe.poll(SECOND) is None


def test_a_driver_that_hangs_is_named_at_every_tick_and_left_alone() -> None:
    """An ioctl blocked for 45 s: every restart of the sweep would have left another thread."""
    driver, probe = make()
    before = threading.active_count()
    probe.begin(0)
    assert driver.inside.acquire(timeout=GUARD_SECONDS)
    assert probe.poll(2 * SECOND) is None  # slow, but in time
    messages = []
    for tick in (32, 42, 600):
        assert not probe.begin(tick * SECOND // 10)
        turn = probe.poll(tick * SECOND // 10)
        assert turn is not None
        assert (turn.outcome, list(turn.blocks)) == (CollectOutcome.HUNG, [])
        messages.append(turn.message)
    assert messages[0] == "did not return for 3.2 s in gpu"
    assert messages[2] == "did not return for 60.0 s in gpu"
    assert not probe.wait(GUARD_SECONDS)  # no wait for a hung call
    assert (driver.calls, probe.skipped, threading.active_count()) == (1, 3, before + 1)
    driver.gate.release()


def test_what_comes_back_too_late_is_thrown_away_and_the_collector_taken_up_again() -> None:
    """Readings of a call that took a minute have no known time; the next call's have."""
    driver, probe = make()
    probe.begin(0)
    turn = probe.poll(4 * SECOND)
    assert turn is not None and turn.outcome is CollectOutcome.HUNG
    assert probe.hung
    driver.gate.release()
    assert probe._returned.wait(GUARD_SECONDS)
    assert not probe.hung
    assert probe.poll(5 * SECOND) is None
    assert probe.begin(5 * SECOND)
    driver.gate.release()
    assert probe.wait(GUARD_SECONDS)
    turn = probe.poll(5 * SECOND)
    assert turn is not None and turn.message == "call 2"
    assert len(driver.threads) == 1


def test_a_host_without_a_thread_to_spare_does_not_stop_the_daemon(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A training job had forked up to the limit of processes when the first GPU turn was due."""
    driver, probe = make()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not probe.begin(0)
    assert (probe.skipped, probe.poll(10 * SECOND)) == (1, None)
    monkeypatch.undo()
    driver.gate.release()
    assert probe.begin(SECOND)
    assert probe.wait(GUARD_SECONDS)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["begin", "let", "second"]), max_size=40))
def test_any_course_of_events(actions: list[str]) -> None:
    """At most one call is in the driver, and each call gives one turn or one hung outcome."""
    driver, probe = make()
    now = begun = let = taken = discarded = 0
    hung = False
    for action in actions:
        if action == "begin" and probe.begin(now):
            begun += 1
        elif action == "let" and begun > let:
            let += 1
            driver.gate.release()
            assert probe._returned.wait(GUARD_SECONDS)
        elif action == "second":
            now += SECOND
        turn = probe.poll(now)
        if turn is None:
            discarded += hung and begun == let
            hung = hung and begun > let
        elif turn.outcome is CollectOutcome.HUNG:
            assert begun == let + 1 and now - probe.began_ns >= 3 * SECOND
            hung = True
        else:
            assert not hung and turn.message == f"call {begun}"
            taken += 1
        assert begun - let <= 1
        assert taken + discarded == let
    driver.gate.release()
