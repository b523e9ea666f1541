"""Samplers in this process, with a test's clock: the real loops and codec, fake processes and
devices.

A device may answer slowly, hang until a time, kill its process, or hold a process that even SIGKILL
does not end. Delays advance the clock only of the waiting sampler.
"""

from __future__ import annotations

import errno
import heapq
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gangline.agent.collector import Collector
from gangline.agent.events import EventPublisher
from gangline.agent.sampler.forkserver import ProcessReport, StallReason
from gangline.agent.sampler.messages import MessageBuffer, SampleBatchDecoder, decode_command
from gangline.agent.sampler.worker import Worker
from gangline.contract.block import Block
from gangline.contract.signal import Pace
from gangline.ext import place

SECOND = 1_000_000_000
FOREVER = 1 << 62
#: Descriptors of the fork server; a child's is 1000 plus its serial.
REPORTS, BELL = 1, 2
_PLACE = struct.Struct("<QQ32s64s88s")


def put(room: SampleBatchDecoder, data: bytes) -> int:
    """Put as much of *data* into a decoder as fits, like a socket; return its length."""
    with memoryview(room) as free:
        size = min(len(free), len(data))
        free[:size] = data[:size]
    return size


def feed(decoder: SampleBatchDecoder, data: bytes) -> None:
    while data:
        size = put(decoder, data)
        decoder.came(size)
        data = data[size:]


class Stuck(BaseException):
    """A call that does not return before a time."""


class Died(BaseException):
    """A call in which the process dies."""


@dataclass
class Device:
    """The current behavior of a device. Times are boot times."""

    seconds: float = 0.0001
    hangs_until_ns: int = 0
    kills: str = ""  # how its caller's process dies
    holds: bool = False  # SIGKILL does not end its call


@dataclass
class Child:
    """A sampler's process."""

    serial: int
    memory: memoryview
    world: World
    sampler: Worker = field(init=False)
    inbox: MessageBuffer = field(default_factory=MessageBuffer)
    orders: bytes = b""
    said: list[tuple[int, bytes]] = field(default_factory=list)  # time, message
    busy_ns: int = 0  # until the end of its turn
    spent_ns: int = 0  # within the currently simulated turn
    calls: int = 0
    stuck_in: tuple[int, str, str] | None = None  # since, device, call
    timeline: list[tuple[int, int, str, str]] = field(default_factory=list)
    collector: str = ""
    killed: bool = False
    stopped: bool = False
    dead: bool = False
    closed: bool = False
    talks: bytes = b""  # output of an endless talker
    talked: int = 0
    message: str = ""
    excuse: StallReason | None = None

    def boottime_ns(self) -> int:
        return self.world.now_ns + self.spent_ns

    def wall_ns(self) -> int:
        return self.boottime_ns() + 1_700_000_000 * SECOND

    def say(self, message: bytes) -> bool:
        self.said.append((self.boottime_ns(), message))
        return True

    def say_at_once(self, message: bytes) -> bool:
        self.world.rings.append(self.boottime_ns())
        return self.say(message)

    def recv_into(self, room: SampleBatchDecoder, /) -> int:
        if self.talks:
            self.talked += 1
            assert self.talked < 10_000, "it is heard for ever"
            self.said.insert(0, (self.world.now_ns, 3 * self.talks))
        ready = [message for message in self.said if message[0] <= self.world.now_ns]
        if ready:
            data = b"".join(data for _, data in ready)
            size = put(room, data)
            self.said[: len(ready)] = [(self.world.now_ns, data[size:])] if data[size:] else []
            return size
        if self.dead:
            return 0
        raise BlockingIOError

    def send(self, data: bytes, /) -> int:
        if self.dead:
            raise BrokenPipeError
        self.orders += data
        return len(data)

    def fileno(self) -> int:
        return 1000 + self.serial

    def close(self) -> None:
        self.said.clear()
        self.closed = True

    def next_ns(self) -> int:
        if self.dead or self.stopped:
            return FOREVER
        if self.stuck_in:
            return FOREVER if self.killed else self.world.devices[self.stuck_in[1]].hangs_until_ns
        if self.world.now_ns < self.busy_ns:
            return self.busy_ns
        if self.orders:
            return self.world.now_ns
        due = self.sampler.next_ns()
        return FOREVER if due is None else max(due + 1_000, self.world.now_ns)

    def run(self) -> None:
        self.timeline.clear()
        if self.stuck_in:
            self.stuck_in = None
        self.world.current, self.spent_ns = self, 0
        try:
            self.inbox.feed(self.orders)
            self.orders = b""
            for kind, body in self.inbox:
                self.sampler.handle(decode_command(kind, body))
            self.sampler.tick()
            self.busy_ns = self.boottime_ns()
        except Stuck:
            pass
        except Died as death:
            self.die(str(death))
        self.spent_ns = 0
        if self.sampler.ended and not self.dead:
            self.die("ended with 0")

    def kill(self) -> None:
        self.killed = True
        device = self.world.devices.get(self.stuck_in[1]) if self.stuck_in else None
        if device is None or not device.holds:
            self.die("died of SIGKILL")

    def die(self, reason: str) -> None:
        if not self.dead:
            self.dead, self.message = True, reason
            self.said = [message for message in self.said if message[0] <= self.world.now_ns]
            self.world.ended.append(ProcessReport(self.serial, 0, reason))

    def show(self) -> None:
        """Write its state into the memory that the daemon reads."""
        since, device, call = 0, "", ""
        if self.stuck_in:
            since, device, call = self.stuck_in
        for began, ended, named, called in () if self.stuck_in else self.timeline:
            if began <= self.world.now_ns < ended:
                since, device, call = began, named, called
        collector = self.collector if since else ""
        encoded = (collector.encode(), device.encode(), call.encode())
        _PLACE.pack_into(self.memory, 0, since, self.calls, *encoded)


class World:
    """Time, devices, and the fork server (see `agent.sampler.pool.SamplerForker`)."""

    def __init__(self, lanes: Callable[[World], dict[str, list[Collector]]], now_ns: int) -> None:
        self.now_ns = now_ns
        self.devices: dict[str, Device] = {}
        self.lanes = lanes
        self.children: dict[int, Child] = {}
        self.ended: list[ProcessReport] = []
        self.current: Child | None = None
        self.most = 0  # maximum number of processes
        self.pid = 0
        self.is_gone = self.refuses = False  # the fork server; a replacement, for lack of processes
        self.starts = 0
        self.rings: list[int] = []  # times of the bell
        self._slots: dict[int, bytearray] = {}

    def start(self) -> None:
        self.starts += 1
        if self.refuses:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.is_gone = False

    def slot(self, number: int) -> memoryview:
        return memoryview(self._slots.setdefault(number, bytearray(place.SIZE_BYTES)))

    def fork(self, serial: int, slot: int) -> Child:
        if self.is_gone:
            raise OSError("no nursery")
        child = self.children[serial] = Child(serial, self.slot(slot), self)
        child.sampler = Worker(self.lanes(self), child, child.say, send_urgent=child.say_at_once)
        self.ended.append(ProcessReport(serial, 10_000 + serial, ""))
        self.most = max(self.most, sum(not child.dead for child in self.children.values()))
        return child

    def kill(self, serial: int) -> None:
        if serial in self.children:
            self.children[serial].kill()

    def stall_reason(self, pid: int, cpu_seconds: float) -> StallReason | None:
        return self.children[pid - 10_000].excuse

    def start_ticks(self, pid: int) -> int:
        return 0 if self.children[pid - 10_000].dead else pid

    def reports(self) -> list[ProcessReport] | None:
        if self.is_gone:
            return None
        result, self.ended = self.ended, []
        return result

    def clear_wakeup(self) -> None:
        self.rings = [ring for ring in self.rings if ring > self.now_ns]

    def descriptors(self) -> list[int]:
        return [] if self.is_gone else [REPORTS, BELL]

    def kill_all(self) -> None:
        for child in self.children.values():
            if not child.dead:
                child.kill()
        self.ended.clear()

    def boottime_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns + 1_700_000_000 * SECOND

    def wait(self, until_ns: int, polled: Sequence[int]) -> list[int]:
        """Advance to *until_ns*, or until one of *polled* can be read; return the readable ones."""
        while not self._readable(polled):
            alive = [child for child in self.children.values() if not child.dead]
            times = [(message.next_ns(), message.serial) for message in alive]
            times += [(at, 0) for message in alive for at, _ in message.said if at > self.now_ns]
            times += [(ring, 0) for ring in self.rings if ring > self.now_ns]
            heapq.heapify(times)
            at, serial = times[0] if times else (FOREVER, 0)
            if at > until_ns:
                self.now_ns = max(self.now_ns, until_ns)
                break
            self.now_ns = max(self.now_ns, at)
            if serial and self.now_ns >= self.children[serial].busy_ns:
                self.children[serial].run()
        for serial, child in list(self.children.items()):
            self._let_go(child)
            child.show()
            if child.dead and not child.said and len(self.children) > 40:
                del self.children[serial]
        return self._readable(polled)

    def _let_go(self, child: Child) -> None:
        if child.stuck_in and child.killed and not child.dead:
            device = self.devices[child.stuck_in[1]]
            if self.now_ns >= device.hangs_until_ns:
                child.die("died of SIGKILL")

    def _readable(self, polled: Sequence[int]) -> list[int]:
        now_ns = self.now_ns
        result = {
            child.fileno()
            for child in self.children.values()
            if child.dead or any(at <= now_ns for at, _ in child.said)
        }
        result |= {REPORTS} if self.ended else set()
        result |= {BELL} if any(ring <= now_ns for ring in self.rings) else set()
        return [message for message in polled if message in result]

    def call(self, collector: str, device: str, call: str) -> None:
        child, how = self.current, self.devices[device]
        assert child is not None
        child.calls += 1
        child.collector = collector
        at = child.boottime_ns()
        if how.kills:
            child.stuck_in = (at, device, call)
            child.show()
            raise Died(how.kills)
        if how.hangs_until_ns > at:
            child.stuck_in = (at, device, call)
            child.spent_ns = 0
            raise Stuck
        child.spent_ns += int(how.seconds * SECOND)
        child.timeline.append((at, at + int(how.seconds * SECOND), device, call))


class Sweeping(Collector):
    """A collector that calls its devices one after the other, for one block."""

    enters_driver = True

    def __init__(
        self,
        world: World,
        name: str,
        devices: Sequence[str],
        table: str = "",
        pace: Pace = Pace.SECOND,
        call: str = "read",
    ) -> None:
        self.name, self.pace = name, pace
        self.devices, self._world, self._call = devices, world, call
        self._block = Block(table or name, devices)

    def is_spared(self, device: str) -> bool:
        return False

    def collect(self) -> Sequence[Block]:
        self._block.clear()
        for row, device in enumerate(self.devices):
            if not self.is_spared(device):
                self._world.call(self.name, device, self._call)
                self._block.put_float(0, row, 1.0)
        return [self._block]


class SparingSweep(Sweeping):
    """A collector that can exclude devices."""

    spared: frozenset[str] = frozenset()

    def exclude(self, devices: frozenset[str]) -> None:
        self.spared = devices

    def is_spared(self, device: str) -> bool:
        return device in self.spared


class Telling(SparingSweep):
    """A collector that publishes an event at each turn."""

    def start(self, publisher: EventPublisher) -> None:
        self.teller = publisher

    def close(self) -> None:
        pass
