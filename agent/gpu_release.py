"""Releases GPUs for repairs: on command, or when the driver is being unbound from a GPU.

An open device node blocks a reset, a MIG change and an unload of the driver. A released GPU is
resumed when the release expires, on command, or when the driver is bound to the GPU again.

Three signs show an unbind, and all are used: NVML's own event; the log line of kernel-open/nvidia's
nv-pci.c, which waits in steps of half a second until no process has the GPU open; and sysfs, where
the kernel removes the driver's link to the device before it calls the driver's `remove`
(drivers/base/dd.c). The uevents `unbind` and `remove` come later, which is too late.

Also excludes GPUs after XIDs whose later calls would hang.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ..contract.wire.telemetry_pb2 import HealthEvent
from ..ext.hostfiles import Glance
from . import inventory
from .clock import Clock
from .driver_unbind import DriverUnbindTracker, is_bind, is_unbind
from .events import EventPublisher
from .hardware.files import Roots, names_in
from .hardware.nvidia import driver_gpus
from .hardware.open_handles import agent_processes, blocking, open_handles
from .release_state import ReleasedGpu, ReleaseStateFile
from .sampler.pool import SamplerPool
from .sampler.quarantine import DeviceState
from .xid_quarantine import XidQuarantine, address_of, is_address, quarantine_reason

#: QuarantineStates of a device in which an agent process is in a call (`agent.sampler.quarantine`).
STUCK_STATES = frozenset(("HUNG", "ABANDONED"))

SECOND_NS = 1_000_000_000
#: Limit of waiting callbacks; further ones are refused.
CALLBACKS_MAX = 1024
log = logging.getLogger(__name__)
#: Duration of a release that names none: a quarter of an hour.
RELEASE_SECONDS_DEFAULT = 900.0
#: A sampler that still holds a handle after this time is stuck: the caller gets an error.
RELEASE_NS_MAX = 5 * SECOND_NS
#: Period of checking handles while a caller waits.
HANDLE_POLL_NS = 20_000_000
#: Period of checking the driver's links to its devices.
BINDING_CHECK_NS = SECOND_NS
#: A release that must last longer is extended this long before its end.
EXTEND_NS = 10 * SECOND_NS
#: States of a device that only the samplers' retries may call
#: (`agent.sampler.quarantine.QuarantineState`). Not HUNG: such a device may only be slow to open.
EXCLUDED_STATES = frozenset(("ABANDONED", "LEFT_ALONE", "SLOW", "TRIED"))
GPU = "gpu"  # the GPUs' group of collectors
NO_GPUS: frozenset[str] = frozenset()
UNBIND_REASON = "the driver is being unbound from it"


class UnreleasedHandle(NamedTuple):
    """An agent process with a handle. `address` "": the driver's; `process_id` 0: unknown."""

    address: str
    process_id: int
    detail: str


def unreleased_handles(
    samplers: SamplerPool, roots: Roots, nodes: Mapping[str, str], devices: frozenset[str] | None
) -> Sequence[UnreleasedHandle]:
    """Return the agent processes that hold *devices* (None: any GPU or the driver) open.

    By the kernel's and the samplers' data, with the calls in which they hang. *nodes*: `nvidia3` ->
    PCI address.
    """
    stuck = "; ".join(
        f"{state.call} on {state.device or 'the driver'} has not returned "
        f"for {state.hung_seconds:.0f} s"
        for state in samplers.states()
        if state.state.name in STUCK_STATES
    )
    handles = open_handles(roots.proc, roots.dev, agent_processes(roots.proc)).found
    blockers = blocking(handles, nodes, devices)
    pairs = sorted({(address, holder.process_id) for holder, address in blockers})
    if not pairs and samplers.may_hold(devices):
        return [UnreleasedHandle("", 0, stuck or "a sampler has not released it")]
    return [UnreleasedHandle(address, process_id, stuck) for address, process_id in pairs]


class CallbackQueue:
    """Calls for the daemon's thread, which calls `run` if `descriptor` is readable."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._callbacks: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # keeps the descriptor readable exactly while callbacks wait

    def post(self, callback: Callable[[], None]) -> bool:
        """Queue *callback*; False if too many wait. Never blocks, never raises."""
        with self._lock:
            if len(self._callbacks) >= CALLBACKS_MAX:
                return False
            self._callbacks.append(callback)
            with suppress(OSError, ValueError):  # closed: no thread reads it any longer
                os.eventfd_write(self.descriptor, 1)
        return True

    def run(self) -> None:
        """Call the queued callbacks in order. Never raises."""
        if not self._callbacks:
            return
        with self._lock:
            callbacks, self._callbacks = self._callbacks, deque()
            with suppress(OSError, ValueError):
                os.eventfd_read(self.descriptor)
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a request to the daemon failed", extra={"cause": "mailbox"})

    def close(self) -> None:
        """Close the descriptor; a later `post` wakes no thread."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _PendingRelease:
    devices: frozenset[str] | None
    until_ns: int
    on_done: Callable[[Sequence[UnreleasedHandle]], None]


class GpuReleaser:
    """Releases, resumes and excludes GPUs. Belongs to the daemon's thread, except `observe`."""

    def __init__(
        self,
        samplers: SamplerPool,
        callbacks: CallbackQueue,
        clock: Clock,
        roots: Roots,
        publisher: EventPublisher,
        file: ReleaseStateFile,
        nodes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """*samplers* have already released the GPUs in *file*, which an earlier agent wrote.

        *publisher* gets each GPU that was released or resumed. *nodes* returns device node -> PCI
        address, `nvidia3` -> `0000:9b:00.0`, without a call that may hang.
        """
        self._samplers, self._callbacks = samplers, callbacks
        self._clock, self._roots = clock, roots
        self._publisher, self._file, self._nodes = publisher, file, nodes
        self._xid_quarantine = XidQuarantine()
        before = file.read(clock.boottime_ns())
        self._reasons = {gpu.address: gpu.reason for gpu in before}
        self._pending: list[_PendingRelease] = []
        self._drivers_folder = roots.sys / "bus/pci/drivers/nvidia"
        self._folder_watch = Glance(self._drivers_folder)
        self._folder_version = self._folder_watch.look()
        self._bound = self._bound_gpus()
        self._unbind_tracker = DriverUnbindTracker(self._bound)
        unbound = [gpu.address for gpu in before if gpu.address and gpu.reason == UNBIND_REASON]
        self._unbind_tracker.unbind_started(unbound, clock.boottime_ns())
        self._checked_second = -1
        #: PCI addresses of GPUs not to be called; None: all, and the driver. For any thread.
        self.avoided: frozenset[str] | None = NO_GPUS
        self._update_avoided()

    def observe(self, event: HealthEvent) -> None:
        """Check a published event; an observer of `EventPublisher`. Quick; never raises."""
        if quarantine_reason(event):
            copy = HealthEvent()
            copy.CopyFrom(event)
            self._callbacks.post(lambda: self._quarantine_gpu(copy))
        elif is_unbind(event) and (address := address_of(event)):
            self._callbacks.post(lambda: self._on_unbind(address))
        elif is_bind(event) and (address := address_of(event)):
            self._callbacks.post(
                lambda: self._resume_rebound(self._unbind_tracker.bound_again((address,)))
            )

    def tick(self) -> int | None:
        """Handle requests and due work; return the time of the next call, or None.

        Called at each tick, if the callback queue is readable, and at the returned time.
        """
        self._callbacks.run()
        now_ns = self._clock.boottime_ns()
        if now_ns // BINDING_CHECK_NS != self._checked_second:
            self._checked_second = now_ns // BINDING_CHECK_NS
            self._check_driver_binding(now_ns)
            if self._reasons:
                self._extend_unbound(now_ns)
                self._record_expired()
            if self.avoided != NO_GPUS or self._samplers.states():
                self._update_avoided()
        if self._pending:
            self._complete_pending(now_ns)
        return now_ns + HANDLE_POLL_NS if self._pending else None

    def release(
        self,
        devices: frozenset[str] | None,
        seconds: float,
        reason: str,
        on_done: Callable[[Sequence[UnreleasedHandle]], None],
    ) -> None:
        """Release *devices* (None: all GPUs) for *seconds*.

        Call *on_done* without handles when none is open, or with the open handles after
        RELEASE_NS_MAX. A longer release of an earlier request remains.
        """
        self._release(devices, seconds, reason)
        now_ns = self._clock.boottime_ns()
        self._pending.append(_PendingRelease(devices, now_ns + RELEASE_NS_MAX, on_done))
        self._complete_pending(now_ns)

    def apply_state_file(self) -> None:
        """Release the GPUs that `gangline release` wrote to the file without an agent."""
        now_ns, released = self._clock.boottime_ns(), self._samplers.released()
        for address, until_ns, reason in self._file.read(now_ns):
            if until_ns > released.get(address, 0):
                devices = None if address is None else frozenset((address,))
                self._release(devices, (until_ns - now_ns) / 1e9, reason)

    def resume(self, devices: frozenset[str] | None) -> Sequence[str | None]:
        """Resume *devices* (None: all); return the GPUs that had been released."""
        resumed = [gpu for gpu in self._samplers.released() if devices is None or gpu in devices]
        if resumed:
            self._samplers.resume(devices)
            self._record(resumed, "resumed", "")
            self._update_avoided()
        return resumed

    def released(self) -> list[ReleasedGpu]:
        released = self._samplers.released().items()
        return [
            ReleasedGpu(address, until_ns, self._reasons.get(address, ""))
            for address, until_ns in sorted(released, key=lambda release: release[0] or "")
        ]

    @property
    def abandoned_count(self) -> int:
        """Number of samplers ever abandoned in a driver."""
        return self._samplers.abandoned_count

    def unhealthy_devices(self) -> Sequence[DeviceState]:
        """Return the devices in quarantine or recently recovered."""
        return self._samplers.states()

    def _release(self, devices: frozenset[str] | None, seconds: float, reason: str) -> None:
        until_ns, before = self._clock.boottime_ns() + int(seconds * 1e9), self._samplers.released()
        if devices is None:
            if before.get(None, 0) < until_ns:
                self._samplers.release(None, seconds)
        elif new := frozenset(gpu for gpu in devices if before.get(gpu, 0) < until_ns):
            self._samplers.release(new, seconds)
        self._record([None] if devices is None else sorted(devices), "released", reason)
        self._update_avoided()

    def _update_avoided(self) -> None:
        """Set `avoided`; end an inventory that calls these GPUs; request one if fewer remain."""
        states = [state for state in self._samplers.states() if state.group == GPU]
        unhealthy = {state.device for state in states if state.state.name in EXCLUDED_STATES}
        avoided = unhealthy | self._samplers.released().keys()
        avoids_all = None in avoided or "" in avoided
        before = self.avoided
        self.avoided = None if avoids_all else frozenset(gpu for gpu in avoided if gpu)
        inventory.interrupt(self.avoided)
        if not inventory.is_within(before, self.avoided):  # a repair may have replaced a GPU
            self._publisher.request_inventory("skipped GPUs may be called again")

    def _record(self, addresses: Iterable[str | None], state: str, reason: str) -> None:
        """Store *reason*, and publish an event for each GPU."""
        for address in addresses:
            if state == "released":
                self._reasons[address] = reason
            else:
                self._reasons.pop(address, None)
            message = f"{state}: {address or 'all GPUs'}{reason and f' ({reason})'}"
            log.info("%s", message, extra={"cause": f"gpu.{state}.{address or 'all'}"})
            for gpu in [address] if address else driver_gpus(self._roots.proc) or ["host"]:
                event = HealthEvent(device_kind="gpu", device=gpu, name="gpu.released")
                event.code, event.message = int(state == "resumed"), message
                self._publisher.publish(event)
        self._file.write(self.released())

    def _record_expired(self) -> None:
        """Record the releases that expired: the samplers resume these GPUs by themselves."""
        released = self._samplers.released()
        if expired := [address for address in self._reasons if address not in released]:
            self._record(expired, "resumed", "its release expired")

    def _complete_pending(self, now_ns: int) -> None:
        """Call `on_done` of requests without open handles, or past their time."""
        for pending in list(self._pending):
            is_over = now_ns >= pending.until_ns
            if self._samplers.may_hold(pending.devices) and not is_over:
                continue
            handles = unreleased_handles(
                self._samplers, self._roots, self._nodes(), pending.devices
            )
            if handles and not is_over:
                continue
            self._pending.remove(pending)
            pending.on_done(handles)

    def _quarantine_gpu(self, event: HealthEvent) -> None:
        exclusion = self._xid_quarantine.check(event, self._clock.boottime_ns())
        if exclusion:
            log.warning("GPU %s is skipped: %s", *exclusion, extra={"cause": "gpu.left_alone"})
            self._samplers.quarantine_gpu(*exclusion)
            self._update_avoided()

    def _bound_gpus(self) -> frozenset[str]:
        return frozenset(filter(is_address, names_in(self._drivers_folder)))

    def _check_driver_binding(self, now_ns: int) -> None:
        before, self._folder_version = self._folder_version, self._folder_watch.look()
        if self._folder_version != before:
            self._bound = self._bound_gpus()
        if self._folder_version != before or self._unbind_tracker.has_unbound:
            unbound, rebound = self._unbind_tracker.update(self._bound, now_ns)
            self._release_for_unbind(unbound)
            self._resume_rebound(rebound)

    def _extend_unbound(self, now_ns: int) -> None:
        """Extend the releases that end while the GPU has no driver."""
        for address, until_ns in self._samplers.released().items():
            if address is None or self._reasons.get(address) != UNBIND_REASON:
                continue
            if until_ns - now_ns < EXTEND_NS and self._unbind_tracker.is_unbound(address):
                # The removal may still wait for another process; our handle would prolong it.
                self._samplers.release(frozenset((address,)), RELEASE_SECONDS_DEFAULT)
                self._file.write(self.released())

    def _on_unbind(self, address: str) -> None:
        now_ns = self._clock.boottime_ns()
        self._release_for_unbind(self._unbind_tracker.unbind_started((address,), now_ns))

    def _release_for_unbind(self, addresses: frozenset[str]) -> None:
        released = self._samplers.released()
        if None not in released and (new := addresses - released.keys()):
            self._release(new, RELEASE_SECONDS_DEFAULT, UNBIND_REASON)

    def _resume_rebound(self, addresses: frozenset[str]) -> None:
        """Resume GPUs that were released for an unbind; an operator's release remains."""
        if released_for_unbind := frozenset(
            address for address in addresses if self._reasons.get(address) == UNBIND_REASON
        ):
            self.resume(released_for_unbind)
