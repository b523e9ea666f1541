"""Main loop of a sampler: runs turns one after another on a fixed time grid, and sends each round as one message."""

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
from ..clock import Clock, PeriodicSchedule
from ..collector import Collector, NoData, RestartRequired, run_collector
from ..events import EventPublisher
from ..self_metrics import pss_bytes
from . import messages
from .collector_groups import CollectorGroups

SECOND_NS = 1_000_000_000
#: Name of the schedule's entry for the message sent each second, with or without turns.
BATCH_TICK = ""
#: Rounds between measurements of memory: the kernel walks all pages of the process for it.
MEMORY_BATCHES = 300

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 16
#: Exit code that requests another process (`agent.collector.RestartRequired`).
RESTART_EXIT_CODE = 75
#: Wait for a daemon that does not read. The unsent rest then waits, and further messages are lost.
SEND_MILLISECONDS_MAX = 200


class AllExcept(frozenset[str]):
    """Every name except one, known or not; iterating gives the known names.

    The empty name, which stands for the whole driver, is not included.
    """

    excepted: str

    @classmethod
    def of(cls, excepted: str, known: Iterable[str]) -> AllExcept:
        """Return all names except *excepted*."""
        names = cls(frozenset(known) - {excepted})
        names.excepted = excepted
        return names

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        return name not in ("", self.excepted)


class _DaemonEventSink:
    """A sink for events: sends them to the daemon, which has the disk."""

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send = send

    def put(self, event: telemetry_pb2.HealthEvent) -> bool:
        return self._send(messages.encode_event(event))


class _ForwardingPublisher(EventPublisher):
    """A publisher that sends inventory requests at once instead of at the next tick."""

    def __init__(self, clock: Clock, send: Callable[[bytes], bool]) -> None:
        super().__init__(clock, _DaemonEventSink(send), lambda: None)
        self._send = send

    def request_inventory(self, reason: str) -> None:
        self._send(messages.encode_inventory(reason))


class Worker:
    """Runs the turns of its group when they are due, and the daemon's commands. Never raises.

    For a single thread. Clock and channel are arguments, so the same object runs in its own process
    and, an hour in a second, in a test.
    """

    def __init__(
        self,
        groups: CollectorGroups,
        clock: Clock,
        send: Callable[[bytes], bool],
        measure_cost: Callable[[bool], tuple[float, int]] = lambda _: (0.0, 0),
        on_group_assigned: Callable[[str], None] = lambda _: None,
        send_urgent: Callable[[bytes], bool] | None = None,
        recording_area: messages.RecordingArea = messages.RECORDING_AREA,
    ) -> None:
        """*send* returns False without capacity; *send_urgent* also wakes the daemon.

        *measure_cost* returns CPU seconds and, on request, bytes of memory (0: as before).
        *on_group_assigned* gets the group's name.
        """
        self._groups, self._clock, self._send = groups, clock, send
        self._measure_cost, self._on_group_assigned = measure_cost, on_group_assigned
        self._send_urgent, self._recording_area = send_urgent or send, recording_area
        self._publisher = _ForwardingPublisher(clock, send_urgent or send)
        every = [collector.name for collectors in groups.values() for collector in collectors]
        self._encoder = messages.SampleBatchEncoder(every)
        self._task: messages.SamplerTask | None = None
        self._collectors: dict[str, Collector] = {}
        #: Collectors with work between turns.
        self.idle_collectors: Sequence[Collector] = ()
        self._timed_collectors: Sequence[Collector] = ()  # collectors that may name slow devices
        self._started_sources: set[str] = set()
        self._schedule = PeriodicSchedule({})
        self._batches = self._dropped_messages = self._memory_bytes = 0
        self.ended = False
        self.restart_required = False  # only another process can continue

    def next_ns(self) -> int | None:
        """Return the time of the next turn; None without a task."""
        return None if self._task is None else self._schedule.next_ns()

    def handle(self, command: messages.Command) -> None:
        if isinstance(command, messages.End):
            self.ended = True
        elif isinstance(command, messages.WarmUp):
            self._warm_up()
        elif isinstance(command, messages.RecordCommand):
            self._send_urgent(messages.encode_recorded(self._record(command)))
        else:
            self._assign(command)

    def _warm_up(self) -> None:
        for collector in (collector for members in self._groups.values() for collector in members):
            self._call_safely(collector, collector.warm_up)
        self._send_batch([], 0, measure_memory=True)

    def _record(self, command: messages.RecordCommand) -> messages.SamplesRecorded:
        """Write the samples to the area; return their size, or the reason without samples."""
        source = next(
            (collector for collector in self._collectors.values() if collector.has_idle_work), None
        )
        if source is None:
            return messages.SamplesRecorded(
                command.number, 0, "no GPU of this host is sampled at 10 Hz"
            )
        try:
            data = source.record(command.seconds, self._recording_area.size)
            self._recording_area.write(data)
        except NoData as reason:
            return messages.SamplesRecorded(command.number, 0, str(reason))
        except Exception as error:
            log.exception("samples cannot be recorded", extra={"cause": "sampler.recording"})
            return messages.SamplesRecorded(command.number, 0, f"{type(error).__name__}: {error}")
        return messages.SamplesRecorded(command.number, len(data))

    def _assign(self, task: messages.SamplerTask) -> None:
        if self._task is None:
            self._on_group_assigned(task.group)
        self._task = task
        chosen = {
            collector.name: collector
            for collector in self._groups[task.group]
            if _is_selected(collector, task)
        }
        excluded: frozenset[str] = task.excluded_devices
        if task.only_device:
            excluded = AllExcept.of(task.only_device, task.excluded_devices)
        for collector in chosen.values():
            self._call_safely(collector, collector.exclude, excluded)
            if not task.only_device:
                self._start_source(collector)
        periods = _periods(chosen.values(), task.period_ns)
        if periods != self._schedule.periods_ns:
            self._schedule = PeriodicSchedule(periods)
        self._collectors = chosen
        self.idle_collectors = [
            collector for collector in chosen.values() if collector.has_idle_work
        ]
        self._timed_collectors = [
            collector for collector in chosen.values() if collector.names_slow_devices
        ]

    def _start_source(self, collector: Collector) -> None:
        """Start event reports. Not in a probe: the reports would count as sent, but be lost."""
        if collector.name not in self._started_sources:
            self._started_sources.add(collector.name)
            self._call_safely(collector, collector.start, self._publisher)

    def _call_safely(self, collector: Collector, call: Callable[..., object], *given: Any) -> None:
        place.collector(collector.name.encode())
        try:
            call(*given)
        except Exception:
            cause = f"collector.{collector.name}.sampler"
            log.exception("collector %s fails", collector.name, extra={"cause": cause})
        place.collector(b"")

    def tick(self) -> None:
        """Run the due turns, if any, and send them."""
        now_ns = self._clock.boottime_ns()
        due = self._schedule.due(now_ns) if self._task else []
        if not due:
            return
        try:
            results = [self._run(self._collectors[name]) for name in due if not self._skips(name)]
        except RestartRequired as reason:
            log.warning("%s: another sampler continues", reason, extra={"cause": "sampler.anew"})
            self.ended = self.restart_required = True
            return
        place.collector(b"")
        self._batches += 1
        self._send_batch(
            results, now_ns // SECOND_NS * SECOND_NS, self._batches % MEMORY_BATCHES == 2
        )

    def _skips(self, name: str) -> bool:
        return name == BATCH_TICK or self._collectors[name].skip()

    def _run(self, collector: Collector) -> messages.TimedResult:
        place.collector(collector.name.encode())
        began_ns = self._clock.boottime_ns()
        return messages.TimedResult(began_ns, run_collector(collector, self._clock))

    def _send_batch(
        self, results: Sequence[messages.TimedResult], grid_ns: int, measure_memory: bool
    ) -> None:
        seconds, memory = self._measure_cost(measure_memory)
        self._memory_bytes = memory or self._memory_bytes
        slow_devices = messages.NO_DEVICES.union(
            *[collector.slow_devices() for collector in self._timed_collectors]
        )
        counts = (grid_ns, seconds, self._memory_bytes, self._dropped_messages)
        try:
            sent = self._send(self._encoder.encode(*counts, results, slow_devices))
        except messages.CodecError:
            log.exception("a round cannot be sent", extra={"cause": "sampler.round"})
            sent = False
        if not sent:
            self._dropped_messages += 1
            self._encoder.forget()


def _is_selected(collector: Collector, task: messages.SamplerTask) -> bool:
    if task.only_collector:
        return collector.name == task.only_collector
    if task.only_device and not collector.can_exclude:
        return False
    return collector.name not in task.excluded_collectors


def _periods(collectors: Iterable[Collector], period_ns: int) -> dict[str, int]:
    """Return the periods, the shortest first: collectors of each second wait for no others."""
    periods = {
        collector.name: period_ns or PERIOD_SECONDS[collector.pace] * SECOND_NS
        for collector in collectors
    }
    return dict(sorted(periods.items(), key=lambda item: item[1])) | {
        BATCH_TICK: period_ns or SECOND_NS
    }


class MessageSender:
    """Sends whole messages; blocks at most SEND_MILLISECONDS_MAX."""

    def __init__(self, connection: socket.socket, wakeup_fd: int) -> None:
        """*connection* and *wakeup_fd*, an eventfd that wakes the daemon, are non-blocking."""
        self._connection, self._wakeup_fd = connection, wakeup_fd
        self._unsent = b""
        self.is_connected = True  # False: the daemon has exited
        self._poll = select.poll()
        self._poll.register(connection, select.POLLOUT)

    def send(self, message: bytes) -> bool:
        """Send *message*; False, and the message is lost, while an earlier message waits."""
        if self._unsent:
            self._flush()
        if self._unsent:
            return False
        self._unsent = message
        self._flush()
        return True

    def send_urgent(self, message: bytes) -> bool:
        """Send *message* and wake the daemon, which otherwise reads at its next second."""
        sent = self.send(message)
        with suppress(BlockingIOError):  # the counter is full, so the daemon is woken anyway
            os.eventfd_write(self._wakeup_fd, 1)
        return sent

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
            except BlockingIOError:
                if not self._poll.poll(SEND_MILLISECONDS_MAX):
                    return
            except OSError:
                self.is_connected = False
                return


def process_cost(measure_memory: bool) -> tuple[float, int]:
    """Return this process's CPU seconds and, on request, its bytes of memory, else 0."""
    if measure_memory:
        gc.collect()
        process.trim()
    return time.process_time(), int(pss_bytes() or 0) if measure_memory else 0


def serve(groups: CollectorGroups, connection: socket.socket, clock: Clock, wakeup_fd: int) -> bool:
    """Run a sampler until the daemon ends it or exits; return whether another must continue."""
    connection.setblocking(False)
    sender = MessageSender(connection, wakeup_fd)
    worker = Worker(
        groups,
        clock,
        sender.send,
        process_cost,
        lambda group: process.name(f"gangline-{group}".encode()),
        sender.send_urgent,
    )
    buffer, readable = messages.MessageBuffer(), select.poll()
    readable.register(connection, select.POLLIN)
    while not worker.ended and sender.is_connected:
        if _wait(worker, readable, clock) and not _receive(worker, connection, buffer):
            break
        worker.tick()
    return worker.restart_required


def _wait(worker: Worker, readable: select.poll, clock: Clock) -> bool:
    """Wait until the next turn; True: a command may have come. Collectors sample meanwhile."""
    until_ns = worker.next_ns()
    if until_ns is None:
        return bool(readable.poll())
    for collector in worker.idle_collectors:
        place.collector(collector.name.encode())
        try:
            collector.idle(until_ns)
        except Exception:
            log.exception("the rest of a collector's turn failed", extra={"cause": "sampler.rest"})
        place.collector(b"")
    if place.called():
        return True
    left_ns = until_ns - clock.boottime_ns()
    return left_ns > 0 and bool(readable.poll(left_ns / 1e6))


def _receive(worker: Worker, connection: socket.socket, buffer: messages.MessageBuffer) -> bool:
    """Execute all received commands. False: the daemon exited or sent an invalid command."""
    while True:
        try:
            data = connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data or not _handle_data(worker, buffer, data):
            return False


def _handle_data(worker: Worker, buffer: messages.MessageBuffer, data: bytes) -> bool:
    buffer.feed(data)
    try:
        for kind, body in buffer:
            worker.handle(messages.decode_command(kind, body))
    except (messages.CodecError, UnicodeDecodeError, KeyError):
        log.exception("an invalid order", extra={"cause": "sampler.order"})
        return False
    return True
