"""GPUs that are lost, ask for help, lost PCIe lanes, or vanished. Readings are set by hand."""

from __future__ import annotations

import pytest

from gangline.aggregator.model import HealthState, Reason
from tests.worlds import IDLE_WATTS, WAITING_WATTS, Host, World, gpu_of, only_words

ADDRESSES = [f"0000:{gpu:02x}:00.0" for gpu in range(8)]
HANGS: dict[str, float] = {"state": 2, "hung_seconds": 12.0}
LEFT_ALONE: dict[str, float] = {"state": 3}
RELEASED: dict[str, float] = {"state": 6}


@pytest.mark.parametrize(
    ("column", "value", "state"),
    [
        ("lost_state", 1, HealthState.UNHEALTHY),
        ("recovery_action_state", 1, HealthState.UNHEALTHY),
        ("recovery_action_state", 3, HealthState.SUSPECT),
        ("recovery_action_state", 77, HealthState.HEALTHY),
    ],
)
def test_lost_gpus_and_what_the_driver_asks_for(
    column: str, value: int, state: HealthState
) -> None:
    """The driver's request is authoritative; an unknown number is not a fault."""
    world = World(seconds=10)
    world.hosts[0].set("gpu_1s", gpu_of(world.hosts[0], 0), **{column: float(value)})
    world.run(5)
    assert world.score(world.hosts[0]).state is state


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (0, HealthState.HEALTHY),
        (8, HealthState.UNHEALTHY),
        (10, HealthState.UNHEALTHY),
        (16, HealthState.UNHEALTHY),
        (999, HealthState.UNHEALTHY),
        (17, HealthState.UNKNOWN),
        (19, HealthState.UNKNOWN),
        (20, HealthState.UNKNOWN),
        (77, HealthState.UNKNOWN),
    ],
)
def test_a_gpu_that_answers_nothing_is_never_healthy(code: int, state: HealthState) -> None:
    """A GPU whose every call returned RESET_REQUIRED was HEALTHY: only a counter rose."""
    world = World(seconds=10)
    host = world.hosts[0]
    host.set("gpu_1s_changes", gpu_of(host, 0), error_code_state=float(code))
    world.run(9)
    assert world.score(host).state is HealthState.HEALTHY  # a GPU that is being reset
    world.run(15)
    assert world.score(host).state is state
    assert world.score(host).reason is (Reason.GPU_UNUSABLE if code else Reason.NONE)


def test_lost_pcie_lanes_count_under_load_only() -> None:
    """Idle links shrink by themselves; a x8 link under load halves a GPU's host bandwidth."""
    world = World()
    idle, loaded = world.hosts[0], world.hosts[1]
    for host in (idle, loaded):
        host.set("gpu_10s", gpu_of(host, 0), pcie_width_lanes=8)
    idle.set("gpu_1s", gpu_of(idle, 0), power_watts=IDLE_WATTS, utilization_ratio=0.0)
    world.run(45)
    assert world.score(idle).state is HealthState.HEALTHY
    assert (world.score(loaded).state, world.score(loaded).reason) == (
        HealthState.DEGRADED,
        Reason.PCIE,
    )


def test_a_gpu_that_vanishes_from_the_readings_is_noticed() -> None:
    """Fields vanish before the XID arrives; missing is not healthy."""
    world = World(seconds=10)
    world.hosts[0].forget("gpu_1s")
    world.run(20)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.WATCH, Reason.BLIND)


def _out(world: World, gpus: range, *, by: dict[str, float], whole: bool = False) -> None:
    """Stop the readings of GPUs of the first host; *whole*: the agent reports its whole driver."""
    host = world.hosts[0]
    for gpu in gpus:
        del host.readings["gpu_1s", gpu_of(host, gpu)]
        if not whole:
            host.set("gpu_1s_probe", gpu_of(host, gpu), probe_hung_seconds=0.0)
    rows = ["gpu"] if whole else [f"gpu {ADDRESSES[gpu]}" for gpu in gpus]
    for row in rows:
        host.set("probe_1s", row, **({"hung_seconds": 0.0, "abandoned_count": 0} | by))
    host.growth.clear()


def _end(world: World) -> None:
    """Read all of the first host's GPUs again, without probe rows."""
    host, well = world.hosts[0], world.hosts[1]
    for gpu in range(8):
        host.set("gpu_1s", gpu_of(host, gpu), **well.readings["gpu_1s", gpu_of(well, gpu)])
    host.forget("probe_1s")
    host.forget("gpu_1s_probe")


def _unseen(world: World) -> list[str]:
    score = world.score(world.hosts[0])
    return [
        evidence.device for evidence in score.evidence if evidence.signal == "gpu.sm_clock_hertz"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "by", "whole"),
    [
        (range(8), HANGS, True),
        (range(8), RELEASED, True),
        (range(3, 4), HANGS, False),
        (range(3, 4), LEFT_ALONE, False),
        (range(2), RELEASED, False),
    ],
    ids=["driver hangs", "all released", "one hangs", "one left alone", "two released"],
)
def test_a_gpu_that_its_agent_says_is_out_is_not_missed(
    gpus: range, by: dict[str, float], whole: bool
) -> None:
    """A GPU that its agent reports as hung or released is not also reported as missing.

    When all eight hung in one driver lock, eight pages about missing readings followed the first.
    An operator who had released a GPU for a reset got a page about its absence.
    """
    world = World(seconds=10)
    _out(world, gpus, by=by, whole=whole)
    world.run(60)
    score = world.score(world.hosts[0])
    assert len(score.evidence) == (1 if by is HANGS else 0)
    assert _unseen(world) == []
    _end(world)
    world.run(5)
    assert _unseen(world) == []


@pytest.mark.parametrize("whole", [False, True], ids=["beside GPUs", "beside a lane of the host"])
def test_what_the_agent_says_of_others_excuses_no_gpu(whole: bool) -> None:
    """GPU 5 vanished while GPU 3 was being reset, and while the host's own lane hung."""
    world = World(seconds=10)
    host = world.hosts[0]
    if whole:
        host.set("probe_1s", "host rdma_1s", **HANGS)
    else:
        _out(world, range(3, 4), by=RELEASED)
    del host.readings["gpu_1s", gpu_of(host, 5)]
    host.growth.clear()
    world.run(30)
    assert _unseen(world) == [gpu_of(host, 5)]


@pytest.mark.parametrize("before_we_began", [False, True])
def test_a_gpu_that_stays_away_after_its_release_is_noticed(before_we_began: bool) -> None:
    """A GPU released for a reset did not come back; nor after a restart in the middle of it."""
    world = World()
    host = world.hosts[0]
    if before_we_began:
        _remove(host, 3)
        _release(host, 3)
    else:
        world.run(10)
        _out(world, range(3, 4), by=RELEASED)
    world.run(60)
    assert _unseen(world) == []
    host.forget("probe_1s")
    host.forget("gpu_1s_probe")
    if not before_we_began:
        world.run(10)
        assert _unseen(world) == []
    world.run(40 if before_we_began else 10)
    assert _unseen(world) == [gpu_of(host, 3)]


def _remove(host: Host, gpu: int) -> None:
    for key in [key for key in host.readings if key[1] == gpu_of(host, gpu)]:
        del host.readings[key]
    host.growth.clear()


def _release(host: Host, gpu: int) -> None:
    host.set("gpu_1s_probe", gpu_of(host, gpu), probe_hung_seconds=0.0)
    host.set("probe_1s", f"gpu {ADDRESSES[gpu]}", hung_seconds=0.0, abandoned_count=0, **RELEASED)


def _released_with(table: str, **wrong: float) -> tuple[World, Host]:
    """A world whose first host has *wrong* readings of GPU 3 in *table* and releases it."""
    world = World(seconds=10)
    host = world.hosts[0]
    host.set(table, gpu_of(host, 3), **wrong)
    world.run(70)
    _remove(host, 3)
    _release(host, 3)
    return world, host


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "column", "state"),
    [
        ("gpu_10s_changes", "remap_failed_state", HealthState.UNHEALTHY),
        ("gpu_1s", "recovery_action_state", HealthState.UNHEALTHY),
    ],
)
def test_a_sick_gpu_that_is_released_is_as_sick_as_it_was(
    table: str, column: str, state: HealthState
) -> None:
    """A GPU without spare rows was released as advised; after 155 s its host was to return."""
    world, host = _released_with(table, **{column: 1.0})
    world.run(400)
    assert world.score(host).state is state
    assert {key[2] for key in world.fleet.findings} == {f"{gpu_of(host, 3)} gpu.{column}"}
    # It is reset, and read again.
    host.forget("probe_1s")
    host.forget("gpu_1s_probe")
    well = world.hosts[1]
    for (table_name, device), values in list(well.readings.items()):
        if device == gpu_of(well, 3):
            host.set(table_name, gpu_of(host, 3), **values)
    world.run(70)
    assert world.score(host).state is HealthState.HEALTHY and not world.fleet.findings


@pytest.mark.slow
@pytest.mark.parametrize("how", ["replaced", "boot"])
def test_a_sick_gpu_that_is_gone_lets_go(how: str) -> None:
    """The released GPU was replaced, or removed with a boot."""
    world, host = _released_with("gpu_10s_changes", remap_failed_state=1.0)
    world.run(200)
    assert world.score(host).state is HealthState.UNHEALTHY
    host.forget("probe_1s")
    host.forget("gpu_1s_probe")
    if how == "boot":
        host.reboot(world.now_ns)
    world.register(host, gpus=3 if how == "replaced" else 8)
    world.run(20)
    assert world.score(host).state in (HealthState.HEALTHY, HealthState.WATCH)
    assert not world.fleet.findings


@pytest.mark.parametrize("gpus", [range(3, 4), range(8)], ids=["one", "all"])
def test_a_release_that_nobody_ends_is_a_finding_in_the_end(gpus: range) -> None:
    """A GPU released for a day, or never bound again, was not reported any more."""
    world = World(seconds=10)
    _out(world, gpus, by=RELEASED, whole=len(gpus) == 8)
    world.now_ns += 3_580 * 1_000_000_000
    world.run(10)
    assert _unseen(world) == []
    world.run(30)
    assert sorted(_unseen(world)) == [gpu_of(world.hosts[0], gpu) for gpu in gpus]
    if len(gpus) == 1:
        assert (
            "its agent has released it; on the host `gangline release --status` shows why"
            in only_words(world)
        )


def test_a_gpu_that_hangs_for_hours_is_still_one_finding() -> None:
    world = World(seconds=10)
    _out(world, range(3, 4), by=HANGS)
    world.hosts[0].set("gpu_1s_probe", gpu_of(world.hosts[0], 3), probe_hung_seconds=12.0)
    world.now_ns += 7_200 * 1_000_000_000
    world.run(30)
    assert "has not answered" in only_words(world)


def test_gpus_that_one_collector_is_not_to_read_are_not_missed() -> None:
    """`collectors_off = ["gpu_1s"]`: the other collectors still read the GPUs."""
    world = World()
    world.hosts[0].forget("gpu_1s")
    world.run(60)
    assert _unseen(world) == []


def test_a_gpu_that_a_reboot_does_not_bring_back_is_noticed() -> None:
    """A reading from the earlier boot must not count as a reading since the reboot."""
    world = World()
    host = world.hosts[0]
    world.run(10)
    _remove(host, 3)
    host.reboot(world.now_ns)
    world.register(host)
    world.run(10)
    assert _unseen(world) == []
    world.run(20)
    assert _unseen(world) == [gpu_of(host, 3)]
    assert "is there, but nothing reads it while its neighbours answer" in only_words(world)


@pytest.mark.parametrize("out", [True, False])
def test_gpus_of_a_host_that_began_while_its_driver_hung(out: bool) -> None:
    """The agent restarted during a hang: no GPU was ever read, and one finding suffices."""
    world = World()
    host = world.hosts[0]
    for table in [table for table, _ in list(host.readings) if table.startswith("gpu")]:
        host.forget(table)
    if out:
        host.set("probe_1s", "gpu", **HANGS)
    world.run(30)
    assert len(_unseen(world)) == (0 if out else 8)


def test_a_gpu_that_nothing_reads_is_noticed_beside_its_neighbours() -> None:
    """After a reboot NVML lists seven GPUs, PCI eight; a host without any read GPU is UNKNOWN."""
    world = World()
    world.register(world.hosts[0], gpus=9)
    for table in ("gpu_1s", "gpu_10s", "gpu_1s_changes", "gpu_10s_changes"):
        world.hosts[1].forget(table)
    world.run(30)
    seen, driverless = world.score(world.hosts[0]), world.score(world.hosts[1])
    assert (seen.state, seen.reason) == (HealthState.WATCH, Reason.BLIND)
    assert (driverless.state, driverless.reason) == (HealthState.UNKNOWN, Reason.BLIND)


def test_who_waits_for_a_bad_nvlink_is_explained_and_not_named() -> None:
    """Seven GPUs waited at 150 W for a link of the eighth, and three of them were sent back."""
    world = World()
    sick = world.hosts[0]
    link = f"{gpu_of(sick, 3)}/link4"
    for host in world.hosts:
        for gpu in range(8):
            host.set("nvlink_10s_changes", f"{gpu_of(host, gpu)}/link4", crc_errors=5, link_state=1)
    world.run(30)
    sick.grow("nvlink_10s_changes", link, crc_errors=40)
    for gpu in (0, 1, 2, 4, 5, 6, 7):
        sick.set("gpu_1s", gpu_of(sick, gpu), power_watts=WAITING_WATTS)
    world.run(40)
    score = world.score(sick)
    assert {item.device for item in score.evidence} == {link}
    assert score.reason_message.startswith("GPU-h0-3…/link4 NVLink checksum errors")
    assert score.reason_message.endswith("; its host's 7 other GPUs wait for it meanwhile")
    assert world.snapshot
    states = {item.gpu: item.state for item in world.snapshot.gpus.of(0)}
    assert [gpu for gpu, state in states.items() if state is not HealthState.HEALTHY] == [
        gpu_of(sick, 3)
    ]
    assert set(world.states().values()) == {"HEALTHY", "WATCH"}


def test_of_an_nvlink_nobody_waits_for_no_waiting_is_told() -> None:
    """A link with a few retries delays no GPU."""
    world = World()
    link = f"{gpu_of(world.hosts[0], 3)}/link4"
    world.hosts[0].set("nvlink_10s_changes", link, crc_errors=5, link_state=1)
    world.run(30)
    world.hosts[0].grow("nvlink_10s_changes", link, crc_errors=40)
    world.run(40)
    message = world.score(world.hosts[0]).reason_message
    assert "checksum errors" in message and "wait" not in message
