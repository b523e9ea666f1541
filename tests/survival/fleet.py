"""Simulated agents that remember their receipts: each sends numbered rows and events.

Data with a receipt may never be lost; data without a receipt is sent again by the next stream until
it has one. All agents are in a single process, on their own event loop, and call the aggregator
through the generated stub.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from gangline.agent.frame_builder import signal_dictionary
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.signals import TABLES, index_of
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.telemetry_pb2_grpc import TelemetryServiceStub
from tests.processes import GUARD_SECONDS

SIGNAL = "host.context_switches_count"
BOOT_ID = b"one-and-the-same"
#: Frames that one stream has on their way without a receipt.
WINDOW = 16
AGAIN = 30
DICTIONARY = signal_dictionary()
GPUS = [f"GPU-{number}" for number in range(2)]
POWER = [s.column for s in TABLES["gpu_1s"]].index("power_watts")

_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.use_local_subchannel_pool", 1)]


@dataclass
class Memory:
    """An agent's receipts, which survive every fault here: the harness is never killed."""

    frames: set[int] = field(default_factory=set[int])
    events: set[str] = field(default_factory=set[str])


@dataclass
class Simulated:
    """One agent: numbers its frames from 1; `waiting` are those without a receipt."""

    host: str
    period_seconds: float
    source: random.Random
    run_id: bytes = b""
    told: Memory = field(default_factory=Memory)
    waiting: dict[int, bytes] = field(default_factory=dict[int, bytes])
    events_waiting: list[wire.HealthEvent] = field(default_factory=list[wire.HealthEvent])
    next_sequence: int = 1
    #: The last frames that had their receipt: some are sent again, as if that had been lost on its way.
    received: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=AGAIN))
    #: How its last stream ended.
    ended: str = ""
    refused: dict[int, str] = field(default_factory=dict[int, str])

    def make(self) -> None:
        """Make the next frame, and now and then an event."""
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        blocks = [Block("host_1s", ["host"]), Block("gpu_1s", GPUS)]
        blocks[0].put_int(index_of(SIGNAL), 0, sequence)
        for row in range(len(GPUS)):
            blocks[1].put_float(POWER, row, float(sequence))
        boottime_ns = 10**15 + sequence * 10**9
        stamp = frame.Stamp(self.run_id, BOOT_ID, sequence, boottime_ns, time.time_ns())
        self.waiting[sequence] = frame.encode(stamp, blocks, deflate=False)
        if sequence % 7 == 0:
            name = f"{self.host}/{sequence}"
            self.events_waiting.append(
                wire.HealthEvent(
                    event_id=name, device_kind="gpu", device=GPUS[0], name="gpu.xid", code=31,
                    message=name, boottime_ns=boottime_ns, wall_time_ns=time.time_ns(),
                )
            )  # fmt: skip

    def registration(self) -> wire.RegisterNodeRequest:
        return wire.RegisterNodeRequest(
            protocol_version=1, node=self.host, run_id=self.run_id, boot_id=BOOT_ID,
            agent_version="soak", signals=DICTIONARY,
            boottime_ns=10**15 + self.next_sequence * 10**9, wall_time_ns=time.time_ns(),
        )  # fmt: skip

    async def live(self, target: Fleet) -> None:
        while True:
            try:
                async with grpc.aio.insecure_channel(target.address, options=_OPTIONS) as channel:
                    await self._speak(TelemetryServiceStub(channel), target)  # type: ignore[no-untyped-call]
            except Exception as error:  # noqa: BLE001 - a stream that ended, in one of gRPC's many ways
                self.ended = repr(error)[:300]
            await asyncio.sleep(0.05 + 0.2 * self.source.random())

    async def _speak(self, stub: Any, target: Fleet) -> None:
        answer = await stub.RegisterNode(self.registration(), timeout=5)
        metadata = (("gangline-session", answer.session),)
        stream = stub.StreamTelemetry(metadata=metadata)
        reading = asyncio.ensure_future(self._read(stream))
        reporting = asyncio.ensure_future(self._report(stub, metadata))
        sent: set[int] = set()
        self.waiting |= self.source.sample(self.received, min(4, len(self.received)))
        generation = target.generation
        try:
            while not reading.done() and target.generation == generation:
                due = sorted(self.waiting.keys() - sent)[: WINDOW - len(sent & self.waiting.keys())]
                for sequence in due:
                    if sequence in self.waiting:
                        batch = wire.TelemetryBatch(sequence=sequence, frame=self.waiting[sequence])
                        await stream.write(batch)
                        sent.add(sequence)
                await asyncio.sleep(self.period_seconds)
                if target.making and len(self.waiting) < 2000:
                    self.make()
            if reading.done():
                reading.result()
        finally:
            for task in (reading, reporting):
                task.cancel()
            stream.cancel()

    async def _read(self, stream: Any) -> None:
        while (ack := await stream.read()) is not grpc.aio.EOF:
            for span in ack.durable:
                for sequence in [n for n in self.waiting if span.first <= n <= span.last]:
                    self.received.append((sequence, self.waiting.pop(sequence)))
                    self.told.frames.add(sequence)
            for refusal in ack.refused:
                self.refused[refusal.sequence] = refusal.reason
                self.waiting.pop(refusal.sequence, None)

    async def _report(self, stub: Any, metadata: Any) -> None:
        while True:
            events = self.events_waiting[:20]
            if events:
                with suppress(grpc.aio.AioRpcError):
                    request = wire.ReportEventsRequest(events=events)
                    await stub.ReportEvents(request, metadata=metadata, timeout=5)
                    self.told.events |= {event.event_id for event in events}
                    del self.events_waiting[: len(events)]
            await asyncio.sleep(0.05)


class Fleet:
    """Agents in a thread of their own, until `close`."""

    def __init__(
        self, address: str, agents: int, source: random.Random, period_seconds: float
    ) -> None:
        self.address, self.making, self.generation = address, True, 0
        self._source, self._period = source, period_seconds
        self.agents: list[Simulated] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()
        self.begin_anew(agents)

    def begin_anew(self, agents: int) -> None:
        """Replace the agents with new ones with new run ids."""
        self._run(self._end())
        self.agents = [
            Simulated(
                f"host-{n}", self._period, random.Random(self._source.random()), os.urandom(16)
            )
            for n in range(agents)
        ]
        self._run(self._begin())

    async def _begin(self) -> None:
        self._tasks = [asyncio.ensure_future(agent.live(self)) for agent in self.agents]

    async def _end(self) -> None:
        tasks = getattr(self, "_tasks", [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def reconnect(self) -> None:
        """End all agents' streams at once; the agents reconnect."""
        self.generation += 1

    def acknowledged(self) -> dict[str, Memory]:
        """Return copies of each agent's receipts so far."""

        async def copies() -> dict[str, Memory]:
            return {a.host: Memory(set(a.told.frames), set(a.told.events)) for a in self.agents}

        return dict(self._run(copies()))

    def receipts(self) -> int:
        return sum(len(agent.told.frames) for agent in self.agents)

    def waiting(self) -> int:
        return sum(len(a.waiting) + len(a.events_waiting) for a in self.agents)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GUARD_SECONDS)
        self._loop.close()


@contextmanager
def fleet(
    address: str, agents: int, source: random.Random, period: float = 0.02
) -> Iterator[Fleet]:
    created = Fleet(address, agents, source, period)
    try:
        yield created
    finally:
        created.close()
