"""Publishes urgent events such as an XID, a link that is down, or a lost GPU."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Protocol

from ..contract.wire import telemetry_pb2
from .clock import Clock

SECOND_NS = 1_000_000_000
log = logging.getLogger(__name__)


def random_event_id() -> str:
    """Return an id that no other event of any host has."""
    return os.urandom(16).hex()


class EventSink(Protocol):
    """Methods needed of `agent.spool.event_queue.EventQueue`."""

    def put(self, event: telemetry_pb2.HealthEvent) -> bool | None: ...


class EventPublisher:
    """Takes events from any thread, and sends them to disk and aggregator at once. Never raises."""

    def __init__(
        self,
        clock: Clock,
        sink: EventSink,
        notify: Callable[[], None],
        event_id: Callable[[], str] = random_event_id,
        boot_id: bytes = b"",
    ) -> None:
        """*notify* wakes the client. *boot_id*: 16 bytes."""
        self.clock = clock
        self._boot_id = boot_id
        self._sink, self._notify, self._event_id = sink, notify, event_id
        self._lock = threading.Lock()
        self._inventory_reason, self._inventory_due_ns = "", 0
        self._observers: tuple[Callable[[telemetry_pb2.HealthEvent], None], ...] = ()

    def observe(self, observer: Callable[[telemetry_pb2.HealthEvent], None]) -> None:
        """Call *observer* with each event too, in the publishing thread.

        It must be quick and must not change the event. Its exceptions are logged.
        """
        with self._lock:
            self._observers += (observer,)

    def publish(self, event: telemetry_pb2.HealthEvent) -> bool:
        """Queue *event* and wake the client. False: it is only in memory, not on disk.

        Missing fields are filled in: a random id, the present time, this boot.
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
        durable = self._sink.put(event) is not False
        self._notify()
        return durable

    def request_inventory(self, reason: str) -> None:
        """Request an inventory at the next tick: a device came, went, or was replaced."""
        self.request_inventory_after(reason, 0.0)

    def request_inventory_after(self, reason: str, delay_seconds: float) -> None:
        """Ask for a new inventory after *delay_seconds*, unless an earlier request is pending."""
        due_ns = self.clock.boottime_ns() + int(delay_seconds * SECOND_NS)
        with self._lock:
            if not self._inventory_reason or due_ns < self._inventory_due_ns:
                self._inventory_reason, self._inventory_due_ns = reason, due_ns

    def take_inventory_request(self) -> str:
        """Return the reason of the request that is due, once; "" if no request is due."""
        if not self._inventory_reason:
            return ""
        with self._lock:
            if self.clock.boottime_ns() < self._inventory_due_ns:
                return ""
            reason, self._inventory_reason = self._inventory_reason, ""
            return reason
