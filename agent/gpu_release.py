"""Letting go of GPUs so that they can be repaired: on command, and by itself when the driver is taken off one.

An open device node defeats a reset, a MIG change and an unload of the driver. What is let go of is taken back at its
expiry, on command, or when the driver is bound to the GPU again.

Signs that a driver is being taken off a GPU, all of them heeded: NVML's own event; the line of kernel-open/nvidia's
nv-pci.c by which it says that it waits, in steps of half a second, until nobody has the GPU open; and sysfs, where the
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
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from ..contract.wire.telemetry_pb2 import HealthEvent
from ..ext.hostfiles import Glance
from . import inventory
from .clock import Clock
from .hardware.files import Roots, names_in
from .hardware.nvidia import blocking, driver_gpus, holders, own_processes

# ----------------------------------------------------------------------
# Which GPU is to be left alone after what its driver said, and when that is said anew. Pure: events
# in, GPUs out.
#
# A GPU that fell off the bus (XID 79), or whose firmware does not answer (119, 120), holds every
# call for seconds and may never give it back. How long it is left alone, in growing intervals, is
# the supervisor's of the samplers; here is only what begins it.

SECOND_NS = 1_000_000_000
#: XIDs after which every call may hang, and why, in words.
CODES = {
    79: "XID 79: it fell off the bus",
    119: "XID 119: its firmware (GSP) does not answer",
    120: "XID 120: its firmware (GSP) failed",
}
LOST = "gpu.lost"
#: What was said longer ago is old news, as the log of hours ago that is read at a start: the samplers know better.
FRESH_NS_MAX = 60 * SECOND_NS
#: A storm about one GPU is one cause.
AGAIN_NS_MIN = 10 * SECOND_NS
GPUS_MAX = 256
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_address(name: str) -> bool:
    """Say whether *name* is a PCI address as sysfs writes it."""
    return _ADDRESS.fullmatch(name) is not None


def address_of(event: HealthEvent) -> str:
    """Return the PCI address of the GPU that *event* is about; empty when it names none."""
    for name in (event.attributes.get("pci_address", ""), event.device):
        if is_address(name):
            return name
    return ""


def reason_of(event: HealthEvent) -> str:
    """Return in words why the event's GPU is to be left alone; empty when it is not."""
    if event.attributes.get("previous_boot") == "yes":
        return ""
    if event.name == "gpu.xid":
        return CODES.get(event.code, "")
    # the collector's own word says "back" as well; it needs no second opinion
    lost = event.name == LOST and "state" not in event.attributes
    return CODES[79].replace("XID 79", "the driver") if lost else ""


class LeftAlone:
    """Remembers what was said of each GPU of late, so that a storm begins one rest."""

    def __init__(self) -> None:
        self._began_ns: dict[str, int] = {}

    def take(self, event: HealthEvent, now_ns: int) -> tuple[str, str] | None:
        """Return (PCI address, why) when a GPU is to be left alone from now on; else None."""
        why, address = reason_of(event), address_of(event)
        said_ns = max(event.boottime_ns, event.last_boottime_ns)
        if not why or not address or now_ns - said_ns > FRESH_NS_MAX:
            return None
        began_ns = self._began_ns.get(address)
        if began_ns is not None and now_ns - began_ns < AGAIN_NS_MIN:
            return None
        self._began_ns.pop(address, None)
        self._began_ns[address] = now_ns
        if len(self._began_ns) > GPUS_MAX:
            del self._began_ns[next(iter(self._began_ns))]
        return address, why


# ----------------------------------------------------------------------
# Who of the agent's own processes holds a GPU: by the kernel's word, and by what the samplers know
# of themselves.

#: States of a device in which a process of ours is in a call on it (`agent.sampler.quarantine.State`).
STUCK = frozenset(("HUNG", "ABANDONED"))


class DeviceState(Protocol):
    """What is needed of the samplers' word on a device."""

    @property
    def device(self) -> str: ...
    @property
    def lane(self) -> str: ...
    @property
    def state(self) -> IntEnum: ...
    @property
    def call(self) -> str: ...
    @property
    def hung_seconds(self) -> float: ...
    @property
    def abandoned_count(self) -> int: ...
    @property
    def next_try_ns(self) -> int: ...


class Samplers(Protocol):
    """What is needed of `agent.sampler.pool.Samplers`. Devices are PCI addresses; None stands for all GPUs."""

    @property
    def abandoned_count(self) -> int: ...
    def release(self, devices: frozenset[str] | None, seconds: float) -> None: ...
    def resume(self, devices: frozenset[str] | None) -> None: ...
    def released(self) -> Mapping[str | None, int]: ...
    def held(self, devices: frozenset[str] | None) -> bool: ...
    def leave_alone(self, device: str, why: str) -> None: ...
    def states(self) -> Sequence[DeviceState]: ...


class StillHeld(NamedTuple):
    """A process of ours that has not let go. `address` empty: of the driver as a whole; `process_id` 0: not known."""

    address: str
    process_id: int
    words: str


def still_held(
    samplers: Samplers, roots: Roots, nodes: Mapping[str, str], devices: frozenset[str] | None
) -> Sequence[StillHeld]:
    """Return who of us has one of *devices* (None: any, or the driver) open, by the kernel's word and by what the
    samplers know, and what they are stuck in. *nodes*: `nvidia3` -> PCI address."""
    stuck = _stuck(samplers)
    found = holders(roots.proc, roots.dev, own_processes(roots.proc)).found
    in_the_way = blocking(found, nodes, devices)
    held = sorted({(address, holder.process_id) for holder, address in in_the_way})
    if not held and samplers.held(devices):
        return [StillHeld("", 0, stuck or "a sampler has not let go")]
    return [StillHeld(address, process_id, stuck) for address, process_id in held]


def _stuck(samplers: Samplers) -> str:
    """Return the calls that do not return, in words."""
    return "; ".join(
        f"{state.call} on {state.device or 'the driver'} has not returned "
        f"for {state.hung_seconds:.0f} s"
        for state in samplers.states()
        if state.state.name in STUCK
    )


# ----------------------------------------------------------------------
# GPUs that the driver is being taken off: let go of, and taken back when it is on them again. Pure.

SECOND_NS = 1_000_000_000
#: A driver that was said to go and is still there after this long has stayed.
STAYS_NS = 10 * SECOND_NS
#: Of the line that nv-pci.c writes before it waits until nobody has the GPU open.
WAITS = "non-zero usage count"


def is_taken_off(event: HealthEvent) -> bool:
    """Say whether the event tells that the driver is being taken off its GPU, and may wait for us."""
    if event.name == "gpu.driver_binding":
        return event.attributes.get("state") == "unbind"
    return event.name == "gpu.driver_message" and WAITS in event.message


def is_put_on(event: HealthEvent) -> bool:
    """Say whether the event tells that a driver is on its GPU again."""
    return event.name == "gpu.driver_binding" and event.attributes.get("state") == "bind"


class Unbinding:
    """What is known of it. PCI addresses; times are boot time, handed in."""

    def __init__(self, bound: frozenset[str]) -> None:
        """*bound*: the GPUs that the driver is on now, by sysfs."""
        self._bound = self._ever = bound
        self._since_ns: dict[str, int] = {}  # those that it is being, or was, taken off

    def taken_off(self, addresses: Iterable[str], now_ns: int) -> frozenset[str]:
        """Return those of *addresses* that are to be let go of: of each unbind once."""
        new = frozenset(addresses) - self._since_ns.keys()
        for address in sorted(new)[: GPUS_MAX - len(self._since_ns)]:
            self._since_ns[address] = now_ns
        return new

    def put_on(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return those of *addresses* that may be taken back: sysfs has the last word."""
        on = [each for each in addresses if not self.is_without(each)]
        return frozenset(each for each in on if self._since_ns.pop(each, None) is not None)

    @property
    def is_under_way(self) -> bool:
        """Whether a GPU is being, or was, taken off: `look` is to be asked also when sysfs shows what it showed."""
        return bool(self._since_ns)

    def look(self, bound: frozenset[str], now_ns: int) -> tuple[frozenset[str], frozenset[str]]:
        """Take what sysfs shows now, and return what is to be let go of, and what may be taken back."""
        gone, back = self._bound - bound, bound - self._bound
        stayed = {
            address
            for address, since_ns in self._since_ns.items()
            if address in bound and now_ns - since_ns >= STAYS_NS
        }
        self._bound, self._ever = bound, frozenset(sorted(self._ever | bound)[:GPUS_MAX])
        return self.taken_off(gone, now_ns), self.put_on(back | stayed)

    def is_without(self, address: str) -> bool:
        """Say whether a GPU that had the driver has none now, as far as sysfs shows."""
        return address in self._ever and address not in self._bound


# ----------------------------------------------------------------------
# What was let go of, as one small file in the run folder: an agent that begins anew, or that takes
# the place of one that was killed, does not take back a GPU in the middle of its repair. Of another
# boot it is without meaning.

FILE_NAME = "released.json"
#: A larger file is not ours: a GPU has 200 bytes in it.
FILE_BYTES_MAX = 1 << 16
RELEASED_GPUS_MAX = 65
WHY_CHARACTERS_MAX = 120
#: A day is the most that may be asked for.
SECONDS_MAX = 86_400.0

log = logging.getLogger(__name__)


class Released(NamedTuple):
    """A GPU that was let go of. `address` None: all of them."""

    address: str | None
    until_ns: int
    why: str


def format_released(boot_id: bytes, released: Iterable[Released]) -> bytes:
    """Return the file's content."""
    gpus = [{"gpu": each.address, "until_ns": each.until_ns, "why": each.why} for each in released]
    return json.dumps({"boot_id": boot_id.hex(), "released": gpus}).encode()


def parse_released(content: bytes, boot_id: bytes, now_ns: int) -> list[Released]:
    """Return what is let go of at *now_ns*; nothing of another boot. Raises ValueError for what is no such file."""
    try:
        said = json.loads(content)
        if said["boot_id"] != boot_id.hex():
            return []
        found = [_released(each) for each in said["released"][:RELEASED_GPUS_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is no list of released GPUs: {str(error)[:200]}") from error
    latest_ns = now_ns + int(SECONDS_MAX * 1e9)
    return [each for each in found if now_ns < each.until_ns <= latest_ns]


def _released(said: dict[str, object]) -> Released:
    address, until_ns, why = said["gpu"], said["until_ns"], said["why"]
    if address is not None and not (isinstance(address, str) and _ADDRESS.fullmatch(address)):
        raise ValueError(f"{str(address)[:40]!r} is no PCI address")
    if not isinstance(until_ns, int) or not isinstance(why, str):
        raise TypeError("a time or a reason is none")
    return Released(address, until_ns, "".join(filter(str.isprintable, why))[:WHY_CHARACTERS_MAX])


class ReleasedFile:
    """The file in *folder*. Neither method raises: without the file a release holds as long as the agent lives."""

    def __init__(self, folder: Path, boot_id: bytes) -> None:
        self._path, self._boot_id = folder / FILE_NAME, boot_id

    def read(self, now_ns: int) -> list[Released]:
        """Return what is let go of at this boot time, as an agent before this one noted it."""
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

    def write(self, released: Iterable[Released]) -> None:
        """Replace the file; it is not synced, as no boot but this one reads it."""
        new = self._path.with_name(f".{FILE_NAME}")
        try:
            new.write_bytes(format_released(self._boot_id, released))
            new.replace(self._path)
        except OSError as error:
            words = f"{self._path}: {error.strerror}; after a restart the GPUs would be taken back"
            log.warning("%s", words, extra={"cause": "released.file"})


# ----------------------------------------------------------------------
# What other threads ask of the daemon's own: put in from anywhere, done between its turns.

#: More are not taken: who asks is told so.
LETTERS_MAX = 1024

log = logging.getLogger(__name__)


class Mailbox:
    """`put` from any thread; `do` in the daemon's, whenever `descriptor` can be read."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._letters: deque[Callable[[], None]] = deque()
        self._lock = (
            threading.Lock()
        )  # the descriptor can be read while there are letters, and only then

    def put(self, letter: Callable[[], None]) -> bool:
        """Have *letter* called soon. False when too many wait. Never blocks, never raises."""
        with self._lock:
            if len(self._letters) >= LETTERS_MAX:
                return False
            self._letters.append(letter)
            with suppress(OSError, ValueError):  # closed: nobody reads any more
                os.eventfd_write(self.descriptor, 1)
        return True

    def do(self) -> None:
        """Call what was put in, in order. Never raises."""
        if not self._letters:
            return
        with self._lock:
            letters, self._letters = self._letters, deque()
            with suppress(OSError, ValueError):
                os.eventfd_read(self.descriptor)
        for letter in letters:
            try:
                letter()
            except Exception:
                log.exception("what was asked of the daemon failed", extra={"cause": "mailbox"})

    def close(self) -> None:
        """Nothing is put in from now on."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


#: What is let go of without a time is taken back after a quarter of an hour.
SECONDS_DEFAULT = 900.0
#: A sampler that has not let go by then is stuck in the driver: who asked is told so.
LET_GO_NS_MAX = 5 * SECOND_NS
#: Looked at so often while somebody waits for it.
LOOK_NS = 20_000_000
#: The driver's links to its devices are looked at so often.
BOUND_NS = SECOND_NS
#: What is to be kept longer is asked for anew so long before its end.
RENEW_NS = 10 * SECOND_NS
#: States of a device that nobody but the samplers' own trials is to enter (`agent.sampler.quarantine.State`). One that is
#: HUNG is not yet: it may only be slow to open.
NOT_ENTERED = frozenset(("ABANDONED", "LEFT_ALONE", "SLOW", "TRIED"))
GPU = "gpu"  # their lane
NOBODY: frozenset[str] = frozenset()
UNBIND = "the driver is being taken off it"


class Told(Protocol):
    """What is needed of `agent.events.Teller`."""

    def tell(self, event: HealthEvent) -> object: ...
    def renew_inventory(self, why: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    devices: frozenset[str] | None
    until_ns: int
    tell: Callable[[Sequence[StillHeld]], None]


class NotInTheWay:
    """Belongs to the daemon's thread, but for `observe`."""

    def __init__(
        self,
        samplers: Samplers,
        mailbox: Mailbox,
        clock: Clock,
        roots: Roots,
        teller: Told,
        file: ReleasedFile,
        nodes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """*samplers* have let go of what *file* has from an agent before this one. *teller* is told of each GPU that
        was let go of or taken back. *nodes*: of the driver -> PCI address, `nvidia3` -> `0000:9b:00.0`, asked of nobody
        who may hang."""
        self._samplers, self._mailbox, self._clock, self._roots = samplers, mailbox, clock, roots
        self._teller, self._file, self._nodes = teller, file, nodes
        self._left_alone = LeftAlone()
        before = file.read(clock.boottime_ns())
        self._why = {each.address: each.why for each in before}  # of what is let go of
        self._asked: list[_Asked] = []
        self._drivers_folder = roots.sys / "bus/pci/drivers/nvidia"
        self._glance = Glance(self._drivers_folder)
        self._glanced = self._glance.look()
        self._bound = self._listed()
        self._unbinding = Unbinding(self._bound)
        off = [each.address for each in before if each.address and each.why == UNBIND]
        self._unbinding.taken_off(off, clock.boottime_ns())
        self._looked = -1  # the second of the last look
        #: GPUs that nobody is to touch now, by PCI address; None: any, nor their driver. To be read from any thread.
        self.avoided: frozenset[str] | None = NOBODY
        self._avoid()

    # From any thread -----------------------------------------------------------------------

    def observe(self, event: HealthEvent) -> None:
        """Look at an event that was told: an observer of the `Teller`. Quick, and never raises."""
        if reason_of(event):
            said = HealthEvent()
            said.CopyFrom(event)
            self._mailbox.put(lambda: self._leave_alone(said))
        elif is_taken_off(event) and (address := address_of(event)):
            self._mailbox.put(lambda: self._taken_off(address))
        elif is_put_on(event) and (address := address_of(event)):
            self._mailbox.put(lambda: self._take_back(self._unbinding.put_on((address,))))

    # The daemon's thread -------------------------------------------------------------------

    def turn(self) -> int | None:
        """Do what was asked and what is due: at each tick, whenever the mailbox can be read, and at the time that
        this returns, if any."""
        self._mailbox.do()
        now_ns = self._clock.boottime_ns()
        if now_ns // BOUND_NS != self._looked:
            self._looked = now_ns // BOUND_NS
            self._look_at_the_driver(now_ns)
            if self._why:
                self._keep_off_the_unbound(now_ns)
                self._forget_the_expired()
            if self.avoided != NOBODY or self._samplers.states():
                self._avoid()
        if self._asked:
            self._settle(now_ns)
        return now_ns + LOOK_NS if self._asked else None

    def release(
        self,
        devices: frozenset[str] | None,
        seconds: float,
        why: str,
        tell: Callable[[Sequence[StillHeld]], None],
    ) -> None:
        """Let go of *devices* (None: all GPUs) for *seconds*, and *tell* once nothing is held, or who still does.

        A longer time that somebody asked for before stands.
        """
        self._let_go(devices, seconds, why)
        now_ns = self._clock.boottime_ns()
        self._asked.append(_Asked(devices, now_ns + LET_GO_NS_MAX, tell))
        self._settle(now_ns)

    def before_reset(
        self, devices: frozenset[str], tell: Callable[[Sequence[StillHeld]], None]
    ) -> None:
        """Let go of GPUs that are about to be reset by an instruction that was accepted."""
        self.release(devices, SECONDS_DEFAULT, "reset", tell)

    def heed_the_file(self) -> None:
        """Let go of what `gangline release` noted there while nobody answered: since this agent began to sample."""
        now_ns, released = self._clock.boottime_ns(), self._samplers.released()
        for address, until_ns, why in self._file.read(now_ns):
            if until_ns > released.get(address, 0):
                devices = None if address is None else frozenset((address,))
                self._let_go(devices, (until_ns - now_ns) / 1e9, why)

    def resume(self, devices: frozenset[str] | None) -> Sequence[str | None]:
        """Take *devices* back (None: all), and return those that had been let go of."""
        taken = [d for d in self._samplers.released() if devices is None or d in devices]
        if taken:
            self._samplers.resume(devices)
            self._note(taken, "resumed", "")
            self._avoid()
        return taken

    def released(self) -> list[Released]:
        """Return what is let go of now."""
        released = self._samplers.released().items()
        return [
            Released(address, until_ns, self._why.get(address, ""))
            for address, until_ns in sorted(released, key=lambda each: each[0] or "")
        ]

    @property
    def abandoned_count(self) -> int:
        """How many samplers were ever left behind in a driver."""
        return self._samplers.abandoned_count

    def troubles(self) -> Sequence[DeviceState]:
        """Return the devices with which not all is well, or was not a minute ago."""
        return self._samplers.states()

    def _let_go(self, devices: frozenset[str] | None, seconds: float, why: str) -> None:
        until_ns, before = self._clock.boottime_ns() + int(seconds * 1e9), self._samplers.released()
        if devices is None:
            if before.get(None, 0) < until_ns:
                self._samplers.release(None, seconds)
        elif new := frozenset(each for each in devices if before.get(each, 0) < until_ns):
            self._samplers.release(new, seconds)
        self._note([None] if devices is None else sorted(devices), "released", why)
        self._avoid()

    def _avoid(self) -> None:
        """Say which GPUs nobody is to touch; end an inventory that does, and have one read when they are fewer."""
        states = [each for each in self._samplers.states() if each.lane == GPU]
        unwell = {each.device for each in states if each.state.name in NOT_ENTERED}
        avoided = unwell | self._samplers.released().keys()
        whole = None in avoided or "" in avoided
        before = self.avoided
        self.avoided = None if whole else frozenset(each for each in avoided if each)
        inventory.interrupt(self.avoided)
        if not inventory.is_within(before, self.avoided):  # after a repair it may be another GPU
            self._teller.renew_inventory("GPUs that were left out may be asked again")

    def _note(self, addresses: Iterable[str | None], state: str, why: str) -> None:
        """Remember why, and tell it of each GPU."""
        for address in addresses:
            if state == "released":
                self._why[address] = why
            else:
                self._why.pop(address, None)
            words = f"{state}: {address or 'all GPUs'}{why and f' ({why})'}"
            log.info("%s", words, extra={"cause": f"gpu.{state}.{address or 'all'}"})
            for gpu in [address] if address else driver_gpus(self._roots.proc) or ["host"]:
                event = HealthEvent(device_kind="gpu", device=gpu, name="gpu.released")
                event.code, event.message = int(state == "resumed"), words
                self._teller.tell(event)
        self._file.write(self.released())

    def _forget_the_expired(self) -> None:
        """The samplers take back by themselves what is over."""
        released = self._samplers.released()
        if over := [address for address in self._why if address not in released]:
            self._note(over, "resumed", "its time is over")

    def _settle(self, now_ns: int) -> None:
        """Answer who asked, once nothing is held, or when the time is over."""
        for asked in list(self._asked):
            is_over = now_ns >= asked.until_ns
            if self._samplers.held(asked.devices) and not is_over:
                continue
            held = still_held(self._samplers, self._roots, self._nodes(), asked.devices)
            if held and not is_over:
                continue
            self._asked.remove(asked)
            asked.tell(held)

    # By itself -----------------------------------------------------------------------------

    def _leave_alone(self, event: HealthEvent) -> None:
        found = self._left_alone.take(event, self._clock.boottime_ns())
        if found:
            log.warning("GPU %s is left alone: %s", *found, extra={"cause": "gpu.left_alone"})
            self._samplers.leave_alone(*found)
            self._avoid()

    def _listed(self) -> frozenset[str]:
        return frozenset(filter(is_address, names_in(self._drivers_folder)))

    def _look_at_the_driver(self, now_ns: int) -> None:
        before, self._glanced = self._glanced, self._glance.look()
        if self._glanced != before:
            self._bound = self._listed()
        if self._glanced != before or self._unbinding.is_under_way:
            gone, back = self._unbinding.look(self._bound, now_ns)
            self._let_go_for_unbind(gone)
            self._take_back(back)

    def _keep_off_the_unbound(self, now_ns: int) -> None:
        """Let go anew of what has no driver yet as its time ends."""
        for address, until_ns in self._samplers.released().items():
            if address is None or self._why.get(address) != UNBIND:
                continue
            if until_ns - now_ns < RENEW_NS and self._unbinding.is_without(address):
                # the removal may still wait for another process: our handle would prolong that
                self._samplers.release(frozenset((address,)), SECONDS_DEFAULT)
                self._file.write(self.released())

    def _taken_off(self, address: str) -> None:
        now_ns = self._clock.boottime_ns()
        self._let_go_for_unbind(self._unbinding.taken_off((address,), now_ns))

    def _let_go_for_unbind(self, addresses: frozenset[str]) -> None:
        released = self._samplers.released()
        if None not in released and (new := addresses - released.keys()):
            self._let_go(new, SECONDS_DEFAULT, UNBIND)

    def _take_back(self, addresses: frozenset[str]) -> None:
        """What an operator released meanwhile stays so."""
        if ours := frozenset(a for a in addresses if self._why.get(a) == UNBIND):
            self.resume(ours)
