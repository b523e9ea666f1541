"""Each rule that is a row of a table fires on its fault, and on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.fleet.tables import (
    DEMAND_COUNTERS,
    RUN_SIGNALS,
    TRACKED_SIGNALS,
    DeviceTable,
)
from gangline.aggregator.model import HealthState
from gangline.aggregator.rule_catalogue import COUNTERS, RULES, SIGNALS_READ
from gangline.aggregator.rule_declaration import above, equals, farther_than
from gangline.contract.signals import BY_NAME
from tests.worlds import FAULTS, IDLE_WATTS, Fault, Host, World, all_well, gpu_of, throttle

#: Besides the rule's own time: a reading of its table after the fault, and the next one.
SECONDS = {"1s": 3, "10s": 24, "60s": 130}


def furnished(hosts: int = 4) -> World:
    world = World(hosts=hosts, gpus=2)
    for host in world.hosts:
        for fault in FAULTS:
            fault.furnish(host)
    return world


def test_rules_read_what_there_is() -> None:
    """A rule over a renamed column never fires."""
    assert BY_NAME.keys() >= SIGNALS_READ
    assert {fault.rule for fault in FAULTS} <= RULES.keys()


def test_what_rules_declare_to_read_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals read and declared by rules must match: undeclared ones fail, unread ones cost memory.

    All signals of 80,000 GPUs with their ports and links were 1.5 GB. At 1,000 hosts all 479
    counters took 0.8 GB and 1.5 s a judgement; these take 0.3 GB and 0.1 s.
    """
    read: set[str] = set()
    counted: set[str] = set()

    def note(method: str, found: set[str]) -> None:
        original = getattr(DeviceTable, method)

        def noting(self: DeviceTable, column: str, *more: Any, **named: Any) -> Any:
            found.add(self.signals[self.column[column]].name)
            return original(self, column, *more, **named)

        monkeypatch.setattr(DeviceTable, method, noting)

    for name in (
        "gauge",
        "gauge_at",
        "raw",
        "state_at",
        "cells_where",
        "state",
        "known",
        "saturated",
    ):
        note(name, read)
    for name in ("counting", "recent"):
        note(name, counted)
    world = furnished(hosts=2)
    expected = DeclaredFile(
        "a.toml", b'[[expected]]\nmodel = "*"\nrdma_port_gigabits_per_second = 1\n'
    )
    world.fleet.declared = parse_files([expected], world.now_ns)
    throttle(world.hosts[0], 0)
    for host in world.hosts:  # GPUs of one job are compared by more signals
        owner = {"state": "running", "source": "slurm", "job_id": "7"}
        device = gpu_of(host, 0)
        world.event(host, 0, device, "gpu.process", event_id=f"/{device}//1/1", attributes=owner)
        host.set("gpu_fast_1s", device, sm_active_ratio=0.7, tensor_active_ratio=0.3)
    world.event(world.hosts[1], 79, gpu_of(world.hosts[1], 0))
    world.hosts[0].grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=100.0)
    world.run(21)
    for fault in FAULTS:
        fault.befall(world.hosts[1])
    world.run(21)
    assert counted == COUNTERS
    assert read | counted | RUN_SIGNALS | DEMAND_COUNTERS == TRACKED_SIGNALS


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.rule)
def test_a_fault_is_found_on_its_host_alone(fault: Fault) -> None:
    """Each of these faults was in the store, and no rule read it."""
    world = World(hosts=4, gpus=2)
    for host in world.hosts:
        fault.furnish(host)
    pace = next(p for p in SECONDS if f"_{p}" in fault.table)
    world.run(61 if pace == "60s" else 21)
    assert all_well(world)
    fault.befall(world.hosts[1])
    world.run(fault.enter_seconds + SECONDS[pace] + 5)  # the fault may be seen later by this much
    score = world.score(world.hosts[1])
    assert score.state is fault.state, (score.state, score.reason_message)
    assert score.clears_when
    assert [name for name, state in world.states().items() if state != "HEALTHY"] == ["h1"]


@pytest.mark.parametrize("idle", [False, True])
def test_a_host_with_all_these_devices_that_are_well_is_well(idle: bool) -> None:
    """A healthy and an idle fleet: sleeping links, constant counters, unused drives."""
    world = furnished()
    if idle:
        for host in world.hosts:
            for gpu in range(2):
                host.set("gpu_1s", gpu_of(host, gpu), power_watts=IDLE_WATTS, utilization_ratio=0.0)
            host.set("nvlink_10s_changes", f"{gpu_of(host, 0)}/link0", link_state=2)
    world.run(130)
    assert all_well(world)
    assert not world.fleet.findings


def test_what_is_noisy_everywhere_is_no_fault_of_one() -> None:
    """A firmware that counts replays on every link alike; a fabric that pauses all ports."""
    world = furnished()
    for host in world.hosts:
        host.grow("gpu_10s_changes", gpu_of(host, 0), pcie_replays_count=30)
        host.grow("nic_10s_changes", "eth1", priority_3_transmitted_pause_frames=50_000)
    for host in world.hosts:
        host.set("gpu_10s_changes", gpu_of(host, 1), pcie_replays_count=0)
        host.grow("gpu_10s_changes", gpu_of(host, 1), pcie_replays_count=30)
    world.run(120)
    assert all_well(world)


@pytest.mark.parametrize("why", ["split", "booting"])
def test_a_link_that_need_not_be_up_is_not_down(why: str) -> None:
    """MIG was switched on, which ends peer-to-peer; or the Fabric Manager has not started yet."""
    world = furnished(hosts=2)
    host = world.hosts[0]
    link, gpu = f"{gpu_of(host, 0)}/link0", gpu_of(host, 0)
    world.run(15)
    if why == "booting":
        host.reboot(world.now_ns)
    else:
        host.set("gpu_10s_changes", gpu, mig_mode_state=1)
    host.set("nvlink_10s_changes", link, link_state=0)
    world.run(60)
    assert world.score(host).state is HealthState.HEALTHY
    host.set("gpu_10s_changes", gpu, mig_mode_state=0)
    world.run(300 if why == "booting" else 45)
    assert world.score(host).state is HealthState.SUSPECT


def test_a_link_that_was_never_up_is_not_down() -> None:
    """Eighteen links on the part, twelve of them wired on this board."""
    world = World(hosts=2, gpus=2)
    world.hosts[0].set("nvlink_10s_changes", f"{gpu_of(world.hosts[0], 0)}/link17", link_state=0)
    world.hosts[0].set("bond_10s", "bond0", slaves_count=2, slaves_up_count=1, link_state=0)
    world.run(60)
    assert all_well(world)


def test_counters_that_start_over_with_their_gpu_are_no_errors() -> None:
    """After a driver reload, 0 to 90 replays, or 40 to 90, are not 90 errors."""
    world = World(hosts=2, gpus=2)
    host: Host = world.hosts[0]
    device, link = gpu_of(host, 0), f"{gpu_of(host, 0)}/link0"
    host.set("gpu_1s", device, counter_epoch_count=0)
    host.set("gpu_10s_changes", device, pcie_fatal_errors=40)
    host.set("nvlink_10s_changes", link, link_recovery_failed_events=40)
    world.run(21)
    host.set("gpu_1s", device, counter_epoch_count=1)
    host.set("gpu_10s_changes", device, pcie_fatal_errors=90)
    host.set("nvlink_10s_changes", link, link_recovery_failed_events=90)
    world.run(21)
    assert all_well(world)
    host.set("gpu_10s_changes", device, pcie_fatal_errors=92)
    world.run(21)
    assert world.score(host).state is HealthState.SUSPECT


def test_limits_say_what_they_look_at() -> None:
    """NaN is never above, beyond or equal to a limit."""
    nan = float("nan")
    for wrong in (equals(0), above(-1.0), farther_than(0.0)):
        assert not wrong(np.array([nan])).any()
