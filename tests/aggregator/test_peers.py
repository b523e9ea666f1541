"""Who is compared with whom: hosts set otherwise on purpose are no stragglers, and one set wrong is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.fleet.peers import HOSTS_MIN, PEERS_MIN, Level, relative_speeds
from gangline.aggregator.verdicts import Reason, State
from gangline.fingerprints.wire import telemetry_pb2
from tests.aggregator.world import CLOCK_HERTZ, IDLE_WATTS, Host, World, all_well, gpu_of, throttle

GPUS = 4
MADE = {"name": "H100", "vbios": "96.00", "driver": "550.54", "ecc_mode": "1"}


def register(world: World, host: Host, **other: str) -> None:
    """Register *host* as made like all, but for *other*."""
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


def cap(host: Host, watts: float = 400.0, share: float = 0.7) -> None:
    """Lower the power limit of all GPUs of *host*, and what it leaves of the clock."""
    for gpu in range(GPUS):
        device = gpu_of(host, gpu)
        clock = share * host.readings["gpu_1s", device]["sm_clock_hertz"]
        host.set("gpu_1s", device, power_watts=watts - 5, sm_clock_hertz=clock,
                 clock_event_reasons_flags=0x4)  # fmt: skip
        host.set("gpu_10s", device, power_limit_watts=watts)


def test_a_rack_capped_on_purpose_is_not_slow() -> None:
    """A row at 400 W for want of cooling was eight stragglers on the first page, day after day."""
    world = fleet_of(8)
    for host in world.hosts[:3]:
        cap(host)
    world.run(60)
    assert all_well(world)
    assert world.score(world.hosts[0]).relative_speed > 0.95


def test_within_a_capped_rack_the_slow_one_is_found_by_its_own_like() -> None:
    """Its neighbours' limit excuses 30 % of its clock, not 60 %."""
    world = fleet_of(8)
    for host in world.hosts[:4]:
        cap(host)
    world.run(20)
    device = gpu_of(world.hosts[1], 2)
    world.hosts[1].set("gpu_1s", device, sm_clock_hertz=0.4 * CLOCK_HERTZ)
    world.run(40)
    score = world.score(world.hosts[1])
    assert score.state is State.DEGRADED
    assert score.relative_speed == pytest.approx(0.4 / 0.7, abs=0.03)
    assert (
        "15 peers: same model, VBIOS, driver, ECC mode, power limit; part"
        in score.evidence[0].normal
    )


def test_a_host_capped_alone_is_measured_by_the_others() -> None:
    """A limit that was lowered on one host by mistake is no rack's: its own GPUs are not its measure."""
    world = fleet_of(6)
    cap(world.hosts[0])
    world.run(40)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (State.DEGRADED, Reason.POWER_CAP)
    assert "23 peers: same model; " in score.evidence[0].normal
    assert "power limit" in score.evidence[0].normal.partition("; ")[2]
    assert [name for name, state in world.states().items() if state != "HEALTHY"] == ["h0"]


def test_the_first_hosts_with_a_new_driver_have_peers_still() -> None:
    """A driver is rolled out host by host: two of them would have nobody to be compared with."""
    world = fleet_of(6)
    for host in world.hosts[:2]:
        register(world, host, driver="570.10")
    world.run(20)
    assert all_well(world)
    throttle(world.hosts[0], 1)
    world.run(20)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (State.DEGRADED, Reason.THERMAL_THROTTLE)
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
    """One or two of its hosts computed, and were held against the model alone: DEGRADED at 70 %, by night."""
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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_gpu_is_compared_with_the_narrowest_group_that_has_a_median(data: st.DataObject) -> None:
    """Whatever computes where: never with fewer than the least, never with none where a wider group has one."""
    count = data.draw(st.integers(1, 40))
    hosts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)))
    narrow = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    idle = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    clock = np.where(idle, np.nan, 1e9 * (1 + hosts + narrow))
    levels = [
        Level(
            0,
            HOSTS_MIN,
            [np.flatnonzero(narrow == number) for number in range(4)],
            np.zeros(count, dtype=bool),
        ),
        Level(3, 1, [np.arange(count)], narrow == 3),
    ]
    herd: Any = SimpleNamespace(
        devices={"gpu": SimpleNamespace(host=hosts)},
        peerage=SimpleNamespace(levels=lambda _: levels),
    )
    speeds = relative_speeds(herd, clock)
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
