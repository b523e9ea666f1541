"""Peers for comparison: hosts that are configured differently on purpose are not slow."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.fleet.peers import HOSTS_MIN, PEERS_MIN, PeerLevel
from gangline.aggregator.fleet.power_limits import PowerLimited
from gangline.aggregator.fleet.relative_speeds import (
    Speeds,
    relative_speeds,
    slowest,
    speeds_of_hosts,
)
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.query import sandbox
from gangline.contract.wire import telemetry_pb2
from tests.aggregator.query.asking import rows_of
from tests.processes import GUARD_SECONDS
from tests.worlds import (
    CLOCK_HERTZ,
    IDLE_WATTS,
    Host,
    StoredWorld,
    World,
    all_well,
    gpu_of,
    throttle,
)

GPUS = 4
MADE = {"name": "H100", "vbios": "96.00", "driver": "550.54", "ecc_mode": "1"}


def register(world: World, host: Host, **other: str) -> None:
    """Register *host* like all others, except for *other*."""
    devices = [
        telemetry_pb2.Device(kind="gpu", key=gpu_of(host, gpu), attributes=MADE | other)
        for gpu in range(GPUS)
    ]
    world.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=devices)


def fleet_of(hosts: int) -> World:
    world = World(hosts=hosts, gpus=GPUS, spread=0.01)
    for host in world.hosts:
        register(world, host)
    return world


def runs(world: World, host: Host, job: str, gpus: range = range(GPUS)) -> None:
    """Assign all GPUs of *host*, or these, to a Slurm job."""
    for gpu in gpus:
        device = gpu_of(host, gpu)
        world.event(host, 0, device, "gpu.process", event_id=f"/{device}//{job}", process_id=7 + gpu,
                    attributes={"state": "running", "source": "slurm", "job_id": job})  # fmt: skip


def cap(host: Host, watts: float = 400.0, share: float = 0.7) -> None:
    """Lower the power limit of all GPUs of *host*, and their clock with it."""
    for gpu in range(GPUS):
        device = gpu_of(host, gpu)
        clock = share * host.readings["gpu_1s", device]["sm_clock_hertz"]
        host.set("gpu_1s", device, power_watts=watts - 5, sm_clock_hertz=clock,
                 clock_event_reasons_flags=0x4)  # fmt: skip
        host.set("gpu_10s", device, power_limit_watts=watts)


def test_a_rack_capped_on_purpose_is_not_slow() -> None:
    """A row limited to 400 W for cooling was eight stragglers on the first page every day."""
    world = fleet_of(8)
    for host in world.hosts[:3]:
        cap(host)
    world.run(60)
    assert all_well(world)
    assert world.score(world.hosts[0]).relative_speed > 0.95


def test_within_a_capped_rack_the_slow_one_is_found_by_its_own_like() -> None:
    """Its neighbors' limit excuses 30 % of its clock, not 60 %."""
    world = fleet_of(8)
    for host in world.hosts[:4]:
        cap(host)
    world.run(20)
    device = gpu_of(world.hosts[1], 2)
    world.hosts[1].set("gpu_1s", device, sm_clock_hertz=0.4 * CLOCK_HERTZ)
    world.run(40)
    score = world.score(world.hosts[1])
    assert score.state is HealthState.DEGRADED
    assert score.relative_speed == pytest.approx(0.4 / 0.7, abs=0.03)
    assert (
        "15 peers: at their power limit; same model, VBIOS, driver, ECC mode, power limit; part"
        in score.evidence[0].normal
    )


def test_a_host_capped_alone_is_measured_by_the_others() -> None:
    """One host's limit was lowered by mistake: its own GPUs are not its measure."""
    world = fleet_of(6)
    cap(world.hosts[0])
    world.run(40)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.DEGRADED, Reason.POWER_CAP)
    assert "23 peers: same model; " in score.evidence[0].normal
    assert "power limit" in score.evidence[0].normal.partition("; ")[2]
    assert [name for name, state in world.states().items() if state != "HEALTHY"] == ["h0"]


def test_the_first_hosts_with_a_new_driver_have_peers_still() -> None:
    """In a rollout, two hosts with a new driver would have no peers."""
    world = fleet_of(6)
    for host in world.hosts[:2]:
        register(world, host, driver="570.10")
    world.run(20)
    assert all_well(world)
    throttle(world.hosts[0], 1)
    world.run(20)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.DEGRADED, Reason.THERMAL_THROTTLE)
    normal = score.evidence[0].normal
    assert "same model, ECC mode, power limit; " in normal and "driver" in normal.partition("; ")[2]


def test_another_model_is_no_peer() -> None:
    """An A100 beside H100s is slower by design."""
    world = fleet_of(6)
    for host in world.hosts[:1]:
        register(world, host, name="A100", vbios="92.00")
        for gpu in range(GPUS):
            host.set("gpu_1s", gpu_of(host, gpu), sm_clock_hertz=1.1e9)
    world.run(40)
    assert all_well(world)


@pytest.mark.parametrize("working", [1, 2])
def test_a_capped_rack_that_is_mostly_idle_is_not_slow(working: int) -> None:
    """Its few working hosts were compared by model alone: DEGRADED at 70 %, at night."""
    world = fleet_of(8)
    for host in world.hosts[:3]:
        cap(host)
    for host in world.hosts[working:3]:
        for gpu in range(GPUS):
            host.set("gpu_1s", gpu_of(host, gpu), sm_clock_hertz=345e6, power_watts=IDLE_WATTS,
                     utilization_ratio=0.0, clock_event_reasons_flags=1)  # fmt: skip
    world.run(40)
    assert all_well(world)
    assert np.isnan(world.score(world.hosts[0]).relative_speed)


def work_lightly(host: Host, share: float = 1.0) -> None:
    for gpu in range(GPUS):
        host.set("gpu_1s", gpu_of(host, gpu), power_watts=400.0, sm_clock_hertz=share * 1.98e9)


def work_densely(
    host: Host, gpus: int = GPUS, watts: float = 697.0, hertz: float = 1.55e9, first: int = 0
) -> None:
    """Set GPUs to the common power limit, as the driver reports it."""
    for gpu in range(first, first + gpus):
        host.set("gpu_1s", gpu_of(host, gpu), power_watts=watts, sm_clock_hertz=hertz,
                 clock_event_reasons_flags=0x4)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("watts", [697.0, 660.0])
@pytest.mark.parametrize("dense", [1, 4])
@pytest.mark.parametrize("is_known", [True, False])
def test_full_load_is_not_slow_beside_lighter_work(
    watts: float, dense: int, is_known: bool
) -> None:
    """At the common limit, all hosts of a dense job were DEGRADED at 0.78 while it ran."""
    world = fleet_of(10)
    for host in world.hosts[dense:]:
        work_lightly(host)
    for host in world.hosts[:dense]:
        work_densely(host, watts=watts)
        if is_known:
            runs(world, host, "7")
    world.run(60)
    assert all_well(world)
    paces = [world.score(host).relative_speed for host in world.hosts[:dense]]
    assert np.allclose(paces, 1.0, atol=0.06)


@pytest.mark.parametrize("sick", [1, GPUS])
def test_one_at_its_limit_is_found_by_its_gang_that_is_not(sick: int) -> None:
    """Same work, lower clock: hidden by another job that is at its limit for its work."""
    world = fleet_of(10)
    for host in world.hosts[:5]:
        runs(world, host, "7")
    for host in world.hosts[5:]:
        runs(world, host, "8")
        work_densely(host)
    work_densely(world.hosts[2], sick, hertz=0.8 * CLOCK_HERTZ)
    world.run(60)
    score = world.score(world.hosts[2])
    assert (score.state, score.reason) == (HealthState.DEGRADED, Reason.POWER_CAP)
    assert score.relative_speed == pytest.approx(0.8, abs=0.03)
    assert "of its 19 peers, limited by its power limit (697 W of 700 W)" in score.reason_message
    assert "19 peers: in its job; same model" in score.evidence[0].normal
    assert "gang := ['h2', 'h0', 'h1', 'h3', 'h4']" in score.evidence[0].sql
    assert [name for name, state in world.states().items() if state == "DEGRADED"] == ["h2"]


def test_a_stage_at_its_limit_is_its_own_measure() -> None:
    """A pipeline's first stage works more: its hosts are slower than the others without a fault."""
    world = fleet_of(9)
    for number, host in enumerate(world.hosts):
        runs(world, host, "7")
        work_densely(host) if number < 3 else work_lightly(host)
    world.run(60)
    assert all_well(world)


def shared_at_the_limit(gpus: int, made: World | None = None) -> World:
    """Return a world: a job at its limit on four GPUs a host; on host 0 *gpus* of a denser job."""
    world = made or World(hosts=6, gpus=2 * GPUS, spread=0.01)
    for host in world.hosts:
        runs(world, host, "7")
        work_densely(host)
    runs(world, world.hosts[0], "8", range(GPUS, GPUS + gpus))
    work_densely(world.hosts[0], gpus, hertz=1.2e9, first=GPUS)
    return world


@pytest.mark.parametrize("gpus", [4, 2])
def test_a_denser_job_beside_the_gangs_is_no_part_of_it(gpus: int) -> None:
    """Another job's GPUs on a host counted against it: 0.77, "limited by its power limit"."""
    world = shared_at_the_limit(gpus)
    world.run(60)
    assert all_well(world)
    assert world.score(world.hosts[0]).relative_speed == pytest.approx(1.0, abs=0.06)


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_a_gpu_of_a_shared_host_is_measured_by_its_own_job(tmp_path: Path) -> None:
    """A lower clock in either job: the peers are its own job's, in the query as well."""
    stored_world = StoredWorld(6, tmp_path, gpus=2 * GPUS)
    assert stored_world.store
    try:
        world = shared_at_the_limit(4, stored_world)
        for first, hertz in ((0, 1.2e9), (GPUS, 1.0e9)):
            work_densely(world.hosts[0], 1, hertz=hertz, first=first)
        world.run(60)
        evidence_of = {
            evidence.device: evidence for evidence in world.score(world.hosts[0]).evidence
        }
    finally:
        stored_world.store.close(GUARD_SECONDS)
    names = [gpu_of(world.hosts[0], gpu) for gpu in range(2 * GPUS)]
    expected = [(names[0], 23, 1.55e9, names[:GPUS]), (names[GPUS], 3, 1.2e9, names[GPUS:])]
    assert evidence_of.keys() == {device for device, *_ in expected}
    with sandbox.open_snapshot(tmp_path / "operators.duckdb") as connection:
        for device, peers, median_hertz, own_devices in expected:
            assert f"{peers} peers: in its job" in evidence_of[device].normal
            columns, rows = rows_of(connection, evidence_of[device].sql)
            device_column = columns.index("device")
            assert len(rows) == peers + 1 and rows[0][device_column] == device
            assert rows[0][columns.index("median_hertz")] == pytest.approx(median_hertz, rel=0.01)
            assert sorted(row[device_column] for row in rows if row[0] == "h0") == own_devices


@pytest.mark.parametrize("watts", [500.0, 630.0, 690.0])
def test_a_part_of_a_dense_job_that_is_a_little_slower_is_not_held_down(watts: float) -> None:
    """By the flag, the whole job is at its limit: only the spread of parts remains."""
    world = World(hosts=4, gpus=GPUS, spread=0.005)
    for host in world.hosts:
        register(world, host)
        runs(world, host, "1")
        for gpu in range(GPUS):
            share = 0.94 if (host.name, gpu) == ("h1", 2) else 1.0
            host.set("gpu_1s", gpu_of(host, gpu), power_watts=watts, sm_clock_hertz=share * 1.6e9,
                     clock_event_reasons_flags=0x4)  # fmt: skip
    world.run(60)
    assert all_well(world)


def test_heat_at_the_power_limit_is_still_heat() -> None:
    """Causes other than the power limit are compared with all peers."""
    world = fleet_of(6)
    throttle(world.hosts[0], 1)
    world.hosts[0].set("gpu_1s", gpu_of(world.hosts[0], 1), power_watts=690.0,
                       clock_event_reasons_flags=0x24)  # fmt: skip
    world.run(40)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.DEGRADED, Reason.THERMAL_THROTTLE)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_gpu_is_compared_with_the_narrowest_group_that_has_a_median(data: st.DataObject) -> None:
    """No group is below the minimum; a wider group with a median is always used."""
    count = data.draw(st.integers(1, 40))
    hosts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)))
    narrow = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    idle = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    clock = np.where(idle, np.nan, 1e9 * (1 + hosts + narrow))
    levels = [
        PeerLevel(
            0,
            HOSTS_MIN,
            [np.flatnonzero(narrow == number) for number in range(4)],
            np.zeros(count, dtype=bool),
        ),
        PeerLevel(3, 1, [np.arange(count)], narrow == 3),
    ]
    no = np.zeros(count, dtype=bool)
    unlimited = PowerLimited(no, np.full(count, 700.0), np.full(count, -1), no)
    fleet: Any = SimpleNamespace(
        devices={"gpu": SimpleNamespace(host=hosts)},
        peer_groups=SimpleNamespace(levels=lambda _: levels),
    )
    speeds = relative_speeds(fleet, clock, unlimited)
    for row in range(count):
        own = (narrow == narrow[row]) & ~idle
        is_narrow = own.sum() >= PEERS_MIN and len(set(hosts[own].tolist())) >= HOSTS_MIN
        group = own if is_narrow else ~idle
        is_settled = not is_narrow and narrow[row] == 3
        if idle[row] or group.sum() < PEERS_MIN or is_settled:
            assert np.isnan(speeds.relative[row]) and speeds.width[row] == -1
            continue
        assert speeds.width[row] == (0 if is_narrow else 3)
        assert speeds.median_hertz[row] == np.median(clock[group])
        assert speeds.peers[row] == group.sum() - 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_host_is_at_one_and_a_slow_gpu_is_told_as_it_is(seed: int) -> None:
    """A fleet seemed 3 % slow: each host's slowest GPU was compared with the median of all."""
    world = World(hosts=24, seed=seed, seconds=12)
    speeds = [world.score(host).relative_speed for host in world.hosts]
    assert np.median(speeds) == pytest.approx(1.0, abs=0.005)
    assert min(speeds) > 0.95 and max(speeds) < 1.04
    device = gpu_of(world.hosts[3], 5)
    world.hosts[3].set("gpu_1s", device, sm_clock_hertz=0.85 * CLOCK_HERTZ)
    world.run(30)
    assert world.score(world.hosts[3]).relative_speed == pytest.approx(0.85, abs=0.02)
    assert np.median([world.score(host).relative_speed for host in world.hosts]) == pytest.approx(
        1.0, abs=0.005
    )


@given(st.integers(0, 2**32), st.floats(0.001, 0.04), st.integers(3, 30))
def test_the_pace_of_hosts_keeps_their_order_and_what_is_slow(
    seed: int, spread: float, hosts: int
) -> None:
    """Placement picks the fastest hosts: reported speeds keep the order of the measurements."""
    random = np.random.default_rng(seed)
    host_of_gpu = np.repeat(np.arange(hosts, dtype=np.int32), 8)
    relative = 1.0 + np.clip(random.normal(0.0, spread, host_of_gpu.size), -0.3, 0.3)
    relative[host_of_gpu == 0] *= random.uniform(0.5, 1.0)
    counts = np.zeros(host_of_gpu.size, np.int32)
    speeds = Speeds(relative, counts, np.full(host_of_gpu.size, 1.755e9), relative, counts, counts)
    slowest_gpus, reported = (
        slowest(relative, host_of_gpu, hosts),
        speeds_of_hosts(speeds, host_of_gpu, hosts),
    )
    assert np.all(np.diff(reported[np.argsort(slowest_gpus)]) >= -1e-12)
    assert np.all(reported >= slowest_gpus - 1e-12)
    assert np.all(reported[slowest_gpus <= 0.92] == slowest_gpus[slowest_gpus <= 0.92])
    two_hosts = speeds_of_hosts(speeds, np.minimum(host_of_gpu, 1), 2)
    assert np.array_equal(two_hosts, slowest(relative, np.minimum(host_of_gpu, 1), 2)), (
        "two hosts say nothing of a spread"
    )
