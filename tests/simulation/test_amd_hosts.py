"""Simulated hosts with AMD GPUs: they report as real hosts would, and are compared only with each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.agent.collectors import SAME_TABLES
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.signals import BY_ID
from gangline.simulator.amd import ABSENT_KINDS, AMD_SIGNALS, CLOCK_MAX_HERTZ, KERNEL_LINES, LINKS
from gangline.simulator.event_readings import incident_events
from gangline.simulator.machine import AMD_GPU_NAME, GPU_NAME
from gangline.simulator.scenario_file import load
from gangline.simulator.world import World

SETTINGS = load()


def small(classes: tuple[str, ...] = (), hosts: int = 12, **changes: Any) -> World:
    """Return a mixed world of few hosts, in which nothing happens but *classes*."""
    scenario = replace(
        SETTINGS.scenarios["mixed"],
        hosts=hosts,
        classes=classes,
        days=0.02,
        parade_seconds=0.0,
        **changes,
    )
    return World("mixed", 3, settings=replace(SETTINGS, scenarios={"mixed": scenario}))


def blocks_of(world: World, host: int) -> dict[str, Block]:
    step = next(iter(world.frames([host], 300.0, 310.0)))
    return {block.table: block for block in frame.decode(step.deliveries[0].frame).blocks}


def test_the_second_half_has_amds_gpus() -> None:
    """Names, memory and what reads them are those of an MI300X host."""
    world = small()
    names = [world.devices(host)[1].attributes["name"] for host in range(12)]
    assert names == [GPU_NAME] * 6 + [AMD_GPU_NAME] * 6
    assert world.devices(11)[1].attributes["vendor"] == "AMD"
    assert set(SAME_TABLES) - set(world.machines[11].devices_of("collector")) == {
        "amdgpu_partition_10s", "kfd_process_1s",
    }  # fmt: skip


def test_what_the_driver_of_amd_does_not_tell_is_missing() -> None:
    """GPUs without row remapping had remapped rows, and an H100's clock."""
    blocks = blocks_of(small(), 9)
    assert not any(
        table.startswith(ABSENT_KINDS) and any(block.valid) for table, block in blocks.items()
    )
    shown = {
        BY_ID[signal_id].name
        for block in blocks.values()
        for column, signal_id in enumerate(block.signal_ids)
        if BY_ID[signal_id].device_kind == "gpu"
        and any(block.valid[column * block.rows : (column + 1) * block.rows])
    }
    assert (
        shown <= AMD_SIGNALS
        and "gpu.sm_clock_hertz" in shown
        and "gpu.remap_failed_state" not in shown
    )
    clocks = dict(zip(blocks["gpu_1s"].signal_ids, range(99), strict=False))[1000]
    values = [blocks["gpu_1s"].floats[clocks * 8 + row] for row in range(8)]
    assert max(values) <= CLOCK_MAX_HERTZ * 1.08
    links = blocks.get("nvlink_10s_changes")
    if links is not None:
        with_values = [
            name for row, name in enumerate(links.devices) if any(links.valid[row :: links.rows])
        ]
        assert len(with_values) == 8 * LINKS


@pytest.mark.parametrize("name", sorted(KERNEL_LINES))
def test_a_fault_is_told_by_the_driver_of_amd(name: str) -> None:
    """An AMD GPU never reports an XID."""
    world = small()
    events = list(incident_events(SETTINGS.classes[name], world.machines[9], 1, 2, 0.5))
    assert len(events) == len(KERNEL_LINES[name])
    assert all(event.name.startswith("gpu.") and event.name != "gpu.xid" for event in events)
    assert {event.device for event in events} == {world.machines[9].gpus[2]}
    nvidia = list(incident_events(SETTINGS.classes[name], world.machines[0], 1, 2, 0.5))
    assert {event.name for event in nvidia} == {"gpu.xid"}


@pytest.mark.slow
def test_a_mixed_fleet_is_well() -> None:
    """Half of a fleet was slower than the other half only because of its GPU model."""
    world, fleet = small(), Fleet(epoch=1)
    judged = None
    for step in world.frames(range(12), 600.0, 720.0, 1.0):
        for delivery in step.deliveries:
            host = world.names.index(delivery.host)
            if delivery.host not in fleet.names:
                fleet.register(
                    delivery.host,
                    simulated=True,
                    boot_id=delivery.boot_id,
                    devices=world.devices(host),
                )
            fleet.observe(delivery.host, read_frame(delivery.frame), step.now_ns)
        judged = evaluate(fleet, step.now_ns, judged)
    assert judged is not None
    states = {host.host: host.state for host in judged.hosts}
    assert set(states.values()) <= {HealthState.HEALTHY, HealthState.UNKNOWN}, [
        (h.host, h.reason_message) for h in judged.hosts if h.state is not HealthState.HEALTHY
    ]


def test_a_share_beyond_all_hosts_is_rejected() -> None:
    from gangline.simulator.scenario import ScenarioError
    from gangline.simulator.scenario_file import _check_scenario

    scenario = replace(SETTINGS.scenarios["mixed"], amd_ratio=1.5)
    with pytest.raises(ScenarioError, match=r"amd_ratio: 1.5: expected 0 to 1"):
        _check_scenario(scenario, SETTINGS)
