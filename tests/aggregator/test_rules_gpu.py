"""GPUs that are lost, ask for help, lost PCIe lanes, or vanished. Readings are set by hand."""

from __future__ import annotations

import pytest

from gangline.aggregator.verdicts import Reason, State
from tests.aggregator.world import IDLE_WATTS, World, gpu_of


@pytest.mark.parametrize(
    ("column", "value", "state"),
    [
        ("lost_state", 1, State.UNHEALTHY),
        ("recovery_action_state", 1, State.UNHEALTHY),
        ("recovery_action_state", 3, State.SUSPECT),
        ("recovery_action_state", 77, State.HEALTHY),
    ],
)
def test_lost_gpus_and_what_the_driver_asks_for(column: str, value: int, state: State) -> None:
    """The driver's own word is authoritative; a number we do not know is not a fault."""
    world = World()
    world.run(10)
    world.hosts[0].set("gpu_1s", gpu_of(world.hosts[0], 0), **{column: float(value)})
    world.run(5)
    assert world.score(world.hosts[0]).state is state


def test_lost_pcie_lanes_count_under_load_only() -> None:
    """Idle links shrink by themselves; a x8 link under load halves a GPU's host bandwidth."""
    world = World()
    idle, loaded = world.hosts[0], world.hosts[1]
    for host in (idle, loaded):
        host.set("gpu_10s", gpu_of(host, 0), pcie_width_lanes=8)
    idle.set("gpu_1s", gpu_of(idle, 0), power_watts=IDLE_WATTS, utilization_ratio=0.0)
    world.run(45)
    assert world.score(idle).state is State.HEALTHY
    assert (world.score(loaded).state, world.score(loaded).reason) == (
        State.DEGRADED,
        Reason.PCIE,
    )


def test_a_gpu_that_vanishes_from_the_readings_is_noticed() -> None:
    """Fields vanish before the XID comes; missing is not healthy."""
    world = World()
    world.run(10)
    world.hosts[0].forget("gpu_1s")
    world.run(20)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (State.WATCH, Reason.BLIND)


def test_a_gpu_that_nothing_reads_is_noticed_beside_its_neighbours() -> None:
    """After a reboot NVML lists seven GPUs, the PCI bus eight. A host without a driver lists none."""
    world = World()
    world.register(world.hosts[0], gpus=9)
    for table in ("gpu_1s", "gpu_10s", "gpu_1s_changes", "gpu_10s_changes"):
        world.hosts[1].forget(table)
    world.run(30)
    seen, driverless = world.score(world.hosts[0]), world.score(world.hosts[1])
    assert (seen.state, seen.reason) == (State.WATCH, Reason.BLIND)
    assert (driverless.state, driverless.reason) == (State.HEALTHY, Reason.BLIND)
