"""kill -9 at seeded moments under a load of frames, late frames and events: acknowledged data is stored once."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from typing import Any

import grpc
import pytest

from gangline.contract.wire import telemetry_pb2 as wire
from tests.aggregator.process import Process
from tests.processes import GUARD_SECONDS

SEED = 5
SETTINGS = ("commit_seconds=0.03", "ops_seconds=0.5", "backlog_frames_per_second=2000")

#: Late frames an agent has on its way; more have no room, and their stream is ended.
LATE_FRAMES = 16


class Told:
    """Data acknowledged to agents, across restarts of the aggregator."""

    def __init__(self, agent: Any) -> None:
        self.agent, self.next = agent, 1
        self.durable: set[int] = set()
        self.events: set[str] = set()

    async def live(self, connection: Any, chance: random.Random) -> None:
        """Send without a pause until the connection breaks, unreceipted data first, as an agent does."""
        connection.durable = self.durable
        await connection.register()
        connection.open()
        reading = asyncio.create_task(self._read(connection))
        reporting = asyncio.create_task(self._report(connection))
        try:
            again = sorted(set(range(1, self.next)) - self.durable)[:LATE_FRAMES]
            waiting = set(again)
            for sequence in again:
                await connection.stream.write(self._message(sequence, late=True))
            while True:
                waiting -= self.durable
                late = chance.random() < 0.3 and len(waiting) < LATE_FRAMES
                waiting |= {self.next} if late else set()
                self.next += 1
                await connection.stream.write(self._message(self.next - 1, late=late))
                await asyncio.sleep(0)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            await asyncio.wait([reading, reporting])

    def _message(self, sequence: int, *, late: bool) -> wire.TelemetryBatch:
        message: wire.TelemetryBatch = self.agent.message(sequence)
        message.backlog = late
        return message

    async def _read(self, connection: Any) -> None:
        try:
            while True:
                await connection.acknowledgement()
        except grpc.aio.AioRpcError:
            pass

    async def _report(self, connection: Any) -> None:
        number = len(self.events)
        try:
            while True:
                number += 1
                now_ns = time.time_ns()
                event = wire.HealthEvent(
                    event_id=f"e{number}", device_kind="gpu", device="GPU-0", name="gpu.xid", code=31,
                    wall_time_ns=now_ns, boottime_ns=now_ns - self.agent.booted_ns,
                )  # fmt: skip
                request = wire.ReportEventsRequest(events=[event])
                await connection.stub.ReportEvents(request, metadata=connection.metadata)
                self.events.add(event.event_id)
        except grpc.aio.AioRpcError:
            pass


@pytest.mark.parametrize("lives_count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_what_was_acknowledged_is_there_once(
    lab: Any, connect: Any, make_agent: Any, until: Any, lives_count: int
) -> None:
    """An out-of-memory kill comes in the middle of a commit, of an fsync of the journal, of a receipt."""
    chance = random.Random(SEED)
    agents = [Told(make_agent(host=h, run_id=h.encode() * 16)) for h in "ab"]

    async def way() -> None:
        for _ in range(lives_count):
            process = Process(lab.folder, *(w for s in SETTINGS for w in ("--set", s)))
            connections = [connect(process.port, agent.agent) for agent in agents]
            lives = [
                asyncio.create_task(agent.live(connection, chance))
                for agent, connection in zip(agents, connections, strict=True)
            ]
            counts = [len(agent.durable) for agent in agents]
            await until(
                lambda counts=counts: all(
                    len(agent.durable) > before and agent.events
                    for agent, before in zip(agents, counts, strict=True)
                )
            )
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            process.end(signal.SIGKILL)
            async with asyncio.timeout(GUARD_SECONDS):
                await asyncio.gather(*lives)
            for connection in connections:
                await connection.close()

    asyncio.run(way())
    last = Process(lab.folder)
    assert last.end(signal.SIGTERM) == 0
    stored = lab.rows(
        "SELECT host, power_watts::BIGINT, count(*) FROM readings.gpu_1s GROUP BY ALL"
    )
    assert {count for _, _, count in stored} == {2}  # a row a GPU
    events = lab.rows("SELECT host, event_id, count(*) FROM events GROUP BY ALL")
    assert {count for _, _, count in events} == {1}
    for agent in agents:
        assert agent.durable and agent.events
        assert agent.durable <= {n for host, n, _ in stored if host == agent.agent.host}
        assert agent.events <= {e for host, e, _ in events if host == agent.agent.host}
