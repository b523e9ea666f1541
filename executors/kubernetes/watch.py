"""A local cache of the Kubernetes objects of a kind: a thread reads a list, then a watch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ..model import SchedulerError
from .api import ApiError, ApiServer, ApiWatch

log = logging.getLogger(__name__)

#: Delay before a lost connection is retried, and its maximum; the delay doubles each time.
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.2, 5.0
#: HTTP statuses of a login without permission.
REFUSED = (401, 403)
#: `close` waits this long for the thread, which may be in a call.
CLOSE_SECONDS = 15.0
#: A list of more objects is an error; a further object of the watch is ignored.
OBJECTS_MAX = 500_000

T = TypeVar("T")


class WatchedObjects(Generic[T]):
    """The objects of a kind: call `start`, then `current` at any time."""

    def __init__(
        self,
        api: ApiServer,
        path: str,
        parse: Callable[[Any], T | None],
        name_of: Callable[[Any], str],
    ) -> None:
        """*path*: the list; *parse*: returns the stored form of an object, None to ignore it.

        *name_of*: returns the key of an object. Both callables may raise KeyError, TypeError and
        ValueError.
        """
        self._api, self._path, self._parse, self._name_of = api, path, parse, name_of
        self._objects: dict[str, tuple[int, T | None]] = {}
        #: The newest version of the list and the events.
        self._version = 0
        self._lock = threading.RLock()
        self._problem = "nothing was read yet"
        self._listed, self._stopped = threading.Event(), threading.Event()
        #: Set with the first list, or once the login is refused, because then waiting is useless.
        self._is_decided = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch: ApiWatch | None = None
        #: Called after each change, in the thread of the watch.
        self.wake: Callable[[], None] = lambda: None

    def start(self, seconds_max: float) -> None:
        """Start the watch, and wait for the first list. Several threads may call this method.

        Raises SchedulerError if no list arrives in *seconds_max*.
        """
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"watch {self._path}", daemon=True
                )
                self._thread.start()
        self._is_decided.wait(seconds_max)
        if not self._listed.is_set():
            raise SchedulerError(f"{self._path}: {self._problem}")

    def close(self) -> None:
        """End the watch and its thread."""
        self._stopped.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def current(self) -> dict[str, T]:
        """Return all objects. Raises SchedulerError while disconnected: objects may be outdated."""
        with self._lock:
            if self._problem:
                raise SchedulerError(f"{self._path}: {self._problem}")
            return {name: one for name, (_, one) in self._objects.items() if one is not None}

    def store(self, thing: Any) -> None:
        """Store an object from an answer of the API server, unless a later version is known."""
        self._take("MODIFIED", thing)

    def store_list(self, things: Iterable[Any], version: str) -> None:
        """Store a part of the list as of *version*, unless the watch is at or past *version*.

        A later watch also knows the objects that have been deleted since.
        """
        with self._lock:
            if _number(version) > self._version:
                for thing in things:
                    self._take("MODIFIED", thing)

    def _run(self) -> None:
        rest = RETRY_SECONDS
        while not self._stopped.is_set():
            try:
                version = self._list()
                rest = RETRY_SECONDS
                while not self._stopped.is_set():
                    watch = self._api.watch(self._path, version)
                    with self._lock:
                        self._watch = watch
                    if self._stopped.is_set():
                        watch.close()
                    for kind, thing in watch:
                        if self._stopped.is_set():
                            return
                        version = self._take(kind, thing) or version
                        with self._lock:
                            self._version = _number(version)
            except ApiError as error:
                self._lose(str(error), error.status == 410)
                if error.status in REFUSED:
                    self._is_decided.set()
            except Exception as error:  # a thread must not end unseen
                log.exception("watching %s failed", self._path)
                self._lose(repr(error), False)
            self._stopped.wait(rest)
            rest = min(2 * rest, RETRY_SECONDS_MAX)

    def _lose(self, problem: str, is_expired: bool) -> None:
        """Record that the connection is lost. An expired watch (HTTP 410) is not logged: it is only listed again."""
        with self._lock:
            if problem != self._problem and not is_expired and not self._stopped.is_set():
                log.warning("lost the watch of %s", problem)
            self._problem = problem
        self.wake()

    def _list(self) -> str:
        things, version = self._api.list_all(self._path)
        if len(things) > OBJECTS_MAX:
            raise ApiError(0, f"{self._path}: more than {OBJECTS_MAX} objects")
        objects: dict[str, tuple[int, T | None]] = {}
        for thing in things:
            name, number, one = self._read(thing)
            if name:
                objects[name] = number, one
        with self._lock:
            self._objects, self._problem = objects, ""
            self._version = _number(version)
        self._listed.set()
        self._is_decided.set()
        self.wake()
        return version

    def _take(self, kind: str, thing: Any) -> str:
        """Store the object of an event; return the object's version.

        An older version is ignored: the answer to a call may arrive before the event of an earlier change.
        """
        name, number, one = self._read(thing)
        version = str(number) if number else ""
        if kind == "BOOKMARK" or not name:
            return version
        with self._lock:
            known = self._objects.get(name)
            if known is not None and known[0] > number:
                return version
            if kind == "DELETED":
                self._objects.pop(name, None)
            elif name in self._objects or len(self._objects) < OBJECTS_MAX:
                self._objects[name] = number, one
        self.wake()
        return version

    def _read(self, thing: Any) -> tuple[str, int, T | None]:
        """Return (name, version, stored form); the name is "" for an invalid object."""
        try:
            number = int(thing["metadata"]["resourceVersion"])
            return self._name_of(thing), number, self._parse(thing)
        except (KeyError, TypeError, ValueError, AttributeError):
            try:
                return "", int(thing["metadata"]["resourceVersion"]), None
            except (KeyError, TypeError, ValueError):
                return "", 0, None


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
