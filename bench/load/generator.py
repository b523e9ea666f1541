"""The hosts of a load in one process: each with its connection, credit and receipts.

    python -m bench.load.generator --address 127.0.0.1:7600 --plan 1000x20,2000x20 --seed 1

Prints a line of JSON a second and a last one with `"done": true`; exits when standard input ends.
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from bench.load.fleet import SECOND_NS, UPTIME_NS, HostIdentity, HostMessage, Model
from bench.load.latency import Latencies
from bench.load.link import LinkError, LoadLink
from gangline.contract.stream import Sender
from gangline.contract.wire import telemetry_pb2 as wire

#: Frames that a host keeps while it has no credit; beyond that the oldest are dropped and counted.
UNACKED_MAX = 64
#: Hosts due within this time send at once, for fewer wake-ups.
GRAIN_SECONDS = 0.004
#: Maximum wait for receipts after the last frame.
LAST_SECONDS = 20.0


@dataclass(slots=True)
class LoadHost:
    """One host's side of the protocol."""

    number: int
    identity: HostIdentity
    link: LoadLink
    sender: Sender
    credit: int
    sequence: int = 0
    flying: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])
    unacked: deque[tuple[HostMessage, float]] = field(
        default_factory=deque[tuple[HostMessage, float]]
    )
    alive: bool = True


@dataclass(slots=True)
class LoadCounts:
    """Counts since the start."""

    frames: int = 0
    rows: int = 0
    gpu_rows: int = 0
    bytes: int = 0
    receipted: int = 0
    receipted_rows: int = 0
    refused: int = 0
    stalls: int = 0
    dropped: int = 0
    broken: int = 0


class Generator:
    """Connects *hosts*, then sends by *plan*: (hosts that send, seconds), step by step."""

    def __init__(self, address: tuple[str, int], seed: int, period_seconds: int) -> None:
        self.model = Model(seed)
        self._address, self._seed, self._period = address, seed, period_seconds
        self.hosts: list[LoadHost] = []
        self.counts = LoadCounts()
        self.error_message = ""
        self.receipts, self.late = Latencies(), Latencies()
        self.span_receipts = Latencies()  # since the last line
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, LoadHost] = {}
        self._begin_wall_ns = time.time_ns()
        self._begin = time.monotonic()

    def connect(self, count: int) -> None:
        """Open connections until there are *count*, one after another. Raises LinkError."""
        while len(self.hosts) < count:
            number = len(self.hosts)
            identity, link = HostIdentity(number, self._seed), LoadLink(self._address)
            template = self.model.registrations[number % len(self.model.registrations)]
            clocks = self._clocks(time.monotonic())
            answer = link.register(identity.registration(template, *clocks))
            link.open(answer.session)
            sender = Sender(answer.stream_context_bytes)
            host = LoadHost(number, identity, link, sender, answer.credit_frames)
            self.hosts.append(host)
            self._by_descriptor[link.socket.fileno()] = host
            self._epoll.register(link.socket, select.EPOLLIN)
            if not len(self.hosts) % 100:
                self._listen(0.0)

    def _clocks(self, now: float) -> tuple[int, int]:
        """Return (boot time, wall clock) in ns at a monotonic time."""
        since_ns = int((now - self._begin) * SECOND_NS)
        return UPTIME_NS + since_ns, self._begin_wall_ns + since_ns

    def run(self, plan: list[tuple[int, int]], warm: int) -> None:
        """Send; print a line a second. Latencies of the first *warm* seconds are not counted."""
        second, seconds = 0, sum(length for _, length in plan)
        ends = [
            (count, sum(n for _, n in plan[: index + 1])) for index, (count, _) in enumerate(plan)
        ]
        messages = self.model.second()
        begin = time.monotonic()
        while second < seconds:
            active = next(count for count, end in ends if second < end)
            self._send_second(begin + second, active, second, messages)
            second += 1
            if second == warm:
                self.receipts, self.late = Latencies(), Latencies()
            self._report(active)
            messages = self.model.second()
        end = time.monotonic() + LAST_SECONDS
        while any(host.flying for host in self.hosts) and time.monotonic() < end:
            self._listen(0.1)

    def _send_second(
        self, begin: float, active: int, second: int, messages: list[HostMessage]
    ) -> None:
        hosts = self.hosts[:active]
        hosts = hosts[second % self._period :: self._period]
        step = 1.0 / max(1, len(hosts))
        for index, host in enumerate(hosts):
            due = begin + index * step
            now = time.monotonic()
            while due > now + GRAIN_SECONDS:
                self._listen(due - now)
                now = time.monotonic()
            if not index % 64:
                self._listen(0.0)
            self.late.add(now - due)
            self._send_message(host, messages[host.number % len(messages)], due)
        while (rest := begin + 1.0 - time.monotonic()) > 0.001:
            self._listen(rest)

    def _send_message(self, host: LoadHost, message: HostMessage, due: float) -> None:
        if not host.alive:
            return
        if host.unacked or len(host.flying) >= host.credit:
            self.counts.stalls += 1
            if len(host.unacked) >= UNACKED_MAX:
                host.unacked.popleft()
                self.counts.dropped += 1
            host.unacked.append((message, due))
            return
        self._send(host, message, due)

    def _send(self, host: LoadHost, said: HostMessage, due: float) -> None:
        host.sequence += 1
        frame = host.identity.frame(said, host.sequence, *self._clocks(due))
        message = wire.TelemetryBatch(sequence=host.sequence, differences=host.sender.encode(frame))
        counts = self.counts
        counts.frames += 1
        counts.rows += said.rows
        counts.gpu_rows += said.gpu_rows
        counts.bytes += message.ByteSize()
        host.flying[host.sequence] = due, said.rows
        try:
            host.link.send(message)
        except LinkError as error:
            self._broken(host, error)
        else:
            if host.link.waits:
                self._epoll.modify(host.link.socket, select.EPOLLIN | select.EPOLLOUT)

    def _listen(self, seconds: float) -> None:
        for descriptor, mask in self._epoll.poll(max(0.0, seconds), 256):
            host = self._by_descriptor[descriptor]
            try:
                if mask & select.EPOLLOUT:
                    host.link.flush()
                    if not host.link.waits:
                        self._epoll.modify(descriptor, select.EPOLLIN)
                if mask & ~select.EPOLLOUT:
                    for message in host.link.receive():
                        self._take(host, message)
            except LinkError as error:
                self._broken(host, error)

    def _take(self, host: LoadHost, ack: wire.IngestAck) -> None:
        now, counts = time.monotonic(), self.counts
        host.credit = ack.credit_frames
        for span in ack.durable:
            for sequence in range(span.first, span.last + 1):
                due, rows = host.flying.pop(sequence)
                self.receipts.add(now - due)
                self.span_receipts.add(now - due)
                counts.receipted += 1
                counts.receipted_rows += rows
        for refused in ack.refused:
            counts.refused += 1
            host.flying.pop(refused.sequence, None)
            self.error_message = self.error_message or f"refused: {refused.reason}"
        while host.unacked and len(host.flying) < host.credit and host.alive:
            self._send(host, *host.unacked.popleft())

    def _broken(self, host: LoadHost, error: LinkError) -> None:
        if host.alive:
            host.alive = False
            self.counts.broken += 1
            self.error_message = self.error_message or str(error)
            self._epoll.unregister(host.link.socket)
            host.link.close()
            host.flying.clear()

    def _report(self, active: int) -> None:
        counts = {name: getattr(self.counts, name) for name in LoadCounts.__slots__}
        line = {
            "active": active,
            "cpu_seconds": time.process_time(),
            "flying": sum(len(host.flying) for host in self.hosts),
            "held": sum(len(host.unacked) for host in self.hosts),
            "receipt": self.span_receipts.summary(),
            "words": self.error_message,
            **counts,
        }
        self.span_receipts = Latencies()
        print(json.dumps(line), flush=True)


def plan_of(text: str) -> list[tuple[int, int]]:
    """Return [(hosts, seconds)] of `1000x20,2000x20`. Raises ValueError."""
    steps = [tuple(int(part) for part in step.split("x")) for step in text.split(",")]
    if any(len(step) != 2 or step[0] < 0 or step[1] < 1 for step in steps):
        raise ValueError(f"{text!r}: expected HOSTSxSECONDS,HOSTSxSECONDS")
    return [(step[0], step[1]) for step in steps]


def main() -> int:
    """Connect, report it, send, report the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--plan", type=plan_of, required=True)
    parser.add_argument("--period-seconds", type=int, default=1)
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, _, port = options.address.rpartition(":")
    generator = Generator((host, int(port)), options.seed, options.period_seconds)
    begin = time.monotonic()
    generator.connect(max(count for count, _ in options.plan))
    connected = {"connected": len(generator.hosts), "seconds": time.monotonic() - begin}
    print(json.dumps(connected), flush=True)
    sys.stdin.readline()
    generator.run(options.plan, options.warm)
    generator._report(0)
    last = {
        "done": True,
        "receipts": generator.receipts.summary(),
        "late": generator.late.summary(),
    }
    print(json.dumps(last), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
