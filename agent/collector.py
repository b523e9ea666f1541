"""The base class of collectors, and turns: their duration, outcome and deadline."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..contract.block import Block
from ..contract.signal import Pace
from ..ext import place
from .clock import Clock
from .events import EventPublisher
from .hardware.files import device_key

#: An error's message is cut to this length, so that a sensor cannot fill a log.
MESSAGE_CHARACTERS_MAX = 240
NO_DEVICES = frozenset[str]()
#: A collector that skips turns still takes every n-th turn, to report its outcome.
NO_DATA_TURNS = 10

#: Bytes of a device's name that a call slot holds.
NAME_BYTES_MAX = 63
#: Stack of the thread; drivers' libraries use more than a few pages.
STACK_BYTES = 1 << 20
_STACK_SIZE_LOCK = threading.Lock()  # threading.stack_size applies to the whole process


class NoData(Exception):
    """This host has nothing of this kind. Not a failure."""


class AccessDenied(Exception):
    """The host has the source but denies access; the message names the remedy."""


class CallTimeout(Exception):
    """A call in this collector's own thread has not returned; the message has the details."""


class RestartRequired(Exception):
    """Only another process can continue: this process has loaded a library that cannot be unloaded.

    `run_collector` raises it. A sampler ends after it, and another takes over its group.
    """


class CollectOutcome(IntEnum):
    """How a turn ended; the number is sent as `collector.outcome_state`."""

    OK = 0
    NO_DATA = 1
    BLIND = 2
    ERROR = 3
    HUNG = 4


class Collector:
    """A source of signals at a pace. A subclass sets `name`, which ends in the pace, and implements `collect`.

    A collector that reads through a driver sets `enters_driver`: it runs in a separate process that
    the daemon can abandon, and calls the driver between `ext.place.enter` and `leave`. Only a
    single thread at a time calls it. Only `collect` and `record` raise.
    """

    name: str
    enters_driver: bool = False
    #: Part that the last `collect` could not read (a port of eight, say), with the remedy; else "".
    access_error: str = ""

    if TYPE_CHECKING:
        pace: Pace  # a subclass whose name does not end in its pace sets it
    else:

        @cached_property
        def pace(self) -> Pace:
            return Pace(self.name.rpartition("_")[2])

    def collect(self) -> Sequence[Block]:
        """Fill and return the collector's blocks. The next turn refills the same objects.

        Raises NoData, AccessDenied, OSError and other errors; `run_collector` classifies them.
        """
        raise NotImplementedError

    def exclude(self, devices: frozenset[str]) -> None:
        """From the next turn on call the driver for all devices except *devices*.

        *devices* has names as passed to `ext.place.enter`, also of other collectors' devices.
        Excluded devices keep their rows, without cells. Called between turns.
        """

    @property
    def can_exclude(self) -> bool:
        """Return whether it overrides `exclude`, and so can continue without some devices."""
        return type(self).exclude is not Collector.exclude

    def slow_devices(self) -> frozenset[str]:
        """Return the devices that were repeatedly cut short, by the names of `exclude`.

        They get a sampler of their own with a longer period; it calls this too, and they return to
        their group when it is empty.
        """
        return NO_DEVICES

    @property
    def names_slow_devices(self) -> bool:
        return type(self).slow_devices is not Collector.slow_devices

    def warm_up(self) -> None:
        """Load a library or open a driver before the first turn, but do not open a device.

        Calls into a driver are between `ext.place.enter` and `leave`.
        """

    def idle(self, until_ns: int) -> None:
        """Do work between turns, such as samples at 10 Hz.

        Return at *until_ns* (boot time), soon after this process is notified (`ext.place.call`), or
        at once if there is no work.
        """

    @property
    def has_idle_work(self) -> bool:
        return type(self).idle is not Collector.idle

    def skip(self) -> bool:
        """Skip the due turn if it would only repeat NO_DATA; return whether it was skipped.

        Every NO_DATA_TURNS-th turn is not skipped.
        """
        return False

    def start(self, publisher: EventPublisher) -> None:
        """Start reporting events between turns, perhaps in a thread. Called once, before them."""

    def close(self) -> None:
        """End the work of `start`, within a second."""

    def record(self, seconds: int, bytes_max: int) -> bytes:
        """Return the last *seconds* of samples in the form of `contract.recording`, uncompressed.

        Less time if they exceed *bytes_max*. Does not call a driver. Raises NoData.
        """
        raise NoData(f"{self.name} holds no samples")


class CollectResult(NamedTuple):
    """Result of a turn. Blocks are empty unless the outcome is OK or partly BLIND."""

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
    """Run a turn. Raises only RestartRequired: a broken sensor must not end the daemon."""
    began_ns = clock.boottime_ns()
    blocks: Sequence[Block] = ()
    message = ""
    try:
        blocks, outcome = collector.collect(), CollectOutcome.OK
        message = collector.access_error
        outcome = CollectOutcome.BLIND if message else outcome
    except RestartRequired:
        raise
    except Exception as error:  # noqa: BLE001 - any exception of a sensor is an outcome
        outcome = next(
            (known_outcome for kind, known_outcome in _OUTCOMES.items() if isinstance(error, kind)),
            CollectOutcome.ERROR,
        )
        message = (
            f"{type(error).__name__}: {error}" if outcome is CollectOutcome.ERROR else str(error)
        )
        # A stored error would keep the turn's frames alive, and by them all other collectors.
        error.__traceback__ = error.__context__ = None
    seconds = (clock.boottime_ns() - began_ns) / 1e9
    return CollectResult(collector.name, blocks, seconds, outcome, message[:MESSAGE_CHARACTERS_MAX])


def call_slot_name(name: str) -> str:
    """Return the device's name in a call slot, which is also its name for `exclude`."""
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
    """Return a context in which a call on *device* is recorded as unfinished. Cannot be nested.

    *call* names the call for the operator: `statvfs`, `ETHTOOL_GSTATS`, `read state`.
    """
    return _DriverCall(call_slot_name(device).encode(), call.encode(errors="replace"))


class ExcludingCollector(Collector):
    """A collector that checks `is_excluded` before it calls a device's driver."""

    _excluded = NO_DEVICES

    def exclude(self, devices: frozenset[str]) -> None:
        self._excluded = devices

    def is_excluded(self, device: str) -> bool:
        return bool(self._excluded) and call_slot_name(device) in self._excluded


class DeadlineThread:
    """Runs a collector's turns in a thread. All methods are for the daemon's thread.

    `begin` and `poll` never block, `wait` blocks up to its limit. From `poll` until the next
    `begin` the daemon owns the collector's blocks.
    """

    def __init__(self, collector: Collector, clock: Clock, *, deadline_ns: int) -> None:
        """*deadline_ns*: limit after which a turn is hung. Starts no thread yet."""
        self.collector = collector
        self.began_ns = 0  # start of the present or last turn
        self.skipped = 0  # turns skipped because the previous turn had not returned
        self.running = False  # a turn was begun, and `poll` has not returned it
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
        """Start a turn; return False and count a skip if the previous turn was not polled."""
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
        """Return the finished turn, a HUNG result after the deadline, else None.

        A result that comes after the deadline is discarded, because the time of its readings is
        unknown. The collector can then be used again.
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
        """Wait for the present turn; return whether it finished. Does not wait for a hung turn."""
        if not self.running:
            return True
        return self._returned.wait(0 if self._hung else max(0.0, seconds_max))

    def _start(self) -> bool:
        """Start the thread; False if the host cannot start a thread now."""
        thread = threading.Thread(
            target=self._serve, name=f"probe-{self.collector.name}", daemon=True
        )
        with _STACK_SIZE_LOCK:
            before = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            except RuntimeError:  # "can't start new thread": the next turn tries again
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
