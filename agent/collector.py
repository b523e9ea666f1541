"""Runs one turn of one collector: measures its duration and classifies its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ..contract.block import Block
from ..contract.signal import Pace
from ..ext import place
from .clock import Clock
from .events import EventPublisher
from .hardware.files import device_key

#: An error's words are cut here, so that one sensor cannot fill a log.
MESSAGE_CHARACTERS_MAX = 240
NO_DEVICES = frozenset[str]()


class NoData(Exception):
    """There is nothing of this kind on this host. Not a failure."""


class AccessDenied(Exception):
    """The host has it but will not show it; the words say what would open it."""


class CallTimeout(Exception):
    """A call of this collector's own thread has not returned; the words say which, and for how long."""


class RestartRequired(Exception):
    """This process can continue no more, and another can: it has a library loaded that nothing unloads.

    `run_collector` lets it through. A sampler ends on it, and another takes its lane over.
    """


class CollectOutcome(IntEnum):
    """How a turn ended; the number travels as `collector.outcome_state`."""

    OK = 0
    NO_DATA = 1
    BLIND = 2
    ERROR = 3
    HUNG = 4


class Collector:
    """One source of signals at one pace. A subclass sets `name` and `pace`, writes `collect`, and overrides what else it can do.

    A collector that reads through a driver sets `enters_driver`: it runs in a separate process that the daemon can
    abandon, and calls the driver between `ext.place.enter` and `leave`.
    One thread calls it, never two at once. But for `collect`
    and `record`, no method raises.
    """

    name: str
    pace: Pace
    enters_driver: bool = False
    #: What the last `collect` was not shown, and the line that would open it, as where one port of eight refuses; empty: it saw all.
    access_error: str = ""

    def collect(self) -> Sequence[Block]:
        """Fill and return the collector's own blocks, the same objects every turn: read them before the next.

        Raises NoData, AccessDenied or OSError and the like; `run_collector` judges.
        """
        raise NotImplementedError

    # ---- devices -----------------------------------------------------------------------------------

    def exclude(self, devices: frozenset[str]) -> None:
        """Do not enter the driver for *devices* from the next turn on; another call names others.

        They bear the names that were given to `ext.place.enter`. Their cells are missing, their rows remain. Called between
        turns, with the names of other collectors' devices too.
        """

    @property
    def can_exclude(self) -> bool:
        """Return whether it can leave some of its devices alone and continue with the others: whether it overrides `exclude`."""
        return type(self).exclude is not Collector.exclude

    def slow_devices(self) -> frozenset[str]:
        """Return the devices that had to be cut short again and again, by the names of `exclude`.

        They are given a sampler of their own, at a longer period, which asks this too: none, and they come back.
        """
        return NO_DEVICES

    # ---- between turns -----------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Make ready before it is its sampler's turn: load a library or open a driver, within `ext.place.enter` and `leave`,
        and without opening a device."""

    def idle(self, until_ns: int) -> None:
        """Do work between turns, such as samples at 10 Hz. Return at that boot time, soon after this process is
        called (`ext.place.call`), or at once if there is nothing to do."""

    @property
    def has_idle_work(self) -> bool:
        """Return whether it overrides `idle`."""
        return type(self).idle is not Collector.idle

    def skip(self) -> bool:
        """Skip the due turn if it would only repeat NO_DATA, and return whether it was skipped.
        Now and then it takes its turn all the same."""
        return False

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher, once, before the first turn, to report events between turns; start a thread if need be."""

    def close(self) -> None:
        """End what `start` started, within a second."""

    def record(self, seconds: int, bytes_max: int) -> bytes:
        """Return the last *seconds* of samples as `contract.recording` has them, not compressed; less time if they would be
        more than *bytes_max*. Enters no driver. Raises NoData."""
        raise NoData(f"{self.name} holds no samples")


class CollectResult(NamedTuple):
    """What came of a pass. Blocks are empty unless the outcome is OK, or BLIND to a part."""

    collector: str
    blocks: Sequence[Block]
    seconds: float
    outcome: CollectOutcome
    message: str = ""


_OUTCOMES = {
    NoData: CollectOutcome.NO_DATA,
    AccessDenied: CollectOutcome.BLIND,
    CallTimeout: CollectOutcome.HUNG,
}


def run_collector(collector: Collector, clock: Clock) -> CollectResult:
    """Run one pass. Never raises but RestartRequired: one broken sensor must not end the daemon."""
    began_ns = clock.boottime_ns()
    blocks: Sequence[Block] = ()
    message = ""
    try:
        blocks, outcome = collector.collect(), CollectOutcome.OK
        message = collector.access_error
        outcome = CollectOutcome.BLIND if message else outcome
    except RestartRequired:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a sensor raises is its outcome
        outcome = next(
            (o for kind, o in _OUTCOMES.items() if isinstance(error, kind)), CollectOutcome.ERROR
        )
        message = (
            f"{type(error).__name__}: {error}" if outcome is CollectOutcome.ERROR else str(error)
        )
        # A collector that stores its error would keep the frames of the turn, and by them all other collectors.
        error.__traceback__ = error.__context__ = None
    seconds = (clock.boottime_ns() - began_ns) / 1e9
    return CollectResult(collector.name, blocks, seconds, outcome, message[:MESSAGE_CHARACTERS_MAX])


# ----------------------------------------------------------------------
# Calls that may not return: told in `ext.place` while they last, and left out where a device is
# spared.

#: What a place shows of a device's name.
NAME_BYTES_MAX = 63


def call_slot_name(name: str) -> str:
    """Return the name by which a device is told to the place, and named when it must be spared."""
    return device_key(name, NAME_BYTES_MAX)


class _DriverCall:
    __slots__ = ("_call", "_device")

    def __init__(self, device: bytes, call: bytes) -> None:
        self._device, self._call = device, call

    def __enter__(self) -> None:
        place.enter(self._device, self._call)

    def __exit__(self, *_: object) -> None:
        place.leave()


def driver_call(device: str, call: str) -> _DriverCall:
    """Tell, within the context, that a call on *device* has begun and not returned. Not to be nested.

    *call*: what is called, as the one who mends it would look for it: `statvfs`, `ETHTOOL_GSTATS`, `read state`.
    """
    return _DriverCall(call_slot_name(device).encode(), call.encode(errors="replace"))


class ExcludingCollector(Collector):
    """A collector that asks `is_excluded` before it enters a device."""

    _excluded = NO_DEVICES

    def exclude(self, devices: frozenset[str]) -> None:
        """Leave these devices alone from the next turn on, and no others."""
        self._excluded = devices

    def is_excluded(self, device: str) -> bool:
        """Return whether no call on *device* may be made."""
        return bool(self._excluded) and call_slot_name(device) in self._excluded
