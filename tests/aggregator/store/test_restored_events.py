"""Events that a restart reads again: all of active faults, however old, and the newest others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.model import Finding, HealthState
from gangline.aggregator.store import restored_state
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.store import Store
from gangline.contract.wire import telemetry_pb2 as wire
from tests.aggregator.run_time import set_run_time
from tests.worlds import SECOND_NS

NOW_NS = 1_800_000_000 * SECOND_NS
HOUR_NS, DAY_NS = 3600 * SECOND_NS, 86_400 * SECOND_NS
ADDRESS = "0000:0A:00.0"


@contextmanager
def opened(folder: Path, now_ns: int = NOW_NS, **changes: Any) -> Iterator[Store]:
    settings: dict[str, Any] = {"commit_seconds": 0.01, "ops_seconds": 3600.0} | changes
    store = Store.open(folder, AggregatorConfig(data=folder, **settings), lambda: now_ns)
    try:
        yield store
    finally:
        store.close()


def register(store: Store) -> None:
    gpus: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("gpu", "GPU-0", {"pci_address": ADDRESS}),
        ("gpu", "GPU-1", {}),
    )
    store.submit_host(HostRecord("a", 0, False, b"r" * 16, b"b" * 16, "", "", {}, NOW_NS, gpus), {})


def tell(store: Store, event_id: str, ago_ns: int, device: str, **more: Any) -> None:
    """Store an event that came *ago_ns* before now."""
    fields: dict[str, Any] = {"name": "gpu.xid", "code": 95, "boottime_ns": DAY_NS} | more
    event = wire.HealthEvent(event_id=event_id, device=device, **fields)
    store.append_events([StoredEvent("a", NOW_NS - ago_ns, NOW_NS - ago_ns, event)])


def find(store: Store, subject: str, ago_ns: int, *, cleared: bool = False) -> None:
    since_ns = NOW_NS - ago_ns
    ends_ns = since_ns + HOUR_NS if cleared else 0
    store.submit_findings([Finding("a", "gpu.xid", subject, "sick", since_ns, ends_ns)])


def read(folder: Path, **changes: Any) -> list[str]:
    """Return the ids of the events that the next start reads, in order."""
    with opened(folder, **changes) as store:
        return [stored_event.event.event_id for stored_event in store.recent_events]


@pytest.mark.slow
def test_a_gpu_that_waits_for_its_repair_for_a_day_is_as_sick_after_a_restart(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """XID 95 waited 30 hours for a reset; an update of the aggregator made the host HEALTHY."""
    agent = make_agent()
    agent.booted_ns = time.time_ns() - 40 * HOUR_NS

    async def life(ago_ns: int, *events: wire.HealthEvent) -> list[tuple[str, int]]:
        def wall_ns() -> int:
            return time.time_ns() - ago_ns

        async with lab.aggregator(wall_ns) as aggregator, lab.agent(aggregator, agent) as item:
            if events:
                request = wire.ReportEventsRequest(events=events)
                await item.stub.ReportEvents(request, metadata=item.metadata)
            await item.send(item.agent.message(2 - len(events)))
            await until(lambda: aggregator.fleet.findings)
            first = aggregator.snapshot_holder.snapshot
            await until(lambda: aggregator.snapshot_holder.snapshot.version > first.version + 1)
            assert aggregator.snapshot_holder.snapshot.hosts[0].state is HealthState.UNHEALTHY
            return [(item.device, item.code) for item in aggregator.fleet.active_events]

    at_ns = 40 * HOUR_NS - 60 * SECOND_NS  # within the last minute of the host's uptime then
    sick = wire.HealthEvent(
        event_id="e", device_kind="gpu", device="GPU-0", name="gpu.xid", code=95, boottime_ns=at_ns
    )
    assert asyncio.run(life(30 * HOUR_NS, sick)) == [("GPU-0", 95)]
    assert asyncio.run(life(0)) == [("GPU-0", 95)]


@pytest.mark.slow
def test_who_runs_leaves_faults_their_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """80,000 processes are reported each half hour: no older fault of 10,000 hosts was read."""
    with opened(tmp_path) as store:
        tell(store, "sick", HOUR_NS, "GPU-0", code=63)
        for process in range(9):
            tell(store, f"p{process}", (9 - process) * SECOND_NS, "GPU-0", name="gpu.process")
    monkeypatch.setattr(restored_state, "EVENTS_MAX", 3)
    assert read(tmp_path) == ["sick", "p6", "p7", "p8"]


@pytest.mark.slow
def test_what_comes_and_goes_all_day_leaves_a_standing_fault_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interface events of a night's containers pushed out the XID of the evening."""
    with opened(tmp_path) as store:
        tell(store, "sick", 12 * HOUR_NS, "GPU-0")
        find(store, "GPU-0 gpu.xid 95", 12 * HOUR_NS)
        for link in range(9):
            tell(store, f"l{link}", (9 - link) * SECOND_NS, f"veth{link}", name="net.link", code=2)
    monkeypatch.setattr(restored_state, "EVENTS_MAX", 3)
    assert read(tmp_path) == ["sick", "l6", "l7", "l8"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["GPU-0", "gpu-0", ADDRESS, ADDRESS.lower()])
def test_of_what_stands_all_is_read_that_its_device_said_since(tmp_path: Path, device: str) -> None:
    """The kernel names a GPU by PCI address; a code that excuses another (94 for 48) is read."""
    with opened(tmp_path) as store:
        register(store)
        tell(store, "before its reset", 50 * HOUR_NS, device, code=48)
        tell(store, "contained", 30 * HOUR_NS + 3 * SECOND_NS, device, code=94)
        tell(store, "sick", 30 * HOUR_NS, device, code=48)
        tell(store, "another's", 30 * HOUR_NS, "GPU-1", code=48)
        tell(store, "of another kind", 30 * HOUR_NS, device, name="gpu.driver_message")
        find(store, "GPU-0 gpu.xid 48", 50 * HOUR_NS - SECOND_NS, cleared=True)
        find(store, "GPU-0 gpu.xid 48", 30 * HOUR_NS - SECOND_NS)
    assert read(tmp_path) == ["contained", "sick"]


@pytest.mark.slow
def test_what_is_over_is_not_read_for_its_age(tmp_path: Path) -> None:
    """A cleared finding needs no event; a finding of the host lasts until it boots."""
    with opened(tmp_path) as store:
        tell(store, "over", 30 * HOUR_NS, "GPU-0")
        find(store, "GPU-0 gpu.xid 95", 30 * HOUR_NS, cleared=True)
        tell(store, "oops", 30 * HOUR_NS, "", name="host.kernel_fault", code=0)
        find(store, "host host.kernel_fault", 30 * HOUR_NS)
    assert read(tmp_path) == ["oops"]


@pytest.mark.slow
def test_history_keeps_what_a_standing_fault_is_known_by(tmp_path: Path) -> None:
    """Repairs may take 13 days: `history_days` must keep the event of an active fault."""
    with opened(tmp_path, NOW_NS - 20 * DAY_NS) as store:
        tell(store, "sick", 20 * DAY_NS, "GPU-0")
        find(store, "GPU-0 gpu.xid 95", 20 * DAY_NS)
        tell(store, "nothing", 20 * DAY_NS, "GPU-1")
    set_run_time(tmp_path, (NOW_NS - 20 * DAY_NS) // 1000, NOW_NS // 1000)
    with opened(tmp_path, history_days=3) as store:
        tell(store, "new", HOUR_NS, "GPU-1")
        assert [stored_event.event.event_id for stored_event in store.recent_events] == ["sick"]
    with opened(tmp_path, history_days=3) as store, store.reading() as base:
        assert base.execute("SELECT event_id FROM events ORDER BY received").fetchall() == [
            ("sick",),
            ("new",),
        ]
