"""The daemon's end of the samplers: receives their messages and monitors them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from ...contract.block import Block
from ...contract.wire import telemetry_pb2
from ...ext import place
from ..clock import Clock
from ..collector import CollectOutcome, CollectResult
from ..events import EventPublisher
from . import messages
from .abandoned import AbandonedProcess, AbandonedProcessFile
from .collector_groups import DCGM, GPU, PROCESSES_MAX, CollectorGroups
from .forkserver import ProcessReport, StallReason
from .messages import RECORDING_AREA, Action, RecordingArea, ReportEvent
from .probe_tables import ProbeTables, SlowDeviceCache, event_of
from .process_table import ProcessRole
from .quarantine import DeviceState, QuarantineState, Unit
from .supervisor import Supervisor
from .worker_handle import SamplerSocket, WorkerHandle

SECOND_NS = 1_000_000_000
#: Time from a closed socket to the kill of a sampler whose exit was not reported.
CLOSED_NS_MAX = SECOND_NS
#: The fork server and all its samplers are replaced if a fork takes longer than this. A fork takes long on a host that
#: is short of memory or CPUs.
FORK_NS_MAX = 15 * SECOND_NS
#: Minimum time between two starts of the fork server.
FORK_SERVER_NS_MIN = SECOND_NS
log = logging.getLogger(__name__)


class SamplerForker(Protocol):
    """The methods of the fork server that the pool needs; a test's version runs samplers in its own process."""

    @property
    def pid(self) -> int: ...  # 0: not running
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
    """Runs all samplers, which make every call into a driver. For the daemon's thread; no method blocks or raises.

    Events of the collectors are discarded until `publish_to`.
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
        """*devices_of*: returns the PCI addresses of the GPUs without a call that may hang. *key_of*: UUID of an
        address, or that address if unknown. *deadline_seconds*: limit of a call into a driver. *abandoned_file*:
        records the abandoned processes for the next agent. *recording_area*: where samplers put their recordings."""
        self._groups, self._fork_server, self._clock = groups, fork_server, clock
        self._devices_of, self._key_of = devices_of, key_of
        self.collectors = [collector.name for members in groups.values() for collector in members]
        self._supervisor = Supervisor(
            {
                group: {collector.name: collector.can_exclude for collector in members}
                for group, members in groups.items()
            },
            deadline_ns=int(deadline_seconds * 1e9),
            stall_reason=self._stall_reason,
        )
        #: Result of the last `record`: its number, the file, and the error message.
        self.recorded: tuple[int, bytes, str] | None = None
        self._recording_area = recording_area
        self._abandoned_file = abandoned_file
        self._abandoned: dict[int, AbandonedProcess] = {}  # by serial; equals the file
        self._inherited: set[int] = set()  # serials abandoned by an earlier agent
        self._inherited_checked_ns = 0
        self._workers: dict[int, WorkerHandle] = {}
        self._publisher: EventPublisher | None = None
        self._hung_results: list[messages.TimedResult] = []
        self._overlay = SlowDeviceCache()
        self._tables = ProbeTables()
        self._call_states: dict[int, place.Seen] = {}  # by serial, at the last `poll`
        self._awaited = False  # results of this second are missing for some lane
        self._ended_cpu_seconds = 0.0  # used by samplers that have ended
        self._fork_server_ns = -FORK_SERVER_NS_MIN
        self._started = False

    def start(self, released: Mapping[str | None, int] | None = None) -> None:
        """Fork the fork server, and through it the samplers. Call this before any thread starts.

        *released*: GPUs to leave alone until a given time, as `released` returns them.
        """
        now_ns = self._clock.boottime_ns()
        if self._groups:
            self._started = True
            self._start_fork_server(now_ns)
            self._supervisor.set_devices(GPU, self._devices_of())
            self._inherit(now_ns)
            self._execute(self._supervisor.start(now_ns, released), now_ns)

    def publish_to(self, publisher: EventPublisher) -> None:
        """Publish later events through *publisher*."""
        self._publisher = publisher

    def close(self) -> None:
        """End all samplers and the fork server. A process that hangs in a driver ends when its call returns."""
        self._started = False
        self._fork_server.kill_all()
        for worker in self._workers.values():
            worker.link.close()
        self._workers.clear()

    def descriptors(self) -> list[int]:
        """Return the descriptors to poll: if any is readable, call `poll` before the next second.

        A lane's socket is included only while the results of its lane are awaited; `poll` always reads it.
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
        """Return the results that have arrived, at most one round per sampler, and supervise all samplers.

        The blocks are valid until the next `poll`; call again while `has_more`. *ready*: the readable descriptors;
        None: any may be readable. The sockets of lanes are read in any case.
        """
        if not self._started:
            return []
        server_descriptors = self._fork_server.descriptors()
        is_notified = (
            ready is None or not server_descriptors or not {*ready}.isdisjoint(server_descriptors)
        )
        if is_notified:
            self._fork_server.clear_wakeup()  # before the reports are read, so that no later report is missed
        results: list[messages.TimedResult] = []
        groups = self._supervisor.group_serials
        for worker in list(self._workers.values()):
            if worker.outbox:
                worker.send()
            if worker.has_more:  # decode first: a fast sender must not fill the decoder forever
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
        """Whether another round is ready to be returned by `poll`."""
        return any(worker.has_more for worker in self._workers.values())

    def waiting(self, grid_ns: int) -> bool:
        """Return whether results of the second *grid_ns* are missing for a lane that has a sampler."""
        self._awaited = self._started and next(self._late_workers(grid_ns), None) is not None
        return self._awaited

    def report_late(self, now_ns: int, grid_ns: int) -> None:
        """Report each lane whose results are missing to the supervisor."""
        for group, worker in list(self._late_workers(grid_ns)):
            self._execute(
                self._supervisor.report_late(now_ns, group, place.read(worker.memory)), now_ns
            )

    def next_ns(self, now_ns: int) -> int | None:
        """Return when a sampler must be checked again; None: not before the next second."""
        return self._supervisor.next_ns(now_ns, self._call_states) if self._started else None

    def blocks(self) -> list[Block]:
        """Return the current `probe_1s` and `gpu_1s_probe`."""
        return self._tables.blocks(self.states(), self.released(), self._key_of)

    def release(self, devices: frozenset[str] | None, seconds: float) -> None:
        """Release every handle of these GPUs (PCI addresses), or of all GPUs and the driver.

        They are taken back after *seconds* automatically. `may_hold` shows whether all handles are released.
        """
        now_ns = self._clock.boottime_ns()
        self._execute(self._supervisor.release(now_ns, devices, seconds), now_ns)

    def resume(self, devices: frozenset[str] | None) -> None:
        """Take back these released GPUs; None: all GPUs."""
        now_ns = self._clock.boottime_ns()
        self._execute(self._supervisor.resume(now_ns, devices), now_ns)

    def released(self) -> Mapping[str | None, int]:
        """Return the end of release (boot time) per released GPU; the key None means all GPUs."""
        return self._supervisor.released()

    def may_hold(self, devices: frozenset[str] | None) -> bool:
        """Return whether a sampler may hold handles of these GPUs; None: any GPU, or the driver."""
        return self._supervisor.may_hold(devices)

    def quarantine_gpu(self, device: str, reason: str) -> None:
        """Do not call a GPU (PCI address) that its driver reported as faulty; it is retried later."""
        now_ns = self._clock.boottime_ns()
        self._execute(self._supervisor.quarantine_gpu(now_ns, device, reason), now_ns)

    def record(self, number: int, seconds: int) -> bool:
        """Start a recording in the GPUs' sampler; `recorded` gets the result. False: no such sampler is running."""
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
        """Return the states that are not normal, and for one minute those that returned to normal."""
        return self._supervisor.states(self._clock.boottime_ns())

    @property
    def abandoned_count(self) -> int:
        """Number of processes ever abandoned."""
        return self._supervisor.abandoned_count

    @property
    def takeovers_count(self) -> int:
        """Number of times that another sampler took over a lane."""
        return self._supervisor.takeovers_count

    @property
    def processes(self) -> int:
        """Number of live processes, including the fork server."""
        return len(self._workers) + self._started

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all samplers since the start, including ended ones."""
        return self._ended_cpu_seconds + sum(
            worker.cpu_seconds for worker in self._workers.values()
        )

    @property
    def memory_bytes(self) -> int:
        """Memory of all samplers by their last reports; shared memory counts once."""
        return sum(worker.memory_bytes for worker in self._workers.values())

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
            worker.decoder = messages.SampleBatchDecoder(self.collectors)  # drops the rest
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
        worker.cpu_seconds = batch.cpu_seconds
        worker.memory_bytes = batch.memory_bytes or worker.memory_bytes
        worker.grid_ns = max(worker.grid_ns, batch.grid_ns)
        process = self._supervisor.processes.get(worker.serial)
        if process is None:
            return
        batch_results, seconds = batch.results, 0.0  # seconds: used for a solo sampler only
        if process.role is ProcessRole.GROUP:
            if process.group == DCGM:
                batch_results = self._overlay.divert(batch_results, now_ns)
            self._overlay.apply(batch_results, now_ns)
            results += batch_results
        elif process.role is ProcessRole.PROBE:
            seconds = sum(timed.result.seconds for timed in batch_results)
            if self._supervisor.state_of(process) is QuarantineState.SLOW:
                self._overlay.store(batch_results, now_ns)
        received = now_ns, worker.serial, seconds, batch.slow_devices
        self._execute(self._supervisor.batch_received(*received), now_ns)

    def _read_reports(self, now_ns: int, results: list[messages.TimedResult]) -> None:
        reports = self._fork_server.reports()
        for report in reports or ():
            worker = self._workers.get(report.serial)
            if worker is not None and report.message:
                worker.read(now_ns)  # messages from before its end
                self._decode(worker, now_ns, results)
                self._ended(worker, report.message, now_ns)
            elif worker is not None:
                worker.pid = report.pid
        if reports is None:
            self._start_fork_server(now_ns)

    def _check_workers(self, now_ns: int) -> None:
        """Replace a fork server whose forks take too long; kill samplers that closed their socket but did not exit."""
        pending = [
            worker for worker in self._workers.values() if worker.closed_ns or not worker.pid
        ]
        if any(
            not worker.pid and now_ns - worker.fork_requested_ns > FORK_NS_MAX for worker in pending
        ):
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
        if process is not None and process.is_active:
            where = f" in {call_state.collector}: {call_state.device} {call_state.call}"
            where, role = where if call_state.entered_ns else "", process.role.value
            extra = {"cause": f"sampler.{role}"}
            log.warning("a %s sampler %s%s", role, message, where, extra=extra)
        self._execute(self._supervisor.died(now_ns, worker.serial, message, call_state), now_ns)

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
        """Check inherited processes once per second: they are not our children, so no exit is reported."""
        if now_ns - self._inherited_checked_ns >= SECOND_NS:
            self._inherited_checked_ns = now_ns
            for serial in [s for s in self._inherited if not self._abandoned[s].is_alive]:
                self._inherited.discard(serial)
                ended = now_ns, serial, "has ended", self._abandoned[serial].call_state
                self._execute(self._supervisor.died(*ended), now_ns)
        self._call_states |= {
            serial: self._abandoned[serial].call_state for serial in self._inherited
        }

    def _save_abandoned(self, file: AbandonedProcessFile) -> None:
        """Rewrite the file only if a process was abandoned or has ended, to spare the disk."""
        processes = self._supervisor.processes.values()
        units = {p.serial: p.unit for p in processes if p.role is ProcessRole.ABANDONED and p.unit}
        if units.keys() == self._abandoned.keys():
            return
        self._abandoned = {
            serial: self._abandoned.get(serial) or self._abandoned_in(serial, unit)
            for serial, unit in units.items()
        }
        file.write(p for p in self._abandoned.values() if p.start_ticks)

    def _abandoned_in(self, serial: int, unit: Unit) -> AbandonedProcess:
        worker = self._workers[serial]
        seen, start_ticks = place.read(worker.memory), self._fork_server.start_ticks(worker.pid)
        call = seen.entered_ns, seen.collector, seen.call
        return AbandonedProcess(unit, worker.pid, start_ticks, *call)

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
        if report.kind in ("hung", "driver_hung"):
            self._supervisor.set_devices(GPU, self._devices_of())
            if report.collector in self.collectors:
                began_ns, hung = now_ns - int(report.seconds * 1e9), CollectOutcome.HUNG
                result = CollectResult(report.collector, (), report.seconds, hung, report.message)
                self._hung_results.append(messages.TimedResult(began_ns, result))
        if self._publisher is not None:
            self._publisher.publish(event_of(report, now_ns, self._key_of))
