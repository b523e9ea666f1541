"""A restart keeps the state beneath a maintenance window, and symptoms with a memory time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.scoring.declared import without_maintenance
from tests.aggregator.declared.test_judged import at, declare, window
from tests.aggregator.scoring.test_restart import back, restarted
from tests.worlds import (
    GPUS,
    SECOND_NS,
    START_NS,
    World,
    blamed,
    busy,
    gpu_of,
    in_job,
    pass_steps,
    tell,
    throttle,
)


def seconds(world: World) -> float:
    return (world.now_ns - START_NS) / 1e9


@pytest.mark.slow
@pytest.mark.parametrize("ends", [130.0, 300.0])
def test_a_window_that_ends_after_a_restart_leaves_what_lay_beneath(ends: float) -> None:
    """The state beneath a window survives a restart, whether the window ends before or after it.

    After an update a host in a window, its GPU released for repair, stayed in MAINTENANCE for an
    hour more, then was WATCH, and the GPU's fault was lost.
    """
    world = World(hosts=2)
    host, gpu = world.hosts[1], gpu_of(world.hosts[1], 3)
    declare(world, window(60, ends))
    host.set("gpu_10s_changes", gpu, remap_failed_state=1)
    world.run(70)
    for key in [key for key in host.readings if key[1] == gpu]:
        del host.readings[key]
    host.growth.clear()
    world.run(20)
    assert world.score(host).state is HealthState.MAINTENANCE
    declared = world.fleet.declared
    for _ in range(2):
        restarted(world, 60)
        world.fleet.declared = declared
        back(world)
        world.run(5)
        is_in = seconds(world) < ends
        assert world.score(host).state is (
            HealthState.MAINTENANCE if is_in else HealthState.UNHEALTHY
        )
    world.run(150)
    score = world.score(host)
    assert (score.state, score.reason) == (HealthState.UNHEALTHY, Reason.HBM_REMAP)
    assert "has no spare memory row left" in score.reason_message and score.clears_when


def test_a_window_that_ended_while_we_were_away_is_over_at_once() -> None:
    """After fans were changed, the host was held back for a minute by a window that had ended."""
    world = World(hosts=2)
    declare(world, window(10, 30))
    world.run(20)
    declared = world.fleet.declared
    restarted(world)
    world.fleet.declared = declared
    back(world)
    world.run(3)
    assert world.states() == {"h0": "HEALTHY", "h1": "HEALTHY"}


def test_what_lies_beneath_a_window_is_what_the_host_would_be_without() -> None:
    """The state beneath is parsed from the score's message, because no column stores it."""
    world = World(hosts=2)
    throttle(world.hosts[1], 2)
    world.run(20)
    plain = world.score(world.hosts[1])
    declare(world, window(0, 60))
    world.run(1)
    held = world.score(world.hosts[1])
    assert held.state is HealthState.MAINTENANCE
    beneath = without_maintenance(held)
    assert beneath.state is HealthState.DEGRADED and beneath.reason is plain.reason
    assert beneath.reason_message == plain.reason_message
    assert without_maintenance(plain) is plain
    strange = replace(held, reason_message=held.reason_message.replace("DEGRADED", "NEWER"))
    assert without_maintenance(strange).state is HealthState.UNKNOWN


def restarted_in_job(world: World, state: str = "running") -> None:
    """Restart the aggregator; hosts and store report their jobs again."""
    restarted(world)
    for host in world.hosts:
        world.register(host, GPUS)
        tell(world, host, "1001", state)


def test_a_slow_host_is_slow_throughout_while_its_job_goes_on() -> None:
    """Its AVOID went and came with each update, because two minutes of windows had to pass."""
    world = in_job()
    busy(world.hosts[2], 1.09)
    pass_steps(world, 14)
    for _ in range(2):
        restarted_in_job(world)
        assert blamed(world) == ["h2"]
        for _ in range(20):
            pass_steps(world, 1)
            assert blamed(world) == ["h2"]
    score = world.score(world.hosts[2])
    assert score.evidence[0].observed_ns == world.now_ns, "by windows since the start"


def test_a_slow_host_of_a_job_that_ended_is_known_for_its_hour() -> None:
    """A slow host was forgotten a minute after an update, and the next job began on it."""
    world = in_job()
    busy(world.hosts[2], 1.09)
    pass_steps(world, 14)
    plain = world.score(world.hosts[2])
    for host in world.hosts:
        tell(world, host, "1001", "ended")
    pass_steps(world, 2)
    restarted_in_job(world, "ended")
    pass_steps(world, 30)
    score = world.score(world.hosts[2])
    assert blamed(world) == ["h2"] and "runs no such job for an hour" in score.clears_when
    assert (score.reason, score.reason_message) == (plain.reason, plain.reason_message)
    assert score.relative_speed == plain.relative_speed
    assert score.score == pytest.approx(plain.score)
    world.now_ns += 3300 * SECOND_NS
    pass_steps(world, 3)
    assert blamed(world) == []


def test_a_slow_host_that_keeps_up_after_a_restart_is_none() -> None:
    """A remembered slowness ends after two minutes of a job, as without a restart."""
    world = in_job()
    busy(world.hosts[2], 1.09)
    pass_steps(world, 14)
    restarted_in_job(world)
    busy(world.hosts[2], 1.0)
    pass_steps(world, 20)
    assert blamed(world) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "device", "counter", "state"),
    [
        ("rdma_1s_changes", "mlx5_0/1", "link_downed_events", HealthState.SUSPECT),
        ("pcie_10s_changes", "0000:01:00.0", "aer_nonfatal_errors", HealthState.SUSPECT),
        ("edac_10s_changes", "mc0", "uncorrected_errors", HealthState.SUSPECT),
        ("nvlink_10s_changes", "{gpu}/link3", "link_recovery_failed_events", HealthState.SUSPECT),
        ("rdma_1s_changes", "mlx5_0/1", "symbol_errors", HealthState.WATCH),
    ],
)
def test_what_was_counted_is_remembered_for_its_ten_minutes(
    table: str, device: str, counter: str, state: HealthState
) -> None:
    """A port failed two minutes before an update: SUSPECT for ten, it was HEALTHY after one."""
    world = World(hosts=2)
    sick = world.hosts[0]
    device = device.format(gpu=gpu_of(sick, 0))
    sick.set(table, device, **{counter: 2})
    world.run(70)
    sick.set(table, device, **{counter: 22})
    world.run(70)
    restarted(world)
    back(world)
    for _ in range(9):
        world.run(50)
        assert world.score(sick).state is state
    world.run(220)
    assert world.score(sick).state is HealthState.HEALTHY


def test_what_somebody_takes_as_noise_is_noise_after_a_restart() -> None:
    """The symptom is remembered as found; the declaration decides its weight before and after."""
    world = World(hosts=2)
    noisy = world.hosts[0]
    declare(
        world,
        f'[[override]]\nhosts = ["h0"]\nrule = "rdma.flaps"\nuntil = {at(300)}\nwho = "bob"\nwhy = "a test"\n',
    )
    world.run(20)
    noisy.set("rdma_1s_changes", "mlx5_0/1", link_downed_events=9)
    world.run(5)
    declared = world.fleet.declared
    restarted(world)
    world.fleet.declared = declared
    back(world)
    for _ in range(2):
        world.run(5)
        score = world.score(noisy)
        assert [evidence.reason for evidence in score.evidence] == [Reason.POLICY]
        assert score.state is HealthState.HEALTHY
