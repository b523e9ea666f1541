"""Letting go of GPUs so that they can be repaired: on command, and by itself when the driver is taken off one.

An open device node defeats a reset, a MIG change and an unload of the driver. What is let go of is taken back at its
expiry, on command, or when the driver is bound to the GPU again.

Signs that a driver is being taken off a GPU, all of them heeded: NVML's own event; the line of kernel-open/nvidia's
nv-pci.c by which it says that it waits, in steps of half a second, until nobody has the GPU open; and sysfs, where the
kernel removes the driver's link to the device before it calls the driver's `remove` (drivers/base/dd.c). The uevents
`unbind` and `remove` come after that, which is too late.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..ext.hostfiles import Glance
from ..fingerprints.wire.telemetry_pb2 import HealthEvent
from . import inventory
from .clock import Clock
from .hardware.files import names_in
from .hardware.nvml import driver_gpus
from .hardware.roots import Roots
from .holding import DeviceState, Samplers, StillHeld, still_held
from .left_alone import LeftAlone, address_of, is_address, reason_of
from .mailbox import Mailbox
from .released import Released, ReleasedFile
from .unbinding import Unbinding, is_put_on, is_taken_off

SECOND_NS = 1_000_000_000
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
#: States of a device that nobody but the samplers' own trials is to enter (`agent.sampler.ward.State`). One that is
#: HUNG is not yet: it may only be slow to open.
NOT_ENTERED = frozenset(("ABANDONED", "LEFT_ALONE", "SLOW", "TRIED"))
GPU = "gpu"  # their lane
NOBODY: frozenset[str] = frozenset()
UNBIND = "the driver is being taken off it"

log = logging.getLogger(__name__)


class Told(Protocol):
    """What is needed of `agent.listening.Teller`."""

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
