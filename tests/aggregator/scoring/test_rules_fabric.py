"""Ports that retransmit or are down, and healthy ports that look so. Readings are set by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.scoring.base_hazard import base_hazard_per_hour
from tests.worlds import World, all_well, gpu_of

PORTS = ("mlx5_0/1", "mlx5_1/1")


def test_climbing_retransmissions_are_found_within_25_seconds() -> None:
    """A dirty optic: from none to 300 a second in 15 s, on one port."""
    world = World(seconds=20)
    sick = world.hosts[1]

    def climb(passed: int) -> None:
        rate = 20.0 * min(passed, 15)
        sick.grow("rdma_1s_changes", "mlx5_1/1", packet_sequence_errors=rate)

    world.run(25, climb)
    score = world.score(sick)
    assert (score.state, score.reason) == (HealthState.SUSPECT, Reason.FABRIC)
    assert score.evidence[0].device == "mlx5_1/1"
    assert score.evidence[0].signal == "rdma.packet_sequence_errors"
    assert list(world.states().values()).count("HEALTHY") == 3


def test_evidence_names_one_signal_with_its_own_rate() -> None:
    """The sum of three counters was shown as the rate of a single counter.

    A lost packet counts as sequence error, out-of-order packet and retransmission: 830 per second,
    in packets though two of them count errors.
    """
    world = World(seconds=20)
    sick = world.hosts[1]
    sick.grow("rdma_1s_changes", "mlx5_1/1", packet_sequence_errors=390,
              out_of_sequence_packets=300, adaptive_retransmissions_packets=140)  # fmt: skip
    world.run(60, every_seconds=1)
    evidence = world.score(sick).evidence[0]
    assert (evidence.signal, evidence.unit) == ("rdma.packet_sequence_errors", "errors/s")
    assert evidence.value == pytest.approx(390, rel=0.02)
    assert evidence.message == (
        f"RDMA port mlx5_1/1: sequence errors {evidence.value:.0f}/s (its peers 0)"
    )
    assert "out_of_sequence" not in evidence.sql


@pytest.mark.parametrize("is_sick", [False, True])
def test_reordering_everywhere_alike_is_adaptive_routing(is_sick: bool) -> None:
    """Adaptive routing delivers hundreds of packets a second out of order on every port, by design.

    A port's sequence errors are found below these.
    """
    world = World()
    for host in world.hosts:
        for port in ("mlx5_0/1", "mlx5_1/1"):
            host.grow("rdma_1s_changes", port, out_of_sequence_packets=400)
    if is_sick:
        world.hosts[1].grow("rdma_1s_changes", "mlx5_1/1", packet_sequence_errors=60)
    world.run(60)
    assert list(world.states().values()).count("HEALTHY") == 4 - is_sick
    if is_sick:
        assert world.score(world.hosts[1]).evidence[0].signal == "rdma.packet_sequence_errors"


def test_retransmissions_now_and_then_are_nothing() -> None:
    """Healthy ports retransmit a few packets a minute."""
    world = World()

    def now_and_then(passed: int) -> None:
        for host in world.hosts:
            rate = 8.0 if passed % 7 == 0 else 0.0
            host.grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=rate)

    world.run(90, now_and_then)
    assert all_well(world)


def at_work(working: int, moves: float = 1e10, hosts: int = 10) -> World:
    """Return a fleet with adaptive routing in which *working* hosts move bytes."""
    world = World(hosts=hosts, gpus=1)
    for number, host in enumerate(world.hosts):
        for port in PORTS:
            host.set("rdma_1s", port, received_bytes=0, transmitted_bytes=0)
            host.set("rdma_10s", port, link_layer_code=2)
            if number < working:
                host.grow("rdma_1s", port, received_bytes=moves, transmitted_bytes=moves)
                host.grow("rdma_1s_changes", port, out_of_sequence_packets=400)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("moves", [1e10, 3e6])
@pytest.mark.parametrize("working", [1, 4])
def test_reordering_at_work_is_none_beside_idle_ports(working: int, moves: float) -> None:
    """Under half of the ports were in jobs: the median was 0, and all hosts in jobs SUSPECT."""
    world = at_work(working, moves)
    world.run(60)
    assert all_well(world)


@pytest.mark.parametrize("sick", [0, 9])
def test_a_sick_port_is_found_beside_idle_and_working_ones(sick: int) -> None:
    """A busy port is compared with busy ports, an idle port with idle ports."""
    world = at_work(4)
    host = world.hosts[sick]
    host.grow("rdma_1s_changes", PORTS[1], packet_sequence_errors=100)
    world.run(60)
    unhealthy = {name: state for name, state in world.states().items() if state != "HEALTHY"}
    assert unhealthy == {host.name: "SUSPECT"}
    assert world.score(host).evidence[0].signal == "rdma.packet_sequence_errors"


def test_infiniband_beside_roce_is_another_fabric() -> None:
    """InfiniBand does not reorder as RoCE does: each fabric has its own median."""
    world = at_work(10)
    for host in world.hosts[4:]:
        for port in PORTS:
            host.set("rdma_10s", port, link_layer_code=1)
            host.growth.pop(("rdma_1s_changes", port, "out_of_sequence_packets"))
    world.run(60)
    assert all_well(world)
    world.hosts[9].grow("rdma_1s_changes", PORTS[0], out_of_sequence_packets=100)
    world.run(30)
    assert world.states()["h9"] == "SUSPECT"


@pytest.mark.slow
def test_a_count_that_grew_while_nobody_listened_is_no_burst() -> None:
    """An aggregator away for ten minutes: 3,000 retransmissions are 5 a second, not 3,000."""
    world = World(seconds=20)
    for host in world.hosts[:2]:
        host.silent = True
        host.grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=5.0)
    world.run(600)
    for host in world.hosts[:2]:
        host.silent = False
    world.run(20)
    assert all_well(world)


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "beside"), [(70, 0.0), (600, 1.0)])
def test_a_count_that_grew_while_its_cell_was_missing_is_no_burst(
    seconds: int, beside: float
) -> None:
    """A counter unread for ten minutes had 3,000 events: 5 per second, counted as in 1 s.

    *beside*: growth of another counter of the port, so that its row arrives each second.
    """
    world = World(gpus=1, seconds=20)
    port = "rdma_1s_changes", "mlx5_0/1"
    world.hosts[0].grow(*port, packet_sequence_errors=5.0, adaptive_retransmissions_packets=beside)
    world.run(20)
    values, growth = world.hosts[0].readings[port], world.hosts[0].growth
    now = values.pop("packet_sequence_errors")
    rate = growth.pop((*port, "packet_sequence_errors"))
    world.run(seconds)
    world.hosts[0].set(*port, packet_sequence_errors=now + rate * seconds)
    world.hosts[0].grow(*port, packet_sequence_errors=rate)
    for _ in range(30):
        world.run(1)
        assert all_well(world)
    held = world.fleet.tables[port[0]].recent("packet_sequence_errors", np.zeros(8), slow=True)
    assert held.max() == pytest.approx(5.0 * 600 * -np.expm1(-(seconds + 50) / 600), rel=0.02)


def test_a_port_that_was_up_and_is_down_is_a_rail_down() -> None:
    """A cable was pulled: UNHEALTHY until the port has been ACTIVE for a minute."""
    world = World(seconds=20)
    world.hosts[0].set("rdma_1s", "mlx5_1/1", port_state=1, physical_state=2)
    world.run(35)
    assert (world.score(world.hosts[0]).state, world.score(world.hosts[0]).reason) == (
        HealthState.UNHEALTHY,
        Reason.RAIL_DOWN,
    )
    world.hosts[0].set("rdma_1s", "mlx5_1/1", port_state=4, physical_state=5)
    world.run(65)
    assert all_well(world)


def test_a_port_whose_switch_trains_anew_is_not_down() -> None:
    """A switch got new firmware: its ports were down for 25 s, and its hosts were excluded."""
    world = World(seconds=20)
    world.hosts[0].set("rdma_1s", "mlx5_1/1", port_state=2, physical_state=4)
    world.run(25)
    assert all_well(world)
    world.hosts[0].set("rdma_1s", "mlx5_1/1", port_state=4, physical_state=5)
    world.run(20)
    assert all_well(world)


def _booted(world: World) -> None:
    """Boot the first host; neither of its ports is up yet."""
    host = world.hosts[0]
    host.reboot(world.now_ns)
    world.register(host)
    for port in ("mlx5_0/1", "mlx5_1/1"):
        host.set("rdma_1s", port, port_state=2, physical_state=4)


@pytest.mark.slow
def test_ports_that_train_after_a_boot_are_not_down() -> None:
    """A planned reboot: the subnet manager took two minutes, and the host was drained meanwhile."""
    world = World(seconds=20)
    _booted(world)
    world.run(120)
    assert world.score(world.hosts[0]).state is HealthState.HEALTHY
    world.run(190)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.UNHEALTHY, Reason.RAIL_DOWN)


def test_a_port_that_was_down_before_the_boot_is_not_well_after_it() -> None:
    """The host was booted to revive the port, and got jobs for four minutes."""
    world = World(seconds=20)
    world.hosts[0].set("rdma_1s", "mlx5_1/1", port_state=1, physical_state=2)
    world.run(40)
    _booted(world)
    world.run(100)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY


def test_a_port_that_nobody_cabled_is_not_down() -> None:
    """Storage ports that no host uses, and a port that an operator disabled."""
    world = World()
    for host in world.hosts:
        host.set("rdma_1s", "mlx5_9/1", port_state=1, physical_state=2)
    world.run(20)
    world.hosts[0].set("rdma_1s", "mlx5_0/1", port_state=1, physical_state=3)
    world.run(60)
    assert all_well(world)


def test_a_port_down_since_before_we_looked_is_known_by_its_peers() -> None:
    """The aggregator restarted while a rail was down: other hosts have the port up."""
    world = World(hosts=5)
    world.hosts[0].set("rdma_1s", "mlx5_1/1", port_state=1, physical_state=2)
    world.run(40)
    assert world.score(world.hosts[0]).reason is Reason.RAIL_DOWN


def test_a_port_that_hosts_of_another_make_use_is_not_missed() -> None:
    """New hosts have a cable in mlx5_1, old ones never had: all old hosts were UNHEALTHY."""
    world = World(hosts=9)
    for host in world.hosts[:3]:
        world.register(host, model="A100")
        host.set("rdma_1s", "mlx5_1/1", port_state=1, physical_state=2)
    world.run(40)
    assert all_well(world)


def test_a_flapping_link_is_suspect() -> None:
    """The link came back within the second: only its counter shows it."""
    world = World(seconds=20)
    world.hosts[0].set("rdma_1s_changes", "mlx5_0/1", link_downed_events=3)
    world.run(5)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.SUSPECT, Reason.RAIL_DOWN)


def test_a_stuck_counter_is_a_finding_and_costs_nothing() -> None:
    """excessive_buffer_overrun_errors=15 on real hosts: a 4-bit counter stuck at its ceiling."""
    world = World()
    sick = world.hosts[0]
    sick.set("rdma_10s_changes", "mlx5_0/1", buffer_overrun_errors=15)
    world.run(30)
    score = world.score(sick)
    assert (score.state, score.reason) == (HealthState.HEALTHY, Reason.BLIND)
    assert score.hazard_per_hour == pytest.approx(base_hazard_per_hour(8))
    assert [f.name for f in world.fleet.findings.values()] == ["counter.saturated"]
    sick.set("rdma_10s_changes", "mlx5_0/1", buffer_overrun_errors=0)
    world.run(20)
    assert not world.fleet.findings and not world.score(sick).evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "device", "counter", "state"),
    [
        ("rdma_1s_changes", "mlx5_0/1", "link_downed_events", HealthState.SUSPECT),
        ("pcie_10s_changes", "0000:01:00.0", "aer_nonfatal_errors", HealthState.SUSPECT),
        ("rdma_1s_changes", "mlx5_0/1", "symbol_errors", HealthState.WATCH),
        ("edac_10s_changes", "mc0", "corrected_errors", HealthState.WATCH),
    ],
)
@pytest.mark.parametrize("events", [20, 1000])
def test_what_went_wrong_often_is_forgotten_as_soon_as_what_did_once(
    table: str, device: str, counter: str, state: HealthState, events: int
) -> None:
    """A cable was replaced after fifty link-downs: SUSPECT for 49 minutes instead of 10."""
    world = World(hosts=1, gpus=1)
    sick = world.hosts[0]
    sick.set(table, device, **{counter: 2})
    world.run(70)
    sick.set(table, device, **{counter: 2 + events})
    world.run(560, every_seconds=10)
    assert world.score(sick).state is state
    world.run(160, every_seconds=10)
    assert all_well(world)


@pytest.mark.parametrize(
    ("layer", "command"),
    [
        ("InfiniBand", "perfquery -R -C mlx5_0 -P 1"),
        ("Ethernet", "mlxlink -d mlx5_0 -p 1 --pc"),
        ("", "perfquery -R -C mlx5_0 -P 1"),
    ],
)
@pytest.mark.parametrize(
    ("table", "column", "ceiling"),
    [
        ("rdma_1s_changes", "link_downed_events", 255),
        ("rdma_1s_changes", "symbol_errors", 65535),
        ("rdma_1s", "transmit_wait_count", 4294967295),
        ("rdma_10s_changes", "local_link_integrity_errors", 15),
    ],
)
def test_a_counter_at_its_ceiling_names_the_command_that_clears_it(
    layer: str, command: str, table: str, column: str, ceiling: int
) -> None:
    """Each width that saturates is reported, with the command that clears it."""
    world = World(hosts=2)
    host = world.hosts[0]
    attributes = world.fleet.attributes[world.fleet.index[host.name]]
    attributes["rdma", "mlx5_0/1"] = {"link_layer": layer}
    host.set(table, "mlx5_0/1", **{column: float(ceiling)})
    world.run(30)
    score = world.score(host)
    assert (score.state, score.reason) == (HealthState.HEALTHY, Reason.BLIND)
    [finding] = world.fleet.findings.values()
    for message in (score.reason_message, finding.message):
        assert f"{column} is at its maximum of {ceiling}" in message
        assert "mlx5_0/1" in message and command in message and "are missed" in message
    assert finding.clears_when
    host.set(table, "mlx5_0/1", **{column: float(ceiling - 9)})
    world.run(15)
    assert not world.fleet.findings


def test_a_port_that_is_another_by_the_same_name_starts_over() -> None:
    """A new adapter took the name of an unplugged one: 2 to 40 downs are not its own."""
    world = World(hosts=2)
    host = world.hosts[0]
    host.set("rdma_1s", "mlx5_0/1", counter_epoch_count=7)
    world.run(20)
    host.set("rdma_1s", "mlx5_0/1", counter_epoch_count=8)
    host.set("rdma_1s_changes", "mlx5_0/1", link_downed_events=40)
    world.run(20)
    assert all_well(world)
    host.set("rdma_1s_changes", "mlx5_0/1", link_downed_events=42)
    world.run(5)
    assert world.score(host).reason is Reason.RAIL_DOWN


@pytest.mark.parametrize(
    ("model", "dead", "links", "state"),
    [
        ("NVIDIA H100 80GB HBM3", [2], 18, HealthState.SUSPECT),
        ("NVIDIA H100 80GB HBM3", [2, 5], 18, HealthState.SUSPECT),
        ("NVIDIA H100 80GB HBM3", [2], 4, HealthState.SUSPECT),
        ("NVIDIA H100 80GB HBM3", [], 0, HealthState.HEALTHY),
        (
            "NVIDIA H100 80GB HBM3",
            range(8),
            18,
            HealthState.HEALTHY,
        ),  # no fabric manager: another finding
        # a majority is down: no peers
        ("NVIDIA H100 80GB HBM3", range(5), 18, HealthState.HEALTHY),
        ("NVIDIA H100 PCIe", [6, 7], 18, HealthState.HEALTHY),  # a pair without a bridge
        ("NVIDIA H100 NVL", [6, 7], 18, HealthState.HEALTHY),
    ],
)
def test_links_that_were_never_up_are_compared_with_the_hosts_other_gpus(
    model: str, dead: Iterable[int], links: int, state: HealthState
) -> None:
    """A GPU without any NVLink up since the boot left its host HEALTHY."""
    world = World()
    host = world.hosts[0]
    world.register(host, model=model)
    for gpu in range(8):
        for link in range(18):
            is_dead = gpu in dead and link < links
            host.set(
                "nvlink_10s_changes", f"{gpu_of(host, gpu)}/link{link}", link_state=not is_dead
            )
    world.run(40)
    score = world.score(host)
    assert score.state is state
    assert {evidence.device for evidence in score.evidence} == (
        {gpu_of(host, gpu) for gpu in dead} if state is HealthState.SUSPECT else set()
    )
    if state is HealthState.SUSPECT:
        assert f"{links} of its NVLinks are inactive since the boot" in score.reason_message
