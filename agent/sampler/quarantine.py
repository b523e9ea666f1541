"""Quarantine: devices, collectors and drivers that the samplers do not call, and when each is retried.

A *unit* is the smallest part that can be excluded: a device of a group, a collector of a group, or
the group's whole driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ...ext.place import Seen
from .collector_groups import GPU

SECOND_NS = 1_000_000_000
#: Units in quarantine at once. Beyond, the group's whole driver is excluded.
UNITS_MAX = 64
#: Delay before a retry, doubled after each failed retry, and its upper limit.
TRY_NS, TRY_NS_MAX = 5 * SECOND_NS, 600 * SECOND_NS
#: Delay after the driver last reported a fault of a GPU. A failed retry then counts as this number
#: of failed retries: 80 s, doubled each time.
QUARANTINE_NS, QUARANTINE_TRIES = 60 * SECOND_NS, 4
#: A unit that hangs again within this time continues with its last delay.
HISTORY_NS = 600 * SECOND_NS
#: If two devices of a driver hang within this time, the driver hangs.
SAME_DRIVER_NS = 30 * SECOND_NS
#: If a call returns after holding its process for longer than this, the unit is retried at once.
LONG_CALL_NS = 3 * SECOND_NS
#: Time for which a recovered unit is shown.
RECOVERED_SHOWN_NS = 60 * SECOND_NS

Unit = tuple[str, str, str]  # group, device, collector; device or collector is empty, or both


class QuarantineState(IntEnum):
    """State of a unit; the number is sent as `probe.state`."""

    WELL = 0
    HUNG = 1  # its call has not returned; the process is not abandoned yet
    ABANDONED = 2  # an abandoned process is still in it
    LEFT_ALONE = 3  # not called until the next retry
    SLOW = 4  # it responds, but too slowly for the other devices
    TRIED = 5  # a probe process calls it now
    RELEASED = 6  # a GPU that an operator released; only reported, never a unit's state


@dataclass(slots=True)
class QuarantinedUnit:
    """A unit in quarantine, or recently recovered."""

    unit: Unit
    state: QuarantineState
    since_ns: int  # start of the hanging call, at the last retry
    began_ns: int  # start of the first hanging call
    tries: int = 0
    next_try_ns: int = 0
    collector: str = ""
    call: str = ""
    message: str = ""
    abandoned_serial: int = 0  # serial of the process abandoned in it
    probe_serial: int = 0  # serial of its probe
    hung_ns: int = 0  # duration of the call, at the last check
    recovered_ns: int = 0  # time of recovery

    @property
    def is_driver(self) -> bool:
        """Whether it is a group's whole driver."""
        return not self.unit[1] and not self.unit[2]

    def update_call(self, call_state: Seen, now_ns: int) -> None:
        self.collector, self.call = call_state.collector, call_state.call
        if call_state.entered_ns:
            self.since_ns, self.hung_ns = call_state.entered_ns, now_ns - call_state.entered_ns

    def postpone(self, now_ns: int) -> None:
        """Schedule the next retry, with a longer delay each time."""
        self.next_try_ns = now_ns + min(TRY_NS << min(self.tries, 10), TRY_NS_MAX)
        self.tries += 1
        if self.state in (QuarantineState.TRIED, QuarantineState.SLOW):
            self.state = QuarantineState.LEFT_ALONE

    def abandoned_ended(self, now_ns: int) -> None:
        """Handle the end of the process that was abandoned in this unit."""
        self.abandoned_serial = 0
        if self.state is QuarantineState.ABANDONED:
            self.state = QuarantineState.LEFT_ALONE
        if self.hung_ns > LONG_CALL_NS:
            self.next_try_ns = min(self.next_try_ns, now_ns + SECOND_NS)


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A unit in quarantine, or recovered a moment ago, as reported."""

    group: str
    #: As passed to `ext.place.enter`; empty for a collector or the whole driver.
    device: str
    collector: str  # empty for the driver as a whole
    state: QuarantineState
    call: str
    hung_seconds: float
    abandoned_count: int  # processes ever abandoned in it
    next_try_ns: int  # boot time; 0: none
    message: str


class Quarantine:
    """The units in quarantine, and for a while the recovered units."""

    def __init__(self, groups: Mapping[str, Mapping[str, bool]]) -> None:
        """*groups*: name -> collector -> whether it can exclude devices."""
        self.units: dict[Unit, QuarantinedUnit] = {}
        self.released: dict[str | None, int] = {}  # GPU -> end of its release; None: all GPUs
        self._groups = groups
        self._recovered: dict[Unit, QuarantinedUnit] = {}
        self._abandoned_totals: dict[Unit, int] = {}  # processes ever abandoned in it

    def unit_of(self, group: str, device: str, collector: str) -> Unit:
        """Return the unit that must be excluded so that no process makes this call again."""
        can_exclude = group == GPU or self._groups[group].get(collector, False)
        if device and can_exclude and device not in self.excluded_devices(group):
            return (group, device, "")
        if group == GPU and not device:
            return (group, "", "")
        return (group, "", collector)

    def excluded_devices(self, group: str) -> frozenset[str]:
        """Return the devices that the group must not call."""
        quarantined = {
            device for unit_group, device, _ in self.units if unit_group == group and device
        }
        released = (
            {device for device in self.released if device is not None} if group == GPU else set()
        )
        return frozenset(quarantined | released)

    def excluded_collectors(self, group: str) -> frozenset[str]:
        """Return the collectors of the group that take no turn."""
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
        """Return whether the group may be sampled at all."""
        return (group, "", "") not in self.units and not (group == GPU and None in self.released)

    def is_full(self, unit: Unit) -> bool:
        """Return whether UNITS_MAX leaves no capacity for *unit*; a driver always fits."""
        return unit not in self.units and len(self.units) >= UNITS_MAX and bool(unit[1] or unit[2])

    def add(
        self, unit: Unit, state: QuarantineState, call_state: Seen | None, now_ns: int, message: str
    ) -> QuarantinedUnit:
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
        """Record that a process is stuck in *unit*."""
        quarantined = self.units[unit]
        quarantined.abandoned_serial, quarantined.probe_serial = serial, 0
        if quarantined.state is not QuarantineState.SLOW:
            quarantined.state = QuarantineState.ABANDONED
        self._abandoned_totals[unit] = self._abandoned_totals.get(unit, 0) + 1

    def mark_recovered(self, quarantined: QuarantinedUnit, now_ns: int) -> None:
        """Remove a unit from quarantine. After a driver, retry its devices at once."""
        del self.units[quarantined.unit]
        quarantined.state, quarantined.recovered_ns = QuarantineState.WELL, now_ns
        quarantined.hung_ns = quarantined.probe_serial = 0
        self._recovered[quarantined.unit] = quarantined
        for unit_state in self.units.values() if quarantined.is_driver else ():
            if unit_state.unit[0] == quarantined.unit[0]:
                unit_state.next_try_ns = min(unit_state.next_try_ns, now_ns)

    def try_now(self, group: str, device: str | None, now_ns: int) -> None:
        """Schedule a retry of a device at once; None: retry all units of the group."""
        for (unit_group, name, _), quarantined in self.units.items():
            if unit_group == group and device in (None, name):
                quarantined.next_try_ns = min(quarantined.next_try_ns, now_ns)

    def recent(self, driver: Unit, now_ns: int) -> list[QuarantinedUnit]:
        """Return the devices of a driver that started to hang within SAME_DRIVER_NS."""
        return [
            quarantined
            for (group, device, _), quarantined in self.units.items()
            if group == driver[0] and device and driver[2] in ("", quarantined.collector)
            if now_ns - quarantined.since_ns < SAME_DRIVER_NS
            and quarantined.state is not QuarantineState.SLOW
        ]

    @property
    def is_empty(self) -> bool:
        """Whether no unit is in quarantine, released or remembered."""
        return not (self.units or self.released or self._recovered)

    def expire(self, now_ns: int) -> None:
        """Drop expired releases, and units that recovered HISTORY_NS ago."""
        for device in [gpu for gpu, until in self.released.items() if now_ns >= until]:
            del self.released[device]
        for unit in [
            key
            for key, recovered in self._recovered.items()
            if now_ns - recovered.recovered_ns > HISTORY_NS
        ]:
            del self._recovered[unit]
            self._abandoned_totals.pop(unit, None)

    def abandoned_total(self, unit: Unit) -> int:
        """Return the number of processes ever abandoned in *unit*."""
        return self._abandoned_totals.get(unit, 0)

    def states(self, now_ns: int) -> Iterator[DeviceState]:
        """Yield the units in quarantine, and those that recovered up to RECOVERED_SHOWN_NS ago."""
        recently_recovered = [
            recovered
            for recovered in self._recovered.values()
            if now_ns - recovered.recovered_ns <= RECOVERED_SHOWN_NS
        ]
        for quarantined in [*self.units.values(), *recently_recovered]:
            group, device, collector = quarantined.unit
            yield DeviceState(
                group=group,
                device=device,
                collector=quarantined.collector if device else collector,
                state=quarantined.state,
                call=quarantined.call,
                hung_seconds=quarantined.hung_ns / 1e9,
                abandoned_count=self.abandoned_total(quarantined.unit),
                next_try_ns=quarantined.next_try_ns
                if quarantined.state is not QuarantineState.WELL
                else 0,
                message=quarantined.message,
            )
