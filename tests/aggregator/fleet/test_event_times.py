"""Events keep their own times, also after an outage, from the ring buffer, or repeated."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.fleet.active_events import INCIDENTS_MAX, RECORDS_PER_HOST_MAX
from gangline.aggregator.fleet.event_interpretation import DIAGNOSTIC
from gangline.aggregator.model import HealthState
from gangline.aggregator.rule_catalogue.faults import EVENT_POLICY
from gangline.contract.xid.policy import Clears
from tests.worlds import Host, World, all_well, gpu_of

W, S, U, H = HealthState.WATCH, HealthState.SUSPECT, HealthState.UNHEALTHY, HealthState.HEALTHY
DAY = 86_400.0


def lived(hosts: int = 2, days: float = 0.0) -> tuple[World, Host, str]:
    """Return a world that ran on hosts up for an hour and *days*, a host, and its first GPU."""
    world = World(hosts=hosts, gpus=2)
    for host in world.hosts:
        host.booted_ns -= round(days * DAY * 1e9)
    world.run(8)
    return world, world.hosts[0], gpu_of(world.hosts[0], 0)


# Codes that explain each other, by their times.


@pytest.mark.parametrize(
    ("of_48", "of_94", "lasted_94", "state"),
    [
        (0.0, 5 * 3600.0, 0.0, U),  # five hours apart, both found in the ring buffer
        (5 * 3600.0, 0.0, 0.0, U),
        (3600.0, 3601.0, 0.0, W),  # a second apart, an hour ago
        (3600.0, 3 * 3600.0, 2 * 3600.0 - 1.0, W),  # 94 continued for hours, and met 48
        (3600.0, 3 * 3600.0, 2 * 3600.0 - 60.0, U),  # 94 stopped a minute before 48
    ],
)
def test_companions_by_when_they_were_written(
    of_48: float, of_94: float, lasted_94: float, state: HealthState
) -> None:
    """An agent's first start sent the day's 48 and 94 together: "contained" was wrong."""
    for first in (48, 94):
        world, host, gpu = lived(days=1)
        for code in (first, 142 - first):
            ago, lasted = (of_48, 0.0) if code == 48 else (of_94, lasted_94)
            world.event(host, code, gpu, ago=ago, lasted=lasted)
        world.run(8)
        assert world.score(host).state is state


@pytest.mark.slow
def test_what_was_explained_stays_so_while_its_companion_goes_on() -> None:
    """48 with 94 at its time, then 94 all day: the 48 of this morning remains contained."""
    world, host, gpu = lived()
    world.event(host, 48, gpu)
    for minute in range(12):
        world.event(host, 94, gpu, event_id="storm", revision=minute, ago=60.0 * minute,
                    lasted=60.0 * minute, count=minute + 1)  # fmt: skip
        world.run(60)
        assert world.score(host).state is W, minute
    world.event(host, 94, gpu)
    world.run(8)
    assert world.score(host).state is W


def test_a_contained_error_does_not_undo_one_that_was_not() -> None:
    """48 alone this morning, 48 with 94 at noon: the GPU still waits for this morning's reset."""
    world, host, gpu = lived()
    world.event(host, 48, gpu)
    world.run(8)
    assert world.score(host).state is U
    world.event(host, 48, gpu)
    world.run(1)
    assert world.score(host).state is U, "a new one that still waits must not lift the old one"
    world.event(host, 94, gpu)
    world.run(8)
    assert world.score(host).state is U


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alone", "state"),
    [((), W), ((0,), U), ((30,), U), ((60,), U), ((0, 30, 60), U)],
)
def test_a_companion_explains_the_lines_that_it_came_with(
    alone: tuple[int, ...], state: HealthState
) -> None:
    """48 alone was UNHEALTHY; 30 s later the same event with 94 made the host WATCH."""
    world, host, gpu = lived()
    for revision, lasted in enumerate((0, 30, 60)):
        event_times: dict[str, Any] = {
            "revision": revision,
            "ago": float(lasted),
            "lasted": float(lasted),
        }
        world.event(host, 48, gpu, event_id="uncorrected", **event_times)
        world.run(1)
        if lasted not in alone:
            began = next(second for second in (0, 30, 60) if second not in alone)
            past: dict[str, Any] = {"ago": lasted - began + 1.0, "lasted": float(lasted - began)}
            world.event(host, 94, gpu, event_id="contained", revision=revision, **past)
        world.run(8)
        assert (world.score(host).state is U) is any(second <= lasted for second in alone)
        world.run(21)
    assert world.score(host).state is state


def test_a_storm_that_goes_on_does_not_wait_anew() -> None:
    """XID 48 was repeated every minute: after each, five seconds of HEALTHY let a job start."""
    world, host, gpu = lived()
    for minute in range(4):
        world.event(host, 48, gpu, event_id="storm", revision=minute, ago=60.5 * minute,
                    lasted=60.5 * minute)  # fmt: skip
        world.run(6 if not minute else 1)
        assert world.score(host).state is U
        world.run(60)


# Events that end by time.


def test_what_was_told_more_than_a_day_ago_is_not_counted() -> None:
    """26 corrected machine checks in one day, then one every 20 hours: WATCH without end."""
    world, host, _ = lived(days=30)
    for age in range(25, -1, -1):
        world.event(host, 0, "cpu0", "host.machine_check", ago=3000.0 * age)
    world.run(2)
    assert world.score(host).state is W
    for _ in range(3):
        world.now_ns += 20 * 3600 * 10**9
        world.event(host, 0, "cpu0", "host.machine_check")
        world.run(2)
    assert world.score(host).state is H


@pytest.mark.parametrize(
    "name", sorted(n for n, e in EVENT_POLICY.items() if e.clears is Clears.TIME)
)
def test_what_is_over_when_it_is_told_never_stands(name: str) -> None:
    """A first start: the ring had a program killed three weeks ago, and the host was WATCH."""
    world, host, _ = lived(days=30)
    device = "part"
    code = 2 if name == DIAGNOSTIC else 0  # a diagnostic of code 0 passed
    seconds = EVENT_POLICY[name].seconds
    world.event(host, code, device, name, ago=21 * DAY, count=50)
    world.event(host, code, device, name, ago=seconds + 30, lasted=20, count=50)
    world.run(2)
    assert all_well(world) and not world.score(host).evidence
    world.event(host, code, device, name, ago=seconds + 30, lasted=40, count=50)
    world.run(2)
    assert world.score(host).evidence, "its last line is 10 s short of the time"
    world.run(12)
    assert not world.score(host).evidence


@pytest.mark.slow
def test_an_incident_told_again_does_not_last_longer() -> None:
    """A restarted agent sends its open incidents again, without a new line."""
    world, host, _ = lived()
    for revision in range(20):
        world.event(host, 0, "host", "host.out_of_memory", event_id="one", revision=revision,
                    ago=revision * 60.0, count=1)  # fmt: skip
        world.run(60)
        assert (world.score(host).state is W) == (revision < 10)


def test_a_corrected_error_a_day_is_every_machine_s() -> None:
    """Ten corrected errors a day deserve a look; ten in ten days do not."""
    world, host, _ = lived(days=30)
    for day in reversed(range(20)):
        world.event(host, 0, "mc0/dimm1", "host.memory_error", ago=day * DAY * 0.99)
    world.run(2)
    assert world.score(host).state is H and world.score(host).evidence


def test_interleaved_incidents_are_counted_once() -> None:
    """Two control groups repeat their incidents: the counts must not add up with each repeat."""
    world, host, _ = lived()
    for revision in range(5):
        for which in ("a", "b"):
            world.event(host, 0, "host", "host.out_of_memory", event_id=which, revision=revision,
                        count=revision + 1)  # fmt: skip
    [record] = world.fleet.active_events
    assert record.count == 10


def test_more_incidents_than_are_told_apart_still_count() -> None:
    """A GPU reports a row remap each minute for a day: the count has all of them."""
    world, host, gpu = lived()
    for number in range(3 * INCIDENTS_MAX):
        world.event(host, 63, gpu, ago=90.0 * (3 * INCIDENTS_MAX - number) / 100)
    [record] = world.fleet.active_events
    assert record.count == 3 * INCIDENTS_MAX and len(record.incidents) == INCIDENTS_MAX


# Events that were withdrawn, or ended by a reset, do not return when they are repeated.


def test_a_late_revision_of_what_a_reset_ended_stays_ended() -> None:
    """A storm's last count arrives up to a minute after its last line, after the GPU's reset."""
    world, host, gpu = lived()
    world.event(host, 95, gpu, event_id="storm")
    world.run(5)
    host.set("gpu_1s", gpu, energy_joules=10.0)
    world.run(2)
    assert all_well(world)
    world.event(host, 95, gpu, event_id="storm", revision=1, ago=7, lasted=4, count=800_000)
    world.run(2)
    assert all_well(world), "all its lines were before the reset"
    world.event(host, 95, gpu, event_id="storm", revision=2, ago=7, lasted=7, count=800_001)
    world.run(2)
    assert world.score(host).state is U, "and this one was after it"


def test_an_event_that_waited_through_a_reset_is_over() -> None:
    """Without network XID 95 came and the GPU was reset; both arrive together."""
    world, host, gpu = lived()
    host.silent = True
    world.run(100)
    host.silent = False
    host.set("gpu_1s", gpu, energy_joules=10.0)
    world.run(8)
    world.event(host, 95, gpu, ago=60)
    world.run(2)
    assert all_well(world)


def test_an_xid_at_the_first_load_of_the_driver_is_no_matter_of_before_the_reset() -> None:
    """Booted, XID 62 at 20 s, first reading at 60 s with less energy than before: a boot."""
    world, host, gpu = lived()
    host.reboot(world.now_ns)
    world.register(host, gpus=2)
    host.silent = True
    world.run(20)
    world.event(host, 62, gpu)
    world.run(40)
    host.silent = False
    host.set("gpu_1s", gpu, energy_joules=10.0)
    host.set("gpu_1s_changes", gpu, ecc_corrected_volatile_errors=0)
    world.run(20)
    assert world.score(host).state is U


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ({"code": 163}, {"code": 162}),
        (
            {"code": 154, "message": "changed from 0x0 (None) to 0x1 (GPU Reset Required)"},
            {"code": 154, "message": "changed from 0x1 (GPU Reset Required) to 0x0 (None)"},
        ),
        ({"code": 0, "name": "gpu.lost"},
         {"code": 0, "name": "gpu.lost", "attributes": {"state": "back"}}),
    ],
)  # fmt: skip
def test_what_was_taken_back_does_not_return_by_being_told_again(
    fault: dict[str, Any], end: dict[str, Any]
) -> None:
    """163, then 162; the agent repeated 163 with its last count: it remained until the reset."""
    world, host, gpu = lived()
    world.event(host, device=gpu, event_id="fault", **fault)
    world.run(1)
    world.event(host, device=gpu, **end)
    world.event(host, device=gpu, event_id="fault", revision=1, ago=1, count=2, **fault)
    world.run(5)
    assert all_well(world) and not world.fleet.findings
    # In the other order: a late event was withdrawn before it arrived.
    world.event(host, device=gpu, ago=0.5, **end)
    world.event(host, device=gpu, ago=0.75, event_id="late", **fault)
    world.run(2)
    assert all_well(world)
    world.event(host, device=gpu, **fault)
    world.run(2)
    assert not all_well(world), "a new one stands"


def test_a_later_recovery_action_replaces_the_earlier_whichever_is_heard_first() -> None:
    """Reset at noon, reboot a minute later; after an outage they arrived in queue order."""
    world, host, gpu = lived()
    reset = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    reboot = (
        "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)"
    )
    world.event(host, 154, gpu, ago=30, message=reboot)
    world.event(host, 154, gpu, ago=90, message=reset)
    world.run(2)
    [record] = world.fleet.active_events
    assert "reboot" in world.score(host).reason_message
    assert record.clear_condition.clears is Clears.REBOOT


# Events from another boot, or with impossible times.


def test_what_the_firmware_kept_from_before_the_boot_is_told_as_that() -> None:
    """After a crash and a repair, "a fatal hardware error" of the old boot made it SUSPECT."""
    world, host, _ = lived()
    world.event(host, 1, "host", "host.hardware_error", attributes={"previous_boot": "yes"})
    world.run(2)
    score = world.score(host)
    assert score.state is W and "before this boot" in score.reason_message
    assert score.hazard_per_hour < 4 * world.score(world.hosts[1]).hazard_per_hour
    assert score.clears_when == "24 hours have passed since this boot"
    world.event(host, 1, "host", "host.hardware_error")
    world.run(2)
    assert world.score(host).state is S, "one of now is not hidden behind it"


def test_an_event_of_the_boot_before_that_comes_ahead_of_the_first_frame() -> None:
    """XID 79 waited in the spool through the reboot that it asked for."""
    world, host, gpu = lived()
    world.run(300)
    old_ns = world.now_ns
    host.reboot(world.now_ns + 60_000_000_000)
    host.silent = True
    world.run(70)
    world.fleet.register(
        host.name, simulated=False, boot_id=host.boot_id, devices=(), booted_ns=host.booted_ns
    )
    world.event(host, 79, gpu, ago=(world.now_ns - old_ns) / 1e9)
    host.silent = False
    world.run(15)
    assert all_well(world)


@pytest.mark.slow
def test_a_time_that_cannot_be_is_the_time_it_was_heard() -> None:
    """A defective clock has boot times of 2100: they are limited, and end like new events."""
    world, host, gpu = lived()
    far_ns = 2**62
    world.event(host, 13, gpu, boottime_ns=far_ns, last_boottime_ns=far_ns)
    world.event(host, 48, gpu, boottime_ns=5, last_boottime_ns=2**64 - 1)
    world.event(host, 31, gpu, ago=-7200)
    world.run(2)
    assert len(list(world.fleet.active_events)) == 3
    world.run(620)
    assert {record.code for record in world.fleet.active_events} == {48}
    host.set("gpu_1s", gpu, energy_joules=10.0)
    world.run(2)
    assert all_well(world)


# Floods of events.


def test_a_flood_of_little_things_hides_no_gpu_off_the_bus() -> None:
    """Containers came and went with interfaces and killed programs; XID 79 was forgotten."""
    world, host, gpu = lived()
    world.event(host, 79, gpu)
    for number in range(3 * RECORDS_PER_HOST_MAX):
        world.event(host, 2, f"veth{number}", "net.link")
        world.event(host, 0, f"disk{number}", "disk.error")
        world.event(host, 13, f"GPU-{number}")
    world.run(2)
    assert world.score(host).state is U
    assert len(list(world.fleet.active_events)) == RECORDS_PER_HOST_MAX


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "state"),
    [("gpu.xid", W), ("nvswitch.sxid", W), ("pcie.aer", H), ("host.machine_check", H),
     ("net.link_message", None)],
)  # fmt: skip
def test_folded_events_are_no_code_zero(name: str, state: HealthState | None) -> None:
    """Folded incidents have code 0: "unknown XID 0, restart the job" was wrong."""
    world, host, _ = lived()
    world.event(host, 0, "host", name, attributes={"folded": "more than 256 incidents at once"},
                count=4711, message="NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus")  # fmt: skip
    world.run(2)
    score = world.score(host)
    assert score.state is (state or H)
    if state is None:
        assert not score.evidence
        return
    assert "too many at once to list each" in score.evidence[0].message
    assert "XID 0" not in score.evidence[0].message and "4,711 times" in score.evidence[0].message
    world.run(610)
    assert all_well(world) and not world.fleet.findings


def test_a_continuation_of_a_switch_s_line_changes_nothing() -> None:
    """Data lines of an SXID follow its first line, and have no code."""
    world, host, _ = lived()
    switch = "0000:c4:00.0"
    world.event(host, 11012, switch, "nvswitch.sxid", message="Fatal, Link 30 TX")
    world.run(2)
    before = world.score(host)
    [record] = world.fleet.active_events
    world.event(host, 11012, switch, "nvswitch.sxid", message="Data {0x00000000, 0x00000001}")
    world.run(2)
    assert list(world.fleet.active_events) == [record] and record.count == 1
    assert world.score(host).reason_message == before.reason_message
    world.event(world.hosts[1], 11012, switch, "nvswitch.sxid", message="Data {0x00000000}")
    world.run(2)
    assert world.score(world.hosts[1]).state is H
