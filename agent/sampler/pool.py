"""The samplers as the daemon knows them: what they say comes out here, and they are watched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ...contract.block import Block
from ...contract.signals import index_of
from ...contract.wire import telemetry_pb2
from ...ext import place
from ..clock import Clock
from ..collector import Outcome, Sparing, Turn
from ..events import Teller
from . import messages
from .abandoned import LeftBehind, LeftBehindFile
from .forkserver import Excuse, Report
from .messages import GPU, PROCESSES_MAX, Action, Lanes, Tell, Timed
from .process_table import Role
from .quarantine import DeviceState, State, Unit
from .supervisor import Supervisor

# ----------------------------------------------------------------------
# A sampler as the daemon knows it: the way to it, what has come from it, and what it last said of
# itself.

#: Read from one sampler; one that has still more to say is heard on when the others have been.
PIECES_MAX = 64


class Link(Protocol):
    """The way to a sampler: what is needed of a socket that does not block."""

    def recv_into(self, room: messages.Decoder, /) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Child:
    """For the daemon's thread; no method blocks or raises."""

    def __init__(
        self,
        serial: int,
        slot: int,
        link: Link,
        memory: memoryview,
        decoder: messages.Decoder,
        now_ns: int,
    ) -> None:
        self.serial, self.slot, self.link, self.memory = serial, slot, link, memory
        self.descriptor = link.fileno()
        self.decoder = decoder
        self.asked_ns = now_ns
        self.pid = 0
        self.grid_ns = 0
        self.outbox = b""
        self.closed_ns = 0  # when its socket was found closed; 0: it is open
        self.more = False  # another round has come already
        self.cpu_seconds, self.memory_bytes, self.dropped = 0.0, 0, 0

    def read(self, now_ns: int) -> None:
        """Take what it has said into the decoder, as far as it can be had now."""
        pieces = 0
        while pieces < PIECES_MAX and not self.closed_ns:
            try:
                size = self.link.recv_into(self.decoder)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                self.closed_ns = now_ns
            if not self.decoder.came(size):
                return
            pieces += 1

    def send(self) -> None:
        """Send what is in the outbox, as far as it takes it now."""
        try:
            while self.outbox and not self.closed_ns:
                self.outbox = self.outbox[self.link.send(self.outbox) :]
                place.call(self.memory)  # it may be resting in a collector, away from its socket
        except BlockingIOError:
            return
        except OSError:  # it has ended; the nursery says how
            self.outbox = b""


# ----------------------------------------------------------------------
# A slow device's readings, taken by a sampler of its own, in the rows that its lane leaves empty.

#: A slow device's readings that no turn of its lane has taken up by then are of another time.
AGE_NS_MAX = 2_000_000_000
TABLES_MAX = 256


class Overlay:
    """Keeps tables of solo samplers until the lane's turn of the same table comes."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[int, Block]]] = {}

    def keep(self, turns: Sequence[Timed], now_ns: int) -> None:
        """Take the blocks of a solo round, whose decoder refills them no sooner than its next round."""
        for block in (block for timed in turns for block in timed.turn.blocks):
            if len(self._kept) < TABLES_MAX:
                self._kept.setdefault(block.table, []).append((now_ns, block))

    def lay(self, turns: Sequence[Timed], now_ns: int) -> None:
        """Fill the empty rows of the lane's blocks; what was kept for them is gone then."""
        for block in (
            (block for timed in turns for block in timed.turn.blocks) if self._kept else ()
        ):
            for at_ns, over in self._kept.pop(block.table, ()):
                if now_ns - at_ns <= AGE_NS_MAX and over.signal_ids == block.signal_ids:
                    _lay(over, block)


def _lay(over: Block, under: Block) -> None:
    rows = {name: row for row, name in enumerate(under.devices)}
    pairs = [(row, rows[name]) for row, name in enumerate(over.devices) if name in rows]
    for column in range(len(under.signal_ids)):
        for source_row, target_row in pairs:
            source = column * over.rows + source_row
            target = column * under.rows + target_row
            if over.valid[source] and not under.valid[target]:
                under.ints[target] = over.ints[source]
                under.valid[target] = 1


# ----------------------------------------------------------------------
# What the samplers' supervision says in readings and events.

_HUNG = index_of("probe.hung_seconds")
_STATE = index_of("probe.state")
_ABANDONED = index_of("probe.abandoned_count")
_EVENTS = {
    "hung": "probe.hung",
    "slow": "probe.hung",
    "answers": "probe.answered",
    "driver_hung": "probe.driver_hung",
    "driver_answers": "probe.driver_answered",
}


def event_of(
    told: Tell, boottime_ns: int, key_of: Callable[[str], str]
) -> telemetry_pb2.HealthEvent:
    """Return the event of what the supervisor tells. *key_of*: the UUID of a GPU's PCI address, or that again."""
    kind, device = told.collector.rpartition("_")[0], told.device
    if told.lane == GPU:
        kind = "gpu" if device else "host"
        device = key_of(device) if device else "host"
    return telemetry_pb2.HealthEvent(
        device_kind=kind,
        device=device or told.collector,
        name=_EVENTS[told.what],
        code=int(told.seconds),
        message=told.words,
        boottime_ns=boottime_ns,
        attributes={
            "what": told.what,
            "lane": told.lane,
            "device": told.device,
            "collector": told.collector,
            "call": told.call,
            "seconds": f"{told.seconds:.1f}",
        },
    )


def row_of(state: DeviceState) -> str:
    """Return the name of its row in `probe_1s`: `gpu 0000:9b:00.0`; a driver as a whole is its lane's name."""
    return f"{state.lane} {state.device or state.collector}".strip()


class ProbeTables:
    """Fills `probe_1s` and `gpu_1s_probe`. No rows, no block."""

    def __init__(self) -> None:
        self._probe = Block("probe_1s", ())
        self._gpu = Block("gpu_1s_probe", ())

    def blocks(
        self,
        states: Sequence[DeviceState],
        released: Iterable[str | None],
        key_of: Callable[[str], str],
    ) -> list[Block]:
        """Return both as of now; a row that is twice is shown as its worst. *released*: GPUs, or None for all."""
        all_states = [*map(_let_go, released), *states]
        if not all_states:
            return []
        rows = {row_of(e): e for e in sorted(all_states, key=lambda each: each.hung_seconds)}
        gpus = {
            key_of(each.device): each for each in rows.values() if each.lane == GPU and each.device
        }
        self._probe = _with_rows(self._probe, list(rows))
        self._gpu = _with_rows(self._gpu, list(gpus))
        for row, state in enumerate(rows.values()):
            self._probe.put_float(_HUNG, row, state.hung_seconds)
            self._probe.put_int(_STATE, row, int(state.state))
            self._probe.put_int(_ABANDONED, row, state.abandoned_count)
        for row, state in enumerate(gpus.values()):
            self._gpu.put_float(0, row, state.hung_seconds)
        return [block for block in (self._probe, self._gpu) if block.rows]


def _let_go(device: str | None) -> DeviceState:
    return DeviceState(GPU, device or "", "", State.RELEASED, "", 0.0, 0, 0, "")


def _with_rows(block: Block, names: Sequence[str]) -> Block:
    return block if block.devices == tuple(names) else Block(block.table, names)


SECOND_NS = 1_000_000_000
#: A socket that was closed by a process of which nobody says that it ended.
CLOSED_NS_MAX = SECOND_NS
#: A nursery that has not forked for so long is replaced, and all its samplers with it: on a host short of memory or of
#: CPUs it takes long.
FORK_NS_MAX = 15 * SECOND_NS
#: The nursery is forked again no more often than this.
NURSERY_NS_MIN = SECOND_NS

log = logging.getLogger(__name__)


class Nursery(Protocol):
    """What is needed of `nursery.Nursery`; a test's runs samplers in its own process."""

    @property
    def pid(self) -> int: ...  # 0: there is none
    def start(self) -> None: ...
    def slot(self, number: int) -> memoryview: ...
    def fork(self, serial: int, slot: int) -> Link: ...
    def kill(self, serial: int) -> None: ...
    def excuse(self, pid: int, cpu_seconds: float) -> Excuse | None: ...
    def start_ticks(self, pid: int) -> int: ...
    def reports(self) -> list[Report] | None: ...
    def hush(self) -> None: ...
    def descriptors(self) -> list[int]: ...
    def kill_all(self) -> None: ...


class SamplerPool:
    """Everything that enters a driver. For the daemon's thread; no method blocks or raises.

    Until `listen` what the collectors tell is thrown away.
    """

    def __init__(
        self,
        lanes: Lanes,
        nursery: Nursery,
        clock: Clock,
        *,
        deadline_seconds: float = 0.9,
        devices_of: Callable[[], Sequence[str]] = tuple,
        key_of: Callable[[str], str] = lambda address: address,
        left_behind: LeftBehindFile | None = None,
    ) -> None:
        """*devices_of*: the PCI addresses of the GPUs, asked of nobody who may hang. *key_of*: UUID of an address, or
        that again. *deadline_seconds*: of a call into a driver. *left_behind*: where an agent after this one finds who
        hangs."""
        self._lanes, self._nursery, self._clock = lanes, nursery, clock
        self._devices_of, self._key_of = devices_of, key_of
        self.collectors = [each.name for those in lanes.values() for each in those]
        self._supervisor = Supervisor(
            {
                lane: {each.name: isinstance(each, Sparing) for each in those}
                for lane, those in lanes.items()
            },
            deadline_ns=int(deadline_seconds * 1e9),
            excuse=self._excuse,
        )
        self._file = left_behind
        self._left: dict[int, LeftBehind] = {}  # by serial; as the file has it
        self._inherited: set[int] = set()  # of them, those of an agent before this one
        self._inherited_ns = 0  # when they were last looked at
        self._children: dict[int, Child] = {}
        self._teller: Teller | None = None
        self._extra: list[messages.Timed] = []
        self._overlay = Overlay()
        self._tables = ProbeTables()
        self._seen: dict[int, place.Seen] = {}  # where each was at the last `take`
        self._awaited = False  # some lane's turns of this second
        self._spent_seconds = 0.0  # by samplers that have ended
        self._nursery_ns = -NURSERY_NS_MIN
        self._started = False

    # ---- the daemon's loop

    def start(self, released: Mapping[str | None, int] | None = None) -> None:
        """Fork the nursery, and through it the samplers. Before any thread is. *released*: GPUs that are not to be
        taken before a time, as `released` returns them."""
        now_ns = self._clock.boottime_ns()
        if self._lanes:
            self._started = True
            self._start_nursery(now_ns)
            self._supervisor.know(GPU, self._devices_of())
            self._inherit(now_ns)
            self._do(self._supervisor.start(now_ns, released), now_ns)

    def listen(self, teller: Teller) -> None:
        """Tell events to *teller* from now on."""
        self._teller = teller

    def close(self) -> None:
        """End all samplers, and the nursery. What hangs in a driver ends when it returns."""
        self._started = False
        self._nursery.kill_all()
        for child in self._children.values():
            child.link.close()
        self._children.clear()

    def descriptors(self) -> list[int]:
        """Return what to poll: when one can be read, `take` has something to do before the next second.

        A lane speaks each second, and is heard then: it rings when it cannot wait, and is polled while it is waited for.
        """
        if not self._started:
            return []
        heard_anyway = () if self._awaited else self._supervisor.lane_serials
        links = [
            child.descriptor
            for child in self._children.values()
            if not child.closed_ns and child.serial not in heard_anyway
        ]
        return [*self._nursery.descriptors(), *links]

    def take(self, now_ns: int, ready: Collection[int] | None = None) -> list[messages.Timed]:
        """Return the turns that have come, at most one round of each sampler, and look after all of them.

        Their blocks are the caller's until the next `take`; call again while `more`. *ready*: of `descriptors`,
        those that can be read; None: they may all be. Lanes are heard either way.
        """
        if not self._started:
            return []
        own = self._nursery.descriptors()
        called = ready is None or not own or any(each in ready for each in own)
        if called:
            self._nursery.hush()  # before what it rang for is read
        turns: list[messages.Timed] = []
        lanes = self._supervisor.lane_serials
        for child in list(self._children.values()):
            if child.outbox:
                child.send()
            if child.more:  # what has come first, else who says ever more is heard for ever
                self._decode(child, now_ns, turns)
            elif ready is None or child.serial in lanes or child.descriptor in ready:
                child.read(now_ns)
                self._decode(child, now_ns, turns)
        if called:
            self._hear_nursery(now_ns, turns)
        self._see_to_children(now_ns)
        children = self._children.items()
        self._seen = {serial: place.read(child.memory) for serial, child in children}
        if self._inherited:
            self._look_at_inherited(now_ns)
        self._do(self._supervisor.look(now_ns, self._seen), now_ns)
        if self._file:
            self._note_left_behind(self._file)
        if self._extra:
            turns += self._extra
            self._extra = []
        return turns

    @property
    def more(self) -> bool:
        """Whether another round waits to be taken."""
        return any(child.more for child in self._children.values())

    def waiting(self, grid_ns: int) -> bool:
        """Say whether the turns of this second, of a lane that has somebody to take them, have not come."""
        self._awaited = self._started and next(self._late(grid_ns), None) is not None
        return self._awaited

    def late(self, now_ns: int, grid_ns: int) -> None:
        """Note who is waited for in vain."""
        for lane, child in list(self._late(grid_ns)):
            self._do(self._supervisor.late(now_ns, lane, place.read(child.memory)), now_ns)

    def next_ns(self, now_ns: int) -> int | None:
        """Return when somebody has to be looked at again, if that is sooner than the next second."""
        return self._supervisor.next_ns(now_ns, self._seen) if self._started else None

    def blocks(self) -> list[Block]:
        """Return `probe_1s` and `gpu_1s_probe` as of now."""
        return self._tables.blocks(self.states(), self.released(), self._key_of)

    # ---- what others ask

    def release(self, devices: frozenset[str] | None, seconds: float) -> None:
        """Let go of every handle of these GPUs (PCI addresses), or of all of them and of the driver.

        They are taken back after *seconds* by themselves. `held` says when it has come about.
        """
        now_ns = self._clock.boottime_ns()
        self._do(self._supervisor.release(now_ns, devices, seconds), now_ns)

    def resume(self, devices: frozenset[str] | None) -> None:
        """Take back what was released; None: all of it."""
        now_ns = self._clock.boottime_ns()
        self._do(self._supervisor.resume(now_ns, devices), now_ns)

    def released(self) -> Mapping[str | None, int]:
        """Return what is released -> until when (boot time); the key None stands for all GPUs."""
        return self._supervisor.released()

    def held(self, devices: frozenset[str] | None) -> bool:
        """Say whether some sampler may have a handle of one of these GPUs; None: of any, or of their driver."""
        return self._supervisor.held(devices)

    def leave_alone(self, device: str, why: str) -> None:
        """Do not enter a GPU (PCI address) of which its driver said that it is ill; it is tried later."""
        now_ns = self._clock.boottime_ns()
        self._do(self._supervisor.leave_alone(now_ns, device, why), now_ns)

    def states(self) -> Sequence[DeviceState]:
        """Return what is not well, and for a minute what is well again."""
        return self._supervisor.states(self._clock.boottime_ns())

    @property
    def abandoned_count(self) -> int:
        """Processes ever left behind."""
        return self._supervisor.abandoned_count

    @property
    def takeovers_count(self) -> int:
        """How often another sampler had to take a lane over."""
        return self._supervisor.takeovers_count

    @property
    def processes(self) -> int:
        """How many processes live, the nursery among them."""
        return len(self._children) + self._started

    @property
    def cpu_seconds(self) -> float:
        """What all of them have used since the start, those that ended too."""
        return self._spent_seconds + sum(child.cpu_seconds for child in self._children.values())

    @property
    def memory_bytes(self) -> int:
        """What they share counted once; as each of them last said."""
        return sum(child.memory_bytes for child in self._children.values())

    # ---- what comes

    def _late(self, grid_ns: int) -> Iterator[tuple[str, Child]]:
        for lane in self._lanes:
            process = self._supervisor.lane_process(lane)
            child = self._children.get(process.serial) if process else None
            if child is not None and child.grid_ns < grid_ns:
                yield lane, child

    def _decode(self, child: Child, now_ns: int, turns: list[messages.Timed]) -> None:
        child.more = False
        try:
            while (said := child.decoder.next()) is not None:
                if isinstance(said, messages.Round):
                    self._round(child, said, now_ns, turns)
                    child.more = child.decoder.waiting
                    return
                self._tell(child, said)
        except messages.CodecError:
            log.exception("a sampler speaks nonsense", extra={"cause": "sampler.codec"})
            child.decoder = messages.Decoder(self.collectors)  # nothing else that it said is heard
            child.closed_ns = child.closed_ns or now_ns
            self._nursery.kill(child.serial)

    def _tell(self, child: Child, said: messages.Inventory | telemetry_pb2.HealthEvent) -> None:
        process = self._supervisor.processes.get(child.serial)
        if self._teller is None or process is None or process.role is Role.SOLO:
            return
        if isinstance(said, messages.Inventory):
            self._teller.renew_inventory(said.why)
        else:
            self._teller.tell(said)

    def _round(
        self, child: Child, told: messages.Round, now_ns: int, turns: list[messages.Timed]
    ) -> None:
        grid_ns, child.cpu_seconds, memory_bytes, child.dropped, these, slow = told
        child.memory_bytes = memory_bytes or child.memory_bytes
        child.grid_ns = max(child.grid_ns, grid_ns)
        process = self._supervisor.processes.get(child.serial)
        if process is None:
            return
        seconds = 0.0  # asked for of a solo sampler only
        if process.role is Role.LANE:
            self._overlay.lay(these, now_ns)
            turns += these
        elif process.role is Role.SOLO:
            seconds = sum(timed.turn.seconds for timed in these)
            if self._supervisor.state_of(process) is State.SLOW:
                self._overlay.keep(these, now_ns)
        self._do(self._supervisor.heard(now_ns, child.serial, seconds, slow), now_ns)

    def _hear_nursery(self, now_ns: int, turns: list[messages.Timed]) -> None:
        reports = self._nursery.reports()
        for report in reports or ():
            child = self._children.get(report.serial)
            if child is not None and report.words:
                child.read(now_ns)  # its last words
                self._decode(child, now_ns, turns)
                self._ended(child, report.words, now_ns)
            elif child is not None:
                child.pid = report.pid
        if reports is None:
            self._start_nursery(now_ns)

    def _see_to_children(self, now_ns: int) -> None:
        """Look after those that were not born in time, and those that have closed their socket."""
        unusual = [each for each in self._children.values() if each.closed_ns or not each.pid]
        if any(not each.pid and now_ns - each.asked_ns > FORK_NS_MAX for each in unusual):
            self._start_nursery(now_ns)
        for child in unusual:
            if child.closed_ns and now_ns - child.closed_ns > CLOSED_NS_MAX:
                self._nursery.kill(child.serial)
                self._ended(child, "closed its socket", now_ns)

    def _start_nursery(self, now_ns: int) -> None:
        if now_ns - self._nursery_ns < NURSERY_NS_MIN:
            return
        again, self._nursery_ns = self._nursery_ns >= 0, now_ns
        if again:
            log.warning("the nursery is gone; another one is forked", extra={"cause": "nursery"})
            self._nursery.kill_all()
        elif self._nursery.pid:
            return  # it was forked before the rest of the daemon was imported
        try:
            self._nursery.start()
        except OSError as error:
            log.error("no nursery: %s", error, extra={"cause": "nursery"})
        if again:
            for child in self._children.values():
                child.asked_ns, child.pid = now_ns, child.pid or -1
            self._do(self._supervisor.orphaned(now_ns), now_ns)

    def _ended(self, child: Child, words: str, now_ns: int) -> None:
        seen = place.read(child.memory)
        child.link.close()
        del self._children[child.serial]
        self._spent_seconds += child.cpu_seconds
        process = self._supervisor.processes.get(child.serial)
        if process is not None and process.role in (Role.LANE, Role.SOLO, Role.STANDBY):
            where = f" in {seen.collector}: {seen.device} {seen.call}" if seen.entered_ns else ""
            role = process.role.value
            log.warning("a %s sampler %s%s", role, words, where, extra={"cause": f"sampler.{role}"})
        self._do(self._supervisor.died(now_ns, child.serial, words, seen), now_ns)

    # ---- who hangs

    def _excuse(self, serial: int) -> Excuse | None:
        child = self._children.get(serial)
        if child is None or child.pid <= 0:
            return None
        return self._nursery.excuse(child.pid, child.cpu_seconds)

    def _inherit(self, now_ns: int) -> None:
        for left in self._file.read() if self._file else ():
            if serial := self._supervisor.inherit(now_ns, left.unit, left.seen):
                self._left[serial] = left
                self._inherited.add(serial)

    def _look_at_inherited(self, now_ns: int) -> None:
        """They are nobody's children: who of them has ended is only seen by looking."""
        if now_ns - self._inherited_ns >= SECOND_NS:
            self._inherited_ns = now_ns
            for serial in [each for each in self._inherited if not self._left[each].lives]:
                self._inherited.discard(serial)
                seen = self._left[serial].seen
                self._do(self._supervisor.died(now_ns, serial, "has ended", seen), now_ns)
        self._seen |= {serial: self._left[serial].seen for serial in self._inherited}

    def _note_left_behind(self, file: LeftBehindFile) -> None:
        """Keep the file as it is; a disk is written to only when somebody was left behind, or has ended."""
        processes = self._supervisor.processes.values()
        units = {p.serial: p.unit for p in processes if p.role is Role.ABANDONED and p.unit}
        if units.keys() == self._left.keys():
            return
        self._left = {
            serial: self._left.get(serial) or self._left_in(serial, unit)
            for serial, unit in units.items()
        }
        file.write(each for each in self._left.values() if each.start_ticks)

    def _left_in(self, serial: int, unit: Unit) -> LeftBehind:
        child, seen = self._children[serial], place.read(self._children[serial].memory)
        start_ticks = self._nursery.start_ticks(child.pid)
        return LeftBehind(unit, child.pid, start_ticks, seen.entered_ns, seen.collector, seen.call)

    # ---- what is done

    def _do(self, wanted: Sequence[Action], now_ns: int) -> None:
        for action in wanted:
            if isinstance(action, Tell):
                self._say(action, now_ns)
            elif isinstance(action, messages.Fork):
                self._fork(action.serial, now_ns)
            elif isinstance(action, messages.Kill):
                self._nursery.kill(action.serial)
            elif isinstance(action, messages.Give):
                self._order(action.serial, action.task)
            else:
                warm = isinstance(action, messages.WarmSampler)
                self._order(action.serial, messages.Warm() if warm else messages.End())

    def _fork(self, serial: int, now_ns: int) -> None:
        used = {child.slot for child in self._children.values()}
        slot = next(n for n in range(PROCESSES_MAX + 1) if n not in used)
        memory = self._nursery.slot(slot)
        memory[:] = bytes(len(memory))
        try:
            link = self._nursery.fork(serial, slot)
        except OSError as error:
            words = f"could not be forked: {error}"
            log.warning("a sampler %s", words, extra={"cause": "sampler.fork"})
            self._do(self._supervisor.died(now_ns, serial, words, None), now_ns)
            return
        decoder = messages.Decoder(self.collectors)
        self._children[serial] = Child(serial, slot, link, memory, decoder, now_ns)

    def _order(self, serial: int, order: messages.Order) -> None:
        child = self._children.get(serial)
        if child is not None and not child.closed_ns:
            child.outbox += messages.encode_order(order)
            child.send()

    def _say(self, told: Tell, now_ns: int) -> None:
        log.warning("%s", told.words, extra={"cause": f"probe.{told.what}.{told.device}"})
        if told.what == "hung" or told.what == "driver_hung":
            self._supervisor.know(GPU, self._devices_of())
        if told.what in ("hung", "driver_hung") and told.collector in self.collectors:
            turn = Turn(told.collector, (), told.seconds, Outcome.HUNG, told.words)
            self._extra.append(messages.Timed(now_ns - int(told.seconds * 1e9), turn))
        if self._teller is not None:
            self._teller.tell(event_of(told, now_ns, self._key_of))
