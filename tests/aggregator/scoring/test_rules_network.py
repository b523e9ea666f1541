"""Network congestion and its look-alikes; and a job of one host, compared with its own past."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.model import NOTHING
from gangline.aggregator.fleet import host_baseline
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.query import sandbox
from tests.aggregator.query.asking import rows_of
from tests.processes import GUARD_SECONDS
from tests.worlds import (
    WAITING_WATTS,
    Host,
    StoredWorld,
    World,
    all_well,
    blamed,
    busy,
    draw,
    gapped,
    in_job,
    pass_steps,
    tell,
)

PORTS = ("mlx5_0/1", "mlx5_1/1")
BYTES, TICKS = 2e9, 3000.0
#: Windows until the past is known, and until two minutes of the change are over.
BEFORE, AFTER = 18, 14


def move(
    host: Host, share: float = 1.0, waits: float = 1.0, ports: tuple[str, ...] = PORTS
) -> None:
    """Scale the traffic of *host* by *share*, and the waiting of *ports* by *waits*."""
    for port in PORTS:
        ticks = TICKS * (waits if port in ports else 1.0)
        host.grow("rdma_1s", port, received_bytes=BYTES * share, transmitted_bytes=BYTES * share,
                  transmit_wait_count=ticks)  # fmt: skip


def with_past(hosts: int = 6, made: World | None = None) -> World:
    """Return a world whose job has moved its usual traffic for three minutes."""
    world = made or World(hosts=hosts, gpus=2, spread=0.01)
    for host in world.hosts:
        for port in PORTS:
            host.set("rdma_1s", port, received_bytes=1e12, transmitted_bytes=1e12,
                     transmit_wait_count=1e6)  # fmt: skip
        move(host)
    in_job(made=world)
    pass_steps(world, BEFORE)
    assert all_well(world)
    return world


def move_all(world: World, share: float = 1.0, waits: float = 1.0) -> None:
    for host in world.hosts:
        move(host, share, waits)


def congested(hosts: int = 6, share: float = 0.88, waits: float = 2.5) -> World:
    """Return a world with a past whose traffic changed for more than two minutes."""
    world = with_past(hosts)
    move_all(world, share, waits)
    pass_steps(world, AFTER)
    return world


def watched(world: World) -> set[str]:
    return {name for name, state in world.states().items() if state == "WATCH"}


def test_a_congested_network_is_named_at_all_hosts_of_its_job_and_blames_none() -> None:
    """A job lost an eighth for half an hour without errors, and every host was inspected."""
    world = congested()
    assert watched(world) == {f"h{n}" for n in range(6)} == set(blamed(world))
    score = world.score(world.hosts[3])
    assert (score.state, score.reason) == (HealthState.WATCH, Reason.FABRIC)
    assert "all 6 hosts of its job move 12 % less" in score.reason_message
    assert "the network between them is congested; no host is at fault" in score.reason_message
    assert score.relative_speed > 0.95 and score.evidence[0].log_hazard_delta == 0.0


def test_it_ends_when_the_network_is_free_again() -> None:
    """The finding must clear without manual action."""
    world = congested()
    move_all(world)
    pass_steps(world, AFTER + 8)
    assert all_well(world)


def test_one_rail_is_named_as_that() -> None:
    """One rail's leaf lacked an uplink: seven of eight ports of every host were healthy."""
    world = with_past()
    for host in world.hosts:
        move(host, share=0.9, waits=12.0, ports=PORTS[1:])
    pass_steps(world, AFTER)
    assert "rail mlx5_1/1 of the network between them" in world.score(world.hosts[0]).reason_message


@pytest.mark.parametrize(
    ("share", "waits", "others_wait"),
    [
        pytest.param(0.8, 1.0, 1.0, id="another phase of the job moves less, and waits as it did"),
        pytest.param(0.8, 0.4, 0.4, id="one host is slow: all send less and have less to wait for"),
        pytest.param(1.0, 3.0, 3.0, id="ports wait more and nobody is slower for it"),
        pytest.param(1.3, 2.5, 2.5, id="the job sends more, and so waits more"),
        pytest.param(0.88, 2.5, 1.0, id="a slow receiver makes one sender wait"),
    ],
)
def test_what_is_no_congestion_is_not_called_so(
    share: float, waits: float, others_wait: float
) -> None:
    """Less traffic, or more waiting, is normal: only both at once are congestion."""
    world = with_past()
    move_all(world, share, others_wait)
    move(world.hosts[0], share, waits)
    pass_steps(world, AFTER)
    assert all_well(world)


def test_a_bad_link_is_the_links_and_not_the_networks() -> None:
    """One cable repeated half its packets; credits ran out behind it, and all ports waited."""
    world = with_past()
    move_all(world, share=0.85, waits=2.5)
    world.hosts[2].grow("rdma_1s_changes", PORTS[0], packet_sequence_errors=500.0)
    pass_steps(world, AFTER)
    assert blamed(world) == ["h2"]
    assert world.score(world.hosts[2]).reason is Reason.FABRIC
    assert {item.device for item in world.score(world.hosts[2]).evidence} == {PORTS[0]}


def test_a_checkpoint_and_an_end_are_no_congestion() -> None:
    """During a checkpoint no data moves, whatever the ports count."""
    world = with_past()
    for host in world.hosts:
        move(host, share=0.1, waits=3.0)
        draw(host, WAITING_WATTS)
    pass_steps(world, AFTER)
    assert all_well(world)
    for host in world.hosts:
        tell(world, host, "1001", "ended")
    pass_steps(world, AFTER)
    assert all_well(world)


def test_a_job_that_was_never_seen_well_has_no_past() -> None:
    """A job that began during congestion has no usual traffic."""
    world = with_past()
    for host in world.hosts:
        tell(world, host, "1001", "ended")
        tell(world, host, "1002")
        move(host, share=0.88, waits=2.5)
    pass_steps(world, AFTER)
    assert all_well(world)


def test_a_counter_at_its_ceiling_says_nothing() -> None:
    """`port_xmit_wait` has 32 bits and stays at all ones: that is unknown, not zero."""
    world = with_past()
    for host in world.hosts:
        for port in PORTS:
            host.set("rdma_1s", port, transmit_wait_count=2**32 - 1)
        move(host, share=0.85, waits=0.0)
    pass_steps(world, AFTER)
    assert all_well(world)


def test_notifications_of_roce_tell_the_same() -> None:
    """RoCE ports have no credits: switches mark packets, and receivers make senders slow down."""
    world = with_past()
    for host in world.hosts:
        move(host, share=0.9, waits=0.0)
        for port in PORTS:
            host.set("rdma_1s_changes", port, congestion_notifications_handled_packets=50)
    pass_steps(world, BEFORE)
    assert all_well(world)
    for host in world.hosts:
        move(host, share=0.75, waits=0.0)
        for port in PORTS:
            host.grow("rdma_1s_changes", port, congestion_notifications_handled_packets=400.0)
    pass_steps(world, AFTER)
    assert "are told to slow down" in world.score(world.hosts[0]).reason_message


def test_what_lasts_for_an_hour_becomes_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a lasting congestion ends, because its baseline is lost."""
    monkeypatch.setattr(host_baseline, "UNUSUAL_MAX", 30)  # five minutes
    world = with_past(3)
    move_all(world, share=0.88, waits=2.5)
    pass_steps(world, 28)
    assert len(watched(world)) == 3
    pass_steps(world, 40)
    assert all_well(world)


def test_the_shared_leaf_is_named() -> None:
    """The operator must know which switch to inspect."""
    world = with_past(4)
    places = {host.name: HostPlacement(leaf="leaf-7") for host in world.hosts}
    world.fleet.declared = replace(NOTHING, places=places)
    move_all(world, share=0.88, waits=2.5)
    pass_steps(world, AFTER)
    assert (
        "leaf leaf-7, which they share, is congested" in world.score(world.hosts[0]).reason_message
    )


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_the_query_shows_the_waiting(tmp_path: Path) -> None:
    """An operator who copies the query must see the claimed values."""
    stored_world = StoredWorld(3, tmp_path)
    assert stored_world.store
    try:
        world = with_past(made=stored_world)
        move_all(world, share=0.88, waits=2.5)
        pass_steps(world, AFTER)
        evidence = world.score(world.hosts[0]).evidence[0]
    finally:
        stored_world.store.close(GUARD_SECONDS)
    with sandbox.open_snapshot(tmp_path / "operators.duckdb") as connection:
        _, rows = rows_of(connection, evidence.sql)
    waited = [row[1] for row in rows if row[1]]
    assert max(waited) / waited[1] == pytest.approx(evidence.value, rel=0.2)


def test_a_host_alone_that_begins_to_wait_for_data_is_watched() -> None:
    """A job on one host does not show whether its mount or the shared storage is slow."""
    world = in_job(1)
    pass_steps(world, BEFORE)
    gapped(world.hosts[0], 0.3, pressure_io_some_ratio=0.4)
    pass_steps(world, AFTER)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.WATCH, Reason.STORAGE)
    assert "a job on one host does not show" in score.reason_message
    gapped(world.hosts[0], 0.0, pressure_io_some_ratio=0.01)
    pass_steps(world, AFTER + 8)
    assert all_well(world)


def test_a_host_alone_that_begins_to_wait_for_cores_is_watched() -> None:
    """A backup took its cores for an hour."""
    world = in_job(1)
    pass_steps(world, BEFORE)
    gapped(world.hosts[0], 0.08, pressure_cpu_some_ratio=0.3)
    pass_steps(world, AFTER)
    assert world.score(world.hosts[0]).reason is Reason.HOST_CPU
    assert blamed(world) == ["h0"]


@pytest.mark.parametrize("gap", [0.3, 0.0])
def test_a_host_alone_that_was_always_so_is_let_be(gap: float) -> None:
    """A job that always reads much is normal, as is I/O for which no GPU waits."""
    world = in_job(1)
    gapped(world.hosts[0], gap, pressure_io_some_ratio=0.4 if gap else 0.01)
    tell(world, world.hosts[0], "1001", "ended")
    tell(world, world.hosts[0], "1002")
    pass_steps(world, BEFORE)
    gapped(world.hosts[0], gap, pressure_io_some_ratio=0.4)
    pass_steps(world, AFTER)
    assert all_well(world)


def test_a_process_of_nobodys_beside_a_job_takes_no_host_out_of_it() -> None:
    """A monitor on one GPU removed its host from the gang, and its slowness was not seen."""
    world = in_job()
    for gpu in range(2):
        device = f"GPU-h2-{gpu}-0000-0000-000000000000"
        world.event(world.hosts[2], 0, device, "gpu.process", event_id=f"/{device}//shell", process_id=3,
                    attributes={"state": "running", "source": "systemd", "unit": "dcgm.service"})  # fmt: skip
    busy(world.hosts[2], 1.09)
    pass_steps(world, 16)
    assert blamed(world) == ["h2"]
