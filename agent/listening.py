"""How a collector tells what cannot wait for its turn: an XID, a link that went down, a GPU that is lost."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from ..fingerprints.wire import telemetry_pb2
from .clock import Clock

log = logging.getLogger(__name__)


def random_event_id() -> str:
    """Return an id that no other event has, of this or any other host."""
    return os.urandom(16).hex()


class Events(Protocol):
    """What is needed of `agent.spool.events.EventQueue`."""

    def put(self, event: telemetry_pb2.HealthEvent) -> bool | None: ...


class Teller:
    """Takes events from any thread, brings them to disk and to the aggregator at once. Never raises."""

    def __init__(
        self,
        clock: Clock,
        events: Events,
        notify: Callable[[], None],
        event_id: Callable[[], str] = random_event_id,
        boot_id: bytes = b"",
    ) -> None:
        """*notify*: the client has something to send. *boot_id*: of this boot, 16 bytes."""
        self.clock = clock
        self._boot_id = boot_id
        self._events, self._notify, self._event_id = events, notify, event_id
        self._lock = threading.Lock()
        self._inventory_wanted = ""
        self._observers: tuple[Callable[[telemetry_pb2.HealthEvent], None], ...] = ()

    def observe(self, observer: Callable[[telemetry_pb2.HealthEvent], None]) -> None:
        """Show each event to *observer* too, in the thread that tells it.

        It must be quick, and change nothing. What it raises is logged, and the event goes its way.
        """
        with self._lock:
            self._observers += (observer,)

    def tell(self, event: telemetry_pb2.HealthEvent) -> bool:
        """Put *event* on the fast lane. It is on disk when this returns, if the disk takes it.

        What it lacks of id, time and boot is filled in: a random id, now, this one. False: it is in memory only.
        """
        event.event_id = event.event_id or self._event_id()
        event.boottime_ns = event.boottime_ns or self.clock.boottime_ns()
        event.wall_time_ns = event.wall_time_ns or self.clock.wall_ns()
        event.boot_id = event.boot_id or self._boot_id
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                log.exception("an observer of events failed", extra={"cause": "events.observer"})
        durable = self._events.put(event) is not False
        self._notify()
        return durable

    def renew_inventory(self, why: str) -> None:
        """Ask for a new inventory at the next tick: a device came, went, or is another."""
        with self._lock:
            self._inventory_wanted = self._inventory_wanted or why

    def inventory_wanted(self) -> str:
        """Return why a new inventory is asked for, once; empty when nobody asks."""
        with self._lock:
            why, self._inventory_wanted = self._inventory_wanted, ""
            return why


@runtime_checkable
class Listening(Protocol):
    """A collector that tells events by itself, between its turns."""

    def listen(self, teller: Teller) -> None:
        """Take the teller, once, before the first turn; start a thread if need be. Never raises."""
        ...

    def close(self) -> None:
        """End what `listen` started, within a second. Never raises."""
        ...
