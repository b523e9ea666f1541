"""The host, its agent and what others found out: never worse than it is. Readings are set by hand."""

from __future__ import annotations

import pytest

from gangline.aggregator.verdicts import Finding, Reason, State
from tests.aggregator.world import World, all_well, gpu_of


def test_a_small_machine_at_full_load_is_watched_at_most() -> None:
    """Two cores that build something: pressure 1.0 for minutes, steal 0.3, no memory left."""
    world = World()
    world.hosts[0].set("host_1s", "host", pressure_cpu_some_ratio=1.0, cpu_steal_ratio=0.3,
                       pressure_memory_full_ratio=0.9)  # fmt: skip
    world.run(120)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (State.WATCH, Reason.HOST_CPU)
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
    assert (score.state, score.reason) == (State.WATCH, Reason.STORAGE)


def test_a_full_disk_is_watched() -> None:
    """A checkpoint that cannot be written kills the job at its next cadence."""
    world = World()
    world.hosts[0].set("filesystem_60s", "/", available_bytes=1e8)
    world.run(60)
    assert world.score(world.hosts[0]).reason is Reason.STORAGE


@pytest.mark.parametrize(
    ("collector", "outcome", "state"),
    [
        ("gpu_1s", 4, State.UNHEALTHY),
        ("rdma_1s", 4, State.SUSPECT),
        ("host_1s", 4, State.WATCH),
        ("gpu_1s", 2, State.HEALTHY),
        ("gpu_1s", 1, State.HEALTHY),
    ],
)
def test_hung_drivers_and_collectors_that_are_not_let_in(
    collector: str, outcome: int, state: State
) -> None:
    """ "Did not return" is a reading; "not permitted" is not a fault of the host, but is said."""
    world = World()
    world.run(10)
    world.hosts[0].set("collector_1s", collector, outcome_state=outcome)
    world.event(world.hosts[0], outcome, collector, "collector.outcome")
    world.run(10)
    score = world.score(world.hosts[0])
    assert score.state is state
    assert bool(score.evidence) == (outcome != 1)
    assert world.snapshot and world.snapshot.sources[0][0].name == "gpu_1s"


def _hang(world: World, device: str, lane: str = "gpu", collector: str = "gpu_1s") -> None:
    """The agent says that a device, or with an empty name its driver, hangs."""
    host = world.hosts[0]
    host.set("probe_1s", f"{lane} {device}".strip(), state=2, hung_seconds=12.0, abandoned_count=1)
    host.set("collector_1s", collector, outcome_state=4)
    world.event(
        host, 1, device or "host", "probe.hung" if device else "probe.driver_hung",
        message=f"did not return for 1.0 s in {collector}: {device} read",
        attributes={"lane": lane, "device": device, "collector": collector, "call": "read"},
    )  # fmt: skip


def test_a_hung_gpu_is_one_finding_with_its_name_and_its_call() -> None:
    """Nobody at 3 a.m. knows which GPU the collector gpu_1s hangs in."""
    world = World()
    world.run(10)
    _hang(world, "0000:03:00.0")
    world.run(5)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (State.UNHEALTHY, Reason.DRIVER_HUNG)
    (evidence,) = score.evidence
    assert evidence.device == gpu_of(world.hosts[0], 3)
    assert "gpu 0000:03:00.0 did not return for 12.0 s" in evidence.words
    assert "0000:03:00.0 read" in evidence.words
    world.hosts[0].set("probe_1s", "gpu 0000:03:00.0", state=0, hung_seconds=0.0)
    world.hosts[0].set("collector_1s", "gpu_1s", outcome_state=0)
    world.run(60)
    assert world.score(world.hosts[0]).state is State.HEALTHY


def test_all_gpus_that_hang_at_once_are_one_finding_of_the_host() -> None:
    """Eight alarms for one lock of the driver."""
    world = World()
    world.run(10)
    for gpu in range(8):
        _hang(world, f"0000:{gpu:02x}:00.0")
    _hang(world, "")
    world.run(3)
    score = world.score(world.hosts[0])
    (evidence,) = score.evidence
    assert (score.state, evidence.device) == (State.UNHEALTHY, "host")
    assert "the GPU driver as a whole did not return for 12.0 s" in evidence.words


def test_the_first_gpu_of_a_driver_that_hangs_is_no_finding_of_its_own() -> None:
    """It was named two seconds before its driver was, and stood beside it for half a minute: two pages for one lock."""
    world = World()
    world.run(10)
    _hang(world, "0000:03:00.0")
    world.run(2)
    _hang(world, "")
    world.run(10)
    assert [e.device for e in world.score(world.hosts[0]).evidence] == ["host"]


@pytest.mark.parametrize(
    ("device", "collector", "state"),
    [("mlx5_0/1", "rdma_1s", State.SUSPECT), ("nvme0n1", "disk_1s", State.WATCH)],
)
def test_a_hung_port_and_a_hung_disk(device: str, collector: str, state: State) -> None:
    world = World()
    world.run(10)
    _hang(world, device, "host", collector)
    world.run(5)
    score = world.score(world.hosts[0])
    assert score.state is state
    assert [evidence.device for evidence in score.evidence] == [device]


def test_a_gpu_that_is_only_left_alone_is_no_hang() -> None:
    """After an XID 79 nobody enters it: the XID says what it is."""
    world = World()
    world.run(10)
    world.hosts[0].set("probe_1s", "gpu 0000:03:00.0", state=3, hung_seconds=0.0)
    world.run(10)
    assert world.score(world.hosts[0]).state is State.HEALTHY


def test_lost_frames_are_a_finding() -> None:
    """A spool that overflowed during an outage: what is gone is said, not hidden."""
    world = World()
    world.run(10)
    world.hosts[0].set("agent_1s", "agent", spool_dropped_frames=120)
    world.run(5)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (State.WATCH, Reason.DATA_LOST)
    assert [f.name for f in world.fleet.findings.values()] == ["data.lost"]


def test_a_host_that_bars_itself_is_unhealthy_here_too() -> None:
    """A policy file condemned every host by a row of its own: here they all were HEALTHY, and the permit stood."""
    world = World()
    world.run(10)
    world.hosts[0].set("agent_1s", "agent", barring_findings_count=1)
    world.run(2)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (State.UNHEALTHY, Reason.POLICY)
    assert "counts 1 findings for which the host takes no job" in score.reason_words
    world.hosts[0].set("agent_1s", "agent", barring_findings_count=0)
    world.run(40)
    assert all_well(world)


def test_findings_of_others_stand_as_evidence_until_they_are_cleared() -> None:
    """Two hosts of one name, and a clock that is an hour off."""
    world = World()
    world.run(10)
    world.fleet.find(Finding("h0", "identity.duplicate_name", "10.0.0.9", "two hosts say h0", 1))
    world.fleet.find(Finding("h1", "clock.offset", "", "the clock is 3600 s ahead", 1))
    world.run(1)
    assert world.score(world.hosts[0]).reason is Reason.IDENTITY
    assert world.score(world.hosts[1]).reason is Reason.CLOCK
    world.fleet.clear("h0", "identity.duplicate_name", "10.0.0.9")
    world.fleet.clear("h1", "clock.offset")
    world.run(1)
    assert all_well(world)


def test_a_collector_blind_to_a_part_is_said_and_what_it_sees_still_counts() -> None:
    """One port of eight refuses its counters: the words that open it, and the other seven judged."""
    world = World(hosts=2)
    host = world.hosts[0]
    words = "mlx5_7/1 is blind: grant CAP_SYS_RAWIO to the agent"
    host.set("collector_1s", "rdma_1s", outcome_state=2)
    world.event(host, 2, "rdma_1s", "collector.outcome", message=words)
    world.run(20)
    score = world.score(host)
    assert (score.state, score.reason) == (State.HEALTHY, Reason.BLIND)
    assert words in score.reason_words
    assert world.snapshot
    sources = {one.name: (one.outcome_word, one.words) for one in world.snapshot.sources[0]}
    assert sources["rdma_1s"] == ("blind", words)
    host.set("rdma_1s", "mlx5_0/1", port_state=1, physical_state=2)
    world.run(10)
    assert world.score(host).reason is Reason.RAIL_DOWN
    assert words in " ".join(e.words for e in world.score(host).evidence)
