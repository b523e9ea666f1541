"""A disk whose commits are slow, or hang: agents slow down, spools hold, memory is bounded."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.agent.transport import protocol
from gangline.agent.transport.client import Client
from gangline.agent.transport.send_window import SendWindow
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.model import Finding, HealthState, HostScore, Reason, Snapshot
from gangline.aggregator.service import telemetry
from gangline.aggregator.store import queue
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.writer import Writer
from gangline.contract import frame
from tests.aggregator.conftest import Agent
from tests.processes import GUARD_SECONDS

QUEUE_BYTES = 1 << 20


class Disk:
    """Commits wait while `open` is not set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()  # set while a commit waits

    def pass_by(self) -> None:
        if not self.open.is_set():
            self.waiting.set()
            assert self.open.wait(GUARD_SECONDS)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that every commit passes."""
    disk, commit = Disk(), Writer.commit

    def slowly(self: Any, *arguments: Any) -> None:
        disk.pass_by()
        commit(self, *arguments)

    monkeypatch.setattr(Writer, "commit", slowly)
    yield disk
    disk.open.set()


class SpoolingClient:
    """A spool and the real client, which sends the spool's frames."""

    def __init__(self, place: Path, port: int, name: str = "host-1") -> None:
        self.agent = Agent(name, run_id=b"", boot_id=b"b" * 16)
        self.spool = Spool.open(place / name, bytes_max=8 << 20, boot_id=b"b" * 16, owner=name)
        self.events = EventQueue.open(place / f"{name}.events")
        self.agent.run_id = self.spool.run_id
        self.client = Client(
            f"127.0.0.1:{port}", self.agent.registration, self.spool, self.events,
            random_source=random.Random(1), live_hertz=1000.0,
        )  # fmt: skip
        self.client.start()

    def append(self, gpus: int = 2) -> None:
        sequence = self.spool.next_sequence()
        now = time.time_ns()
        stamp = frame.Stamp(
            self.spool.run_id, self.agent.boot_id, sequence, now - self.agent.booted_ns, now
        )
        block = self.agent.block(sequence, gpus)
        self.spool.append(sequence, frame.encode(stamp, [block], deflate=False))
        self.client.notify()

    def end(self) -> None:
        self.client.close(GUARD_SECONDS)
        self.spool.close()
        self.events.close()


@pytest.mark.slow
async def test_a_slow_disk_slows_the_agent_and_its_spool_holds(
    lab: Any, disk: Disk, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RAID rebuild took 40 s for an fsync: agents assumed a dead peer, and sent all again."""
    monkeypatch.setattr(telemetry, "QUIET_SECONDS_MAX", 0.2)
    windows: list[SendWindow] = []

    def watched(*arguments: Any) -> SendWindow:
        windows.append(SendWindow(*arguments))
        return windows[-1]

    monkeypatch.setattr(protocol, "SendWindow", watched)

    async def send_frames() -> int:
        async with lab.aggregator(
            queue_bytes_max=QUEUE_BYTES, backlog_frames_per_second=10_000
        ) as aggregator:
            host = SpoolingClient(tmp_path, aggregator.port)
            await until(lambda: host.client.connected)
            [window] = windows
            host.append()
            await until(lambda: host.spool.unacknowledged_frames == 0)
            disk.open.clear()
            begun, queued = host.spool.next_sequence(), 0
            for _ in range(100):  # so large that a few fill the queue, in either direction
                host.append(gpus=160)
                queued = max(queued, aggregator.store._pending.size_bytes)
                await asyncio.sleep(0)
            assert await asyncio.to_thread(disk.waiting.wait, GUARD_SECONDS)
            since = window._waiting_since
            await until(lambda: window._waiting_since > since)  # a keepalive without a receipt
            await until(lambda: window.credit_frames < 64)  # with less credit
            assert host.spool.unacknowledged_frames == host.spool.next_sequence() - begun
            assert window.in_flight <= 64
            assert queued <= QUEUE_BYTES
            disk.open.set()
            while host.spool.unacknowledged_frames:
                await asyncio.sleep(0.02)
                host.client.notify()
            assert (host.client.reconnects, host.spool.dropped_frames) == (1, 0)
            await asyncio.to_thread(host.end)
            return int(host.spool.next_sequence()) - 1

    async with asyncio.timeout(GUARD_SECONDS):
        count = await send_frames()
    assert lab.rows(
        "SELECT count(DISTINCT power_watts), count(DISTINCT (power_watts, device)) = count(*) "
        "FROM readings.gpu_1s"
    ) == [(count, True)]


@pytest.mark.slow
async def test_nothing_is_acknowledged_before_it_is_durable(
    lab: Any, disk: Disk, until: Any
) -> None:
    """While the commit hangs, no frame or unjournaled event is acknowledged."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
        await connection.send(connection.agent.message(1))
        disk.open.clear()
        for n in (2, 3):
            await connection.stream.write(connection.agent.message(n))
        assert await asyncio.to_thread(disk.waiting.wait, GUARD_SECONDS)
        await until(lambda: int(aggregator.fleet.last_received_ns[0]) > connection.agent.booted_ns)
        receipt = asyncio.create_task(connection.acknowledgement())
        version = aggregator.snapshot_holder.snapshot.version
        await until(
            lambda: aggregator.snapshot_holder.snapshot.version > version + 2
        )  # judging continues
        assert connection.durable == {1} and not receipt.done()
        disk.open.set()
        await receipt
        while connection.durable != {1, 2, 3}:
            await connection.acknowledgement()


@pytest.mark.slow
async def test_room_is_looked_for_by_one_task_however_many_wait(
    lab: Any, disk: Disk, until: Any, connect: Any, make_agent: Any
) -> None:
    """Ten thousand streams polled twenty times a second, and left no CPU to the one with room."""
    async with lab.aggregator(queue_bytes_max=QUEUE_BYTES) as aggregator:
        disk.open.clear()
        agents = [make_agent(host=f"h{n}", run_id=b"%016d" % n) for n in range(20)]
        connections = [connect(aggregator.port, agent) for agent in agents]
        for connection in connections:
            await connection.register()
            connection.open()
            await connection.stream.write(
                connection.agent.message(1, blocks=[connection.agent.block(1, gpus=250)])
            )
        streams = aggregator._telemetry._streams
        await until(lambda: len(streams) == 20)
        blocked = aggregator.admission_control
        await until(lambda: blocked._store.room < 0.1)
        assert await asyncio.to_thread(disk.waiting.wait, GUARD_SECONDS)
        disk.open.set()
        for connection in connections:
            while connection.durable != {1}:
                await connection.acknowledgement()
            await connection.close()
    assert lab.rows("SELECT count(*) FROM readings.gpu_1s") == [(20 * 250,)]


def _score(index: int) -> HostScore:
    return HostScore(
        f"h{index}",
        index,
        False,
        1.0,
        1.0,
        1.0,
        HealthState.HEALTHY,
        0.0,
        1.0,
        Reason.NONE,
        "",
        "",
        1,
    )


def test_what_waits_for_a_disk_is_bounded(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a night with a full disk each second's judgement stayed in memory, 22 GB an hour."""
    monkeypatch.setattr(queue, "SCORES_WAITING_MAX", 100)
    monkeypatch.setattr(queue, "FINDINGS_WAITING_MAX", 10)
    monkeypatch.setattr(queue, "EVENTS_WAITING_MAX", 3)
    config = AggregatorConfig(data=tmp_path / "d", ops_seconds=3600, commit_seconds=0.01)
    store = Store.open(tmp_path / "d", config)
    try:
        disk.open.clear()
        store.submit_findings([Finding("h", "x", "first", "", 1)])
        assert disk.waiting.wait(GUARD_SECONDS)
        hosts = tuple(_score(index) for index in range(60))
        for version in range(1, 4):
            snapshot = Snapshot(version, version, 1.0, hosts)
            store.submit_scores(snapshot, hosts)
        waiting = store._pending.scores
        assert (len(waiting), store.dropped_scores) == (100, 80)
        assert [head.version for head, _ in waiting] == [2] * 40 + [3] * 60  # the newest stay
        assert all(head.hosts == () for head, _ in waiting)
        store.submit_findings([Finding("h", "x", str(n), "", n) for n in range(25)])
        assert [finding.subject for finding in store._pending.findings.values()] == [
            str(n) for n in range(15, 25)
        ]
        assert store.dropped_findings == 15
        assert not store.events_full
        store._pending.events += [None] * 3  # type: ignore[list-item]
        assert store.events_full
        store._pending.events.clear()
    finally:
        disk.open.set()
        store.close()
