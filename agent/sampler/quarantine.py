"""Quarantine: devices, collectors and drivers that the samplers do not call, and when each is retried.

A *unit* is the smallest part that can be excluded: a device of a lane, one of its collectors, or the lane's whole driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ...ext.place import Seen
from .messages import GPU

SECOND_NS = 1_000_000_000
#: What can be unwell at once and is remembered; past it the lane's driver as a whole is left out.
UNITS_MAX = 64
#: After each trial in vain twice as long, at most the latter.
TRY_NS, TRY_NS_MAX = 5 * SECOND_NS, 600 * SECOND_NS
#: What was skipped for what its driver said of it is tried this long after the last word, and after a trial in vain as
#: late as after this many: 80 s, then twice as long each time.
QUARANTINE_NS, QUARANTINE_TRIES = 60 * SECOND_NS, 4
#: What hangs again within this long continues where its intervals were.
HISTORY_NS = 600 * SECOND_NS
#: Two devices of one driver that hang within this long are that driver's hang.
SAME_DRIVER_NS = 30 * SECOND_NS
#: A call that held its process for this long and returns shows that the driver answers: it is tried at once.
LONG_CALL_NS = 3 * SECOND_NS
#: How long an end of trouble is shown.
RECOVERED_SHOWN_NS = 60 * SECOND_NS

Unit = tuple[str, str, str]  # lane, device, collector; either of the latter is empty, or both


class QuarantineState(IntEnum):
    """The state of a unit; the number is sent as `probe.state`."""

    WELL = 0
    HUNG = 1  # its call has not returned, and anyone who made it is not yet left behind
    ABANDONED = 2  # a process that was abandoned is still in it
    LEFT_ALONE = 3  # nobody enters it until it is tried again
    SLOW = 4  # it answers, too slowly for its neighbours
    TRIED = 5  # a process of its own tries it now
    RELEASED = 6  # of a GPU: somebody asked to release it; no unit's state, only reported


@dataclass(slots=True)
class QuarantinedUnit:
    """A unit that is not well, or was not lately."""

    unit: Unit
    state: QuarantineState
    since_ns: int  # when the call began that did not return, at its last trial
    began_ns: int  # and when the first did
    tries: int = 0
    next_try_ns: int = 0
    collector: str = ""
    call: str = ""
    message: str = ""
    abandoned_serial: int = 0  # the serial of the process that was abandoned in it
    probe_serial: int = 0  # the serial of the one that looks at it
    hung_ns: int = 0  # how long the call has taken, at the last look
    recovered_ns: int = 0  # when it was found well again

    @property
    def is_driver(self) -> bool:
        """Whether it is a lane's driver."""
        return not self.unit[1] and not self.unit[2]

    def update_call(self, call_state: Seen, now_ns: int) -> None:
        """Take over which call it is."""
        self.collector, self.call = call_state.collector, call_state.call
        if call_state.entered_ns:
            self.since_ns, self.hung_ns = call_state.entered_ns, now_ns - call_state.entered_ns

    def postpone(self, now_ns: int) -> None:
        """Try it again, later each time."""
        self.next_try_ns = now_ns + min(TRY_NS << min(self.tries, 10), TRY_NS_MAX)
        self.tries += 1
        if self.state in (QuarantineState.TRIED, QuarantineState.SLOW):
            self.state = QuarantineState.LEFT_ALONE

    def abandoned_ended(self, now_ns: int) -> None:
        """The process that was abandoned in it has ended."""
        self.abandoned_serial = 0
        if self.state is QuarantineState.ABANDONED:
            self.state = QuarantineState.LEFT_ALONE
        if self.hung_ns > LONG_CALL_NS:
            self.next_try_ns = min(self.next_try_ns, now_ns + SECOND_NS)


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A unit that is not well, or was not a minute ago, for those who ask."""

    group: str
    device: (
        str  # as given to `ext.call_state.enter`; empty for a collector or the driver as a whole
    )
    collector: str  # empty for the driver as a whole
    state: QuarantineState
    call: str
    hung_seconds: float
    abandoned_count: int  # processes ever left behind in it
    next_try_ns: int  # boot time; 0: none is due
    message: str


class Quarantine:
    """The units that are not well, and for a while those that were not."""

    def __init__(self, groups: Mapping[str, Mapping[str, bool]]) -> None:
        """*groups*: name -> collector -> whether it can spare devices."""
        self.units: dict[Unit, QuarantinedUnit] = {}
        self.released: dict[str | None, int] = {}  # GPUs release -> until when; None: all of them
        self._groups = groups
        self._recovered: dict[Unit, QuarantinedUnit] = {}
        self._abandoned_totals: dict[Unit, int] = {}  # processes ever left behind in it

    def unit_of(self, group: str, device: str, collector: str) -> Unit:
        """Return what has to be left out so that nobody enters this call again."""
        can_exclude = group == GPU or self._groups[group].get(collector, False)
        if device and can_exclude and device not in self.excluded_devices(group):
            return (group, device, "")
        if group == GPU and not device:
            return (group, "", "")
        return (group, "", collector)

    def excluded_devices(self, group: str) -> frozenset[str]:
        """Return the devices of the lane that are not to be entered."""
        quarantined = {
            device for unit_group, device, _ in self.units if unit_group == group and device
        }
        released = {each for each in self.released if each is not None} if group == GPU else set()
        return frozenset(quarantined | released)

    def excluded_collectors(self, group: str) -> frozenset[str]:
        """Return the collectors of the lane that take no turn."""
        excluded = {
            collector
            for unit_group, _, collector in self.units
            if unit_group == group and collector
        }
        if group == GPU and self.excluded_devices(group):
            excluded |= {
                name for name, can_exclude in self._groups[group].items() if not can_exclude
            }
        return frozenset(excluded)

    def is_open(self, group: str) -> bool:
        """Return whether the lane must be sampled at all."""
        return (group, "", "") not in self.units and not (group == GPU and None in self.released)

    def is_full(self, unit: Unit) -> bool:
        """Return whether there is no room for another unit."""
        return unit not in self.units and len(self.units) >= UNITS_MAX and bool(unit[1] or unit[2])

    def add(
        self, unit: Unit, state: QuarantineState, call_state: Seen | None, now_ns: int, message: str
    ) -> QuarantinedUnit:
        """Note that a unit is not well: nobody enters it from now on."""
        quarantined = self.units.get(unit)
        if quarantined is None:
            before = self._recovered.pop(unit, None)
            is_repeat = before is not None and now_ns - before.recovered_ns < HISTORY_NS
            tries = before.tries if before is not None and is_repeat else 0
            began_ns = (
                call_state.entered_ns
                if call_state is not None and call_state.entered_ns
                else now_ns
            )
            quarantined = self.units[unit] = QuarantinedUnit(unit, state, now_ns, began_ns, tries)
        quarantined.state, quarantined.message = state, message
        if call_state is not None:
            quarantined.update_call(call_state, now_ns)
        return quarantined

    def mark_abandoned(self, unit: Unit, serial: int) -> None:
        """Note that a process is stuck in it."""
        quarantined = self.units[unit]
        quarantined.abandoned_serial, quarantined.probe_serial = serial, 0
        if quarantined.state is not QuarantineState.SLOW:
            quarantined.state = QuarantineState.ABANDONED
        self._abandoned_totals[unit] = self._abandoned_totals.get(unit, 0) + 1

    def mark_recovered(self, quarantined: QuarantinedUnit, now_ns: int) -> None:
        """It is well again. Of a driver, its devices are then tried without delay."""
        del self.units[quarantined.unit]
        (
            quarantined.state,
            quarantined.recovered_ns,
            quarantined.hung_ns,
            quarantined.probe_serial,
        ) = QuarantineState.WELL, now_ns, 0, 0
        self._recovered[quarantined.unit] = quarantined
        for each in self.units.values() if quarantined.is_driver else ():
            if each.unit[0] == quarantined.unit[0]:
                each.next_try_ns = min(each.next_try_ns, now_ns)

    def try_now(self, group: str, device: str | None, now_ns: int) -> None:
        """Let a device, or all of the lane with its driver, be tried without delay."""
        for (unit_group, name, _), each in self.units.items():
            if unit_group == group and device in (None, name):
                each.next_try_ns = min(each.next_try_ns, now_ns)

    def recent(self, driver: Unit, now_ns: int) -> list[QuarantinedUnit]:
        """Return the devices of a driver that began to hang a short time ago."""
        return [
            each
            for (group, device, _), each in self.units.items()
            if group == driver[0] and device and driver[2] in ("", each.collector)
            if now_ns - each.since_ns < SAME_DRIVER_NS and each.state is not QuarantineState.SLOW
        ]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is unwell, released, or remembered."""
        return not (self.units or self.released or self._recovered)

    def expire(self, now_ns: int) -> None:
        """Forget what was released or well for long enough."""
        for device in [each for each, until in self.released.items() if now_ns >= until]:
            del self.released[device]
        for unit in [
            u for u, each in self._recovered.items() if now_ns - each.recovered_ns > HISTORY_NS
        ]:
            del self._recovered[unit]
            self._abandoned_totals.pop(unit, None)

    def abandoned_total(self, unit: Unit) -> int:
        """Return how many processes were ever left behind in it."""
        return self._abandoned_totals.get(unit, 0)

    def states(self, now_ns: int) -> Iterator[DeviceState]:
        """Yield what is not well, and what was not a minute ago."""
        recently_recovered = [
            e for e in self._recovered.values() if now_ns - e.recovered_ns <= RECOVERED_SHOWN_NS
        ]
        for each in [*self.units.values(), *recently_recovered]:
            group, device, collector = each.unit
            yield DeviceState(
                group,
                device,
                each.collector if device else collector,
                each.state,
                each.call,
                each.hung_ns / 1e9,
                self.abandoned_total(each.unit),
                each.next_try_ns if each.state is not QuarantineState.WELL else 0,
                each.message,
            )
