"""Faults of the host, of its agent, and findings of others. Readings are set by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.model import Finding, HealthState, Reason
from tests.worlds import World, all_well, gpu_of, only_words


def test_a_small_machine_at_full_load_is_watched_at_most() -> None:
    """Two cores that build something: pressure 1.0 for minutes, steal 0.3, no memory left."""
    world = World()
    world.hosts[0].set("host_1s", "host", pressure_cpu_some_ratio=1.0, cpu_steal_ratio=0.3,
                       pressure_memory_full_ratio=0.9)  # fmt: skip
    world.run(120)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.WATCH, Reason.HOST_CPU)
    assert score.score > 0.99


def test_a_file_system_that_turned_read_only_is_told_from_one_that_always_was() -> None:
    """errors=remount-ro on the scratch disk; a squashfs image is read-only by nature."""
    world = World()
    world.hosts[1].set("filesystem_60s", "/snap", size_bytes=5e9, available_bytes=0.0,
                       read_only_state=1)  # fmt: skip
    world.run(61)
    assert all_well(world)
    world.hosts[0].set("filesystem_60s", "/", read_only_state=1)
    world.run(60)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.WATCH, Reason.STORAGE)


def test_a_full_disk_is_watched() -> None:
    """A checkpoint that cannot be written kills the job at its next cadence."""
    world = World()
    world.hosts[0].set("filesystem_60s", "/", available_bytes=1e8)
    world.run(60)
    assert world.score(world.hosts[0]).reason is Reason.STORAGE


@pytest.mark.parametrize(
    ("collector", "outcome", "state"),
    [
        ("gpu_1s", 4, HealthState.UNHEALTHY),
        ("rdma_1s", 4, HealthState.SUSPECT),
        ("host_1s", 4, HealthState.WATCH),
        ("gpu_1s", 2, HealthState.HEALTHY),
        ("gpu_1s", 1, HealthState.HEALTHY),
    ],
)
def test_hung_drivers_and_collectors_that_are_not_let_in(
    collector: str, outcome: int, state: HealthState
) -> None:
    """ "Did not return" is a reading; "not permitted" is shown, but is not a fault of the host."""
    world = World(seconds=10)
    world.hosts[0].set("collector_10s", collector, outcome_state=outcome)
    world.event(world.hosts[0], outcome, collector, "collector.outcome")
    world.run(10)
    score = world.score(world.hosts[0])
    assert score.state is state
    assert bool(score.evidence) == (outcome != 1)
    assert world.snapshot and world.snapshot.collector_statuses[0][0].name == "gpu_1s"


def _hang(
    world: World, device: str, lane: str = "gpu", collector: str = "gpu_1s", **values: float
) -> None:
    """Report that a device, or with an empty name its driver, has hung for a second."""
    host = world.hosts[0]
    row = f"{lane} {device or (collector if lane == 'host' else '')}".strip()
    host.set("probe_1s", row, **({"state": 2, "hung_seconds": 1.0, "abandoned_count": 1} | values))
    host.set("collector_10s", collector, outcome_state=4)
    world.event(
        host, 1, device or "host", "probe.hung" if device else "probe.driver_hung",
        message=f"died of SIGSEGV in {collector}: {device} read",
        attributes={"lane": lane, "device": device, "collector": collector, "call": "read"},
    )  # fmt: skip


def test_a_hung_gpu_is_one_finding_with_its_name_and_its_call() -> None:
    """The finding of a hung collector must name the GPU, the duration and the remedy."""
    world = World(seconds=10)
    _hang(world, "0000:03:00.0")
    world.run(24)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.UNHEALTHY, Reason.DRIVER_HUNG)
    (evidence,) = score.evidence
    assert evidence.device == gpu_of(world.hosts[0], 3)
    assert evidence.message == (
        "GPU 0000:03:00.0 (GPU-h0-3…) has not answered for 25 s, since 2023-11-14 22:13:29 UTC, in read: drain the "
        "host, check its kernel log, reset the GPU; reboot the host if that hangs as well"
    )
    world.hosts[0].set("probe_1s", "gpu 0000:03:00.0", state=0, hung_seconds=0.0)
    world.hosts[0].set("collector_10s", "gpu_1s", outcome_state=0)
    world.run(60)
    assert world.score(world.hosts[0]).state is HealthState.HEALTHY


def test_all_gpus_that_hang_at_once_are_one_finding_of_the_host() -> None:
    """One lock of the driver raised eight alarms."""
    world = World(seconds=10)
    for gpu in (2, 5):
        _hang(world, f"0000:{gpu:02x}:00.0")
    _hang(world, "")
    world.run(3)
    score = world.score(world.hosts[0])
    (evidence,) = score.evidence
    assert (score.state, evidence.device) == (HealthState.UNHEALTHY, "host")
    assert evidence.message == (
        "the GPU driver as a whole has not answered for 4 s, since 2023-11-14 22:13:29 UTC, in read (0000:02:00.0, "
        "0000:05:00.0 first): drain the host, check its kernel log, reboot it"
    )


@pytest.mark.parametrize(
    ("seconds", "values", "message"),
    [
        (100, {}, "for 101 s, since"), (3_000, {}, "for 50 minutes, since"), (8_000, {}, "for 2 hours, since"),
        # A GPU crashed the library within 1 ms: "not returned for 0.0 s" was wrong.
        (10, {"state": 3, "hung_seconds": 0.001},
         "GPU 0000:03:00.0 (GPU-h0-3…) is skipped for 11 s, since 2023-11-14 22:13:29 UTC, as the agent's process died of SIGSEGV, in read: drain"),
        (10, {"state": 4, "hung_seconds": 0.0}, "answers too slowly for its neighbours for 11 s, since"),
    ],
    ids=["seconds", "minutes", "hours", "crashes the library", "slow"],
)  # fmt: skip
def test_for_how_long_it_hangs_is_said_as_people_say_it(
    seconds: int, values: dict[str, Any], message: str
) -> None:
    """The reading stops growing when the last call is abandoned."""
    world = World(seconds=10)
    _hang(world, "0000:03:00.0", **values)
    world.now_ns += (seconds - 10) * 1_000_000_000
    world.run(10)
    assert message in only_words(world)
    expected = HealthState.WATCH if values.get("state") == 4 else HealthState.UNHEALTHY
    assert world.score(world.hosts[0]).state is expected


@pytest.mark.parametrize(
    ("address", "state", "hung_seconds", "message"),
    [
        # An earlier agent left the process behind, and the aggregator was restarted.
        ("0000:99:00.0", 2, 61.25, "GPU 0000:99:00.0 has not answered for 61.2 s: drain"),
        # The event was of a neighboring hung GPU: this GPU was skipped "for 0.0 s".
        ("0000:03:00.0", 3, 0.017, "is skipped, as the agent's process died: drain"),
        # After an XID 79 the GPU is not called; the XID is the finding.
        ("0000:03:00.0", 3, 0.0, ""),
    ],
)
def test_a_gpu_of_which_no_word_came(
    address: str, state: int, hung_seconds: float, message: str
) -> None:
    world = World(seconds=10)
    world.hosts[0].set("probe_1s", f"gpu {address}", state=state, hung_seconds=hung_seconds)
    world.run(10)
    if message:
        assert message in only_words(world)
    else:
        assert world.score(world.hosts[0]).state is HealthState.HEALTHY


@pytest.mark.parametrize("code", [86_401, 2**32 - 1])
def test_a_time_that_cannot_be_is_not_said(code: int) -> None:
    """Anybody may have sent the event: one number must not break the rule for the fleet."""
    world = World(seconds=10)
    _hang(world, "0000:03:00.0")
    attributes = {"lane": "gpu", "device": "0000:03:00.0", "collector": "gpu_1s", "call": "x" * 999}
    world.event(world.hosts[0], code, "host", "probe.hung", attributes=attributes)
    world.run(5, last_seconds=5)
    message = only_words(world)
    assert message.startswith("GPU 0000:03:00.0 (GPU-h0-3…) has not answered for 1.0 s, in xxx")
    assert len(message) < 300


def test_ports_that_hang_together_are_one_finding_of_their_driver() -> None:
    """One firmware, two ports, three pages; a disk that hangs too has a finding of its own."""
    world = World(seconds=10)
    for port in ("mlx5_0/1", "mlx5_1/1", ""):
        _hang(world, port, "host", "rdma_1s")
    _hang(world, "nvme0n1", "host", "disk_1s")
    world.run(5, last_seconds=5)
    evidence = {item.device: item.message for item in world.score(world.hosts[0]).evidence}
    assert evidence.keys() == {"rdma_1s", "nvme0n1"}
    assert evidence["rdma_1s"].startswith("what rdma_1s reads has not answered for 6 s, since ")
    assert "in read (mlx5_0/1, mlx5_1/1 first): check" in evidence["rdma_1s"]
    assert world.score(world.hosts[0]).state is HealthState.SUSPECT


def test_the_first_gpu_of_a_driver_that_hangs_is_no_finding_of_its_own() -> None:
    """The GPU was named 2 s before its driver, for half a minute: two pages for one lock."""
    world = World(seconds=10)
    _hang(world, "0000:03:00.0")
    world.run(2)
    _hang(world, "")
    world.run(10)
    assert [e.device for e in world.score(world.hosts[0]).evidence] == ["host"]


@pytest.mark.parametrize(
    ("device", "collector", "state"),
    [("mlx5_0/1", "rdma_1s", HealthState.SUSPECT), ("nvme0n1", "disk_1s", HealthState.WATCH)],
)
def test_a_hung_port_and_a_hung_disk(device: str, collector: str, state: HealthState) -> None:
    world = World(seconds=10)
    _hang(world, device, "host", collector)
    world.run(5, last_seconds=5)
    score = world.score(world.hosts[0])
    assert score.state is state
    assert [evidence.device for evidence in score.evidence] == [device]


def test_lost_frames_are_a_finding() -> None:
    """A spool overflowed during an outage: the loss must be reported."""
    world = World(seconds=10)
    world.hosts[0].set("agent_10s", "agent", spool_dropped_frames=120)
    world.run(5)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.WATCH, Reason.DATA_LOST)
    assert [f.name for f in world.fleet.findings.values()] == ["data.lost"]


def test_a_host_that_bars_itself_is_unhealthy_here_too() -> None:
    """A policy file condemned every host by its own rule: here all were HEALTHY, with a permit."""
    world = World(seconds=10)
    world.hosts[0].set("agent_10s", "agent", barring_findings_count=1)
    world.run(2)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.UNHEALTHY, Reason.POLICY)
    assert "reports 1 findings that keep jobs off the host" in score.reason_message
    world.hosts[0].set("agent_10s", "agent", barring_findings_count=0)
    world.run(40)
    assert all_well(world)


def test_findings_of_others_stand_as_evidence_until_they_are_cleared() -> None:
    """Two hosts of one name, and a clock that is an hour off."""
    world = World(seconds=10)
    world.fleet.add_finding(
        Finding("h0", "identity.duplicate_name", "10.0.0.9", "two hosts say h0", 1)
    )
    world.fleet.add_finding(Finding("h1", "clock.offset", "", "the clock is 3600 s ahead", 1))
    world.run(1)
    assert world.score(world.hosts[0]).reason is Reason.IDENTITY
    assert world.score(world.hosts[1]).reason is Reason.CLOCK
    world.fleet.clear_finding("h0", "identity.duplicate_name", "10.0.0.9")
    world.fleet.clear_finding("h1", "clock.offset")
    world.run(1)
    assert all_well(world)


def test_a_collector_blind_to_a_part_is_said_and_what_it_sees_still_counts() -> None:
    """One port of eight refuses its counters: the message has the remedy, and seven are judged."""
    world = World(hosts=2)
    host = world.hosts[0]
    message = "mlx5_7/1 is blind: grant CAP_SYS_RAWIO to the agent"
    host.set("collector_10s", "rdma_1s", outcome_state=2)
    world.event(host, 2, "rdma_1s", "collector.outcome", message=message)
    world.run(20)
    score = world.score(host)
    assert (score.state, score.reason) == (HealthState.HEALTHY, Reason.BLIND)
    assert message in score.reason_message
    assert world.snapshot
    sources = {
        status.name: (status.outcome_name, status.message)
        for status in world.snapshot.collector_statuses[0]
    }
    assert sources["rdma_1s"] == ("blind", message)
    host.set("rdma_1s", "mlx5_0/1", port_state=1, physical_state=2)
    world.run(35)
    assert world.score(host).reason is Reason.RAIL_DOWN
    assert message in " ".join(e.message for e in world.score(host).evidence)
