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

#: A file that takes more CPU is written by the clock, whether somebody asks or not: nobody would wait for it.
CHEAP_SECONDS = 6.0
#: Without a question a cheap file is written once in this many periods (`ops_seconds`).
IDLE_PERIODS = 8
#: After a cheap file this many times its CPU pass before the next that somebody asks for: a third of a processor at most.
PAUSE_FACTOR = 2
#: A question waits for a file for this long at most.
WAIT_SECONDS_MAX = 8.0
#: How often requests of other processes are looked for.
POLL_SECONDS = 0.5
#: Whose time of change is that of the last request. The aggregator holds a lock on it while it runs.
REQUESTS_FILE = "operators.requests"


def pause_seconds(period_seconds: float, write_seconds: float) -> float:
    """Return how long to wait after a file that took this long to write: until *period_seconds* have passed, or twice
    as many, so that a large fleet's file takes an eighth of a processor and no more."""
    whole = max(period_seconds, min(2 * period_seconds, 8 * write_seconds))
    return max(0.0, whole - write_seconds)


@dataclass(frozen=True, slots=True)
class RefreshCost:
    """What decides when a file may be written: the setting `ops_seconds`, and what the last one took of time and of CPU."""

    period_seconds: float
    write_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def pause_seconds(self, *, requested: bool) -> float:
        """Return how long after the end of the last file the next is due."""
        if self.cpu_seconds > CHEAP_SECONDS:
            return pause_seconds(self.period_seconds, self.write_seconds)
        if requested:
            return PAUSE_FACTOR * self.cpu_seconds
        return IDLE_PERIODS * self.period_seconds


@dataclass(slots=True)
class Refresh:
    """What the thread that writes the file waits for. Thread-safe; times of day in ns, *now* on a monotonic clock in seconds."""

    cost: RefreshCost
    requests: RequestFile
    #: As of when the last file is; 0: this process has not written one.
    taken_ns: int = 0
    _ended: float = float("-inf")
    _waiting: list[tuple[int, Future[None]]] = field(default_factory=list[tuple[int, Future[None]]])
    _is_file_requested: bool = False  # another process asks
    _failed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)

    def request(self, moment_ns: int) -> Future[None]:
        """Return what is done when there is a file as of *moment_ns* or later, or one could not be written.

        With `ops_seconds` 0 no file is ever written, so it is done at once.
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
        """Return in how many seconds a file that is asked for now is likely to be there."""
        due = self._ended + self.cost.pause_seconds(requested=True)
        return max(0.0, due - now) + self.cost.write_seconds

    def due_seconds(self, now: float) -> float:
        """Return in how many seconds the next file is due; 0: now."""
        with self._lock:
            self._is_file_requested |= self.requests.poll()
            requested = self._is_file_requested or bool(self._waiting)
        pause = self.cost.pause_seconds(requested=requested)
        if self._failed:
            pause = self.cost.period_seconds
        return max(0.0, self._ended + pause - now)

    def wait(self, closing: Callable[[], bool], monotonic: Callable[[], float]) -> bool:
        """Wait until a file is due. False: *closing*, which `wake` lets it look at."""
        while not closing():
            self._wake.clear()
            due = self.due_seconds(monotonic())
            if not due:
                return True
            self._wake.wait(min(due, POLL_SECONDS))
        return False

    def wake(self) -> None:
        """Let `wait` look at *closing* at once."""
        self._wake.set()

    def started(self) -> None:
        """Take note that a file is begun: who asks from now on with `request` waits for the next."""
        with self._lock:
            self._is_file_requested = False

    def written(self, taken_ns: int, cost: RefreshCost, now: float) -> None:
        """Take note that the file as of *taken_ns* is there."""
        self.taken_ns, self.cost, self._failed = taken_ns, cost, False
        self._end(now, taken_ns)

    def failed(self, now: float) -> None:
        """Take note that no file could be made; who waits continues with the one before."""
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
    """The aggregator's side of the file through which other processes ask. Without it they read the file that is there."""

    def __init__(self, folder: Path, *, enabled: bool = True) -> None:
        """Make the file, and hold the lock that says that somebody looks at it; not *enabled*: do neither."""
        self._path = folder / REQUESTS_FILE
        self._last_request_ns = 0
        self._file: IO[str] | None = None
        if not enabled:
            return
        with suppress(OSError):
            self._file = open(self._path, "a+", encoding="ascii")  # noqa: SIM115 - held while we run
            with suppress(OSError):
                self._path.chmod(0o666)  # anyone who may enter the folder may ask

    def poll(self) -> bool:
        """Return whether somebody has asked since the last call."""
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
        """Write what decides whether to wait for a file. Never raises."""
        if self._file is None:
            return
        with suppress(OSError, ValueError):  # closed meanwhile, as a store that is left is
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps(astuple(cost)))
            self._file.flush()
            self._last_request_ns = os.fstat(self._file.fileno()).st_mtime_ns

    def close(self) -> None:
        """Look no more. The file goes: there is nobody to ask."""
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            with suppress(OSError):  # a full disk did not take what is left in its buffer
                self._file.close()
            self._file = None


def read_cost(folder: Path) -> RefreshCost | None:
    """Return what the aggregator that runs on *folder* says of its file; None: none runs, or it cannot be asked."""
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
    """Ask the aggregator that runs on *folder* for a new file. False: it cannot be asked."""
    try:
        os.utime(folder / REQUESTS_FILE)
    except OSError:
        return False
    return True
