"""What is not well: devices, collectors and drivers that nobody enters, and when each is tried again.

A *unit* is what can be left out by itself: a device of a lane, one of its collectors, or, with neither, the lane's
driver as a whole.
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
#: What was left alone for what its driver said of it is tried so long after the last word, and after a trial in vain as
#: late as after so many: 80 s, then twice as long each time.
LEFT_ALONE_NS, LEFT_ALONE_TRIES = 60 * SECOND_NS, 4
#: What hangs again within this long goes on where its intervals were.
FORGET_NS = 600 * SECOND_NS
#: Two devices of one driver that hang within this long are that driver's hang.
TOGETHER_NS = 30 * SECOND_NS
#: A call that held its process for so long and returns shows that the driver answers: it is tried at once.
HELD_NS = 3 * SECOND_NS
#: How long an end of trouble is shown.
SHOWN_NS = 60 * SECOND_NS

Unit = tuple[str, str, str]  # lane, device, collector; either of the latter is empty, or both


class State(IntEnum):
    """How it stands with a unit; the number travels as `probe.state`."""

    WELL = 0
    HUNG = 1  # its call has not returned, and whoever made it is not yet left behind
    ABANDONED = 2  # a process that was left behind is still in it
    LEFT_ALONE = 3  # nobody enters it until it is tried again
    SLOW = 4  # it answers, too slowly for its neighbours
    TRIED = 5  # a process of its own tries it now
    RELEASED = 6  # of a GPU: somebody asked that it be let go of; no unit's state, only told


@dataclass(slots=True)
class Sick:
    """A unit that is not well, or was not lately."""

    unit: Unit
    state: State
    since_ns: int  # when the call began that did not return, at its last trial
    began_ns: int  # and when the first did
    tries: int = 0
    next_ns: int = 0
    collector: str = ""
    call: str = ""
    words: str = ""
    abandoned: int = 0  # the serial of the process that was left behind in it
    solo: int = 0  # the serial of the one that looks at it
    hung_ns: int = 0  # how long the call has taken, at the last look
    well_ns: int = 0  # when it was found well again

    @property
    def is_whole(self) -> bool:
        """Whether it is a lane's driver."""
        return not self.unit[1] and not self.unit[2]

    def note(self, place: Seen, now_ns: int) -> None:
        """Take over which call it is."""
        self.collector, self.call = place.collector, place.call
        if place.entered_ns:
            self.since_ns, self.hung_ns = place.entered_ns, now_ns - place.entered_ns

    def postpone(self, now_ns: int) -> None:
        """Try it again, later each time."""
        self.next_ns = now_ns + min(TRY_NS << min(self.tries, 10), TRY_NS_MAX)
        self.tries += 1
        if self.state in (State.TRIED, State.SLOW):
            self.state = State.LEFT_ALONE

    def let_go(self, now_ns: int) -> None:
        """The process that was left behind in it has ended."""
        self.abandoned = 0
        if self.state is State.ABANDONED:
            self.state = State.LEFT_ALONE
        if self.hung_ns > HELD_NS:
            self.next_ns = min(self.next_ns, now_ns + SECOND_NS)


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A unit that is not well, or was not a minute ago, for those who ask."""

    lane: str
    device: str  # as given to `ext.place.enter`; empty for a collector or the driver as a whole
    collector: str  # empty for the driver as a whole
    state: State
    call: str
    hung_seconds: float
    abandoned_count: int  # processes ever left behind in it
    next_try_ns: int  # boot time; 0: none is due
    words: str


class Ward:
    """The units that are not well, and for a while those that were not."""

    def __init__(self, lanes: Mapping[str, Mapping[str, bool]]) -> None:
        """*lanes*: name -> collector -> whether it can spare devices."""
        self.sick: dict[Unit, Sick] = {}
        self.released: dict[str | None, int] = {}  # GPUs let go of -> until when; None: all of them
        self._lanes = lanes
        self._well: dict[Unit, Sick] = {}
        self._ever: dict[Unit, int] = {}  # processes ever left behind in it

    def unit_of(self, lane: str, device: str, collector: str) -> Unit:
        """Return what has to be left out so that nobody enters this call again."""
        can_spare = lane == GPU or self._lanes[lane].get(collector, False)
        if device and can_spare and device not in self.spared(lane):
            return (lane, device, "")
        if lane == GPU and not device:
            return (lane, "", "")
        return (lane, "", collector)

    def spared(self, lane: str) -> frozenset[str]:
        """Return the devices of the lane that are not to be entered."""
        sick = {device for of, device, _ in self.sick if of == lane and device}
        released = {each for each in self.released if each is not None} if lane == GPU else set()
        return frozenset(sick | released)

    def left_out(self, lane: str) -> frozenset[str]:
        """Return the collectors of the lane that take no turn."""
        out = {collector for of, _, collector in self.sick if of == lane and collector}
        if lane == GPU and self.spared(lane):
            out |= {name for name, spares in self._lanes[lane].items() if not spares}
        return frozenset(out)

    def is_open(self, lane: str) -> bool:
        """Say whether the lane is to be sampled at all."""
        return (lane, "", "") not in self.sick and not (lane == GPU and None in self.released)

    def is_full(self, unit: Unit) -> bool:
        """Say whether there is no room for another unit."""
        return unit not in self.sick and len(self.sick) >= UNITS_MAX and bool(unit[1] or unit[2])

    def take_in(
        self, unit: Unit, state: State, place: Seen | None, now_ns: int, words: str
    ) -> Sick:
        """Note that a unit is not well: nobody enters it from now on."""
        sick = self.sick.get(unit)
        if sick is None:
            before = self._well.pop(unit, None)
            again = before is not None and now_ns - before.well_ns < FORGET_NS
            tries = before.tries if before is not None and again else 0
            began_ns = place.entered_ns if place is not None and place.entered_ns else now_ns
            sick = self.sick[unit] = Sick(unit, state, now_ns, began_ns, tries)
        sick.state, sick.words = state, words
        if place is not None:
            sick.note(place, now_ns)
        return sick

    def leave_behind(self, unit: Unit, serial: int) -> None:
        """Note that a process is stuck in it."""
        sick = self.sick[unit]
        sick.abandoned, sick.solo = serial, 0
        if sick.state is not State.SLOW:
            sick.state = State.ABANDONED
        self._ever[unit] = self._ever.get(unit, 0) + 1

    def discharge(self, sick: Sick, now_ns: int) -> None:
        """It is well again. Of a driver, its devices are then tried without delay."""
        del self.sick[sick.unit]
        sick.state, sick.well_ns, sick.hung_ns, sick.solo = State.WELL, now_ns, 0, 0
        self._well[sick.unit] = sick
        for each in self.sick.values() if sick.is_whole else ():
            if each.unit[0] == sick.unit[0]:
                each.next_ns = min(each.next_ns, now_ns)

    def try_now(self, lane: str, device: str | None, now_ns: int) -> None:
        """Let a device, or all of the lane with its driver, be tried without delay."""
        for (of, name, _), each in self.sick.items():
            if of == lane and device in (None, name):
                each.next_ns = min(each.next_ns, now_ns)

    def lately(self, whole: Unit, now_ns: int) -> list[Sick]:
        """Return the devices of a driver that began to hang a short time ago."""
        return [
            each
            for (lane, device, _), each in self.sick.items()
            if lane == whole[0] and device and whole[2] in ("", each.collector)
            if now_ns - each.since_ns < TOGETHER_NS and each.state is not State.SLOW
        ]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is unwell, released, or remembered."""
        return not (self.sick or self.released or self._well)

    def expire(self, now_ns: int) -> None:
        """Forget what was released or well for long enough."""
        for device in [each for each, until in self.released.items() if now_ns >= until]:
            del self.released[device]
        for unit in [u for u, each in self._well.items() if now_ns - each.well_ns > FORGET_NS]:
            del self._well[unit]
            self._ever.pop(unit, None)

    def ever(self, unit: Unit) -> int:
        """Return how many processes were ever left behind in it."""
        return self._ever.get(unit, 0)

    def states(self, now_ns: int) -> Iterator[DeviceState]:
        """Yield what is not well, and what was not a minute ago."""
        shown = [e for e in self._well.values() if now_ns - e.well_ns <= SHOWN_NS]
        for each in [*self.sick.values(), *shown]:
            lane, device, collector = each.unit
            yield DeviceState(
                lane,
                device,
                each.collector if device else collector,
                each.state,
                each.call,
                each.hung_ns / 1e9,
                self.ever(each.unit),
                each.next_ns if each.state is not State.WELL else 0,
                each.words,
            )
