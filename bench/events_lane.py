"""Latency of an event, from the kernel log record to the aggregator's receipt, against a bare echo.

Both run alternately between the same two processes, by the same HTTP/2 client and server libraries.
The lane is the agent's own reader, queue and client and a complete aggregator: two fsyncs, four
threads. The echo is one unary call with the same event, which the server ignores. Also measured:
the cost of a line in a storm of 800,000.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import Result, percentile, pss_bytes
from gangline.agent.clock import SystemClock
from gangline.agent.collectors.kernel_log import KernelLog
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.kmsg import Kmsg
from gangline.agent.kernel_log.checkpoint_file import CheckpointFile
from gangline.agent.kernel_log.reader import LogReader
from gangline.agent.kernel_log.timestamps import TimestampConverter
from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.transport.client import Client
from gangline.agent.transport.grpc_http2 import EVENTS, CallResponse, ClientSession
from gangline.contract.wire import telemetry_pb2
from gangline.contract.wire.telemetry_pb2 import HealthEvent

#: One incident per event; a round is smaller than `incidents.OPEN_MAX`.
EVENTS_PER_ROUND, ROUNDS = 200, 4
WARM_UP_EVENTS = 20
STORM_LINES, STORM_FORMS = 800_000, 29
SECONDS_MAX = 30.0
LINE = (
    "NVRM: Xid (PCI:{:04x}:{:02x}:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting "
    "for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4)."
)


class TimedQueue:
    """The agent's own queue, with the times of arrival, disk write and receipt per event."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self.queued_seconds = self.durable = self.acknowledged = 0.0
        self.done = threading.Event()

    def put(self, event: HealthEvent) -> bool:
        self.queued_seconds = time.perf_counter()
        durable = self._queue.put(event)
        self.durable = time.perf_counter()
        return durable

    @property
    def waiting(self) -> bool:
        return self._queue.waiting

    def pending(self, count_max: int) -> list[HealthEvent]:
        return self._queue.pending(count_max)

    def acknowledge(self, event_ids: Iterable[str]) -> None:
        self.acknowledged = time.perf_counter()
        self._queue.acknowledge(event_ids)
        self.done.set()

    def mark_refused(self, event_ids: Iterable[str], reason: str) -> None:
        raise AssertionError(reason)


class NoFrames:
    """A spool without frames: only the events' path is measured."""

    def __init__(self) -> None:
        self.run_id, self.boot_id = os.urandom(16), bytes(16)

    def next_sequence(self) -> int:
        return 1

    def pending(self, after: int, count_max: int) -> list[Any]:
        return []

    def acknowledge(self, first: int, last: int) -> None: ...
    def mark_refused(self, sequence: int, reason: str) -> None: ...


class EchoLane:
    """A bare unary call by the agent's HTTP/2 session over a blocking socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = ClientSession(f"127.0.0.1:{port}")

    def seconds(self, event: HealthEvent) -> float:
        begin = time.perf_counter()
        self._session.call(EVENTS, telemetry_pb2.ReportEventsRequest(events=[event]))
        self._socket.sendall(self._session.data_to_send())
        while not any(
            isinstance(a, CallResponse) for a in self._session.receive(self._socket.recv(1 << 16))
        ):
            self._socket.sendall(self._session.data_to_send())
        seconds = time.perf_counter() - begin
        self._socket.sendall(self._session.data_to_send())
        return seconds

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _server(folder: Path) -> Iterator[tuple[int, int, list[float]]]:
    """Yield both ports, and a list that afterwards holds the server's fsyncs in microseconds."""
    command = [sys.executable, "-m", "bench.events_server", str(folder)]
    appends: list[float] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        port, echo = map(int, child.stdout.readline().split())
        yield port, echo, appends
        child.stdin.close()
        appends += json.loads(child.stdout.readline())


class EventLaneBed:
    """The agent's side: a log to write to, its reader, its queue and its client."""

    def __init__(self, folder: Path, client: Client, queue: TimedQueue, number: int) -> None:
        self.parts: dict[str, list[float]] = {"parse": [], "agent fsync": [], "call": []}
        self.totals: list[float] = []
        self._queue = queue
        self._number = number
        local_socket, self._log = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptor = local_socket.detach()
        self._reader = KernelLog(
            Roots(state=folder / f"state-{number}"), lambda path: Kmsg(descriptor)
        )
        self._reader.start(EventPublisher(SystemClock(), queue, client.notify))

    def seconds(self, sequence: int) -> float:
        """Write a record; return the seconds until its receipt."""
        line = LINE.format(self._number, sequence)
        stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        record = f"3,{sequence},{stamp},-;{line}\n".encode()
        queue = self._queue
        queue.done.clear()
        begin = time.perf_counter()
        self._log.send(record)
        if not queue.done.wait(SECONDS_MAX):
            raise TimeoutError(f"no receipt within {SECONDS_MAX:g} s")
        self.totals.append(queue.acknowledged - begin)
        for name, part in (
            ("parse", queue.queued_seconds - begin),
            ("agent fsync", queue.durable - queue.queued_seconds),
            ("call", queue.acknowledged - queue.durable),
        ):
            self.parts[name].append(part)
        return self.totals[-1]

    def close(self) -> None:
        self._reader.close()
        self._log.close()


def _measure(folder: Path) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """Return the seconds of lane and echo, alternating, and the parts of the lane."""
    totals: list[float] = []
    echoes: list[float] = []
    parts: dict[str, list[float]] = {}
    with _server(folder / "aggregator") as (port, echo_port, appends):
        queue = EventQueue.open(folder / "events")
        timed, frames, echo = TimedQueue(queue), NoFrames(), EchoLane(echo_port)
        client = Client(
            f"127.0.0.1:{port}", _registration, frames, timed, random_source=random.Random(1)
        )
        client.start()
        while not client.connected:
            time.sleep(0.01)
        for number in range(ROUNDS):
            lane = EventLaneBed(folder, client, timed, number)
            for sequence in range(EVENTS_PER_ROUND):
                event = HealthEvent(event_id="x" * 40, message=LINE, name="gpu.xid")
                echoed, total = echo.seconds(event), lane.seconds(sequence)
                if number or sequence >= WARM_UP_EVENTS:
                    echoes.append(echoed)
                    totals.append(total)
            lane.close()
            for name, values in lane.parts.items():
                parts.setdefault(name, []).extend(values)
        client.close()
        echo.close()
        queue.close()
    parts["server fsync"] = [append / 1e6 for append in appends]
    return totals, echoes, parts


def _registration() -> telemetry_pb2.RegisterNodeRequest:
    return telemetry_pb2.RegisterNodeRequest(
        protocol_version=1, node="bench", agent_version="bench",
        boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME), wall_time_ns=time.time_ns(),
    )  # fmt: skip


def _follower(events: list[HealthEvent]) -> LogReader:
    def publish(event: HealthEvent) -> bool:
        events.append(event)
        return True

    follower = LogReader(
        bytes(16), publish, CheckpointFile(None), SystemClock(), TimestampConverter()
    )
    follower.on_open()
    return follower


def _take(follower: LogReader, records: list[bytes]) -> float:
    begin = time.process_time()
    for record in records:
        follower.feed(record, live=False)
    follower.flush_due()
    return time.process_time() - begin


def _storm() -> tuple[float, float, list[HealthEvent]]:
    """Return the CPU microseconds a line, the growth of the process in bytes, and the reported
    events.
    """
    events: list[HealthEvent] = []
    follower = _follower(events)
    tokens = [f"{chr(97 + n // 6)}{chr(103 + n % 6)}" for n in range(STORM_FORMS)]
    stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    spent = 0.0
    memory = pss_bytes([os.getpid()])
    for index in range(0, STORM_LINES, 1000):
        group = [
            f"3,{n},{stamp},-;NVRM: Xid (PCI:0000:9b:00): 95, pid={n}, name=python, Uncontained: "
            f"{tokens[n % STORM_FORMS]}. RST: Yes, D-RST: No (0x{n:x})\n".encode()
            for n in range(index, index + 1000)
        ]
        spent += _take(follower, group)
    grown = pss_bytes([os.getpid()]) - memory
    follower.finish()
    return spent / STORM_LINES * 1e6, grown, events


def _ordinary(lines: int) -> float:
    records = [
        f"6,{n},{n},-;IPv6: ADDRCONF(NETDEV_CHANGE): cali{n:x}: link becomes ready\n".encode()
        for n in range(lines)
    ]
    return _take(_follower([]), records) / lines * 1e6


def run(seed: int) -> list[Result]:
    """Measure the lane and the storm. *seed* is ignored."""
    with tempfile.TemporaryDirectory() as folder:
        lane, echo, parts = _measure(Path(folder))
    text = ", ".join(
        f"{name} {percentile(times, 0.5) * 1e6:.0f}/{percentile(times, 0.99) * 1e6:.0f}"
        for name, times in parts.items()
    )
    notes = f"{len(lane)} events, each its own incident; p50/p99 us of the parts: {text}"
    results = [
        Result(
            f"record to receipt, p{share * 100:.0f}", percentile(lane, share) * 1e6, "us",
            "bare unary echo", percentile(echo, share) * 1e6, notes,
        )
        for share in (0.5, 0.99)
    ]  # fmt: skip
    cost, grown, events = _storm()
    last = events[-1]
    notes = (
        f"{last.count} lines of {len({e.event_id for e in events})} incident, {last.forms_count} forms, "
        f"reported {len(events)} times; the process grew by {grown / 1e6:.1f} MB"
    )
    results.append(
        Result(
            "a line of a storm",
            cost,
            "us CPU",
            "a line without an event",
            _ordinary(100_000),
            notes,
        )
    )
    return results
