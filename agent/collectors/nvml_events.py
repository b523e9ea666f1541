"""NVML's events, told as they come: XIDs that the kernel log does not show, ECC errors, MIG changes, retirements.

A thread of its own waits in NVML, half a second at a time. It makes, uses and closes its library and event set itself,
so that nobody takes them from under a call. There is one such thread for life: while it is stuck in a driver no other
is started.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ...ext.nvml import Device, NvmlError
from ...ext.nvml_parts import Event, EventSet, Parts
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ..hardware.nvidia_capabilities import mig_monitor_line, sees_all_mig_instances
from ..hardware.nvml_session import session_of
from ..hardware.roots import Roots
from ..listening import Teller
from ..turn import Blind, NoData
from ..xid_witness import (
    APART_NS_MAX,
    SECOND_NS,
    TOLD_AGAIN_NS_MIN,
    WITNESS,
    Heard,
    Hearings,
    XidWitness,
)
from .gpu_open import LOOK_AGAIN_SECONDS, gpus_of, keys_of, library_of, open_nvml

#: Shorter than END_SECONDS_MAX: a thread that is not stuck ends in time.
WAIT_MILLISECONDS = 500
#: A wait that has not returned after this long is stuck in the driver.
STUCK_NS = 10 * SECOND_NS
#: `close` waits this long for the thread, and leaves it behind then.
END_SECONDS_MAX = 0.9

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
    where it may not look; RuntimeError while the driver does not return."""

    name = "nvml_events_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False  # its thread does

    def __init__(self, roots: Roots, witness: XidWitness = WITNESS) -> None:
        self.blind_words = ""
        self._roots, self._witness = roots, witness
        self._wanted = threading.Event()  # not set from `release` to the next `collect`
        self.seat = session_of(library_of(roots)).seat(self._let_go)
        self._block = Block("nvml_events_10s_changes", ["host"])
        self._teller: Teller | None = None
        self._listener: _Listener | None = None
        self.received = self.told_by_kernel_log = self.failed_waits = 0

    def listen(self, teller: Teller) -> None:
        """Start to listen. Never raises."""
        self._teller = teller
        self._wanted.set()
        self._start(teller)

    def close(self) -> None:
        """End the thread, or leave it behind in the driver; within a second."""
        self._teller = None
        listener = self._listener
        if listener:
            listener.stop.set()
            self._wanted.set()
            listener.thread.join(END_SECONDS_MAX)

    def release(self) -> bool:
        """Let go of all GPUs, so that they can be reset; the next `collect` listens again. While they are open this
        is False, and happens within WAIT_MILLISECONDS."""
        self._wanted.clear()
        return self.seat.vacate()

    def _let_go(self) -> None:
        """The thread has closed what it had open: it does so by itself when it is asked to."""

    def whereabouts(self) -> str:
        """Say which call has not returned."""
        return self._listener.words() if self._listener else "not listening"

    def collect(self) -> Sequence[Block]:
        """Report what was heard until now, or why nothing can be."""
        if self._teller is None:
            raise NoData("nobody listens: there is no one to tell")
        self._wanted.set()
        listener = self._listener or self._start(self._teller)
        now_ns, beat_ns = self._teller.clock.boottime_ns(), listener.beat_ns
        stuck_ns = 0 if beat_ns is None else now_ns - beat_ns
        if stuck_ns > STUCK_NS:
            raise RuntimeError(f"{listener.words()} has not returned for {stuck_ns / 1e9:.0f} s")
        if listener.trouble is not None:
            raise listener.trouble.with_traceback(None)
        self.blind_words = listener.blind_words
        counts = (self.received, self.told_by_kernel_log, self.failed_waits)
        for column, count in enumerate(counts):
            self._block.put_int(column, 0, count)
        return (self._block,)

    def _start(self, teller: Teller) -> _Listener:
        listener = _Listener(self, self._roots, teller, self._witness, self._wanted)
        try:
            listener.thread.start()
            self._listener = listener
        except RuntimeError as error:  # "can't start new thread": tried again at the next turn
            listener.trouble = error
        return listener


class _Listener:
    """The thread's work. What it says of itself may be read from any thread."""

    def __init__(
        self,
        owner: NvmlEvents,
        roots: Roots,
        teller: Teller,
        witness: XidWitness,
        wanted: threading.Event,
    ) -> None:
        """*wanted*: while it is not set the GPUs stay closed."""
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        #: Why nothing can be heard; until the first answer of the driver nothing is known.
        self.trouble: Exception | None = None
        self.blind_words = ""
        #: When the thread was last seen outside of the driver; None while it pauses.
        self.beat_ns: int | None = teller.clock.boottime_ns()
        self._owner, self._roots, self._teller, self._witness = owner, roots, teller, witness
        self._wanted = wanted
        self._parts: Parts | None = None
        self._keys: dict[str, str] = {}  # address -> UUID
        self._hearings = Hearings()

    def words(self) -> str:
        parts = self._parts
        return parts.words().removeprefix("GPU  in ") if parts else "nvmlInit"

    def _run(self) -> None:
        """Listen until stopped; whatever goes wrong, say so and try again: soon at first, then after a while."""
        pause_seconds = 0.5
        while self._wanted.wait() and not self.stop.is_set():
            self._owner.seat.begin(wait=True)
            began_ns = self._teller.clock.boottime_ns()
            try:
                if self._wanted.is_set():
                    self._listen()
                    continue  # it was to let go
            except Exception as error:  # noqa: BLE001 - a thread that ends is a listener that nobody misses
                # it had listened for long: a GPU was lost, say, and its neighbours are not to wait for it
                listened = self._teller.clock.boottime_ns() - began_ns
                lasted = listened > LOOK_AGAIN_SECONDS * SECOND_NS
                pause_seconds = 1 if lasted else min(2 * pause_seconds, LOOK_AGAIN_SECONDS)
                self.trouble = error
                self._owner.failed_waits += not isinstance(error, NoData | Blind)
            finally:
                self._owner.seat.end()
                self._flush()
                self.beat_ns = None
            self.stop.wait(pause_seconds)

    def _flush(self) -> None:
        """Tell what still waits: nothing more will be heard for a while."""
        self._tell_due(self._teller.clock.boottime_ns() + TOLD_AGAIN_NS_MIN + APART_NS_MAX)

    def _listen(self) -> None:
        self._beat()
        nvml = open_nvml(self._roots)
        events: EventSet | None = None
        try:
            self._parts = parts = Parts(nvml)
            events = EventSet(parts)
            self._register(parts, events, sorted(gpus_of(nvml, self._roots)))
            self.trouble = None
            while not self.stop.is_set() and not self._owner.seat.is_asked:
                self._beat()
                self._hear(events.wait(WAIT_MILLISECONDS))
        finally:
            if events:
                events.close()
            nvml.close()

    def _beat(self) -> None:
        now_ns = self.beat_ns = self._teller.clock.boottime_ns()
        self._tell_due(now_ns)

    def _register(self, parts: Parts, events: EventSet, devices: Sequence[Device]) -> None:
        """Register what each GPU supports; one that fails costs only its own events."""
        self._keys, registered, under_mig, words = {}, 0, False, ""
        for device, key in zip(devices, keys_of(devices), strict=True):
            try:
                parts.open(device.address)
                self._keys[device.address] = key
                registered |= events.register(device.address, WANTED)
                under_mig |= (parts.mig_mode(device.address) or (0, 0))[0] == 1
            except NvmlError as error:
                words = words or f"GPU {device.address}: {error}"
        if not registered:
            raise RuntimeError(words) if words else NoData("no GPU supports NVML events")
        if under_mig and not sees_all_mig_instances(self._roots):
            words = (
                words or f"events of MIG instances are not shown; {mig_monitor_line(self._roots)}"
            )
        self.blind_words = words

    def _hear(self, event: Event | None) -> None:
        if event is None:
            return
        self._owner.received += 1
        if event.type == MIG_CHANGE:
            self._teller.renew_inventory("NVML: MIG configuration changed")
        self._hearings.heard(event, self._teller.clock.boottime_ns())
        self._beat()

    def _tell_due(self, now_ns: int) -> None:
        """Tell what has waited long enough. An XID waits for the kernel log, as long as somebody reads that."""
        hold_ns = APART_NS_MAX if self._witness.reads_the_kernel_log else 0
        for event, heard in self._hearings.due(now_ns, hold_ns):
            assert isinstance(event, Event)
            if event.type == XID and self._witness.shows(event.address, event.data, heard.first_ns):
                self._owner.told_by_kernel_log += heard.count
            else:
                said = as_health_event(event, heard, self._keys.get(event.address, ""))
                clock = self._teller.clock
                said.wall_time_ns = clock.wall_ns() - (clock.boottime_ns() - heard.first_ns)
                self._teller.tell(said)


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
