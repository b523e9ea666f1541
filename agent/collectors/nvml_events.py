"""NVML's events, told as they come: XIDs that the kernel log does not show, ECC errors, MIG changes, retirements; and
that the driver is about to be taken off a GPU, which is then let go of at once.

NVML is asked once a second, without waiting: what an XID needs at once the kernel log tells.
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
from ..collector import Blind, NoData
from ..events import (
    APART_NS_MAX,
    SECOND_NS,
    TOLD_AGAIN_NS_MIN,
    WITNESS,
    Heard,
    Hearings,
    Teller,
    XidWitness,
)
from ..hardware.files import Roots
from ..hardware.nvidia import mig_monitor_line, sees_all_mig_instances
from .nvml_session import LOOK_AGAIN_SECONDS, session_of

log = logging.getLogger(__name__)

#: At one look no more events are taken: a storm must not hold up the turns.
EVENTS_MAX = 256

XID = 0x8
MIG_CHANGE = 0x100
#: nvmlEventType of nvml.h -> its words. Changes of clock, performance state and power supply are no events of health.
TYPES = {
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
    0x8000: "recovery action asked for",
}
WANTED = sum(TYPES)


class NvmlEvents:
    """The listener. `collect` reports how it fares: NoData without a driver, a GPU or an event that it supports; Blind
    where it may not look."""

    name = "nvml_events_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(self, roots: Roots, witness: XidWitness = WITNESS) -> None:
        self.blind_words = ""
        self._roots, self._witness = roots, witness
        self._session = session_of(roots)
        self._session.join(self)
        self._block = Block("nvml_events_10s_changes", ["host"])
        self._teller: Teller | None = None
        self._parts: Parts | None = None
        self._events: EventSet | None = None
        self._system: SystemEventSet | None = None
        self._keys: dict[str, str] = {}  # address -> UUID
        self._hearings = Hearings()
        self._trouble: Exception | None = None
        self._pause_seconds, self._again_ns = 0.5, 0
        self._listens_ns = 0  # since when
        self.received = self.told_by_kernel_log = self.failed_waits = 0

    def listen(self, teller: Teller) -> None:
        """Take the teller."""
        self._teller = teller

    def close(self) -> None:
        """Tell nobody any more."""
        self._teller = None

    def spare(self, devices: frozenset[str]) -> None:
        """Register no events of these GPUs."""
        self._session.spare(devices)

    def let_go(self) -> None:
        """Free the event sets; what still waits is told: nothing more will be heard for a while."""
        for events in (self._events, self._system):
            if events is not None:
                events.close()
        self._parts = self._events = self._system = None
        if self._teller is not None:
            end_ns = self._teller.clock.boottime_ns() + TOLD_AGAIN_NS_MIN + APART_NS_MAX
            self._tell_due(self._teller, end_ns)

    def collect(self) -> Sequence[Block]:
        """Report what was heard until now, or why nothing can be."""
        if self._teller is None:
            raise NoData("nobody listens: there is no one to tell")
        self._session.open()
        self.hear()
        if self._trouble is not None:
            raise self._trouble.with_traceback(None)
        calls = sum(each.calls for each in library.accounts())
        counts = (self.received, self.told_by_kernel_log, self.failed_waits, calls)
        for column, count in enumerate(counts):
            self._block.put_int(column, 0, count)
        return (self._block,)

    def hear(self) -> None:
        """Ask NVML what has come, and tell it; what goes wrong is said in the next turn."""
        teller = self._teller
        if teller is None or self._session.nvml is None or not self._session.gpus:
            return
        now_ns = teller.clock.boottime_ns()
        if self._events is None and now_ns < self._again_ns:
            return
        try:
            self._listen(teller, now_ns)
        except Exception as error:  # noqa: BLE001 - whatever a driver's library does
            self._fail(error, now_ns)
        self._tell_due(teller, now_ns)

    def _fail(self, error: Exception, now_ns: int) -> None:
        """Make the sets anew after a while: soon at first, then ever more rarely."""
        # it had listened for long: a GPU was lost, say, and its neighbours are not to wait for it
        lasted = now_ns - self._listens_ns > LOOK_AGAIN_SECONDS * SECOND_NS and self._events
        self._pause_seconds = 1 if lasted else min(2 * self._pause_seconds, LOOK_AGAIN_SECONDS)
        self._again_ns = now_ns + int(self._pause_seconds * SECOND_NS)
        self._trouble = error
        self.failed_waits += not isinstance(error, NoData | Blind)
        self.let_go()

    def _listen(self, teller: Teller, now_ns: int) -> None:
        if self._events is None:
            self._register()
            self._listens_ns = now_ns
        assert self._events is not None
        for _ in range(EVENTS_MAX):
            event = self._events.wait(0)
            self._trouble = None
            if event is None:
                break
            self._hear(teller, event)
        for said in self._system.look() if self._system else ():
            self._hear_of_driver(teller, said)

    def _register(self) -> None:
        """Register what each GPU supports; one that fails costs only its own events."""
        assert self._session.nvml is not None
        self._parts = parts = Parts(self._session.nvml)
        self._events = events = EventSet(parts)
        self._keys, registered, under_mig, words = {}, 0, False, ""
        for gpu in self._session.gpus:
            if gpu.spared:
                continue
            try:
                parts.open(gpu.address)
                self._keys[gpu.address] = gpu.key
                registered |= events.register(gpu.address, WANTED)
                under_mig |= (parts.mig_mode(gpu.address) or (0, 0))[0] == 1
            except NvmlError as error:
                words = words or f"GPU {gpu.address}: {error}"
        if not registered:
            raise RuntimeError(words) if words else NoData("no GPU supports NVML events")
        if under_mig and not sees_all_mig_instances(self._roots):
            words = (
                words or f"events of MIG instances are not shown; {mig_monitor_line(self._roots)}"
            )
        self.blind_words = words
        self._system = self._system_events(parts)

    def _system_events(self, parts: Parts) -> SystemEventSet | None:
        try:
            return SystemEventSet(parts)
        except NvmlError as error:  # drivers before 575 have none
            log.info("no system events: %s", error, extra={"cause": "gpu.system_events"})
            return None

    def _hear(self, teller: Teller, event: Event) -> None:
        self.received += 1
        if event.type == MIG_CHANGE:
            teller.renew_inventory("NVML: MIG configuration changed")
        now_ns = teller.clock.boottime_ns()
        self._hearings.heard(event, now_ns)
        self._tell_due(teller, now_ns)

    def _hear_of_driver(self, teller: Teller, said: SystemEvent) -> None:
        """Let go of the GPU that the driver is taken off, before that waits for us; take up one that it is put onto."""
        if said.type not in (UNBIND, BIND):
            return
        self.received += 1
        state = "unbind" if said.type == UNBIND else "bind"
        key = self._keys.get(said.address, "")
        (self._session.unbind if said.type == UNBIND else self._session.bind)(said.address)
        words = "is taken off, it is let go of" if state == "unbind" else "is put on"
        teller.renew_inventory(f"the driver {words}: GPU {key or said.address}")
        teller.tell(
            HealthEvent(
                device_kind="gpu",
                device=key or said.address,
                name="gpu.driver_binding",
                message=f"NVML system event: the driver {words}",
                attributes={"source": "nvml", "pci_address": said.address, "state": state},
            )
        )

    def _tell_due(self, teller: Teller, now_ns: int) -> None:
        """Tell what has waited long enough. An XID waits for the kernel log, as long as somebody reads that."""
        hold_ns = APART_NS_MAX if self._witness.reads_the_kernel_log else 0
        for event, heard in self._hearings.due(now_ns, hold_ns):
            assert isinstance(event, Event)
            if event.type == XID and self._witness.shows(event.address, event.data, heard.first_ns):
                self.told_by_kernel_log += heard.count
            else:
                said = as_health_event(event, heard, self._keys.get(event.address, ""))
                clock = teller.clock
                said.wall_time_ns = clock.wall_ns() - (clock.boottime_ns() - heard.first_ns)
                teller.tell(said)


def as_health_event(event: Event, heard: Heard, key: str) -> HealthEvent:
    """Return what is told of an NVML event: XIDs as `gpu.xid`, all else as `gpu.driver_event`."""
    is_xid = event.type == XID
    said = HealthEvent(
        device_kind="gpu",
        device=key or event.address or "host",
        name="gpu.xid" if is_xid else "gpu.driver_event",
        code=event.data & 0xFFFFFFFF if is_xid else event.type & 0xFFFFFFFF,
        message=f"NVML event: {TYPES.get(event.type, f'type {event.type:#x}')}"
        + (f" {event.data}" if is_xid else ""),
        boottime_ns=heard.first_ns,
        count=heard.count,
        last_boottime_ns=heard.last_ns if heard.count > 1 else 0,
        attributes={"source": "nvml", "pci_address": event.address},
    )
    if event.gpu_instance is not None:
        said.attributes["gpu_instance"] = str(event.gpu_instance)
    if event.compute_instance is not None:
        said.attributes["compute_instance"] = str(event.compute_instance)
    return said
