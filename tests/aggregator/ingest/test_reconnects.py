"""Many agents connect at once: each has its turn, and live receipts continue meanwhile."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.aggregator.ingest.backlog import host_fraction
from gangline.contract.wire import telemetry_pb2 as wire
from tests.aggregator.store.test_slow_disk import SpoolingClient
from tests.processes import GUARD_SECONDS

#: Connections of one test, each with its own socket.
AGENTS = 300
#: Turns in a second.
PER_SECOND = 100


def pushback(error: grpc.aio.AioRpcError) -> int:
    """Return the milliseconds until the next attempt."""
    return int(dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"])


async def _register(connection: Any, told: Counter[str]) -> wire.RegisterNodeResponse:
    """Register, and retry after a hundredth of the requested delay."""
    while True:
        try:
            return await connection.register(signals=[])  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "try again in" in str(error.details())
            told[connection.agent.host] += 1
            await asyncio.sleep(pushback(error) / 1000)


@pytest.mark.slow
async def test_hundreds_of_agents_at_once_are_served_in_turn(
    lab: Any, connect: Any, make_agent: Any
) -> None:
    """All agents of a row of racks returned with their switch: no receipts for a minute."""
    async with lab.aggregator(reconnects_per_second=PER_SECOND) as aggregator:
        live = connect(aggregator.port, make_agent(host="live"))
        await live.register()
        await live.send(live.agent.message(1))
        agents = [make_agent(host=f"h{n}", run_id=b"%016d" % n) for n in range(AGENTS)]
        connections = [connect(aggregator.port, agent) for agent in agents]
        deferrals: Counter[str] = Counter()
        coming = [
            asyncio.create_task(_register(connection, deferrals)) for connection in connections
        ]
        sequence, loop = 1, asyncio.get_running_loop()
        began = loop.time()
        while not all(task.done() for task in coming):
            sequence += 1
            await live.send(live.agent.message(sequence))  # a receipt, each time
        answers = [task.result() for task in coming]  # errors of the tasks are raised here
        assert sequence > 3
        # On a machine slower than the turns, no agent waits; the first second's turns are free
        # at the start.
        assert deferrals or loop.time() - began > (AGENTS - PER_SECOND) / PER_SECOND
        assert (
            max(deferrals.values(), default=0) <= 3
        )  # after its delay an agent has its turn at once, or nearly so
        assert aggregator.admission_control.registrations.deferred == sum(deferrals.values())
        await live.register()  # on its connection, after a change of its inventory: no turn needed
        for connection in connections:
            connection.open()
            await connection.stream.write(connection.agent.message(1))
        for connection in connections:
            await connection.acknowledgement()
        assert all(answer.reconnect_seconds <= 3 for answer in answers)
        for connection in [live, *connections]:
            await connection.close()
    assert lab.rows("SELECT count(DISTINCT host) FROM hosts") == [(AGENTS + 1,)]


@pytest.mark.slow
async def test_a_stopping_aggregator_tells_each_when_to_come_back(
    lab: Any, connect: Any, make_agent: Any
) -> None:
    """After an update at noon, its agents all reconnected in the first second."""
    delays: dict[str, int] = {}
    async with lab.aggregator(reconnects_per_second=10) as aggregator:
        agents = [make_agent(host=f"h{n}", run_id=b"%016d" % n) for n in range(40)]
        connections = [connect(aggregator.port, agent) for agent in agents]
        for connection in connections:
            await _register(connection, Counter())
            connection.open()
            await connection.send(connection.agent.message(1))
        ending = [asyncio.create_task(_ended(connection)) for connection in connections]
    for connection, task in zip(connections, ending, strict=True):
        delays[connection.agent.host] = await task
        await connection.close()

    assert delays == {host: math.ceil((0.5 + 4 * host_fraction(host)) * 1000) for host in delays}
    assert len(set(delays.values())) == 40 and max(delays.values()) - min(delays.values()) > 2000


async def _ended(connection: Any) -> int:
    async with asyncio.timeout(GUARD_SECONDS):
        while await connection.stream.read() is not grpc.aio.EOF:
            pass
    assert await connection.stream.code() == grpc.StatusCode.OK
    return int(dict(await connection.stream.trailing_metadata())["grpc-retry-pushback-ms"])


@pytest.mark.slow
async def test_the_real_agent_waits_for_its_turn(
    lab: Any, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent obeys: it asks once too early, and once in its turn."""
    async with lab.aggregator(reconnects_per_second=2) as aggregator:
        admission = aggregator.admission_control.registrations
        admission._bucket.take(12.0, time.monotonic())  # no turn for 5 s, on a busy machine
        host = SpoolingClient(tmp_path, aggregator.port)
        await until(lambda: admission.deferred)
        await until(lambda: "register at once; try again in" in host.client.last_error)
        await until(lambda: host.client.connected)
        assert admission.deferred == 1
        host.append()
        await until(lambda: host.spool.unacknowledged_frames == 0)
        await asyncio.to_thread(host.end)


@pytest.mark.slow
async def test_a_connection_that_never_registers_costs_nobody_a_turn(lab: Any) -> None:
    """A port scanner, a load balancer's health check: connections without a request."""
    async with lab.aggregator(reconnects_per_second=1) as aggregator:
        idle = [socket.create_connection(("127.0.0.1", aggregator.port)) for _ in range(50)]
        try:
            async with lab.agent(aggregator) as connection:
                await connection.send(connection.agent.message(1))
                assert aggregator.admission_control.registrations.deferred == 0
        finally:
            for idle_socket in idle:
                idle_socket.close()


def test_shares_are_even() -> None:
    """Names of real clusters: numbered, padded or not."""
    names = random.Random(1).sample([f"gpu-a{n}-r{n % 40}.example" for n in range(20_000)], 10_000)
    tenths = Counter(int(10 * host_fraction(name)) for name in names)
    assert set(tenths) == set(range(10)) and max(tenths.values()) < 1200
