"""NVML events: XIDs missing from the kernel log, ECC errors, MIG changes, page retirements, driver unbinds.

When the driver is about to be unbound from a GPU, the GPU is released at once. NVML's event set is polled once a
second without waiting, because the kernel log collector already reports urgent XIDs at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext import nvml as library
from ...ext.nvml import NvmlError
from ...ext.nvml_parts import BIND, UNBIND, Event, EventSet, Parts, SystemEvent, SystemEventSet
from ..collector import AccessDenied, Collector, NoData
from ..events import EventPublisher
from ..hardware.files import Roots
from ..hardware.mig_capabilities import mig_monitor_line, sees_all_mig_instances
from ..xid_reports import (
    DUPLICATE_NS_MAX,
    NVML_XIDS,
    REPEAT_NS_MIN,
    SECOND_NS,
    XID_DEDUPLICATOR,
    PendingReport,
    PendingReports,
    XidDeduplicator,
)
from .nvml_open import RETRY_SECONDS
from .nvml_session import session_of

log = logging.getLogger(__name__)

#: Events taken per poll: a storm must not delay the turns.
EVENTS_MAX = 256

XID = 0x8
MIG_CHANGE = 0x100
#: nvmlEventType of nvml.h -> its name. Changes of clock, performance state and power supply do not
#: concern health.
EVENT_TYPES = {
    0x1: "single bit ECC error",
    0x2: "double bit ECC error",
    XID: "XID",
    MIG_CHANGE: "MIG configuration changed",
    0x200: "storm of single bit ECC errors",
    0x400: "DRAM page retired or row remapped",
    0x800: "DRAM page could not be retired",
    0x1000: "poison, not fatal",
    0x2000: "poison, fatal",
    0x4000: "GPU unavailable",
    0x8000: "recovery action requested",
}
REGISTERED_TYPES = sum(EVENT_TYPES)


class NvmlEvents(Collector):
    """Listens to NVML events. `collect` reports counts.

    It raises NoData without a driver, a GPU or a supported event; AccessDenied without permission.
    """

    name = "nvml_events_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(self, roots: Roots, deduplicator: XidDeduplicator = XID_DEDUPLICATOR) -> None:
        self.access_error = ""
        self._roots, self._deduplicator = roots, deduplicator
        self._session = session_of(roots)
        self._session.register(self)
        self._block = Block("nvml_events_10s_changes", ["host"])
        self._publisher: EventPublisher | None = None
        self._parts: Parts | None = None
        self._events: EventSet | None = None
        self._system: SystemEventSet | None = None
        self._keys: dict[str, str] = {}  # address -> UUID
        self._reports = PendingReports()
        self._last_error: Exception | None = None
        self._pause_seconds, self._retry_ns = 0.5, 0
        self._registered_ns = 0  # when the events were registered; 0: not registered
        self.received = self.reported_by_kernel_log = self.failed_waits = 0

    def start(self, publisher: EventPublisher) -> None:
        self._publisher = publisher

    def close(self) -> None:
        self._publisher = None

    def exclude(self, devices: frozenset[str]) -> None:
        self._session.exclude(devices)

    def release(self) -> None:
        """Free the event sets, and publish pending reports: no events come for a while."""
        for events in (self._events, self._system):
            if events is not None:
                events.close()
        self._parts = self._events = self._system = None
        if self._publisher is not None:
            end_ns = self._publisher.clock.boottime_ns() + REPEAT_NS_MIN + DUPLICATE_NS_MAX
            self._publish_due(self._publisher, end_ns)

    def collect(self) -> Sequence[Block]:
        """Return the counts, or raise the last error."""
        if self._publisher is None:
            raise NoData("no subscriber for events")
        self._session.open()
        self.poll_events()
        if self._last_error is not None:
            raise self._last_error.with_traceback(None)
        calls = sum(account.calls for account in library.accounts())
        counts = (self.received, self.reported_by_kernel_log, self.failed_waits, calls)
        for column, count in enumerate(counts):
            self._block.put_int(column, 0, count)
        return (self._block,)

    def poll_events(self) -> None:
        """Take NVML's events, and publish them; the next turn reports an error."""
        publisher = self._publisher
        if publisher is None or self._session.nvml is None or not self._session.gpus:
            return
        now_ns = publisher.clock.boottime_ns()
        if self._events is None and now_ns < self._retry_ns:
            return
        try:
            self._receive_all(publisher, now_ns)
        except Exception as error:  # noqa: BLE001 - any error of a driver's library
            self._fail(error, now_ns)
        self._publish_due(publisher, now_ns)

    def _fail(self, error: Exception, now_ns: int) -> None:
        """Release the sets, and retry: soon at first, then at growing intervals."""
        # After a long success a single lost GPU should not delay the events of its neighbors.
        since_ns, self._registered_ns = self._registered_ns or now_ns, 0
        lasted = now_ns - since_ns > RETRY_SECONDS * SECOND_NS
        self._pause_seconds = 1 if lasted else min(2 * self._pause_seconds, RETRY_SECONDS)
        self._retry_ns = now_ns + int(self._pause_seconds * SECOND_NS)
        self._last_error = error
        self.failed_waits += not isinstance(error, NoData | AccessDenied)
        self.release()

    def _receive_all(self, publisher: EventPublisher, now_ns: int) -> None:
        if self._events is None:
            self._register()
            self._registered_ns = now_ns
        assert self._events is not None
        for _ in range(EVENTS_MAX):
            event = self._events.wait(0)
            self._last_error = None
            if event is None:
                break
            self._receive(publisher, event)
        for system_event in self._system.look() if self._system else ():
            self._receive_system_event(publisher, system_event)

    def _register(self) -> None:
        """Register each GPU's supported events; a GPU that fails loses only its own."""
        assert self._session.nvml is not None
        self._parts = parts = Parts(self._session.nvml)
        self._events = events = EventSet(parts)
        self._keys, registered, under_mig, error_message = {}, 0, False, ""
        for gpu in self._session.gpus:
            if gpu.excluded:
                continue
            try:
                parts.open(gpu.address)
                self._keys[gpu.address] = gpu.key
                registered |= events.register(gpu.address, REGISTERED_TYPES)
                under_mig |= (parts.mig_mode(gpu.address) or (0, 0))[0] == 1
            except NvmlError as error:
                error_message = error_message or f"GPU {gpu.address}: {error}"
        if not registered:
            raise (
                RuntimeError(error_message)
                if error_message
                else NoData("no GPU supports NVML events")
            )
        if under_mig and not sees_all_mig_instances(self._roots):
            error_message = (
                error_message
                or f"events of MIG instances are not shown; {mig_monitor_line(self._roots)}"
            )
        self.access_error = error_message
        self._system = self._system_events(parts)

    def _system_events(self, parts: Parts) -> SystemEventSet | None:
        try:
            return SystemEventSet(parts)
        except NvmlError as error:  # drivers before 575 have none
            log.info("no system events: %s", error, extra={"cause": "gpu.system_events"})
            return None

    def _receive(self, publisher: EventPublisher, event: Event) -> None:
        self.received += 1
        if event.type == MIG_CHANGE:
            publisher.request_inventory("NVML: MIG configuration changed")
        now_ns = publisher.clock.boottime_ns()
        if event.type == XID:
            NVML_XIDS.record(event.address, event.data, now_ns)  # DCGM may report it too
        self._reports.add(event, now_ns)
        self._publish_due(publisher, now_ns)

    def _receive_system_event(self, publisher: EventPublisher, event: SystemEvent) -> None:
        """Release a GPU that is about to be unbound, which waits for open handles.

        Open a GPU that the driver is bound to.
        """
        if event.type not in (UNBIND, BIND):
            return
        self.received += 1
        state = "unbind" if event.type == UNBIND else "bind"
        key = self._keys.get(event.address, "")
        (self._session.unbind if event.type == UNBIND else self._session.bind)(event.address)
        change = "is unbound, and the GPU is released" if state == "unbind" else "is put on"
        publisher.request_inventory(f"the driver {change}: GPU {key or event.address}")
        publisher.publish(
            HealthEvent(
                device_kind="gpu",
                device=key or event.address,
                name="gpu.driver_binding",
                message=f"NVML system event: the driver {change}",
                attributes={"source": "nvml", "pci_address": event.address, "state": state},
            )
        )

    def _publish_due(self, publisher: EventPublisher, now_ns: int) -> None:
        """Publish due reports. XIDs wait for the kernel log while a collector reads it."""
        hold_ns = DUPLICATE_NS_MAX if self._deduplicator.reads_the_kernel_log else 0
        for event, report in self._reports.due(now_ns, hold_ns):
            assert isinstance(event, Event)
            if event.type == XID and self._deduplicator.was_recorded(
                event.address, event.data, report.first_ns
            ):
                self.reported_by_kernel_log += report.count
            else:
                health_event = as_health_event(event, report, self._keys.get(event.address, ""))
                clock = publisher.clock
                health_event.wall_time_ns = clock.wall_ns() - (
                    clock.boottime_ns() - report.first_ns
                )
                publisher.publish(health_event)


def as_health_event(event: Event, report: PendingReport, key: str) -> HealthEvent:
    """Return the message of an NVML event: `gpu.xid` for an XID, else `gpu.driver_event`."""
    is_xid = event.type == XID
    health_event = HealthEvent(
        device_kind="gpu",
        device=key or event.address or "host",
        name="gpu.xid" if is_xid else "gpu.driver_event",
        code=event.data & 0xFFFFFFFF if is_xid else event.type & 0xFFFFFFFF,
        message=f"NVML event: {EVENT_TYPES.get(event.type, f'type {event.type:#x}')}"
        + (f" {event.data}" if is_xid else ""),
        boottime_ns=report.first_ns,
        count=report.count,
        last_boottime_ns=report.last_ns if report.count > 1 else 0,
        attributes={"source": "nvml", "pci_address": event.address},
    )
    if event.gpu_instance is not None:
        health_event.attributes["gpu_instance"] = str(event.gpu_instance)
    if event.compute_instance is not None:
        health_event.attributes["compute_instance"] = str(event.compute_instance)
    return health_event
