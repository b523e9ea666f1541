"""After a restart of the aggregator each host keeps its last state until it reports again."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.model import HealthState, HostScore
from gangline.aggregator.scoring.checkpoint import MemoryLog, restore
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.aggregator.scoring.missing_readings import SETTLING_SECONDS
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.restored_state import KnownHost, LastScore, unscored_hosts
from gangline.aggregator.store.snapshot_file import taken_macro
from gangline.contract.block import Block
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2 as wire
from tests.worlds import SECOND_NS, World, gpu_of


def last_scores(world: World) -> list[LastScore]:
    """Return each host's stored last score and memory row."""
    assert world.snapshot
    due = MemoryLog(world.snapshot).take_due(world.snapshot, world.fleet, range(len(world.fleet)))
    rows = {memory.host: memory.body() for memory in due if memory.body is not None}
    return [LastScore(score, 8, rows.get(score.host)) for score in world.snapshot.hosts]


def restarted(world: World, away_seconds: int = 30) -> None:
    """Restart the world's aggregator after *away_seconds*, with the contents of its store."""
    last, findings = last_scores(world), world.fleet.findings
    world.now_ns += away_seconds * SECOND_NS
    world.fleet = Fleet(epoch=8)
    before = restore(world.fleet, last, world.now_ns)
    world.fleet.findings.update(findings)
    world.snapshot = evaluate(world.fleet, world.now_ns, before)


def back(world: World) -> None:
    for host in world.hosts:
        if not host.silent:
            world.register(host)


def same(one: HostScore, other: HostScore) -> bool:
    return replace(one, last_received_ns=0, relative_speed=0) == replace(
        other, last_received_ns=0, relative_speed=0
    )


def test_hosts_stand_as_before_until_they_are_heard() -> None:
    """A deployment of the aggregator at noon made 1,000 hosts UNKNOWN for every scheduler."""
    world = World(seconds=20)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.run(2)
    before = [world.score(host) for host in world.hosts]
    restarted(world)
    assert world.snapshot
    assert all(same(*pair) for pair in zip(before, world.snapshot.hosts, strict=True))
    assert world.snapshot.names == ("h0", "h1", "h2", "h3")
    assert "4 of 4 hosts are shown as they were before, 4 of them" in world.snapshot.degraded_reason
    back(world)
    snapshot = world.run(3)  # too few frames
    assert world.states() == {"h0": "UNHEALTHY", **dict.fromkeys(("h1", "h2", "h3"), "HEALTHY")}
    assert "all of them have reported again" in snapshot.degraded_reason
    world.run(4)
    assert world.score(world.hosts[1]).last_received_ns == world.now_ns


def test_a_fleet_that_was_well_is_not_degraded_once_all_are_heard() -> None:
    """While a snapshot is degraded nothing is proposed, and no permit given."""
    world = World(hosts=2, seconds=20)
    restarted(world)
    back(world)
    assert world.run(6).degraded_reason == ""  # the first five seconds are those of a new host
    assert world.snapshot and len(world.snapshot.settling) == 2


def test_a_sick_host_is_not_well_after_six_seconds() -> None:
    """Symptoms take seconds to show: a thermal fault was HEALTHY for 10 s after each restart."""
    world = World(seconds=20)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.run(2)
    restarted(world)
    back(world)
    for _ in range(SETTLING_SECONDS):
        world.run(1)
        assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY
    world.run(2)  # the event was not reported again: a reboot had cleared it
    snapshot = world.run(1)
    assert world.score(world.hosts[0]).state is HealthState.HEALTHY
    assert snapshot.degraded_reason == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "device", "well", "broken"),
    [
        ("nvlink_10s_changes", "{gpu}/link3", {"link_state": 1}, {"link_state": 0}),
        ("c2c_10s_changes", "{gpu}/c2c0", {"link_state": 1}, {"link_state": 0}),
        ("net_1s", "eth0", {"carrier_state": 1}, {"carrier_state": 0}),
        ("filesystem_60s", "/", {"read_only_state": 0}, {"read_only_state": 1}),
        ("rdma_1s", "mlx5_0/1", {"port_state": 4}, {"port_state": 1}),
        ("bond_10s", "bond0", {"slaves_up_count": 2, "slaves_count": 2}, {"slaves_up_count": 1}),
        ("bond_10s", "bond0", {"link_state": 1}, {"link_state": 0}),
    ],
)
def test_what_was_well_before_our_start_is_still_missed(
    table: str, device: str, well: dict[str, float], broken: dict[str, float]
) -> None:
    """NVLink was down for a day; a minute after an update its host was HEALTHY, for good."""
    world = World(hosts=2)
    host = world.hosts[0]
    name = device.format(gpu=gpu_of(host, 0))
    host.set(table, name, **well)
    world.run(70)
    assert world.score(host).state is HealthState.HEALTHY
    host.set(table, name, **broken)
    world.run(100)
    state = world.score(host).state
    assert state is not HealthState.HEALTHY
    for _ in range(2):
        restarted(world)
        back(world)
        for _ in range(4):
            world.run(50)
            assert world.score(host).state is state
    host.set(table, name, **well)
    world.run(150)
    assert world.score(host).state is HealthState.HEALTHY


def test_an_interface_that_was_removed_before_our_start_is_still_missed() -> None:
    """The event was restored, but not the fact that the interface once had a carrier."""
    world = World(hosts=2)
    host = world.hosts[0]
    world.run(10)
    host.forget("net_1s")
    world.event(host, 2, "veth9", "net.link")
    world.event(host, 2, "eth0", "net.link")
    world.run(20)
    assert world.score(host).state is HealthState.WATCH
    restarted(world)
    back(world)
    for device in ("veth9", "eth0"):
        world.event(host, 2, device, "net.link", ago=60.0)
    world.run(90)
    score = world.score(host)
    assert score.state is HealthState.WATCH
    assert [evidence.device for evidence in score.evidence] == ["eth0"]


@pytest.mark.slow
def test_what_needs_minutes_to_be_believed_is_no_better_meanwhile() -> None:
    """A GPU that had not joined its fabric was HEALTHY for four minutes after each restart."""
    world = World(hosts=2)
    host = world.hosts[0]
    host.set("gpu_fabric_1s_changes", gpu_of(host, 0), registration_state=1)
    world.run(330)
    assert world.score(host).state is HealthState.UNHEALTHY
    restarted(world)
    back(world)
    for _ in range(33):
        world.run(10)
        assert world.score(host).state is HealthState.UNHEALTHY
    host.set("gpu_fabric_1s_changes", gpu_of(host, 0), registration_state=3)
    world.run(80)
    assert world.score(host).state is HealthState.HEALTHY


@pytest.mark.slow
@pytest.mark.parametrize("boots", [False, True])
def test_a_sick_gpu_that_nothing_reads_is_as_sick_after_a_restart(boots: bool) -> None:
    """After an update of the aggregator the host of a released GPU would return to service."""
    world = World(hosts=2)
    host, gpu = world.hosts[0], gpu_of(world.hosts[0], 3)
    host.set("gpu_10s_changes", gpu, remap_failed_state=1)
    world.run(70)
    kept = {key: values for key, values in host.readings.items() if key[1] == gpu}
    for key in kept:
        del host.readings[key]
    host.growth.clear()
    host.set("gpu_1s_probe", gpu, probe_hung_seconds=0.0)
    host.set("probe_1s", "gpu 0000:03:00.0", hung_seconds=0.0, abandoned_count=0, state=6)
    world.run(20)
    restarted(world)
    back(world)
    if boots:
        host.reboot(world.now_ns)
        back(world)
    world.run(300)
    assert (world.score(host).state is HealthState.UNHEALTHY) is not boots
    assert bool(world.fleet.findings) is not boots
    host.readings |= kept
    host.set("gpu_10s_changes", gpu, remap_failed_state=0)
    host.forget("probe_1s")
    host.forget("gpu_1s_probe")
    world.run(80)
    assert world.score(host).state is HealthState.HEALTHY and not world.fleet.findings


def test_a_clock_that_is_put_right_after_our_start_makes_our_minute_no_hour() -> None:
    """The machine booted with a clock 1 h fast; nothing was proposed until that hour was over."""
    world = World(seconds=20)
    restarted(world)
    back(world)
    world.run(3)
    world.now_ns -= 3600 * SECOND_NS
    for host in world.hosts:
        host.booted_ns -= 3600 * SECOND_NS
    snapshot = world.run(SETTLING_SECONDS + 2)
    assert snapshot.degraded_reason == "" and not snapshot.settling
    assert set(world.states().values()) == {"HEALTHY"}


def test_what_is_worse_than_before_shows_at_once() -> None:
    """A host broke while the aggregator was down."""
    world = World(seconds=20)
    world.hosts[0].set("filesystem_60s", "/", available_bytes=1e8)
    world.run(60)
    assert world.score(world.hosts[0]).state is HealthState.WATCH
    restarted(world)
    back(world)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.run(7)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY


def test_hosts_that_do_not_come_back_turn_stale_and_sick_ones_stay_sick() -> None:
    """Two hosts die while the aggregator moves: its own outage excuses one minute of silence."""
    world = World(hosts=6, seconds=20)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.run(2)
    world.hosts[0].silent = world.hosts[1].silent = True
    restarted(world)
    back(world)
    world.run(SETTLING_SECONDS - 2)
    assert world.score(world.hosts[1]).state is HealthState.HEALTHY
    snapshot = world.run(5)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY
    stale = world.score(world.hosts[1])
    assert stale.state is HealthState.STALE and "silent for 9" in stale.reason_message
    assert snapshot.degraded_reason == ""


def test_simulated_hosts_that_had_ended_do_not_come_back() -> None:
    """One host of a `gangline run` has ended, the other still runs."""
    world = World(hosts=2)
    for host in range(2):
        world.fleet._simulated[host] = True
    world.run(10)
    world.hosts[0].silent = True
    world.run(40)
    restarted(world)
    assert world.snapshot and [host.host for host in world.snapshot.hosts] == ["h1"]


@pytest.mark.slow
def test_the_store_remembers(lab: Any, make_agent: Any, until: Any) -> None:
    """With the real store and server, the first response equals the last before the restart."""
    agent = make_agent()

    async def life() -> HostScore:
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            await connection.send(agent.message(1, blocks=[_collectors(agent)]))
            xid = wire.HealthEvent(
                event_id="e", device_kind="gpu", device="GPU-0", name="gpu.xid", code=79,
                wall_time_ns=time.time_ns(), boottime_ns=time.time_ns() - agent.booted_ns,
            )  # fmt: skip
            request = wire.ReportEventsRequest(events=[xid])
            await connection.stub.ReportEvents(request, metadata=connection.metadata)
            return await until(lambda: _unhealthy(aggregator.snapshot_holder.snapshot))  # type: ignore[no-any-return]

    async def next_life() -> Any:
        async with lab.aggregator(judge_seconds=60.0) as aggregator:
            return aggregator.snapshot_holder.snapshot

    async def after_a_weekend() -> Any:
        ahead_ns = 60 * 3600 * SECOND_NS
        async with lab.aggregator(
            lambda: time.time_ns() + ahead_ns, judge_seconds=60.0
        ) as aggregator:
            store = aggregator.store
            read = store.known_hosts, store.known_gpus, store.last_scores, store.recent_events
            assert not any(read), "what was read of before is of a large fleet 0.2 GB"
            ((score, _),) = aggregator.judge_loop.restored.settling.values()
            return score, aggregator.fleet.gpus.tolist()

    before = asyncio.run(life())
    after = asyncio.run(next_life())
    weekend, gpus = asyncio.run(after_a_weekend())  # the aggregator's own outage, however long
    assert (weekend.state, weekend.reason_message, gpus) == (
        before.state,
        before.reason_message,
        [1],
    )
    assert after.degraded_reason.startswith("restarted at ")
    (score,) = after.hosts
    assert math.isnan(score.relative_speed) and math.isnan(before.relative_speed)
    assert abs(score.last_received_ns - before.last_received_ns) < 5 * SECOND_NS
    first = score.evidence[0]
    assert (first.signal, first.reason.name, first.device) == ("gpu.xid", "XID_FATAL", "GPU-0")
    assert (score.state, score.reason, score.reason_message, score.clears_when) == (
        before.state, before.reason, before.reason_message, before.clears_when,
    )  # fmt: skip
    assert score.score == pytest.approx(before.score)
    assert score.evidence[0].sql == before.evidence[0].sql


def _collectors(agent: Any) -> Any:
    from tests.worlds import block

    return block("collector_10s", {"gpu_1s": {"outcome_state": 0}})


def _unhealthy(snapshot: Any) -> HostScore | None:
    hosts = snapshot.hosts if snapshot else ()
    return next((host for host in hosts if host.state is HealthState.UNHEALTHY), None)


def test_a_host_without_readings_outlives_a_restart(lab: Any, make_agent: Any, until: Any) -> None:
    """A host reported XID 79 before its first frame: after a restart no command knew it, and its advice was gone."""
    agent = make_agent(host="gpu1")

    async def life(*events: wire.HealthEvent) -> HostScore:
        async with lab.aggregator() as aggregator:
            if events:
                async with lab.agent(aggregator, agent) as connection:
                    await connection.stub.ReportEvents(
                        request_of(*events), metadata=connection.metadata
                    )
            await until(lambda: aggregator.snapshot_holder.snapshot)
            score = await until(lambda: _unhealthy(aggregator.snapshot_holder.snapshot))
            assert [a.host for a in await until(aggregator._advisories)] == ["gpu1"]
            return score  # type: ignore[no-any-return]

    xid = wire.HealthEvent(
        event_id="e", device_kind="gpu", device="GPU-0", name="gpu.xid", code=79,
        wall_time_ns=time.time_ns(), boottime_ns=time.time_ns() - agent.booted_ns,
    )  # fmt: skip
    before = asyncio.run(life(xid))
    for _ in range(2):  # the second restart restores a host that never returned
        after = asyncio.run(life())
        assert (after.host, after.reason_message) == ("gpu1", before.reason_message)
        assert after.last_received_ns == 0


def test_hosts_to_restore_without_a_score() -> None:
    """Registrations and acknowledged events are restored; simulations that ended and hosts of long ago are not."""
    now_ns, day_ns = 10**18, 86_400 * SECOND_NS

    def known(name: str, age_ns: int, simulated: bool = False) -> KnownHost:
        return KnownHost(name, b"", b"", "", simulated, 8, now_ns - age_ns)

    hosts = [
        known("scored", 0), known("registered", 3 * day_ns), known("ended", 3 * day_ns, simulated=True),
        known("simulated", 30 * SECOND_NS, simulated=True),
    ]  # fmt: skip
    events = [
        StoredEvent(host, now_ns, now_ns, wire.HealthEvent()) for host in ("ended", "journaled")
    ]

    def restored(*more: KnownHost) -> list[str]:
        known_hosts = [*hosts, *more]
        return [h.host for h in unscored_hosts(known_hosts, events, {"scored"}, now_ns)]

    assert restored() == ["simulated", "journaled"]
    hosts[0] = known("scored", 3 * day_ns)  # the aggregator was off for three days
    hosts.pop()
    assert restored(known("old", 5 * day_ns)) == ["registered", "journaled"]
    assert restored(known("future", -day_ns)) == ["future", "journaled"]


@pytest.mark.slow
def test_a_machine_that_booted_while_we_were_away_keeps_no_xid(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """A new `gangline run` got the XID of the run before: same name, same clock, another boot."""
    agent = make_agent()

    async def life(boot_id: bytes, report: bool) -> int:
        agent.boot_id = boot_id
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            if report:
                xid = wire.HealthEvent(
                    event_id="e", device_kind="gpu", device="GPU-0", name="gpu.xid", code=79,
                    wall_time_ns=time.time_ns(), boottime_ns=time.time_ns() - agent.booted_ns,
                )  # fmt: skip
                request = wire.ReportEventsRequest(events=[xid])
                await connection.stub.ReportEvents(request, metadata=connection.metadata)
            return len(list(aggregator.fleet.active_events))

    assert asyncio.run(life(b"b" * 16, report=True)) == 1
    assert asyncio.run(life(b"b" * 16, report=False)) == 1
    assert asyncio.run(life(b"c" * 16, report=False)) == 0


def request_of(*events: wire.HealthEvent) -> wire.ReportEventsRequest:
    return wire.ReportEventsRequest(events=events)


@pytest.mark.slow
def test_an_xid_that_was_cleared_does_not_come_back_with_a_restart(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """A GPU reset cleared the fault; an update of the aggregator made the host UNHEALTHY again."""
    agent = make_agent()
    column = [s.column for s in TABLES["gpu_1s"]].index("energy_joules")

    def energy(sequence: int, joules: float) -> wire.TelemetryBatch:
        block = Block("gpu_1s", ["GPU-0"])
        block.put_float(column, 0, joules)
        message: wire.TelemetryBatch = agent.message(sequence, blocks=[block])
        return message

    async def fault_and_reset() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            await connection.send(energy(1, 100.0))
            await until(lambda: aggregator.fleet.devices["gpu"].find(0, "GPU-0") >= 0)
            version = aggregator.snapshot_holder.snapshot.version
            await until(
                lambda: aggregator.snapshot_holder.snapshot.version > version + 1
            )  # the reading was judged
            now_ns = time.time_ns()
            xid = wire.HealthEvent(
                event_id="e", device_kind="gpu", device="GPU-0", name="gpu.xid", code=95,
                wall_time_ns=now_ns, boottime_ns=now_ns - agent.booted_ns,
            )  # fmt: skip
            await connection.stub.ReportEvents(request_of(xid), metadata=connection.metadata)
            await until(lambda: aggregator.fleet.findings)
            await connection.send(energy(2, 1.0))
            await until(lambda: not aggregator.fleet.findings)
            # reported again after the reset: all lines were before it
            xid.revision, xid.count = 1, 9
            await connection.stub.ReportEvents(request_of(xid), metadata=connection.metadata)
            assert not list(aggregator.fleet.active_events)

    async def again() -> int:
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent):
            return len(list(aggregator.fleet.active_events))

    asyncio.run(fault_and_reset())
    assert asyncio.run(again()) == 0
    assert lab.rows("SELECT name, cleared IS NULL, clears_when FROM findings") == [
        ("gpu.xid", False, "the GPU is reset, or the host boots")
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_worst_leaves_out_simulated_hosts_that_ended(lab: Any, make_agent: Any) -> None:
    """`FROM ops.worst()` a day after `gangline run` showed 32 STALE hosts of the ended run."""

    async def store_hosts() -> None:
        async with lab.aggregator() as aggregator:
            for name, simulated in (("real", False), ("sim", True)):
                agent = make_agent(host=name, run_id=name.encode().ljust(16))
                async with lab.agent(aggregator, agent) as connection:
                    await connection.register(simulated=simulated)
                    await connection.send(agent.message(1, blocks=[_collectors(agent)]))

    asyncio.run(store_hosts())
    file = lab.folder / "operators.duckdb"
    query = "SELECT host FROM ops.worst(n := 9)"
    assert sorted(lab.rows(query, file.name)) == [("real",), ("sim",)]
    with duckdb.connect(str(file)) as connection:
        ((taken_us,),) = connection.execute("SELECT epoch_us(taken) FROM snapshot").fetchall()
        connection.execute(taken_macro(taken_us + 120_000_000))
    assert lab.rows(query, file.name) == [("real",)]
    assert len(lab.rows("FROM ops.hosts", file.name)) == 2
