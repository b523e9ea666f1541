"""Closes GPUs so that they can be repaired: on command, or when the driver is unbound from one.

An open device node blocks a reset, a MIG change and an unload of the driver. A released GPU is resumed when the release
expires, on command, or when the driver is bound to the GPU again.

Three signs show that a driver is being unbound from a GPU, and all are used: NVML's own event; the log line of
kernel-open/nvidia's nv-pci.c, which waits in steps of half a second until nobody has the GPU open; and sysfs, where the
kernel removes the driver's link to the device before it calls the driver's `remove` (drivers/base/dd.c). The uevents
`unbind` and `remove` come after that, which is too late.
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

# ----------------------------------------------------------------------
# Which GPU must be skipped after what its driver said, and when that is said again. Pure: events
# in, GPUs out.
#
# A GPU that fell off the bus (XID 79), or whose firmware does not respond (119, 120), holds every
# call for seconds and may never give it back. How long it is skipped, in growing intervals, is
# the supervisor's of the samplers; here is only what begins it.

SECOND_NS = 1_000_000_000
#: XIDs after which every call may hang, and why, as text.
HANGING_XIDS = {
    79: "XID 79: it fell off the bus",
    119: "XID 119: its firmware (GSP) does not respond",
    120: "XID 120: its firmware (GSP) failed",
}
LOST = "gpu.lost"
#: What was said longer ago is old news, as the log of hours ago that is read at a start: the samplers know better.
FRESH_NS_MAX = 60 * SECOND_NS
#: A storm about one GPU is one cause.
REPEAT_NS_MIN = 10 * SECOND_NS
GPUS_MAX = 256
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_address(name: str) -> bool:
    """Return whether *name* is a PCI address as sysfs writes it."""
    return _ADDRESS.fullmatch(name) is not None


def address_of(event: HealthEvent) -> str:
    """Return the PCI address of the GPU that *event* is about; empty when it names none."""
    for name in (event.attributes.get("pci_address", ""), event.device):
        if is_address(name):
            return name
    return ""


def quarantine_reason(event: HealthEvent) -> str:
    """Return as text why the event's GPU must be skipped; empty when it is not."""
    if event.attributes.get("previous_boot") == "yes":
        return ""
    if event.name == "gpu.xid":
        return HANGING_XIDS.get(event.code, "")
    # the collector's own word says "back" as well; it needs no second opinion
    lost = event.name == LOST and "state" not in event.attributes
    return HANGING_XIDS[79].replace("XID 79", "the driver") if lost else ""


class XidQuarantine:
    """Remembers what was said of each GPU of late, so that a storm begins one rest."""

    def __init__(self) -> None:
        self._began_ns: dict[str, int] = {}

    def check(self, event: HealthEvent, now_ns: int) -> tuple[str, str] | None:
        """Return (PCI address, why) when a GPU must be skipped from now on; else None."""
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


# ----------------------------------------------------------------------
# Who of the agent's own processes holds a GPU: by the kernel's word, and by what the samplers know
# of themselves.

#: States of a device in which a process of ours is in a call on it (`agent.sampler.quarantine.State`).
STUCK_STATES = frozenset(("HUNG", "ABANDONED"))


class UnreleasedHandle(NamedTuple):
    """A process of ours that has not let go. `address` empty: of the driver as a whole; `process_id` 0: not known."""

    address: str
    process_id: int
    detail: str


def unreleased_handles(
    samplers: SamplerPool, roots: Roots, nodes: Mapping[str, str], devices: frozenset[str] | None
) -> Sequence[UnreleasedHandle]:
    """Return which of the agent's processes has one of *devices* (None: any, or the driver) open, according to the
    kernel and the samplers, and the calls they are stuck in. *nodes*: `nvidia3` -> PCI address."""
    stuck = _stuck_calls(samplers)
    found = open_handles(roots.proc, roots.dev, agent_processes(roots.proc)).found
    blockers = blocking(found, nodes, devices)
    pairs = sorted({(address, holder.process_id) for holder, address in blockers})
    if not pairs and samplers.may_hold(devices):
        return [UnreleasedHandle("", 0, stuck or "a sampler has not released it")]
    return [UnreleasedHandle(address, process_id, stuck) for address, process_id in pairs]


def _stuck_calls(samplers: SamplerPool) -> str:
    """Return the calls that do not return, as text."""
    return "; ".join(
        f"{state.call} on {state.device or 'the driver'} has not returned "
        f"for {state.hung_seconds:.0f} s"
        for state in samplers.states()
        if state.state.name in STUCK_STATES
    )


# ----------------------------------------------------------------------
# GPUs that the driver is being taken off: release, and taken back when it is on them again. Pure.

SECOND_NS = 1_000_000_000
#: A driver that was said to go and is still there after this long has stayed.
UNBIND_NS_MAX = 10 * SECOND_NS
#: Of the line that nv-pci.c writes before it waits until nobody has the GPU open.
UNBIND_WAIT_MESSAGE = "non-zero usage count"


def is_unbind(event: HealthEvent) -> bool:
    """Return whether the event tells that the driver is being unbound from its GPU, and may wait for us."""
    if event.name == "gpu.driver_binding":
        return event.attributes.get("state") == "unbind"
    return event.name == "gpu.driver_message" and UNBIND_WAIT_MESSAGE in event.message


def is_bind(event: HealthEvent) -> bool:
    """Return whether the event tells that a driver is on its GPU again."""
    return event.name == "gpu.driver_binding" and event.attributes.get("state") == "bind"


class DriverUnbindTracker:
    """What is known of it. PCI addresses; times are boot time, handed in."""

    def __init__(self, bound: frozenset[str]) -> None:
        """*bound*: the GPUs that the driver is on now, by sysfs."""
        self._bound = self._ever_bound = bound
        self._since_ns: dict[str, int] = {}  # those that it is being, or was, taken off

    def unbind_started(self, addresses: Iterable[str], now_ns: int) -> frozenset[str]:
        """Return those of *addresses* that must be released: of each unbind once."""
        new = frozenset(addresses) - self._since_ns.keys()
        for address in sorted(new)[: GPUS_MAX - len(self._since_ns)]:
            self._since_ns[address] = now_ns
        return new

    def bound_again(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return those of *addresses* that may be taken back: sysfs has the last word."""
        bound = [each for each in addresses if not self.is_unbound(each)]
        return frozenset(each for each in bound if self._since_ns.pop(each, None) is not None)

    @property
    def has_unbound(self) -> bool:
        """Whether a GPU is being, or was, taken off: `update` must be asked also when sysfs shows what it showed."""
        return bool(self._since_ns)

    def update(self, bound: frozenset[str], now_ns: int) -> tuple[frozenset[str], frozenset[str]]:
        """Take what sysfs shows now, and return what must be released, and what may be taken back."""
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
        """Return whether a GPU that had the driver has none now, as far as sysfs shows."""
        return address in self._ever_bound and address not in self._bound


# ----------------------------------------------------------------------
# What was released, as one small file in the run folder: an agent that starts over, or that takes
# the place of one that was killed, does not take back a GPU in the middle of its repair. Of another
# boot it is without meaning.

FILE_NAME = "released.json"
#: A larger file is not ours: a GPU has 200 bytes in it.
FILE_BYTES_MAX = 1 << 16
RELEASED_GPUS_MAX = 65
REASON_CHARACTERS_MAX = 120
#: A day is the most that may be asked for.
RELEASE_SECONDS_MAX = 86_400.0

log = logging.getLogger(__name__)


class ReleasedGpu(NamedTuple):
    """A GPU that was released. `address` None: all of them."""

    address: str | None
    until_ns: int
    reason: str


def format_released(boot_id: bytes, released: Iterable[ReleasedGpu]) -> bytes:
    """Return the file's content."""
    gpus = [
        {"gpu": each.address, "until_ns": each.until_ns, "why": each.reason} for each in released
    ]
    return json.dumps({"boot_id": boot_id.hex(), "released": gpus}).encode()


def parse_released(content: bytes, boot_id: bytes, now_ns: int) -> list[ReleasedGpu]:
    """Return what is released at *now_ns*; nothing of another boot. Raises ValueError for what is no such file."""
    try:
        document = json.loads(content)
        if document["boot_id"] != boot_id.hex():
            return []
        found = [_parse_entry(each) for each in document["released"][:RELEASED_GPUS_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is not a list of released GPUs: {str(error)[:200]}") from error
    latest_ns = now_ns + int(RELEASE_SECONDS_MAX * 1e9)
    return [each for each in found if now_ns < each.until_ns <= latest_ns]


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
    """The file in *folder*. Neither method raises: without the file a release holds as long as the agent lives."""

    def __init__(self, folder: Path, boot_id: bytes) -> None:
        self._path, self._boot_id = folder / FILE_NAME, boot_id

    def read(self, now_ns: int) -> list[ReleasedGpu]:
        """Return what is released at this boot time, as an agent before this one noted it."""
        try:
            with open(self._path, "rb") as file:
                return parse_released(file.read(FILE_BYTES_MAX), self._boot_id, now_ns)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            log.warning("%s: %s", self._path, error, extra={"cause": "released.file"})
            return []

    def until_ns(self, now_ns: int) -> dict[str | None, int]:
        """Return the same as address -> until when."""
        return {each.address: each.until_ns for each in self.read(now_ns)}

    def write(self, released: Iterable[ReleasedGpu]) -> None:
        """Replace the file; it is not synced, as no boot but this one reads it."""
        new = self._path.with_name(f".{FILE_NAME}")
        try:
            new.write_bytes(format_released(self._boot_id, released))
            new.replace(self._path)
        except OSError as error:
            message = (
                f"{self._path}: {error.strerror}; after a restart the agent would reopen the GPUs"
            )
            log.warning("%s", message, extra={"cause": "released.file"})


# ----------------------------------------------------------------------
# What other threads ask of the daemon's own: put in from anywhere, done between its turns.

#: More requests are rejected with an error.
CALLBACKS_MAX = 1024

log = logging.getLogger(__name__)


class CallbackQueue:
    """`post` from any thread; `run` in the daemon's, whenever `descriptor` can be read."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._callbacks: deque[Callable[[], None]] = deque()
        self._lock = (
            threading.Lock()
        )  # the descriptor can be read while there are letters, and only then

    def post(self, callback: Callable[[], None]) -> bool:
        """Have *callback* called soon. False when too many wait. Never blocks, never raises."""
        with self._lock:
            if len(self._callbacks) >= CALLBACKS_MAX:
                return False
            self._callbacks.append(callback)
            with suppress(OSError, ValueError):  # closed: nobody reads any more
                os.eventfd_write(self.descriptor, 1)
        return True

    def run(self) -> None:
        """Call what was put in, in order. Never raises."""
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
        """Nothing is put in from now on."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


#: What is released without a time is taken back after a quarter of an hour.
RELEASE_SECONDS_DEFAULT = 900.0
#: A sampler that has not let go by then is stuck in the driver: the caller gets an error that says so.
RELEASE_NS_MAX = 5 * SECOND_NS
#: Looked at so often while somebody waits for it.
HANDLE_POLL_NS = 20_000_000
#: The driver's links to its devices are looked at so often.
BINDING_CHECK_NS = SECOND_NS
#: A release that must last longer is renewed this long before its end.
EXTEND_NS = 10 * SECOND_NS
#: States of a device that nobody but the samplers' own trials is to enter (`agent.sampler.quarantine.State`). One that is
#: HUNG is not yet: it may only be slow to open.
EXCLUDED_STATES = frozenset(("ABANDONED", "LEFT_ALONE", "SLOW", "TRIED"))
GPU = "gpu"  # their lane
NO_GPUS: frozenset[str] = frozenset()
UNBIND_REASON = "the driver is being unbound from it"


@dataclass(frozen=True, slots=True)
class _PendingRelease:
    devices: frozenset[str] | None
    until_ns: int
    on_done: Callable[[Sequence[UnreleasedHandle]], None]


class GpuReleaser:
    """Belongs to the daemon's thread, but for `observe`."""

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
        """*samplers* have release what *file* has from an agent before this one. *publisher* gets each GPU that
        was released or taken back. *nodes*: of the driver -> PCI address, `nvidia3` -> `0000:9b:00.0`, asked of nobody
        who may hang."""
        self._samplers, self._callbacks, self._clock, self._roots = (
            samplers,
            callbacks,
            clock,
            roots,
        )
        self._publisher, self._file, self._nodes = publisher, file, nodes
        self._xid_quarantine = XidQuarantine()
        before = file.read(clock.boottime_ns())
        self._reasons = {each.address: each.reason for each in before}  # of what is released
        self._pending: list[_PendingRelease] = []
        self._drivers_folder = roots.sys / "bus/pci/drivers/nvidia"
        self._folder_watch = Glance(self._drivers_folder)
        self._folder_version = self._folder_watch.look()
        self._bound = self._bound_gpus()
        self._unbind_tracker = DriverUnbindTracker(self._bound)
        unbound = [each.address for each in before if each.address and each.reason == UNBIND_REASON]
        self._unbind_tracker.unbind_started(unbound, clock.boottime_ns())
        self._checked_second = -1  # the second of the last look
        #: GPUs that nobody is to touch now, by PCI address; None: any, nor their driver. To be read from any thread.
        self.avoided: frozenset[str] | None = NO_GPUS
        self._update_avoided()

    # From any thread -----------------------------------------------------------------------

    def observe(self, event: HealthEvent) -> None:
        """Look at a reported event: an observer of the `EventPublisher`. Quick, and never raises."""
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

    # The daemon's thread -------------------------------------------------------------------

    def tick(self) -> int | None:
        """Handle requests and due work. Called at each tick, whenever the callback queue is readable, and at the time
        that this returns, if any."""
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
        """Release *devices* (None: all GPUs) for *seconds*, and *on_done* once nothing is held, or who still does.

        A longer time from an earlier request stays in force.
        """
        self._release(devices, seconds, reason)
        now_ns = self._clock.boottime_ns()
        self._pending.append(_PendingRelease(devices, now_ns + RELEASE_NS_MAX, on_done))
        self._complete_pending(now_ns)

    def apply_state_file(self) -> None:
        """Release what `gangline release` noted there while nobody answered: since this agent began to sample."""
        now_ns, released = self._clock.boottime_ns(), self._samplers.released()
        for address, until_ns, reason in self._file.read(now_ns):
            if until_ns > released.get(address, 0):
                devices = None if address is None else frozenset((address,))
                self._release(devices, (until_ns - now_ns) / 1e9, reason)

    def resume(self, devices: frozenset[str] | None) -> Sequence[str | None]:
        """Take *devices* back (None: all), and return those that had been released."""
        resumed = [d for d in self._samplers.released() if devices is None or d in devices]
        if resumed:
            self._samplers.resume(devices)
            self._record(resumed, "resumed", "")
            self._update_avoided()
        return resumed

    def released(self) -> list[ReleasedGpu]:
        """Return what is released now."""
        released = self._samplers.released().items()
        return [
            ReleasedGpu(address, until_ns, self._reasons.get(address, ""))
            for address, until_ns in sorted(released, key=lambda each: each[0] or "")
        ]

    @property
    def abandoned_count(self) -> int:
        """How many samplers were ever abandoned in a driver."""
        return self._samplers.abandoned_count

    def unhealthy_devices(self) -> Sequence[DeviceState]:
        """Return the devices with which not all is well, or was not a minute ago."""
        return self._samplers.states()

    def _release(self, devices: frozenset[str] | None, seconds: float, reason: str) -> None:
        until_ns, before = self._clock.boottime_ns() + int(seconds * 1e9), self._samplers.released()
        if devices is None:
            if before.get(None, 0) < until_ns:
                self._samplers.release(None, seconds)
        elif new := frozenset(each for each in devices if before.get(each, 0) < until_ns):
            self._samplers.release(new, seconds)
        self._record([None] if devices is None else sorted(devices), "released", reason)
        self._update_avoided()

    def _update_avoided(self) -> None:
        """Say which GPUs nobody is to touch; end an inventory that does, and have one read when they are fewer."""
        states = [each for each in self._samplers.states() if each.group == GPU]
        unhealthy = {each.device for each in states if each.state.name in EXCLUDED_STATES}
        avoided = unhealthy | self._samplers.released().keys()
        avoids_all = None in avoided or "" in avoided
        before = self.avoided
        self.avoided = None if avoids_all else frozenset(each for each in avoided if each)
        inventory.interrupt(self.avoided)
        if not inventory.is_within(before, self.avoided):  # after a repair it may be another GPU
            self._publisher.request_inventory("skipped GPUs may be called again")

    def _record(self, addresses: Iterable[str | None], state: str, reason: str) -> None:
        """Remember why, and tell it of each GPU."""
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
        """The samplers take back by themselves what is over."""
        released = self._samplers.released()
        if expired := [address for address in self._reasons if address not in released]:
            self._record(expired, "resumed", "its release expired")

    def _complete_pending(self, now_ns: int) -> None:
        """Answer who asked, once nothing is held, or when the time is over."""
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

    # By itself -----------------------------------------------------------------------------

    def _quarantine_gpu(self, event: HealthEvent) -> None:
        found = self._xid_quarantine.check(event, self._clock.boottime_ns())
        if found:
            log.warning("GPU %s is skipped: %s", *found, extra={"cause": "gpu.left_alone"})
            self._samplers.quarantine_gpu(*found)
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
        """Let go again of what has no driver yet as its time ends."""
        for address, until_ns in self._samplers.released().items():
            if address is None or self._reasons.get(address) != UNBIND_REASON:
                continue
            if until_ns - now_ns < EXTEND_NS and self._unbind_tracker.is_unbound(address):
                # the removal may still wait for another process: our handle would prolong that
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
        """What an operator released meanwhile stays so."""
        if released_for_unbind := frozenset(
            a for a in addresses if self._reasons.get(a) == UNBIND_REASON
        ):
            self.resume(released_for_unbind)
