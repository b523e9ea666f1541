"""What a sampler does: turns on the grid of boot time, one after another, each round in one message."""

from __future__ import annotations

import gc
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ...contract.signal import PERIOD_SECONDS
from ...contract.wire import telemetry_pb2
from ...ext import place, process
from ..clock import Clock, Schedule
from ..collector import Collector, Passing, Resting, Sparing, StartAnew, Timing, Warming, take_turn
from ..events import Listening, Teller
from ..self_metrics import share_bytes
from .messages import (
    NOBODY,
    CodecError,
    End,
    Inbox,
    Lanes,
    Order,
    RoundEncoder,
    Task,
    Timed,
    Warm,
    decode_order,
    encode_event,
    encode_inventory,
)

SECOND_NS = 1_000_000_000
#: The schedule's name for the message of each second, be there a turn in it or not: who says nothing is stuck.
BEAT = ""
#: What a process costs in memory is looked at in every so many rounds: the kernel walks all its pages for it.
MEMORY_ROUNDS = 300

log = logging.getLogger(__name__)


class AllBut(frozenset[str]):
    """Every name but one, of names known and unknown; iterating gives those that are known.

    The driver as a whole, whose name is empty, is not among them.
    """

    kept: str

    @classmethod
    def of(cls, kept: str, known: Iterable[str]) -> AllBut:
        """Return all names but *kept*."""
        made = cls(frozenset(known) - {kept})
        made.kept = kept
        return made

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        return name not in ("", self.kept)


class _Sink:
    """Where a sampler's `Teller` puts its events: the way to the daemon, which has the disk."""

    def __init__(self, say: Callable[[bytes], bool]) -> None:
        self._say = say

    def put(self, event: telemetry_pb2.HealthEvent) -> bool:
        return self._say(encode_event(event))


class _Telling(Teller):
    """A teller that hands on at once what `Teller` keeps for the next tick."""

    def __init__(self, clock: Clock, say: Callable[[bytes], bool]) -> None:
        super().__init__(clock, _Sink(say), lambda: None)
        self._say = say

    def renew_inventory(self, why: str) -> None:
        self._say(encode_inventory(why))


class Sampler:
    """Takes orders, and the turns of its lane when they are due. For one thread; never raises.

    Its clock is handed in, as is the way to the daemon: the same object runs in a process of its own
    and, an hour in a second, in a test.
    """

    def __init__(
        self,
        lanes: Lanes,
        clock: Clock,
        say: Callable[[bytes], bool],
        cost: Callable[[bool], tuple[float, int]] = lambda _: (0.0, 0),
        renamed: Callable[[str], None] = lambda _: None,
        say_at_once: Callable[[bytes], bool] | None = None,
    ) -> None:
        """*say* sends a message, or returns False when there is no room; *say_at_once* wakes the daemon for it.
        *cost*: CPU seconds and, when it is told so, bytes of memory (0: as before). *renamed* is told what this
        sampler has become."""
        self._lanes, self._clock, self._say = lanes, clock, say
        self._cost, self._renamed = cost, renamed
        self._teller = _Telling(clock, say_at_once or say)
        every = [each.name for collectors in lanes.values() for each in collectors]
        self._encoder = RoundEncoder(every)
        self._task: Task | None = None
        self._collectors: dict[str, Collector] = {}
        #: Collectors that have work of their own between turns.
        self.resting: Sequence[Resting] = ()
        self._timing: Sequence[Timing] = ()
        self._passing: dict[str, Passing] = {}
        self._listening: set[str] = set()
        self._schedule = Schedule({})
        self._rounds = self._dropped = self._memory_bytes = 0
        self.ended = False
        self.anew = False  # it ended because only another process can go on

    def next_ns(self) -> int | None:
        """Return when the next turn is; None while there is no task."""
        return None if self._task is None else self._schedule.next_ns()

    def obey(self, order: Order) -> None:
        """Do as the daemon says, from now on."""
        if isinstance(order, End):
            self.ended = True
        elif isinstance(order, Warm):
            self._warm()
        else:
            self._take(order)

    def _warm(self) -> None:
        for collector in (each for those in self._lanes.values() for each in those):
            if isinstance(collector, Warming):
                self._guarded(collector, collector.warm)
        self._tell([], 0, look_at_memory=True)

    def _take(self, task: Task) -> None:
        if self._task is None:
            self._renamed(task.lane)
        self._task = task
        chosen = {each.name: each for each in self._lanes[task.lane] if _has_turns(each, task)}
        spared: frozenset[str] = task.spared
        if task.only_device:
            spared = AllBut.of(task.only_device, task.spared)
        for collector in chosen.values():
            if isinstance(collector, Sparing):
                self._guarded(collector, collector.spare, spared)
            if not task.only_device:
                self._listen(collector)
        periods = _periods(chosen.values(), task.period_ns)
        if periods != self._schedule.periods_ns:
            self._schedule = Schedule(periods)
        self._collectors = chosen
        # asked once: isinstance of a protocol, each second of each collector, cost more than their turns
        self.resting = [each for each in chosen.values() if isinstance(each, Resting)]
        self._timing = [each for each in chosen.values() if isinstance(each, Timing)]
        self._passing = {name: each for name, each in chosen.items() if isinstance(each, Passing)}

    def _listen(self, collector: Collector) -> None:
        """Have it tell. In a trial nobody hears: what is told there would count as told."""
        if isinstance(collector, Listening) and collector.name not in self._listening:
            self._listening.add(collector.name)
            self._guarded(collector, collector.listen, self._teller)

    def _guarded(self, collector: Collector, call: Callable[..., object], *given: Any) -> None:
        place.collector(collector.name.encode())
        try:
            call(*given)
        except Exception:
            cause = f"collector.{collector.name}.sampler"
            log.exception("collector %s fails", collector.name, extra={"cause": cause})
        place.collector(b"")

    def tick(self) -> None:
        """Take the turns that are due now, if any, and send them."""
        now_ns = self._clock.boottime_ns()
        due = self._schedule.due(now_ns) if self._task else []
        if not due:
            return
        try:
            turns = [self._turn(self._collectors[name]) for name in due if not self._passes(name)]
        except StartAnew as why:
            log.warning("%s: another sampler goes on", why, extra={"cause": "sampler.anew"})
            self.ended = self.anew = True
            return
        place.collector(b"")
        self._rounds += 1
        self._tell(turns, now_ns // SECOND_NS * SECOND_NS, self._rounds % MEMORY_ROUNDS == 2)

    def _passes(self, name: str) -> bool:
        return name == BEAT or (name in self._passing and self._passing[name].passes())

    def _turn(self, collector: Collector) -> Timed:
        place.collector(collector.name.encode())
        began_ns = self._clock.boottime_ns()
        return Timed(began_ns, take_turn(collector, self._clock))

    def _tell(self, turns: Sequence[Timed], grid_ns: int, look_at_memory: bool) -> None:
        seconds, memory = self._cost(look_at_memory)
        self._memory_bytes = memory or self._memory_bytes
        slow = NOBODY.union(*[each.slow_devices() for each in self._timing])
        counts = (grid_ns, seconds, self._memory_bytes, self._dropped)
        try:
            sent = self._say(self._encoder.encode(*counts, turns, slow))
        except CodecError:
            log.exception("a round cannot be sent", extra={"cause": "sampler.round"})
            sent = False
        if not sent:
            self._dropped += 1
            self._encoder.forget()


def _has_turns(collector: Collector, task: Task) -> bool:
    if task.only_collector:
        return collector.name == task.only_collector
    if task.only_device and not isinstance(collector, Sparing):
        return False
    return collector.name not in task.left_out


def _periods(collectors: Iterable[Collector], period_ns: int) -> dict[str, int]:
    """Return the periods, the shortest first: what is sampled each second waits for nothing else."""
    own = {each.name: period_ns or PERIOD_SECONDS[each.pace] * SECOND_NS for each in collectors}
    return dict(sorted(own.items(), key=lambda item: item[1])) | {BEAT: period_ns or SECOND_NS}


# ----------------------------------------------------------------------
# A sampler's process: its socket, its rest between turns, its end.

RECEIVE_BYTES = 1 << 16
#: How a process ends in whose place another is to go on (`agent.collector.StartAnew`).
ANEW_CODE = 75
#: A daemon that does not read for so long is itself stuck: what is not sent by then waits, and what comes then is lost.
SEND_MILLISECONDS_MAX = 200


class Mouth:
    """Sends whole messages without ever blocking for long."""

    def __init__(self, connection: socket.socket, bell: int) -> None:
        """Neither *connection* blocks nor *bell*, an eventfd that wakes the daemon."""
        self._connection, self._bell = connection, bell
        self._left = b""
        self.is_heard = True  # else the daemon is gone
        self._poll = select.poll()
        self._poll.register(connection, select.POLLOUT)

    def say(self, message: bytes) -> bool:
        """Send *message*; False when one before it still waits: this one is then lost as a whole."""
        if self._left:
            self._send()
        if self._left:
            return False
        self._left = message
        self._send()
        return True

    def say_at_once(self, message: bytes) -> bool:
        """Send it and wake the daemon, which takes what is only said at its next second."""
        sent = self.say(message)
        with suppress(BlockingIOError):  # it has rung more often than can be counted
            os.eventfd_write(self._bell, 1)
        return sent

    def _send(self) -> None:
        while self._left:
            try:
                self._left = self._left[self._connection.send(self._left) :]
            except BlockingIOError:
                if not self._poll.poll(SEND_MILLISECONDS_MAX):
                    return
            except OSError:
                self.is_heard = False
                return


def cost(look_at_memory: bool) -> tuple[float, int]:
    """Return this process's CPU seconds and, if they are to be looked at, its bytes of memory."""
    if look_at_memory:
        gc.collect()
        process.trim()
    return time.process_time(), int(share_bytes() or 0) if look_at_memory else 0


def serve(lanes: Lanes, connection: socket.socket, clock: Clock, bell: int) -> bool:
    """Be a sampler until the daemon says to end, or is gone. True: only another process can go on."""
    connection.setblocking(False)
    mouth = Mouth(connection, bell)
    sampler = Sampler(
        lanes,
        clock,
        mouth.say,
        cost,
        lambda lane: process.name(f"gangline-{lane}".encode()),
        mouth.say_at_once,
    )
    inbox, readable = Inbox(), select.poll()
    readable.register(connection, select.POLLIN)
    while not sampler.ended and mouth.is_heard:
        if _rest(sampler, readable, clock) and not _hear(sampler, connection, inbox):
            break
        sampler.tick()
    return sampler.anew


def _rest(sampler: Sampler, readable: select.poll, clock: Clock) -> bool:
    """Wait for the next turn, or an order: True. Who has work of its own meanwhile is not at the socket: it is called."""
    until_ns = sampler.next_ns()
    if until_ns is None:
        return bool(readable.poll())
    for resting in sampler.resting:
        place.collector(resting.name.encode())
        try:
            resting.rest(until_ns)
        except Exception:
            log.exception("a collector's rest failed", extra={"cause": "sampler.rest"})
        place.collector(b"")
    if place.called():
        return True
    left_ns = until_ns - clock.boottime_ns()
    return left_ns > 0 and bool(readable.poll(left_ns / 1e6))


def _hear(sampler: Sampler, connection: socket.socket, inbox: Inbox) -> bool:
    """Obey all orders that have come. False: the daemon is gone, or does not speak as it should."""
    while True:
        try:
            data = connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data or not _obey(sampler, inbox, data):
            return False


def _obey(sampler: Sampler, inbox: Inbox, data: bytes) -> bool:
    inbox.feed(data)
    try:
        for kind, body in inbox:
            sampler.obey(decode_order(kind, body))
    except (CodecError, UnicodeDecodeError, KeyError):
        log.exception("an order is none", extra={"cause": "sampler.order"})
        return False
    return True
