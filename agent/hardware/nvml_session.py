"""Who in this process has one NVML library open, so that all can let go of it at once.

NVML counts its users: only when the last one of the process has closed it does it let go of the GPUs, and only
after that does it see a driver that was loaded again, or a GPU that came back. Each collector opens and closes
for itself and has a seat here; whoever notices that everything must be opened anew says so once, and nobody opens
it again before all have left, but for those who do not come out of the driver.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

#: Whoever opens the library again waits at most this long for those who are still to leave.
LEAVING_SECONDS_MAX = 1.0


class Session:
    """The seats of one library, for any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seats: weakref.WeakSet[Seat] = weakref.WeakSet()
        self._leaving: weakref.WeakSet[Seat] = weakref.WeakSet()
        #: How often the driver was found gone or another: every GPU's counters began anew each time.
        self.driver_loads = 0
        #: PCI addresses of the GPUs that are split into MIG instances, as their lane last read it.
        self.split: frozenset[str] = frozenset()

    def seat(self, let_go: Callable[[], None]) -> Seat:
        """Return a new user's seat. *let_go*, a method of the user's, closes what it has open; it is called from
        any thread, never during the user's turn. The seat is given up when it is no longer referred to."""
        seat = Seat(self, let_go)
        with self._changed:
            self._seats.add(seat)
        return seat

    def open_anew(self, by: Seat, *, driver_loaded: bool) -> None:
        """Let all go of the library: at once, or at the end of their turn if they are in one, as *by* is.

        *driver_loaded*: the driver is, or may be, another one. What another user noticed and said since *by*'s turn
        began is not said again.
        """
        with self._changed:
            if by.is_asked and not (driver_loaded and by.driver_loads == self.driver_loads):
                return
            self.driver_loads += driver_loaded
            seats = list(self._seats)
            self._leaving.update(seats)
        for seat in seats:
            seat.vacate()

    def has_left(self, seat: Seat) -> None:
        """Note that a seat's user has nothing open any more."""
        with self._changed:
            self._leaving.discard(seat)
            self._changed.notify_all()

    def wait_until_left(self) -> None:
        """Wait until all who were asked to let go have done so. Those who do not within LEAVING_SECONDS_MAX hang in
        the driver, and are waited for no more."""
        with self._changed:
            if not self._changed.wait_for(lambda: not len(self._leaving), LEAVING_SECONDS_MAX):
                self._leaving.clear()


class Seat:
    """One user's place: its turns, of which there is one at a time."""

    def __init__(self, session: Session, let_go: Callable[[], None]) -> None:
        self.session = session
        #: `session.driver_loads` as the turn began.
        self.driver_loads = session.driver_loads
        #: Whether the user is to let go at the end of its turn; one whose turn is long looks here.
        self.is_asked = False
        self._let_go = weakref.WeakMethod(let_go)  # or the session would keep the collector
        self._busy = threading.Lock()

    def begin(self, *, wait: bool = False) -> bool:
        """Begin a turn; False while one is under way, or another thread lets go, unless *wait* is for the end of it."""
        if not self._busy.acquire(blocking=wait):
            return False
        if self.is_asked:
            self._leave()
        self.driver_loads = self.session.driver_loads
        return True

    def end(self) -> None:
        """End the turn, and let go if that was asked for meanwhile."""
        self._busy.release()
        self._leave_if_asked()

    def vacate(self) -> bool:
        """Let go now, from any thread; False during a turn: then it happens at its end."""
        self.is_asked = True
        return self._leave_if_asked()

    def _leave_if_asked(self) -> bool:
        """Whoever holds the lock when this cannot have it looks again after giving it back: nothing is forgotten."""
        while self.is_asked:
            if not self._busy.acquire(blocking=False):
                return False
            try:
                if self.is_asked:
                    self._leave()
            finally:
                self._busy.release()
        return True

    def _leave(self) -> None:
        self.is_asked = False
        let_go = self._let_go()
        try:
            if let_go is not None:
                let_go()
        finally:
            self.session.has_left(self)


_SESSIONS: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
_SESSIONS_LOCK = threading.Lock()


def session_of(library: str) -> Session:
    """Return the session of a library, by the name or path it is loaded by; one for the whole process."""
    with _SESSIONS_LOCK:
        session = _SESSIONS.get(library)
        if session is None:
            session = _SESSIONS[library] = Session()
        return session
