"""When the snapshot file is written: on request of a newer one, and at a low rate otherwise.

A query names the time that its file must cover. A process that has the data folder but no connection requests a file through a
file in that folder (`RequestFile`, `request`). The cost of a file limits how often one is made.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO

#: A file that takes more CPU is written periodically: a query would not wait for it.
CHEAP_SECONDS = 6.0
#: Without a request a cheap file is written once in this many periods (`ops_seconds`).
IDLE_PERIODS = 8
#: Pause after a cheap file, as a multiple of its CPU time: requests take at most a third of a
#: processor.
PAUSE_FACTOR = 2
#: Limit of a query's wait for a file.
WAIT_SECONDS_MAX = 8.0
#: Period of the check for requests of other processes.
POLL_SECONDS = 0.5
#: Its modification time is the time of the last request. A running aggregator holds a lock on it.
REQUESTS_FILE = "operators.requests"


def pause_seconds(period_seconds: float, write_seconds: float) -> float:
    """Return the pause after a file that took *write_seconds*: the rest of the period.

    The period is at most doubled, to limit the file to an eighth of a processor.
    """
    whole = max(period_seconds, min(2 * period_seconds, 8 * write_seconds))
    return max(0.0, whole - write_seconds)


@dataclass(frozen=True, slots=True)
class RefreshCost:
    """Inputs of the schedule: `ops_seconds`, and the elapsed and CPU time of the last file."""

    period_seconds: float
    write_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def pause_seconds(self, *, requested: bool) -> float:
        """Return the pause between the end of the last file and the next one."""
        if self.cpu_seconds > CHEAP_SECONDS:
            return pause_seconds(self.period_seconds, self.write_seconds)
        if requested:
            return PAUSE_FACTOR * self.cpu_seconds
        return IDLE_PERIODS * self.period_seconds


@dataclass(slots=True)
class Refresh:
    """Schedule of the thread that writes the file. Thread-safe; *now* is monotonic, in seconds."""

    cost: RefreshCost
    requests: RequestFile
    #: Time of the last file's content; 0: this process has not written one.
    taken_ns: int = 0
    _ended: float = float("-inf")
    _waiting: list[tuple[int, Future[None]]] = field(default_factory=list)
    _is_file_requested: bool = False  # another process requested a file
    _failed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)

    def request(self, moment_ns: int) -> Future[None]:
        """Return a future that completes when the file covers *moment_ns*, or writing it failed.

        With `ops_seconds` 0 no file is ever written, and the future is complete.
        """
        done: Future[None] = Future()
        with self._lock:
            if self.taken_ns >= moment_ns or not self.cost.period_seconds:
                done.set_result(None)
                return done
            self._waiting.append((moment_ns, done))
        self._wake.set()
        return done

    def expected_seconds(self, now: float) -> float:
        """Return the expected seconds until a file requested now is written."""
        due = self._ended + self.cost.pause_seconds(requested=True)
        return max(0.0, due - now) + self.cost.write_seconds

    def due_seconds(self, now: float) -> float:
        """Return the seconds until the next file is due; 0: now."""
        with self._lock:
            self._is_file_requested |= self.requests.poll()
            requested = self._is_file_requested or bool(self._waiting)
        pause = self.cost.pause_seconds(requested=requested)
        if self._failed:
            pause = self.cost.period_seconds
        return max(0.0, self._ended + pause - now)

    def wait(self, closing: Callable[[], bool], monotonic: Callable[[], float]) -> bool:
        """Wait until a file is due. False: *closing* is true; `wake` makes this method check it."""
        while not closing():
            self._wake.clear()
            due = self.due_seconds(monotonic())
            if not due:
                return True
            self._wake.wait(min(due, POLL_SECONDS))
        return False

    def wake(self) -> None:
        """Make `wait` check *closing* at once."""
        self._wake.set()

    def started(self) -> None:
        """Record that a file was begun: later requests wait for the next one."""
        with self._lock:
            self._is_file_requested = False

    def written(self, taken_ns: int, cost: RefreshCost, now: float) -> None:
        """Record that the file as of *taken_ns* is complete."""
        self.taken_ns, self.cost, self._failed = taken_ns, cost, False
        self._end(now, taken_ns)

    def failed(self, now: float) -> None:
        """Record that writing failed; queries continue with the previous file."""
        self._failed = True
        self._end(now, None)

    def _end(self, now: float, taken_ns: int | None) -> None:
        with self._lock:
            self._ended = now
            waiting, self._waiting = self._waiting, []
            for moment_ns, done in waiting:
                if taken_ns is not None and moment_ns > taken_ns:
                    self._waiting.append((moment_ns, done))
                else:
                    done.set_result(None)
            self._is_file_requested |= self.requests.poll()
        self.requests.publish_cost(self.cost)


class RequestFile:
    """The aggregator's side of requests by file. Without that file others use the last snapshot."""

    def __init__(self, folder: Path, *, enabled: bool = True) -> None:
        """Create the file if *enabled*; `poll` locks it, to show that requests are served."""
        self._path = folder / REQUESTS_FILE
        self._last_request_ns = 0
        self._file: IO[str] | None = None
        if not enabled:
            return
        with suppress(OSError):
            self._file = open(self._path, "a+", encoding="ascii")  # noqa: SIM115 - kept open
            with suppress(OSError):
                self._path.chmod(0o666)  # any user with access to the folder may request

    def poll(self) -> bool:
        """Return whether there was a request since the last call."""
        if self._file is None:
            return False
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            changed_ns = os.fstat(self._file.fileno()).st_mtime_ns
        except OSError:
            return False
        previous_ns, self._last_request_ns = self._last_request_ns, changed_ns
        return bool(previous_ns) and changed_ns != previous_ns

    def publish_cost(self, cost: RefreshCost) -> None:
        """Write the cost, from which others decide whether to wait. Never raises."""
        if self._file is None:
            return
        with suppress(OSError, ValueError):  # the store was closed
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps(astuple(cost)))
            self._file.flush()
            self._last_request_ns = os.fstat(self._file.fileno()).st_mtime_ns

    def close(self) -> None:
        """Remove the file, so that others see that requests are not served."""
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            with suppress(OSError):  # a full disk refused the buffered rest
                self._file.close()
            self._file = None


def read_cost(folder: Path) -> RefreshCost | None:
    """Return the cost that the aggregator running on *folder* published; None if none runs."""
    try:
        with open(folder / REQUESTS_FILE, encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                period_seconds, write_seconds, cpu_seconds = map(float, json.loads(file.read(100)))
                return RefreshCost(period_seconds, write_seconds, cpu_seconds)
    except (OSError, ValueError, TypeError):
        pass
    return None


def request(folder: Path) -> bool:
    """Request a new file from the aggregator running on *folder*. False: it takes no requests."""
    try:
        os.utime(folder / REQUESTS_FILE)
    except OSError:
        return False
    return True
