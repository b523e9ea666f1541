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

import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..contract.wire.telemetry_pb2 import HealthEvent
from ..ext.hostfiles import Glance
from . import inventory
from .clock import Clock
from .events import EventPublisher
from .hardware.files import Roots, names_in
from .hardware.nvidia import driver_gpus
from .hardware.open_handles import agent_processes, blocking, open_handles
from .sampler.pool import SamplerPool
from .sampler.quarantine import DeviceState

# A GPU that fell off the bus (XID 79), or whose firmware does not respond (119, 120), blocks each
# call for seconds or forever. This part starts the exclusion; the samplers' supervisor decides on
# retries.
SECOND_NS = 1_000_000_000
#: XIDs after which every call may hang -> reason.
HANGING_XIDS = {
    79: "XID 79: it fell off the bus",
    119: "XID 119: its firmware (GSP) does not respond",
    120: "XID 120: its firmware (GSP) failed",
}
LOST = "gpu.lost"
#: Older events are ignored, for example of an old log read at the start: the samplers know better.
FRESH_NS_MAX = 60 * SECOND_NS
#: Further events of a GPU within this time count as the same cause.
REPEAT_NS_MIN = 10 * SECOND_NS
GPUS_MAX = 256
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_address(name: str) -> bool:
    """Return whether *name* is a PCI address as sysfs writes it."""
    return _ADDRESS.fullmatch(name) is not None


def address_of(event: HealthEvent) -> str:
    """Return the PCI address of the event's GPU, or ""."""
    for name in (event.attributes.get("pci_address", ""), event.device):
        if is_address(name):
            return name
    return ""


def quarantine_reason(event: HealthEvent) -> str:
    """Return why the event's GPU must be excluded, or ""."""
    if event.attributes.get("previous_boot") == "yes":
        return ""
    if event.name == "gpu.xid":
        return HANGING_XIDS.get(event.code, "")
    # An event with `state` comes from the collector, which also reports "back" itself.
    lost = event.name == LOST and "state" not in event.attributes
    return HANGING_XIDS[79].replace("XID 79", "the driver") if lost else ""


class XidQuarantine:
    """Recent events of each GPU, so that a storm of events starts one exclusion."""

    def __init__(self) -> None:
        self._began_ns: dict[str, int] = {}

    def check(self, event: HealthEvent, now_ns: int) -> tuple[str, str] | None:
        """Return (PCI address, reason) if a GPU must be excluded now; else None."""
        reason, address = quarantine_reason(event), address_of(event)
        reported_ns = max(event.boottime_ns, event.last_boottime_ns)
        if not reason or not address or now_ns - reported_ns > FRESH_NS_MAX:
            return None
        began_ns = self._began_ns.get(address)
        if began_ns is not None and now_ns - began_ns < REPEAT_NS_MIN:
            return None
        self._began_ns.pop(address, None)
        self._began_ns[address] = now_ns
        if len(self._began_ns) > GPUS_MAX:
            del self._began_ns[next(iter(self._began_ns))]
        return address, reason


#: QuarantineStates of a device in which an agent process is in a call (`agent.sampler.quarantine`).
STUCK_STATES = frozenset(("HUNG", "ABANDONED"))


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
    stuck = _stuck_calls(samplers)
    handles = open_handles(roots.proc, roots.dev, agent_processes(roots.proc)).found
    blockers = blocking(handles, nodes, devices)
    pairs = sorted({(address, holder.process_id) for holder, address in blockers})
    if not pairs and samplers.may_hold(devices):
        return [UnreleasedHandle("", 0, stuck or "a sampler has not released it")]
    return [UnreleasedHandle(address, process_id, stuck) for address, process_id in pairs]


def _stuck_calls(samplers: SamplerPool) -> str:
    """Return the hanging calls as text."""
    return "; ".join(
        f"{state.call} on {state.device or 'the driver'} has not returned "
        f"for {state.hung_seconds:.0f} s"
        for state in samplers.states()
        if state.state.name in STUCK_STATES
    )


SECOND_NS = 1_000_000_000
#: If the driver is still bound this long after a sign of an unbind, it stays bound.
UNBIND_NS_MAX = 10 * SECOND_NS
#: Part of the line that nv-pci.c writes before it waits for open handles.
UNBIND_WAIT_MESSAGE = "non-zero usage count"


def is_unbind(event: HealthEvent) -> bool:
    """Return whether the event shows a starting unbind, which may wait for our handle."""
    if event.name == "gpu.driver_binding":
        return event.attributes.get("state") == "unbind"
    return event.name == "gpu.driver_message" and UNBIND_WAIT_MESSAGE in event.message


def is_bind(event: HealthEvent) -> bool:
    """Return whether the event shows that a driver was bound to its GPU."""
    return event.name == "gpu.driver_binding" and event.attributes.get("state") == "bind"


class DriverUnbindTracker:
    """GPUs being unbound. Pure. By PCI address; times are boot time from the caller."""

    def __init__(self, bound: frozenset[str]) -> None:
        """*bound*: the GPUs to which the driver is bound now, by sysfs."""
        self._bound = self._ever_bound = bound
        self._since_ns: dict[str, int] = {}  # GPU -> start of its unbind

    def unbind_started(self, addresses: Iterable[str], now_ns: int) -> frozenset[str]:
        """Return the *addresses* to release: each unbind once."""
        new = frozenset(addresses) - self._since_ns.keys()
        for address in sorted(new)[: GPUS_MAX - len(self._since_ns)]:
            self._since_ns[address] = now_ns
        return new

    def bound_again(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return the *addresses* to resume, if sysfs confirms that they are bound."""
        bound = [address for address in addresses if not self.is_unbound(address)]
        return frozenset(
            address for address in bound if self._since_ns.pop(address, None) is not None
        )

    @property
    def has_unbound(self) -> bool:
        """Whether an unbind was started: then `update` is needed also if sysfs has not changed."""
        return bool(self._since_ns)

    def update(self, bound: frozenset[str], now_ns: int) -> tuple[frozenset[str], frozenset[str]]:
        """Use the *bound* GPUs of sysfs; return the GPUs to release, and the GPUs to resume."""
        unbound, rebound = self._bound - bound, bound - self._bound
        never_unbound = {
            address
            for address, since_ns in self._since_ns.items()
            if address in bound and now_ns - since_ns >= UNBIND_NS_MAX
        }
        self._bound, self._ever_bound = (
            bound,
            frozenset(sorted(self._ever_bound | bound)[:GPUS_MAX]),
        )
        return self.unbind_started(unbound, now_ns), self.bound_again(rebound | never_unbound)

    def is_unbound(self, address: str) -> bool:
        """Return whether sysfs shows that a GPU has lost the driver."""
        return address in self._ever_bound and address not in self._bound


# An agent that starts, also in place of a killed agent, reads the releases of this boot from a
# file, so that it does not resume a GPU during its repair.
FILE_NAME = "released.json"
#: A larger file was not written by Gangline: a GPU takes 200 bytes.
FILE_BYTES_MAX = 1 << 16
RELEASED_GPUS_MAX = 65
REASON_CHARACTERS_MAX = 120
#: Upper limit of a release: a day.
RELEASE_SECONDS_MAX = 86_400.0

log = logging.getLogger(__name__)


class ReleasedGpu(NamedTuple):
    """A released GPU. `address` None: all GPUs together."""

    address: str | None
    until_ns: int
    reason: str


def format_released(boot_id: bytes, released: Iterable[ReleasedGpu]) -> bytes:
    """Return the file's content."""
    gpus = [{"gpu": gpu.address, "until_ns": gpu.until_ns, "why": gpu.reason} for gpu in released]
    return json.dumps({"boot_id": boot_id.hex(), "released": gpus}).encode()


def parse_released(content: bytes, boot_id: bytes, now_ns: int) -> list[ReleasedGpu]:
    """Return the releases of this boot in force at *now_ns*. Raises ValueError."""
    try:
        document = json.loads(content)
        if document["boot_id"] != boot_id.hex():
            return []
        gpus = [_parse_entry(entry) for entry in document["released"][:RELEASED_GPUS_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is not a list of released GPUs: {str(error)[:200]}") from error
    latest_ns = now_ns + int(RELEASE_SECONDS_MAX * 1e9)
    return [entry for entry in gpus if now_ns < entry.until_ns <= latest_ns]


def _parse_entry(entry: dict[str, object]) -> ReleasedGpu:
    address, until_ns, reason = entry["gpu"], entry["until_ns"], entry["why"]
    if address is not None and not (isinstance(address, str) and _ADDRESS.fullmatch(address)):
        raise ValueError(f"{str(address)[:40]!r}  is not a PCI address")
    if not isinstance(until_ns, int) or not isinstance(reason, str):
        raise TypeError("a time or a reason is invalid")
    return ReleasedGpu(
        address, until_ns, "".join(filter(str.isprintable, reason))[:REASON_CHARACTERS_MAX]
    )


class ReleaseStateFile:
    """The file in *folder*. Never raises: without a file a release ends with the agent."""

    def __init__(self, folder: Path, boot_id: bytes) -> None:
        self._path, self._boot_id = folder / FILE_NAME, boot_id

    def read(self, now_ns: int) -> list[ReleasedGpu]:
        """Return the releases in the file that are in force at this boot time."""
        try:
            with open(self._path, "rb") as file:
                return parse_released(file.read(FILE_BYTES_MAX), self._boot_id, now_ns)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            log.warning("%s: %s", self._path, error, extra={"cause": "released.file"})
            return []

    def until_ns(self, now_ns: int) -> dict[str | None, int]:
        """Return address -> end of the release."""
        return {gpu.address: gpu.until_ns for gpu in self.read(now_ns)}

    def write(self, released: Iterable[ReleasedGpu]) -> None:
        """Replace the file. It is not synced: no other boot uses it."""
        new = self._path.with_name(f".{FILE_NAME}")
        try:
            new.write_bytes(format_released(self._boot_id, released))
            new.replace(self._path)
        except OSError as error:
            message = (
                f"{self._path}: {error.strerror}; after a restart the agent would reopen the GPUs"
            )
            log.warning("%s", message, extra={"cause": "released.file"})


#: Limit of waiting callbacks; further ones are refused.
CALLBACKS_MAX = 1024

log = logging.getLogger(__name__)


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
        self._samplers, self._callbacks, self._clock, self._roots = (
            samplers,
            callbacks,
            clock,
            roots,
        )
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
        """Return the released GPUs."""
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
