"""Freshness: the delay until the API shows what a few hosts sent.

    python -m bench.load.prober --address 127.0.0.1:7600 --seconds 30

Each host sends once in PERIOD_SECONDS, so that the API's answer identifies the judged frame. Prints
a line of JSON at the end, or when standard input ends.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from typing import Any

import grpc

from bench.load.fleet import SECOND_NS, UPTIME_NS, HostIdentity, Model
from bench.load.latency import Latencies
from bench.load.link import LoadLink
from gangline.contract.stream import Sender
from gangline.contract.wire import score_pb2
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub

HOSTS, PERIOD_SECONDS = 16, 10.0
POLL_SECONDS = 0.05
#: First number of its hosts, above every fleet's.
FIRST = 0x7000_0000


class Prober:
    """Its hosts, and their frames that are not visible yet."""

    def __init__(self, address: str, seed: int) -> None:
        host, _, port = address.rpartition(":")
        self._model = Model(seed, HOSTS)
        self._messages = self._model.second()
        self._channel = grpc.insecure_channel(address)
        self._stub: Any = ScoreServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self.fresh = Latencies()
        self.answered_late = 0
        self._begin_ns = time.time_ns()
        self._hosts = [self._connect((host, int(port)), index, seed) for index in range(HOSTS)]
        self._waiting: dict[int, int] = {}

    def _connect(
        self, address: tuple[str, int], at: int, seed: int
    ) -> tuple[HostIdentity, LoadLink, Sender, list[int]]:
        host, link = HostIdentity(FIRST + at, seed), LoadLink(address)
        request = host.registration(self._model.registrations[at], UPTIME_NS, self._begin_ns)
        answer = link.register(request)
        link.open(answer.session)
        return host, link, Sender(answer.stream_context_bytes), [0]

    def run(self, seconds: float) -> None:
        """Send and poll until the time is over or standard input ends."""
        begin = time.monotonic()
        due = [begin + index * PERIOD_SECONDS / HOSTS for index in range(HOSTS)]
        while time.monotonic() < begin + seconds:
            now = time.monotonic()
            for index in range(HOSTS):
                if now >= due[index]:
                    due[index] += PERIOD_SECONDS
                    self._send(index)
            for index in list(self._waiting):
                self._poll(index)
            for _, link, _, _ in self._hosts:
                for _ in link.receive():
                    pass
            if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
                return

    def _send(self, at: int) -> None:
        host, link, sender, sequence = self._hosts[at]
        sequence[0] += 1
        now_ns = time.time_ns()
        boottime_ns = UPTIME_NS + now_ns - self._begin_ns
        differences = sender.encode(
            host.frame(self._messages[at], sequence[0], boottime_ns, now_ns)
        )
        link.send(wire.TelemetryBatch(sequence=sequence[0], differences=differences))
        if at in self._waiting:
            self.answered_late += 1  # not visible within a whole period
            self.fresh.add(PERIOD_SECONDS)
        self._waiting[at] = now_ns

    def _poll(self, at: int) -> None:
        """Request the host; record the age of its last reading when it becomes visible."""
        name = f"nodes/load-{FIRST + at:08x}"
        try:
            score = self._stub.GetNodeScore(score_pb2.GetNodeScoreRequest(name=name), timeout=10.0)
        except grpc.RpcError:
            return
        if not score.HasField("data_age"):
            return
        received_ns = score.compute_time.ToNanoseconds() - score.data_age.ToNanoseconds()
        if received_ns >= self._waiting[at]:
            self.fresh.add((time.time_ns() - self._waiting.pop(at)) / SECOND_NS)


def main() -> int:
    """Probe, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    prober = Prober(options.address, options.seed + 1)
    print("ready", flush=True)
    sys.stdin.readline()
    prober.run(options.warm)
    prober.fresh, prober.answered_late = Latencies(), 0
    prober.run(options.seconds - options.warm)
    print(json.dumps({"fresh": prober.fresh.summary(), "late": prober.answered_late}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
