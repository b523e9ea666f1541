"""PCIe links under load, compared with the capability of both ends. Readings are set by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.fleet.devices import link_ends
from gangline.aggregator.model import HealthState, Reason
from tests.worlds import IDLE_WATTS, Host, World, all_well, gpu_of

#: A GPU behind a switch: its slot, the switch's two ports, the root port.
GPU, SLOT, SWITCH, ROOT = "0000:17:00.0", "0000:16:00.0", "0000:15:00.0", "0000:14:01.0"
NIC = "0000:18:00.0"
GEN4, GEN5 = 16e9, 32e9


def wired() -> tuple[World, Host]:
    """Two hosts with a GPU and an adapter behind one PCIe switch, all at full speed."""
    world = World(hosts=2, gpus=1)
    for host in world.hosts:
        attributes = world.fleet.attributes[world.fleet.index[host.name]]
        attributes["gpu", gpu_of(host, 0)]["pci_address"] = GPU
        attributes["pcie", GPU] = {"parents": f"{SLOT} {SWITCH} {ROOT}"}
        attributes["rdma", "mlx5_0/1"] = {"pci_address": NIC}
        attributes["pcie", NIC] = {"parents": ROOT}
        for address in (GPU, SLOT, SWITCH, ROOT, NIC):
            host.set(
                "pcie_10s", address, link_speed_transfers_per_second=GEN5,
                link_speed_max_transfers_per_second=GEN5, link_width_lanes=16,
                link_width_max_lanes=16,
            )  # fmt: skip
        host.set("gpu_10s", gpu_of(host, 0), pcie_generation_number=5, pcie_generation_max_number=5)
        host.set("rdma_1s", "mlx5_0/1", received_bytes=10**12, transmitted_bytes=10**12)
    return world, world.hosts[0]


def idle(host: Host) -> None:
    host.set("gpu_1s", gpu_of(host, 0), power_watts=IDLE_WATTS, utilization_ratio=0.0)


@pytest.mark.parametrize("column", ["pcie_generation_number", "pcie_width_lanes"])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_gpus_own_link_under_load_and_idle(column: str, loaded: bool) -> None:
    """Generation 1 is normal while a GPU idles; while it computes it is a bad slot."""
    world, host = wired()
    host.set("gpu_10s", gpu_of(host, 0), **{column: 1.0})
    if not loaded:
        idle(host)
    world.run(45)
    score = world.score(host)
    if loaded:
        assert (score.state, score.reason) == (HealthState.DEGRADED, Reason.PCIE)
        assert "under load" in score.reason_message
    else:
        assert all_well(world) and not score.evidence


def test_an_idle_gpu_that_copies_uses_its_link() -> None:
    """A data loader only feeds the GPU: no kernel runs, but the link matters."""
    world, host = wired()
    idle(host)
    host.set("gpu_fast_1s", gpu_of(host, 0), pcie_received_bytes_per_second=9e9)
    host.set("gpu_10s", gpu_of(host, 0), pcie_width_lanes=4)
    world.run(40)
    assert world.score(host).reason is Reason.PCIE


def test_a_job_that_starts_finds_its_link_still_asleep() -> None:
    """The link was last read up to ten seconds ago, before the job began."""
    world, host = wired()
    idle(host)
    host.set("gpu_10s", gpu_of(host, 0), pcie_generation_number=1)
    world.run(30)
    host.set("gpu_1s", gpu_of(host, 0), power_watts=550.0, utilization_ratio=1.0)

    def wakes(passed: int) -> None:
        if passed == 2:
            host.set("gpu_10s", gpu_of(host, 0), pcie_generation_number=5)

    world.run(40, wakes)
    assert all_well(world)


def test_a_reading_that_was_missed_judges_nobody() -> None:
    """The reading that would have shown the link awake was late; the last one predates the job."""
    world, host = wired()
    idle(host)
    host.set("gpu_10s", gpu_of(host, 0), pcie_generation_number=1)
    world.run(30)
    host.set("gpu_1s", gpu_of(host, 0), power_watts=550.0, utilization_ratio=1.0)
    kept = host.readings.pop(("gpu_10s", gpu_of(host, 0)))
    world.run(18)
    host.readings["gpu_10s", gpu_of(host, 0)] = kept | {"pcie_generation_number": 5.0}
    world.run(30)
    assert all_well(world)


def test_a_link_whose_other_end_is_not_read_is_not_judged() -> None:
    """An x16 card in a slot without readings: the slot may be wired with 8 lanes."""
    world, host = wired()
    host.grow("rdma_1s", "mlx5_0/1", received_bytes=1e10)
    host.set("pcie_10s", NIC, link_width_lanes=8)
    for end in (ROOT, SWITCH):
        for column in ("link_width_max_lanes", "link_speed_max_transfers_per_second"):
            del host.readings["pcie_10s", end][column]
    world.run(45)
    assert all_well(world)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_link_between_switch_and_root(loaded: bool) -> None:
    """The GPU's own link is fine; the link above its switch trained at half its lanes."""
    world, host = wired()
    for end in (SWITCH, ROOT):
        host.set("pcie_10s", end, link_width_lanes=8)
    if not loaded:
        idle(host)
    world.run(40)
    score = world.score(host)
    assert (score.state is HealthState.DEGRADED) == loaded
    if loaded:
        assert score.evidence[0].device == SWITCH
        assert "8 lanes of 16 lanes" in score.reason_message and len(score.evidence) == 1


def test_a_fast_card_in_a_slow_slot_is_no_fault() -> None:
    """A generation 5 adapter in a generation 4 slot, an x16 card wired with 8 lanes: as built."""
    world, host = wired()
    host.grow("rdma_1s", "mlx5_0/1", received_bytes=1e10)
    host.set("pcie_10s", NIC, link_speed_transfers_per_second=GEN4, link_width_lanes=8)
    host.set("pcie_10s", ROOT, link_speed_max_transfers_per_second=GEN4, link_width_max_lanes=8)
    host.set("pcie_10s", SWITCH, link_speed_transfers_per_second=GEN4, link_width_lanes=8)
    world.run(40)
    assert all_well(world)


@pytest.mark.parametrize("bytes_per_second", [0.0, 1e10])
def test_an_adapter_is_judged_by_its_own_traffic(bytes_per_second: float) -> None:
    """A NIC may sleep at generation 4, but not while it sends."""
    world, host = wired()
    host.set("pcie_10s", NIC, link_speed_transfers_per_second=GEN4)
    host.grow("rdma_1s", "mlx5_0/1", received_bytes=bytes_per_second)
    world.run(40)
    score = world.score(host)
    if bytes_per_second:
        assert (score.state, score.evidence[0].device) == (HealthState.DEGRADED, NIC)
        assert "16 GT/s of 32 GT/s while mlx5_0/1 uses it" in score.reason_message
    else:
        assert all_well(world)


def test_the_ends_of_links_are_every_other_pair() -> None:
    """Between a switch's downstream port and its upstream port there is no link."""
    attributes = {("pcie", GPU): {"parents": f"{SLOT} {SWITCH} {ROOT}"}}
    assert link_ends(attributes, GPU) == [(GPU, SLOT), (SWITCH, ROOT)]
    assert link_ends(attributes, NIC) == [] and link_ends({}, "") == []


@given(st.text(max_size=60))
def test_any_parents_give_pairs(parents: str) -> None:
    """An inventory of another version, or of a host that lies."""
    for lower, upper in link_ends({("pcie", GPU): {"parents": parents}}, GPU):
        assert lower != "" and upper != ""
