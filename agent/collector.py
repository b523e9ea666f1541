"""A turn: one pass of one collector, timed and judged in one place for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from ..contract.block import Block
from ..contract.signal import Pace
from ..ext import place
from .clock import Clock
from .hardware.files import device_key

#: An error's words are cut here, so that one sensor cannot fill a log.
MESSAGE_CHARACTERS_MAX = 240


class NoData(Exception):
    """There is nothing of this kind on this host. Not a failure."""


class AccessDenied(Exception):
    """The host has it but will not show it; the words say what would open it."""


class CallTimeout(Exception):
    """A call of this collector's own thread has not returned; the words say which, and for how long."""


class RestartRequired(Exception):
    """This process can go on no more, and another can: it has a library loaded that nothing unloads.

    `run_collector` lets it through. A sampler ends on it, and another takes its lane over.
    """


class CollectOutcome(IntEnum):
    """How a turn ended; the number travels as `collector.outcome_state`."""

    OK = 0
    NO_DATA = 1
    BLIND = 2
    ERROR = 3
    HUNG = 4


class Collector(Protocol):
    """One source of signals at one pace.

    `collect` fills and returns the collector's own blocks, the same objects every turn: read them
    before the next turn. It raises NoData, AccessDenied or OSError and the like; `run_collector` judges.
    A collector that reads through a driver sets `enters_driver`: it is called in a process of its
    own that the daemon can leave behind, and enters the driver between `ext.place.enter` and `leave`.
    """

    @property
    def name(self) -> str: ...
    @property
    def pace(self) -> Pace: ...
    @property
    def enters_driver(self) -> bool: ...
    def collect(self) -> Sequence[Block]: ...


class SupportsAccessError(Protocol):
    """A collector that may see a part and be blind to the rest: one port of eight refuses, say."""

    @property
    def access_error(self) -> str:
        """What the last `collect` was not shown, and the line that would open it; empty: it saw all."""
        ...


@runtime_checkable
class SupportsExclude(Protocol):
    """A collector that can leave some of its devices alone and go on with the others."""

    def exclude(self, devices: frozenset[str]) -> None:
        """Do not enter the driver for *devices* from the next turn on; another call names others.

        They bear the names that were given to `ext.place.enter`. Their cells are missing, their rows
        remain. Called between turns, with the names of other collectors' devices too. Never raises.
        """
        ...


@runtime_checkable
class SupportsSlowDevices(Protocol):
    """A collector that measures its devices, and cuts short the one that would make its neighbours wait."""

    def slow_devices(self) -> frozenset[str]:
        """Return those that had to be cut short again and again, by the names of `SupportsExclude`. Never raises.

        They are given a sampler of their own, at a longer period, which asks this too: none, and they come back.
        """
        ...


@runtime_checkable
class SupportsIdle(Protocol):
    """A collector that has work of its own between the turns of its sampler: samples at 10 Hz."""

    @property
    def name(self) -> str: ...
    def idle(self, until_ns: int) -> None:
        """Return at that boot time, soon after this process is called (`ext.place.call`), or at once where there is
        nothing to do. Never raises."""
        ...


@runtime_checkable
class SupportsSkip(Protocol):
    """A collector that knows when a turn is not worth its cost."""

    def skip(self) -> bool:
        """Pass over the turn that is due, and say whether it does: it would say NO_DATA as the last one did, without a
        look at anything. Now and then it takes its turn all the same. Never raises."""
        ...


@runtime_checkable
class SupportsWarmUp(Protocol):
    """A collector that can make ready before it is its sampler's turn: load a library, open a driver."""

    def warm_up(self) -> None:
        """Do so, within `ext.place.enter` and `leave`, and without opening a device. Never raises."""
        ...


@runtime_checkable
class SupportsRecording(Protocol):
    """A collector that holds the samples of the last minutes."""

    def record(self, seconds: int, bytes_max: int) -> bytes:
        """Return the last *seconds* of samples as `contract.recording` has them, not compressed; less time if they would be
        more than *bytes_max*. Enters no driver. Raises NoData."""
        ...


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
        # of `SupportsAccessError`; isinstance of a protocol costs more than some turns
        message = getattr(collector, "access_error", "")
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
    """Return the name by which a device is told to the place, and named when it is to be spared."""
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


class ExcludesDevices:
    """A collector's `exclude` (`agent.collector.SupportsExclude`), and what it asks before it enters a device."""

    _excluded: frozenset[str] = frozenset()

    def exclude(self, devices: frozenset[str]) -> None:
        """Leave these devices alone from the next turn on, and no others."""
        self._excluded = devices

    def is_excluded(self, device: str) -> bool:
        """Say whether no call on *device* may be made."""
        return bool(self._excluded) and call_slot_name(device) in self._excluded
