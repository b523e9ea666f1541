"""Runs one turn of one collector: measures its duration and classifies its outcome; also in a thread with a deadline."""

from __future__ import annotations

import queue
import threading
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
#: A collector that skips samples reports its last outcome in every n-th of them.
NO_DATA_TURNS = 10


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

    @property
    def names_slow_devices(self) -> bool:
        """Say whether it overrides `slow_devices`."""
        return type(self).slow_devices is not Collector.slow_devices

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
# Calls that may not return: recorded in `ext.place` while they last, and left out where a device is
# spared.

#: What a place shows of a device's name.
NAME_BYTES_MAX = 63


def call_slot_name(name: str) -> str:
    """Return the name by which a device is recorded in the call slot, and named when it must be skipped."""
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


# ----------------------------------------------------------------------
# Turns that take seconds, in threads that the daemon can leave behind: the inventory's.
#
# What it waits for is a child of its own that it ends in time. Should its thread be stuck nevertheless, the daemon
# goes on without it, says so at every tick, and starts no second thread that would get stuck behind the first. What
# enters a driver is sampled in processes of its own (`agent/sampler/`).

#: Address space of a probe's thread; drivers' libraries use more than a few pages of it.
STACK_BYTES = 1 << 20

_STACK_SIZE_LOCK = threading.Lock()  # threading.stack_size is one value for the whole process


class DeadlineThread:
    """One collector's turns, taken in a thread of its own. `begin`, `poll` and `wait` never block
    longer than they are told to; all three belong to the daemon's thread.

    The collector's blocks are the daemon's from `poll` until the next `begin`.
    """

    def __init__(self, collector: Collector, clock: Clock, *, deadline_ns: int) -> None:
        """*deadline_ns*: a turn that has not returned by then is hung. Starts no thread yet."""
        self.collector = collector
        self.began_ns = 0  # of the turn that runs, or of the last one
        self.skipped = 0  # turns left out because the one before had not returned
        self.running = False  # a turn was begun and has not been taken
        self._clock = clock
        self._deadline_ns = deadline_ns
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._returned = threading.Event()
        self._result: CollectResult | None = None
        self._hung = False
        self._thread: threading.Thread | None = None

    @property
    def hung(self) -> bool:
        """Whether a turn is past its deadline and has not returned."""
        return self._hung and not self._returned.is_set()

    def begin(self, now_ns: int) -> bool:
        """Start a turn. Return False, and count it, if the one before has not been taken."""
        if self.running:
            self.skipped += 1
            return False
        if self._thread is None and not self._start():
            return False
        self.began_ns, self.running = now_ns, True
        self._returned.clear()
        self._requests.put(None)
        return True

    def poll(self, now_ns: int) -> CollectResult | None:
        """Return the turn that came back, or a hung one if it is past its deadline, else None.

        What comes back after it was given up as hung is thrown away: its readings are of no known
        time. After that the collector is taken up again.
        """
        if not self.running:
            return None
        if self._returned.is_set():
            late, self.running, self._hung = self._hung, False, False
            result, self._result = self._result, None
            return None if late else result
        waited_ns = now_ns - self.began_ns
        if waited_ns < self._deadline_ns:
            return None
        self._hung = True
        seconds, name = waited_ns / 1e9, self.collector.name
        message = f"did not return for {seconds:.1f} s in {name}"
        return CollectResult(name, (), seconds, CollectOutcome.HUNG, message)

    def wait(self, seconds_max: float) -> bool:
        """Wait for the turn that runs, if any, and return whether it is back. Not for a hung one."""
        if not self.running:
            return True
        return self._returned.wait(0 if self._hung else max(0.0, seconds_max))

    def _start(self) -> bool:
        """Start the thread; False when the host has none to give now."""
        thread = threading.Thread(
            target=self._serve, name=f"probe-{self.collector.name}", daemon=True
        )
        with _STACK_SIZE_LOCK:
            before = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            except RuntimeError:  # "can't start new thread": tried again at the next turn
                self.skipped += 1
                return False
            finally:
                threading.stack_size(before)
        self._thread = thread
        return True

    def _serve(self) -> None:
        while True:
            self._requests.get()
            self._result = run_collector(self.collector, self._clock)
            self._returned.set()
