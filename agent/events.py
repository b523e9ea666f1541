"""Publishes events that cannot wait for the next turn: an XID, a link down, a lost GPU."""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

from ..contract.wire import telemetry_pb2
from .clock import Clock

log = logging.getLogger(__name__)


def random_event_id() -> str:
    """Return an id that no other event has, of this or any other host."""
    return os.urandom(16).hex()


class EventSink(Protocol):
    """What is needed of `agent.spool.event_queue.EventQueue`."""

    def put(self, event: telemetry_pb2.HealthEvent) -> bool | None: ...


class EventPublisher:
    """Takes events from any thread, brings them to disk and to the aggregator at once. Never raises."""

    def __init__(
        self,
        clock: Clock,
        sink: EventSink,
        notify: Callable[[], None],
        event_id: Callable[[], str] = random_event_id,
        boot_id: bytes = b"",
    ) -> None:
        """*notify*: the client has something to send. *boot_id*: of this boot, 16 bytes."""
        self.clock = clock
        self._boot_id = boot_id
        self._sink, self._notify, self._event_id = sink, notify, event_id
        self._lock = threading.Lock()
        self._inventory_reason, self._inventory_due_ns = "", 0
        self._observers: tuple[Callable[[telemetry_pb2.HealthEvent], None], ...] = ()

    def observe(self, observer: Callable[[telemetry_pb2.HealthEvent], None]) -> None:
        """Show each event to *observer* too, in the thread that tells it.

        It must be quick, and change nothing. What it raises is logged, and the event goes its way.
        """
        with self._lock:
            self._observers += (observer,)

    def publish(self, event: telemetry_pb2.HealthEvent) -> bool:
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
        durable = self._sink.put(event) is not False
        self._notify()
        return durable

    def request_inventory(self, reason: str) -> None:
        """Ask for a new inventory at the next tick: a device came, went, or is another."""
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


# ----------------------------------------------------------------------
# One XID has two witnesses: the kernel log, with its text, and NVML, without. It is reported once.
#
# The kernel log's word is the better one, so an XID that NVML delivers is held back for a moment.
# If the kernel log shows it within that time, it is reported from there; else from NVML. While nobody reads the
# kernel log, NVML's word is reported at once.

SECOND_NS = 1_000_000_000
#: The two words of one XID are no further apart than this, and NVML's is held back for as long.
DUPLICATE_NS_MAX = 2 * SECOND_NS
#: A repeated event is reported at most this often; meanwhile it is counted.
REPEAT_NS_MIN = 10 * SECOND_NS
#: GPUs times codes that are remembered; the oldest are forgotten.
ENTRIES_MAX = 1024


class XidDeduplicator:
    """What the kernel log showed of late. For all threads, and for processes forked later; never raises.

    The daemon reads the kernel log, a child of it NVML. One process writes: an entry is void until it is whole.
    """

    _ENTRY = struct.Struct("<q16sQ")  # boot time, 0: void; PCI address; code

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory = mmap.mmap(-1, 8 + ENTRIES_MAX * self._ENTRY.size)
        self._count = 0

    @property
    def reads_the_kernel_log(self) -> bool:
        """Whether somebody reads the kernel log now; nobody does until this is set."""
        return bool(self._memory[0])

    @reads_the_kernel_log.setter
    def reads_the_kernel_log(self, reads: bool) -> None:
        self._memory[0] = int(reads)

    def record(self, address: str, code: int, boottime_ns: int) -> None:
        """Note that the kernel log shows XID *code* of the GPU, or SXID of the NVSwitch, at a PCI address, at a boot time."""
        with self._lock:
            at = 8 + self._count % ENTRIES_MAX * self._ENTRY.size
            self._count += 1
            name = address.encode(errors="replace")[:16]
            self._memory[at : at + 8] = bytes(8)
            self._ENTRY.pack_into(self._memory, at, 0, name, code & (1 << 64) - 1)
            struct.pack_into("<q", self._memory, at, max(1, boottime_ns))

    def was_recorded(self, address: str, code: int, boottime_ns: int) -> bool:
        """Return whether the kernel log showed it at most APART_NS_MAX before, or at any time since."""
        name, since_ns = address.encode(errors="replace")[:16], boottime_ns - DUPLICATE_NS_MAX
        return any(
            at_ns and at_ns >= since_ns and number == code and recorded_name.rstrip(b"\0") == name
            for at_ns, recorded_name, number in self._ENTRY.iter_unpack(self._memory[8:])
        )


#: Of this process and those forked from it: the reader of the kernel log and the reader of NVML's events share it.
XID_DEDUPLICATOR = XidDeduplicator()
#: What NVML delivered of late: written by the reader of NVML's events, for the reader of DCGM's.
NVML_XIDS = XidDeduplicator()


@dataclass(slots=True)
class PendingReport:
    """Something that was received, once or more, since it was last reported."""

    first_ns: int
    last_ns: int
    count: int = 1


@dataclass(slots=True)
class PendingReports:
    """What NVML reported and was not sent yet, by its subject. Pure: times are handed in; for one thread."""

    _waiting: dict[Hashable, PendingReport] = field(default_factory=dict[Hashable, PendingReport])
    _published_ns: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    dropped: int = 0  # hearings beyond REMEMBERED_MAX different things

    def add(self, key: Hashable, now_ns: int) -> None:
        """Note that it was said now."""
        known = self._waiting.get(key)
        if known:
            known.last_ns, known.count = now_ns, known.count + 1
        elif len(self._waiting) < ENTRIES_MAX:
            self._waiting[key] = PendingReport(now_ns, now_ns)
        else:
            self.dropped += 1

    def due(self, now_ns: int, hold_ns: int) -> list[tuple[Hashable, PendingReport]]:
        """Return what has waited *hold_ns*, and longer if it was reported lately. The caller then reports it."""
        due = [
            (key, report)
            for key, report in self._waiting.items()
            if now_ns >= report.first_ns + hold_ns
            and now_ns >= self._published_ns.get(key, now_ns - REPEAT_NS_MIN) + REPEAT_NS_MIN
        ]
        for key, _ in due:
            del self._waiting[key]
        recent = {a: ns for a, ns in self._published_ns.items() if now_ns - ns < REPEAT_NS_MIN}
        self._published_ns = recent | {key: now_ns for key, _ in due}
        return due
