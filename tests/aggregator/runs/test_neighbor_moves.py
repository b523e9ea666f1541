"""The price of moving a neighbor away, its free target, and the part that both jobs share."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from gangline.aggregator.runs.accumulator import ActiveRun
from gangline.aggregator.runs.neighbor_moves import move_of, shared_part
from gangline.aggregator.scoring.reported_factors import ReportedFactor, ReportedFactors
from gangline.contract.wire.telemetry_pb2 import Device
from tests.worlds import World, gpu_of, tell

PORTS = ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0")


@pytest.fixture
def world() -> World:
    """Three hosts of two GPUs behind one switch; job `train` and `copy` on the first."""
    result = World(hosts=3, gpus=2)
    for host in result.hosts:
        devices = [Device(kind="gpu", key=gpu_of(host, gpu),
                          attributes={"name": "H100", "pci_address": f"0000:0{gpu + 4}:00.0"}) for gpu in range(2)]  # fmt: skip
        devices += [
            Device(
                kind="pcie",
                key=f"0000:0{gpu + 4}:00.0",
                attributes={"parents": f"{PORTS[gpu]} {PORTS[2]}"},
            )
            for gpu in range(2)
        ]
        result.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=devices)
    result.run(10)
    for gpu, job in enumerate(("train", "copy")):
        tell(result, result.hosts[0], job, gpus=[gpu])
    return result


def pair(world: World) -> tuple[ActiveRun, ActiveRun]:
    gpus = world.fleet.devices["gpu"]
    runs = [
        ActiveRun(job, job, "slurm", 1, rows=np.array([gpus.find(0, gpu_of(world.hosts[0], gpu))]),
                  hosts=("h0",), gpus_max=size, gpu_model="H100")
        for gpu, (job, size) in enumerate((("train", 16), ("copy", 3)))
    ]  # fmt: skip
    return runs[0], runs[1]


def test_a_move_names_the_price_of_both_sides_and_a_free_host(world: World) -> None:
    move = move_of(world.fleet, pair(world), (0,), 0.1, nan)
    assert move.targets == ("h1",)
    assert move.cost_gpu_hours == pytest.approx(3 * (10 / 60 + 0.5))
    assert move.gain_gpu_hours == pytest.approx(16 * 0.1 * 24)
    assert str(move) == "moving copy to h1 costs 2.0 GPU-hours and gives back 38 GPU-hours in 24 h"
    # As schedulers report a restart, and with the job's own checkpoints.
    reports = ReportedFactors({"restart": ReportedFactor(0.5, 0.4, 0.6, 9)})
    known = move_of(world.fleet, pair(world), (0,), 0.1, 720.0, reports)
    assert known.cost_gpu_hours == pytest.approx(3 * (0.5 + 0.1))


def test_a_busy_a_broken_and_a_different_host_are_no_targets(world: World) -> None:
    tell(world, world.hosts[1], "other")
    assert move_of(world.fleet, pair(world), (0,), 0.1, nan).targets == ("h2",)
    world.event(world.hosts[2], 79, gpu_of(world.hosts[2], 0))
    world.run(5)
    move = move_of(world.fleet, pair(world), (0,), 0.1, nan)
    assert str(move) == "the slowdown costs 38 GPU-hours in 24 h, and no host is free for job copy"
    run, neighbor = pair(world)
    neighbor.gpu_model = "A100"
    assert not move_of(world.fleet, (run, neighbor), (0,), 0.1, nan).targets


def test_the_shared_part_is_named(world: World) -> None:
    named = {
        resource: shared_part(world.fleet, pair(world), 0, resource)
        for resource in ("pcie_received", "nic_received", "cores", "sm")
    }
    assert named == {
        "pcie_received": f"PCIe switch {PORTS[2]}",
        "nic_received": "2 NICs",
        "cores": "the host's cores",
        "sm": "sm",
    }
