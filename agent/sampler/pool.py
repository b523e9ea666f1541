"""The daemon's end of the samplers: receives their messages and monitors them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ...contract.block import Block
from ...contract.signals import index_of
from ...contract.wire import telemetry_pb2
from ...ext import place
from ..clock import Clock
from ..collector import CollectOutcome, CollectResult
from ..events import EventPublisher
from . import messages
from .abandoned import AbandonedProcess, AbandonedProcessFile
from .forkserver import ProcessReport, StallReason
from .messages import (
    DCGM,
    GPU,
    PROCESSES_MAX,
    RECORDING_AREA,
    Action,
    CollectorGroups,
    RecordingArea,
    ReportEvent,
    TimedResult,
)
from .process_table import ProcessRole
from .quarantine import DeviceState, QuarantineState, Unit
from .supervisor import Supervisor

# ----------------------------------------------------------------------
# A sampler as the daemon knows it: the way to it, what has come from it, and what it last said of
# itself.

#: Read from one sampler; one that has still more to say is heard on when the others have been.
READS_MAX = 64


class SamplerSocket(Protocol):
    """The way to a sampler: what is needed of a socket that does not block."""

    def recv_into(self, room: messages.SampleBatchDecoder, /) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class WorkerHandle:
    """For the daemon's thread; no method blocks or raises."""

    def __init__(
        self,
        serial: int,
        slot: int,
        link: SamplerSocket,
        memory: memoryview,
        decoder: messages.SampleBatchDecoder,
        now_ns: int,
    ) -> None:
        self.serial, self.slot, self.link, self.memory = serial, slot, link, memory
        self.descriptor = link.fileno()
        self.decoder = decoder
        self.fork_requested_ns = now_ns
        self.pid = 0
        self.grid_ns = 0
        self.outbox = b""
        self.closed_ns = 0  # when its socket was found closed; 0: it is open
        self.has_more = False  # another round has come already
        self.cpu_seconds, self.memory_bytes, self.dropped = 0.0, 0, 0

    def read(self, now_ns: int) -> None:
        """Take what it has said into the decoder, as far as it can be had now."""
        reads = 0
        while reads < READS_MAX and not self.closed_ns:
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
            reads += 1

    def send(self) -> None:
        """Send what is in the outbox, as far as it takes it now."""
        try:
            while self.outbox and not self.closed_ns:
                self.outbox = self.outbox[self.link.send(self.outbox) :]
                place.call(self.memory)  # it may be resting in a collector, away from its socket
        except BlockingIOError:
            return
        except OSError:  # it has ended; the fork server says how
            self.outbox = b""


# ----------------------------------------------------------------------
# A slow device's readings, taken by a sampler of its own, in the rows that its lane leaves empty; and the profiling
# metrics that only DCGM has, in the cells that NVML leaves empty.

#: A slow device's readings that no turn of its lane has taken up by then are of another time.
AGE_NS_MAX = 2_000_000_000
TABLES_MAX = 256
#: Tables of the GPUs' lane of which DCGM fills cells.
BORROWED_TABLES = frozenset({"gpu_fast_1s"})


class SlowDeviceCache:
    """Keeps tables of solo samplers until the lane's turn of the same table comes."""

    def __init__(self) -> None:
        self._stored: dict[str, list[tuple[int, Block]]] = {}

    def store(self, results: Sequence[TimedResult], now_ns: int) -> None:
        """Take the blocks of a solo round, whose decoder refills them no sooner than its next round."""
        for block in (block for timed in results for block in timed.result.blocks):
            if len(self._stored) < TABLES_MAX:
                self._stored.setdefault(block.table, []).append((now_ns, block))

    def divert(self, results: Sequence[TimedResult], now_ns: int) -> list[TimedResult]:
        """Take the blocks of tables that another lane fills; return the turns without them."""
        remaining = list[TimedResult]()
        for timed in results:
            borrowed = [each for each in timed.result.blocks if each.table in BORROWED_TABLES]
            for block in borrowed:
                self._stored[block.table] = [(now_ns, block)]
            own = [each for each in timed.result.blocks if each.table not in BORROWED_TABLES]
            remaining.append(
                timed._replace(result=timed.result._replace(blocks=own)) if borrowed else timed
            )
        return remaining

    def apply(self, results: Sequence[TimedResult], now_ns: int) -> None:
        """Fill the empty rows of the lane's blocks; what was kept for them is gone then.

        What has no row in a block waits for the next of its table: GPUs of another vendor are in a block of their own.
        """
        for block in (
            (block for timed in results for block in timed.result.blocks) if self._stored else ()
        ):
            for at_ns, slow_block in self._stored.pop(block.table, ()):
                if now_ns - at_ns > AGE_NS_MAX:
                    continue
                if not _fill_missing(slow_block, block):
                    self._stored.setdefault(block.table, []).append((at_ns, slow_block))


def _fill_missing(slow_block: Block, block: Block) -> bool:
    """Fill the cells that are missing; False: no device of *slow_block* has a row."""
    if slow_block.signal_ids != block.signal_ids:
        return True
    rows = {name: row for row, name in enumerate(block.devices)}
    pairs = [(row, rows[name]) for row, name in enumerate(slow_block.devices) if name in rows]
    for column in range(len(block.signal_ids)):
        for source_row, target_row in pairs:
            source = column * slow_block.rows + source_row
            target = column * block.rows + target_row
            if slow_block.valid[source] and not block.valid[target]:
                block.ints[target] = slow_block.ints[source]
                block.valid[target] = 1
    return bool(pairs)


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
    report: ReportEvent, boottime_ns: int, key_of: Callable[[str], str]
) -> telemetry_pb2.HealthEvent:
    """Return the event of what the supervisor tells. *key_of*: the UUID of a GPU's PCI address, or that again."""
    device_kind, device = report.collector.rpartition("_")[0], report.device
    if report.group == GPU:
        device_kind = "gpu" if device else "host"
        device = key_of(device) if device else "host"
    return telemetry_pb2.HealthEvent(
        device_kind=device_kind,
        device=device or report.collector,
        name=_EVENTS[report.kind],
        code=int(report.seconds),
        message=report.message,
        boottime_ns=boottime_ns,
        attributes={
            "what": report.kind,
            "lane": report.group,
            "device": report.device,
            "collector": report.collector,
            "call": report.call,
            "seconds": f"{report.seconds:.1f}",
        },
    )


def row_of(state: DeviceState) -> str:
    """Return the name of its row in `probe_1s`: `gpu 0000:9b:00.0`; a driver as a whole is its lane's name."""
    return f"{state.group} {state.device or state.collector}".strip()


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
        all_states = [*map(_released_state, released), *states]
        if not all_states:
            return []
        rows = {row_of(e): e for e in sorted(all_states, key=lambda each: each.hung_seconds)}
        gpus = {
            key_of(each.device): each for each in rows.values() if each.group == GPU and each.device
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


def _released_state(device: str | None) -> DeviceState:
    return DeviceState(GPU, device or "", "", QuarantineState.RELEASED, "", 0.0, 0, 0, "")


def _with_rows(block: Block, names: Sequence[str]) -> Block:
    return block if block.devices == tuple(names) else Block(block.table, names)


SECOND_NS = 1_000_000_000
#: A socket that was closed by a process that has not ended as far as we know.
CLOSED_NS_MAX = SECOND_NS
#: A fork server that has not forked for this long is replaced, and all its samplers with it: on a host short of memory or of
#: CPUs it takes long.
FORK_NS_MAX = 15 * SECOND_NS
#: The fork server is forked again no more often than this.
FORK_SERVER_NS_MIN = SECOND_NS

log = logging.getLogger(__name__)


class SamplerForker(Protocol):
    """What is needed of `fork_server.SamplerForker`; a test's runs samplers in its own process."""

    @property
    def pid(self) -> int: ...  # 0: there is none
    def start(self) -> None: ...
    def slot(self, number: int) -> memoryview: ...
    def fork(self, serial: int, slot: int) -> SamplerSocket: ...
    def kill(self, serial: int) -> None: ...
    def stall_reason(self, pid: int, cpu_seconds: float) -> StallReason | None: ...
    def start_ticks(self, pid: int) -> int: ...
    def reports(self) -> list[ProcessReport] | None: ...
    def clear_wakeup(self) -> None: ...
    def descriptors(self) -> list[int]: ...
    def kill_all(self) -> None: ...


class SamplerPool:
    """Everything that enters a driver. For the daemon's thread; no method blocks or raises.

    Until `publish_to` what the collectors tell is thrown away.
    """

    def __init__(
        self,
        groups: CollectorGroups,
        fork_server: SamplerForker,
        clock: Clock,
        *,
        deadline_seconds: float = 0.9,
        devices_of: Callable[[], Sequence[str]] = tuple,
        key_of: Callable[[str], str] = lambda address: address,
        abandoned_file: AbandonedProcessFile | None = None,
        recording_area: RecordingArea = RECORDING_AREA,
    ) -> None:
        """*devices_of*: the PCI addresses of the GPUs, asked of nobody who may hang. *key_of*: UUID of an address, or
        that again. *deadline_seconds*: of a call into a driver. *abandoned_file*: where an agent after this one finds who
        hangs. *recording_area*: where samplers put what they record."""
        self._groups, self._fork_server, self._clock = groups, fork_server, clock
        self._devices_of, self._key_of = devices_of, key_of
        self.collectors = [each.name for members in groups.values() for each in members]
        self._supervisor = Supervisor(
            {
                group: {each.name: each.can_exclude for each in members}
                for group, members in groups.items()
            },
            deadline_ns=int(deadline_seconds * 1e9),
            stall_reason=self._stall_reason,
        )
        #: What came of the last `record`: its number, the file, or why there is none.
        self.recorded: tuple[int, bytes, str] | None = None
        self._recording_area = recording_area
        self._abandoned_file = abandoned_file
        self._abandoned: dict[int, AbandonedProcess] = {}  # by serial; as the file has it
        self._inherited: set[int] = set()  # of them, those of an agent before this one
        self._inherited_checked_ns = 0  # when they were last looked at
        self._workers: dict[int, WorkerHandle] = {}
        self._publisher: EventPublisher | None = None
        self._hung_results: list[messages.TimedResult] = []
        self._overlay = SlowDeviceCache()
        self._tables = ProbeTables()
        self._call_states: dict[int, place.Seen] = {}  # where each was at the last `poll`
        self._awaited = False  # some lane's turns of this second
        self._ended_cpu_seconds = 0.0  # by samplers that have ended
        self._fork_server_ns = -FORK_SERVER_NS_MIN
        self._started = False

    # ---- the daemon's loop

    def start(self, released: Mapping[str | None, int] | None = None) -> None:
        """Fork the fork server, and through it the samplers. Before any thread is. *released*: GPUs that are not to be
        taken before a time, as `released` returns them."""
        now_ns = self._clock.boottime_ns()
        if self._groups:
            self._started = True
            self._start_fork_server(now_ns)
            self._supervisor.set_devices(GPU, self._devices_of())
            self._inherit(now_ns)
            self._execute(self._supervisor.start(now_ns, released), now_ns)

    def publish_to(self, publisher: EventPublisher) -> None:
        """Tell events to *publisher* from now on."""
        self._publisher = publisher

    def close(self) -> None:
        """End all samplers, and the fork server. What hangs in a driver ends when it returns."""
        self._started = False
        self._fork_server.kill_all()
        for worker in self._workers.values():
            worker.link.close()
        self._workers.clear()

    def descriptors(self) -> list[int]:
        """Return what to poll: when one can be read, `poll` has something to do before the next second.

        A lane speaks each second, and is heard then: it rings when it cannot wait, and is polled while it is waited for.
        """
        if not self._started:
            return []
        always_read = () if self._awaited else self._supervisor.group_serials
        links = [
            worker.descriptor
            for worker in self._workers.values()
            if not worker.closed_ns and worker.serial not in always_read
        ]
        return [*self._fork_server.descriptors(), *links]

    def poll(self, now_ns: int, ready: Collection[int] | None = None) -> list[messages.TimedResult]:
        """Return the turns that have come, at most one round of each sampler, and look after all of them.

        Their blocks are the caller's until the next `poll`; call again while `has_more`. *ready*: of `descriptors`,
        those that can be read; None: they may all be. Lanes are heard either way.
        """
        if not self._started:
            return []
        server_descriptors = self._fork_server.descriptors()
        is_notified = (
            ready is None
            or not server_descriptors
            or any(each in ready for each in server_descriptors)
        )
        if is_notified:
            self._fork_server.clear_wakeup()  # before what it rang for is read
        results: list[messages.TimedResult] = []
        groups = self._supervisor.group_serials
        for worker in list(self._workers.values()):
            if worker.outbox:
                worker.send()
            if worker.has_more:  # what has come first, else who says ever more is heard for ever
                self._decode(worker, now_ns, results)
            elif ready is None or worker.serial in groups or worker.descriptor in ready:
                worker.read(now_ns)
                self._decode(worker, now_ns, results)
        if is_notified:
            self._read_reports(now_ns, results)
        self._check_workers(now_ns)
        children = self._workers.items()
        self._call_states = {serial: place.read(worker.memory) for serial, worker in children}
        if self._inherited:
            self._check_inherited(now_ns)
        self._execute(self._supervisor.check(now_ns, self._call_states), now_ns)
        if self._abandoned_file:
            self._save_abandoned(self._abandoned_file)
        if self._hung_results:
            results += self._hung_results
            self._hung_results = []
        return results

    @property
    def has_more(self) -> bool:
        """Whether another round waits to be taken."""
        return any(worker.has_more for worker in self._workers.values())

    def waiting(self, grid_ns: int) -> bool:
        """Return whether the turns of this second, of a lane that has somebody to take them, have not come."""
        self._awaited = self._started and next(self._late_workers(grid_ns), None) is not None
        return self._awaited

    def report_late(self, now_ns: int, grid_ns: int) -> None:
        """Note who is waited for in vain."""
        for group, worker in list(self._late_workers(grid_ns)):
            self._execute(
                self._supervisor.report_late(now_ns, group, place.read(worker.memory)), now_ns
            )

    def next_ns(self, now_ns: int) -> int | None:
        """Return when somebody has to be looked at again, if that is sooner than the next second."""
        return self._supervisor.next_ns(now_ns, self._call_states) if self._started else None

    def blocks(self) -> list[Block]:
        """Return `probe_1s` and `gpu_1s_probe` as of now."""
        return self._tables.blocks(self.states(), self.released(), self._key_of)

    # ---- what others ask

    def release(self, devices: frozenset[str] | None, seconds: float) -> None:
        """Release every handle of these GPUs (PCI addresses), or of all GPUs and the driver.

        They are taken back after *seconds* by themselves. `may_hold` says when it has come about.
        """
        now_ns = self._clock.boottime_ns()
        self._execute(self._supervisor.release(now_ns, devices, seconds), now_ns)

    def resume(self, devices: frozenset[str] | None) -> None:
        """Take back what was released; None: all of it."""
        now_ns = self._clock.boottime_ns()
        self._execute(self._supervisor.resume(now_ns, devices), now_ns)

    def released(self) -> Mapping[str | None, int]:
        """Return what is released -> until when (boot time); the key None means all GPUs."""
        return self._supervisor.released()

    def may_hold(self, devices: frozenset[str] | None) -> bool:
        """Return whether some sampler may have a handle of one of these GPUs; None: of any, or of their driver."""
        return self._supervisor.may_hold(devices)

    def quarantine_gpu(self, device: str, reason: str) -> None:
        """Do not call a GPU (PCI address) that its driver reported as faulty; it is retried later."""
        now_ns = self._clock.boottime_ns()
        self._execute(self._supervisor.quarantine_gpu(now_ns, device, reason), now_ns)

    def record(self, number: int, seconds: int) -> bool:
        """Order the sampler of the GPUs to record; what comes of it is `recorded`. False: there is no such sampler now."""
        process = self._supervisor.group_process(GPU)
        if process is None:
            return False
        self.recorded = None
        self._send_command(process.serial, messages.RecordCommand(number, seconds))
        return True

    def _take_recording(self, message: messages.SamplesRecorded) -> None:
        data = self._recording_area.read(message.size)
        self._recording_area.clear()
        self.recorded = message.number, data, message.message

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
        """How many processes live, the fork server among them."""
        return len(self._workers) + self._started

    @property
    def cpu_seconds(self) -> float:
        """What all of them have used since the start, those that ended too."""
        return self._ended_cpu_seconds + sum(
            worker.cpu_seconds for worker in self._workers.values()
        )

    @property
    def memory_bytes(self) -> int:
        """What they share counted once; as each of them last said."""
        return sum(worker.memory_bytes for worker in self._workers.values())

    # ---- what comes

    def _late_workers(self, grid_ns: int) -> Iterator[tuple[str, WorkerHandle]]:
        for group in self._groups:
            process = self._supervisor.group_process(group)
            worker = self._workers.get(process.serial) if process else None
            if worker is not None and worker.grid_ns < grid_ns:
                yield group, worker

    def _decode(
        self, worker: WorkerHandle, now_ns: int, results: list[messages.TimedResult]
    ) -> None:
        worker.has_more = False
        try:
            while (message := worker.decoder.next()) is not None:
                if isinstance(message, messages.SampleBatch):
                    self._receive_batch(worker, message, now_ns, results)
                    worker.has_more = worker.decoder.waiting
                    return
                self._forward_event(worker, message)
        except messages.CodecError:
            log.exception("a sampler sent an invalid message", extra={"cause": "sampler.codec"})
            worker.decoder = messages.SampleBatchDecoder(
                self.collectors
            )  # nothing else that it said is heard
            worker.closed_ns = worker.closed_ns or now_ns
            self._fork_server.kill(worker.serial)

    def _forward_event(
        self,
        worker: WorkerHandle,
        message: messages.InventoryRequest | messages.SamplesRecorded | telemetry_pb2.HealthEvent,
    ) -> None:
        process = self._supervisor.processes.get(worker.serial)
        if isinstance(message, messages.SamplesRecorded):
            self._take_recording(message)
            return
        if self._publisher is None or process is None or process.role is ProcessRole.PROBE:
            return
        if isinstance(message, messages.InventoryRequest):
            self._publisher.request_inventory(message.reason)
        else:
            self._publisher.publish(message)

    def _receive_batch(
        self,
        worker: WorkerHandle,
        batch: messages.SampleBatch,
        now_ns: int,
        results: list[messages.TimedResult],
    ) -> None:
        grid_ns, worker.cpu_seconds, memory_bytes, worker.dropped, batch_results, slow_devices = (
            batch
        )
        worker.memory_bytes = memory_bytes or worker.memory_bytes
        worker.grid_ns = max(worker.grid_ns, grid_ns)
        process = self._supervisor.processes.get(worker.serial)
        if process is None:
            return
        seconds = 0.0  # asked for of a solo sampler only
        if process.role is ProcessRole.GROUP:
            if process.group == DCGM:
                batch_results = self._overlay.divert(batch_results, now_ns)
            self._overlay.apply(batch_results, now_ns)
            results += batch_results
        elif process.role is ProcessRole.PROBE:
            seconds = sum(timed.result.seconds for timed in batch_results)
            if self._supervisor.state_of(process) is QuarantineState.SLOW:
                self._overlay.store(batch_results, now_ns)
        self._execute(
            self._supervisor.batch_received(now_ns, worker.serial, seconds, slow_devices), now_ns
        )

    def _read_reports(self, now_ns: int, results: list[messages.TimedResult]) -> None:
        reports = self._fork_server.reports()
        for report in reports or ():
            worker = self._workers.get(report.serial)
            if worker is not None and report.message:
                worker.read(now_ns)  # its last words
                self._decode(worker, now_ns, results)
                self._ended(worker, report.message, now_ns)
            elif worker is not None:
                worker.pid = report.pid
        if reports is None:
            self._start_fork_server(now_ns)

    def _check_workers(self, now_ns: int) -> None:
        """Look after those that were not born in time, and those that have closed their socket."""
        pending = [each for each in self._workers.values() if each.closed_ns or not each.pid]
        if any(not each.pid and now_ns - each.fork_requested_ns > FORK_NS_MAX for each in pending):
            self._start_fork_server(now_ns)
        for worker in pending:
            if worker.closed_ns and now_ns - worker.closed_ns > CLOSED_NS_MAX:
                self._fork_server.kill(worker.serial)
                self._ended(worker, "closed its socket", now_ns)

    def _start_fork_server(self, now_ns: int) -> None:
        if now_ns - self._fork_server_ns < FORK_SERVER_NS_MIN:
            return
        is_restart, self._fork_server_ns = self._fork_server_ns >= 0, now_ns
        if is_restart:
            log.warning("the fork server ended; starting another one", extra={"cause": "nursery"})
            self._fork_server.kill_all()
        elif self._fork_server.pid:
            return  # it was forked before the rest of the daemon was imported
        try:
            self._fork_server.start()
        except OSError as error:
            log.error("no fork server: %s", error, extra={"cause": "nursery"})
        if is_restart:
            for worker in self._workers.values():
                worker.fork_requested_ns, worker.pid = now_ns, worker.pid or -1
            self._execute(self._supervisor.fork_server_replaced(now_ns), now_ns)

    def _ended(self, worker: WorkerHandle, message: str, now_ns: int) -> None:
        call_state = place.read(worker.memory)
        worker.link.close()
        del self._workers[worker.serial]
        self._ended_cpu_seconds += worker.cpu_seconds
        process = self._supervisor.processes.get(worker.serial)
        if process is not None and process.role in (
            ProcessRole.GROUP,
            ProcessRole.PROBE,
            ProcessRole.STANDBY,
        ):
            where = (
                f" in {call_state.collector}: {call_state.device} {call_state.call}"
                if call_state.entered_ns
                else ""
            )
            role = process.role.value
            log.warning(
                "a %s sampler %s%s", role, message, where, extra={"cause": f"sampler.{role}"}
            )
        self._execute(self._supervisor.died(now_ns, worker.serial, message, call_state), now_ns)

    # ---- who hangs

    def _stall_reason(self, serial: int) -> StallReason | None:
        worker = self._workers.get(serial)
        if worker is None or worker.pid <= 0:
            return None
        return self._fork_server.stall_reason(worker.pid, worker.cpu_seconds)

    def _inherit(self, now_ns: int) -> None:
        for abandoned in self._abandoned_file.read() if self._abandoned_file else ():
            if serial := self._supervisor.inherit(now_ns, abandoned.unit, abandoned.call_state):
                self._abandoned[serial] = abandoned
                self._inherited.add(serial)

    def _check_inherited(self, now_ns: int) -> None:
        """They are nobody's children: who of them has ended is only seen by looking."""
        if now_ns - self._inherited_checked_ns >= SECOND_NS:
            self._inherited_checked_ns = now_ns
            for serial in [each for each in self._inherited if not self._abandoned[each].is_alive]:
                self._inherited.discard(serial)
                call_state = self._abandoned[serial].call_state
                self._execute(
                    self._supervisor.died(now_ns, serial, "has ended", call_state), now_ns
                )
        self._call_states |= {
            serial: self._abandoned[serial].call_state for serial in self._inherited
        }

    def _save_abandoned(self, file: AbandonedProcessFile) -> None:
        """Keep the file as it is; a disk is written to only when somebody was abandoned, or has ended."""
        processes = self._supervisor.processes.values()
        units = {p.serial: p.unit for p in processes if p.role is ProcessRole.ABANDONED and p.unit}
        if units.keys() == self._abandoned.keys():
            return
        self._abandoned = {
            serial: self._abandoned.get(serial) or self._abandoned_in(serial, unit)
            for serial, unit in units.items()
        }
        file.write(each for each in self._abandoned.values() if each.start_ticks)

    def _abandoned_in(self, serial: int, unit: Unit) -> AbandonedProcess:
        worker, call_state = self._workers[serial], place.read(self._workers[serial].memory)
        start_ticks = self._fork_server.start_ticks(worker.pid)
        return AbandonedProcess(
            unit,
            worker.pid,
            start_ticks,
            call_state.entered_ns,
            call_state.collector,
            call_state.call,
        )

    # ---- what is done

    def _execute(self, actions: Sequence[Action], now_ns: int) -> None:
        for action in actions:
            if isinstance(action, ReportEvent):
                self._publish_report(action, now_ns)
            elif isinstance(action, messages.Fork):
                self._fork(action.serial, now_ns)
            elif isinstance(action, messages.Kill):
                self._fork_server.kill(action.serial)
            elif isinstance(action, messages.AssignTask):
                self._send_command(action.serial, action.task)
            else:
                warm = isinstance(action, messages.WarmSampler)
                self._send_command(action.serial, messages.WarmUp() if warm else messages.End())

    def _fork(self, serial: int, now_ns: int) -> None:
        used = {worker.slot for worker in self._workers.values()}
        slot = next(n for n in range(PROCESSES_MAX + 1) if n not in used)
        memory = self._fork_server.slot(slot)
        memory[:] = bytes(len(memory))
        try:
            link = self._fork_server.fork(serial, slot)
        except OSError as error:
            message = f"could not be forked: {error}"
            log.warning("a sampler %s", message, extra={"cause": "sampler.fork"})
            self._execute(self._supervisor.died(now_ns, serial, message, None), now_ns)
            return
        decoder = messages.SampleBatchDecoder(self.collectors)
        self._workers[serial] = WorkerHandle(serial, slot, link, memory, decoder, now_ns)

    def _send_command(self, serial: int, command: messages.Command) -> None:
        worker = self._workers.get(serial)
        if worker is not None and not worker.closed_ns:
            worker.outbox += messages.encode_command(command)
            worker.send()

    def _publish_report(self, report: ReportEvent, now_ns: int) -> None:
        log.warning("%s", report.message, extra={"cause": f"probe.{report.kind}.{report.device}"})
        if report.kind == "hung" or report.kind == "driver_hung":
            self._supervisor.set_devices(GPU, self._devices_of())
        if report.kind in ("hung", "driver_hung") and report.collector in self.collectors:
            result = CollectResult(
                report.collector, (), report.seconds, CollectOutcome.HUNG, report.message
            )
            self._hung_results.append(
                messages.TimedResult(now_ns - int(report.seconds * 1e9), result)
            )
        if self._publisher is not None:
            self._publisher.publish(event_of(report, now_ns, self._key_of))
