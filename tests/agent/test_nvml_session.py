"""Letting go of NVML together: as long as one of the process holds it, a driver that is new stays unseen."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from gangline.agent.hardware import nvml_session
from gangline.agent.hardware.nvml_session import Session, session_of

GUARD_SECONDS = 30.0


class User:
    """Has something open; notes how often it let go."""

    def __init__(self, session: Session, act: Callable[[], None] = lambda: None) -> None:
        self.seat = session.seat(self.let_go)
        self.left = 0
        self._act = act

    def let_go(self) -> None:
        self.left += 1
        self._act()


def test_all_let_go_and_whoever_is_in_a_turn_at_its_end() -> None:
    """A handle that was closed under a call is a crash of the agent; a lane that hangs holds up nobody."""
    session = Session()
    noticed, busy, idle = (User(session) for _ in range(3))
    assert noticed.seat.begin() and busy.seat.begin()
    assert not busy.seat.begin()  # one turn at a time
    session.open_anew(noticed.seat, driver_loaded=True)
    assert [user.left for user in (noticed, busy, idle)] == [0, 0, 1]
    assert session.driver_loads == 1
    noticed.seat.end()
    busy.seat.end()
    assert [user.left for user in (noticed, busy, idle)] == [1, 1, 1]
    assert busy.seat.begin()
    assert busy.left == 1


def test_what_two_notice_at_once_is_said_once() -> None:
    """Every epoch rose twice for one driver reload: the second rise threw the first new counts away."""
    session = Session()
    first, second = User(session), User(session)
    assert first.seat.begin() and second.seat.begin()
    session.open_anew(first.seat, driver_loaded=True)
    first.seat.end()
    assert first.seat.begin()  # it opened the new driver, and goes on
    session.open_anew(second.seat, driver_loaded=True)
    assert session.driver_loads == 1
    first.seat.end()
    second.seat.end()
    assert (first.left, second.left) == (1, 1)


def test_a_reload_that_is_noticed_after_a_loss_counts() -> None:
    """One lane reopened for a GPU that was lost; the other saw in the same moment that the driver was gone."""
    session = Session()
    first, second = User(session), User(session)
    assert first.seat.begin() and second.seat.begin()
    session.open_anew(first.seat, driver_loaded=False)
    session.open_anew(second.seat, driver_loaded=True)
    assert session.driver_loads == 1


def test_a_user_can_be_asked_to_leave_in_its_own_turn() -> None:
    """The turn's values are still read by others: what they stand in is closed afterwards."""
    user = User(Session())
    assert user.seat.begin()
    assert not user.seat.vacate()
    assert user.left == 0
    user.seat.end()
    assert user.left == 1
    assert user.seat.vacate()


def test_who_is_asked_while_another_lets_go_for_it_leaves_again() -> None:
    """The second request came while the first was being done, and was forgotten."""
    session = Session()
    asked: list[bool] = []

    def again() -> None:
        if not asked:
            asked.append(user.seat.vacate())

    user = User(session, again)
    assert user.seat.vacate()
    assert asked == [False]
    assert user.left == 2


def test_nobody_opens_before_all_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven closed and six had opened again before the last one closed: NVML never saw that the GPU was back."""
    monkeypatch.setattr(nvml_session, "LEAVING_SECONDS_MAX", GUARD_SECONDS)
    session = Session()
    noticed, busy = User(session), User(session)
    assert noticed.seat.begin() and busy.seat.begin()
    session.open_anew(noticed.seat, driver_loaded=False)
    noticed.seat.end()
    waited: list[int] = []

    def open_again() -> None:
        session.wait_until_left()
        waited.append(busy.left)

    opening = threading.Thread(target=open_again, daemon=True)
    opening.start()
    busy.seat.end()
    opening.join(GUARD_SECONDS)
    assert waited == [1]


def test_who_hangs_in_the_driver_is_not_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lane on a sick GPU for ever: its neighbours open again without it."""
    monkeypatch.setattr(nvml_session, "LEAVING_SECONDS_MAX", 0.0)
    session = Session()
    noticed, hung = User(session), User(session)
    assert noticed.seat.begin() and hung.seat.begin()
    session.open_anew(noticed.seat, driver_loaded=False)
    noticed.seat.end()
    session.wait_until_left()
    monkeypatch.setattr(nvml_session, "LEAVING_SECONDS_MAX", GUARD_SECONDS)
    session.wait_until_left()  # would take as long as the guard
    assert hung.left == 0


def test_a_session_keeps_nobody_alive() -> None:
    """A lane of a test, or of an agent that was set up anew, must not be let go of twice."""
    session = session_of("libnvidia-ml.so.session-test")
    user, other = User(session), User(session)
    del user
    gc.collect()
    session.open_anew(other.seat, driver_loaded=True)
    session.wait_until_left()
    assert session_of("libnvidia-ml.so.session-test") is session
    assert session_of("another") is not session
