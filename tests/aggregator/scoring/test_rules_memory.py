"""ECC bursts, lost data, row remaps and XIDs, and what clears them. Readings are set by hand."""

from __future__ import annotations

import pytest

from gangline.aggregator.model import HealthState, Reason
from tests.worlds import World, all_well, gpu_of


def test_an_ecc_burst_that_ends_in_xid_95() -> None:
    """HBM: corrected errors for ten seconds, then an uncontained error, each judged in turn."""
    world = World(seconds=20)
    sick, device = world.hosts[3], gpu_of(world.hosts[3], 1)
    sick.grow("gpu_1s_changes", device, ecc_corrected_volatile_errors=40)
    world.run(8)
    assert (world.score(sick).state, world.score(sick).reason) == (
        HealthState.SUSPECT,
        Reason.ECC_TREND,
    )
    sick.growth.pop(("gpu_1s_changes", device, "ecc_corrected_volatile_errors"))
    world.event(sick, 95, device)
    world.run(1)
    score = world.score(sick)
    assert (score.state, score.reason) == (HealthState.UNHEALTHY, Reason.XID_FATAL)
    assert score.score < 1e-6 and "XID 95" in score.reason_message
    assert list(world.states().values()).count("HEALTHY") == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reboot", "energy", "ecc"])
def test_a_fatal_xid_clears_with_the_reset_it_asks_for(how: str) -> None:
    """A repaired host must not stay UNHEALTHY until someone remembers it."""
    world = World()
    sick, device = world.hosts[0], gpu_of(world.hosts[0], 1)
    world.run(10)
    world.event(sick, 95, device)
    world.run(400)
    assert world.score(sick).state is HealthState.UNHEALTHY
    if how == "reboot":
        sick.reboot(world.now_ns)
    elif how == "energy":
        sick.set("gpu_1s", device, energy_joules=10.0)
    else:
        sick.set("gpu_1s_changes", device, ecc_corrected_volatile_errors=0)
    world.run(20)
    assert all_well(world)


def test_the_reset_of_another_gpu_clears_nothing() -> None:
    """Seven GPUs were reset, the sick one refused."""
    world = World(seconds=10)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 1))
    world.hosts[0].set("gpu_1s", gpu_of(world.hosts[0], 2), energy_joules=10.0)
    world.run(20)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY


def test_an_xid_of_the_boot_before_is_history() -> None:
    """The agent kept XID 79 on disk through the reboot that cleared it, and sent it after."""
    world = World(seconds=10)
    old_ns = world.now_ns
    world.hosts[0].reboot(world.now_ns + 60_000_000_000)
    world.hosts[0].silent = True
    world.run(70)
    world.hosts[0].silent = False
    world.run(10)
    now_ns, world.now_ns = world.now_ns, old_ns
    world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
    world.now_ns = now_ns
    world.run(5)
    assert all_well(world)


def test_an_xid_by_pci_address_is_of_the_gpu_there() -> None:
    """The kernel log names GPUs by PCI address, readings by UUID."""
    world = World(seconds=10)
    world.event(world.hosts[0], 95, "0000:03:00.0")
    world.run(1)
    assert world.score(world.hosts[0]).evidence[0].device == gpu_of(world.hosts[0], 3)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (13, HealthState.HEALTHY),
        (31, HealthState.HEALTHY),
        (43, HealthState.HEALTHY),
        (45, HealthState.HEALTHY),
        (63, HealthState.WATCH),
        (92, HealthState.WATCH),
        (94, HealthState.WATCH),
        (74, HealthState.SUSPECT),
        (64, HealthState.UNHEALTHY),
        (79, HealthState.UNHEALTHY),
        (119, HealthState.UNHEALTHY),
        (99999, HealthState.HEALTHY),
    ],
)
def test_each_xid_does_what_the_policy_says(code: int, state: HealthState) -> None:
    """Tools drain for XID 63 or 43; an unknown code is shown and never fatal."""
    world = World(seconds=10)
    world.event(world.hosts[0], code, gpu_of(world.hosts[0], 0))
    world.run(1)
    score = world.score(world.hosts[0])
    assert score.state is state
    assert f"XID {code}" in score.reason_message


@pytest.mark.slow
def test_an_application_xid_is_forgotten_after_ten_minutes() -> None:
    """A student's out-of-bounds write is not a mark on the host."""
    world = World(hosts=1, gpus=1, seconds=10)
    world.event(world.hosts[0], 13, gpu_of(world.hosts[0], 0))
    world.run(590)
    assert world.score(world.hosts[0]).evidence
    world.run(30)
    assert not world.score(world.hosts[0]).evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages",
    [
        # Most GPUs with corrected errors never fail: 0.2 a second, as for the last year.
        pytest.param([(0.2, 120, HealthState.HEALTHY)], id="steady trickle"),
        # After 134 s no rate was five times the 10 min mean.
        pytest.param([(0, 10, HealthState.HEALTHY), (40, 900, HealthState.SUSPECT),
                      (0, 400, HealthState.HEALTHY)], id="storm of 15 min"),
        # With three corrected errors a second since the start, only a change counts.
        pytest.param([(3, 700, HealthState.HEALTHY), (40, 10, HealthState.SUSPECT)], id="always"),
    ],
)  # fmt: skip
def test_corrected_errors_over_time(stages: list[tuple[float, int, HealthState]]) -> None:
    """*stages*: errors a second, seconds, and the state of the host after them."""
    world = World(hosts=1, gpus=1)
    for rate, seconds, state in stages:
        world.hosts[0].grow(
            "gpu_1s_changes", gpu_of(world.hosts[0], 0), ecc_corrected_volatile_errors=rate
        )
        world.run(seconds)
        assert world.score(world.hosts[0]).state is state


def test_a_counter_that_fell_at_a_reboot_is_no_burst() -> None:
    """Volatile counters begin at zero after a reboot: 40,000 to 0 to 7 is not 2**64 errors."""
    world = World()
    device = gpu_of(world.hosts[0], 0)
    world.hosts[0].set("gpu_1s_changes", device, ecc_corrected_volatile_errors=40_000)
    world.run(10)
    world.hosts[0].reboot(world.now_ns)
    world.hosts[0].set("gpu_1s_changes", device, ecc_corrected_volatile_errors=0)
    world.run(5)
    world.hosts[0].set("gpu_1s_changes", device, ecc_corrected_volatile_errors=7)
    world.run(10)
    assert all_well(world)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("errors", "missing_seconds", "suspect_seconds", "watch_seconds"),
    [
        # A driver counted 500 errors at once: "the last just now" was shown for 90 minutes.
        pytest.param(500, 0, 590, 100, id="much"),
        # An unrepaired bit error while the driver gave no answer: rare counts outlast the gap.
        pytest.param(1, 600, 2, 0, id="while its count was missing"),
        # An uncorrectable error without a reported XID shows in the counter.
        pytest.param(2, 0, 5, 1800, id="without an XID"),
    ],
)
def test_lost_data_is_suspect_while_fresh_and_watched_until_a_reset(
    errors: int, missing_seconds: int, suspect_seconds: int, watch_seconds: int
) -> None:
    world = World(hosts=1, gpus=1, seconds=10)
    device = "gpu_1s_changes", gpu_of(world.hosts[0], 0)
    if missing_seconds:
        del world.hosts[0].readings[device]["ecc_uncorrected_volatile_errors"]
        world.run(missing_seconds)
        assert all_well(world)
    world.hosts[0].set(*device, ecc_uncorrected_volatile_errors=errors)
    world.run(suspect_seconds)
    assert world.score(world.hosts[0]).state is HealthState.SUSPECT
    if watch_seconds:
        world.run(watch_seconds)
        assert world.score(world.hosts[0]).state is HealthState.WATCH
        messages = [finding.message for finding in world.fleet.findings.values()]
        assert messages and not any("just now" in message for message in messages)
    world.hosts[0].set(*device, ecc_uncorrected_volatile_errors=0)
    world.run(10)
    assert all_well(world)


@pytest.mark.parametrize(
    ("column", "state"),
    [("remap_pending_state", HealthState.WATCH), ("remap_failed_state", HealthState.UNHEALTHY)],
)
def test_row_remaps(column: str, state: HealthState) -> None:
    """A pending remap waits for the job's end; a failed one has no spare row left."""
    world = World(seconds=10)
    world.hosts[0].set("gpu_10s_changes", gpu_of(world.hosts[0], 0), **{column: 1.0})
    world.run(15)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (state, Reason.HBM_REMAP)
