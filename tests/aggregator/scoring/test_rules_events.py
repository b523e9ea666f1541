"""Kernel and driver events: their cost, their meaning in combination, and their end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.fleet.active_events import RECORDS_PER_HOST_MAX
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.rule_catalogue.faults import EVENT_KINDS, EVENT_POLICY
from gangline.contract.signal import Kind
from gangline.contract.signals import SIGNALS
from gangline.contract.xid.policy import policy
from tests.worlds import Host, World, all_well, gpu_of

DAY = 86_400.0
W, S, U, H = HealthState.WATCH, HealthState.SUSPECT, HealthState.UNHEALTHY, HealthState.HEALTHY

LINK_74 = "NVRM: Xid (PCI:0000:9b:00): 74, NVLink: fatal error detected on link 3(0x0, 0x0)"


def lived(hosts: int = 2) -> tuple[World, Host, str]:
    """A world that has run for a while, its first host, and that host's first GPU."""
    world = World(hosts=hosts, gpus=2, seconds=10)
    return world, world.hosts[0], gpu_of(world.hosts[0], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "count", "state", "seconds"),
    [
        ("pcie.aer", 0, 500, H, 610), ("pcie.aer", 1, 1, S, 610), ("pcie.aer", 2, 1, S, 610),
        ("host.machine_check", 0, 3, H, 0), ("host.machine_check", 0, 30, W, 0),
        ("host.machine_check", 1, 1, S, 0), ("host.memory_error", 0, 2, H, 0),
        ("host.memory_error", 0, 20, W, 0), ("host.memory_error", 1, 1, S, 0),
        ("host.hardware_error", 0, 1, W, 0), ("host.hardware_error", 1, 1, S, 0),
        ("host.hardware_error", 2, 1, H, 0), ("host.hardware_error", 3, 1, H, 0),
        ("rdma.driver_error", 0, 1, W, 610), ("rdma.driver_error", 1, 1, H, 610),
        ("rdma.adapter_failed", 0, 1, S, 0), ("host.out_of_memory", 0, 1, W, 610),
        ("host.hung_task", 0, 9, W, 610), ("host.hung_task", 1, 1, S, 610), ("host.lockup", 3, 1, S, 0),
        ("filesystem.error", 2, 1, W, 0), ("disk.error", 1, 1, S, 0), ("host.lockup", 0, 1, W, 0), ("host.lockup", 1, 1, S, 0),
        ("host.lockup", 2, 1, W, 0), ("filesystem.error", 0, 1, W, 0),
        ("filesystem.error", 1, 1, W, 0), ("disk.error", 0, 9, W, 0),
        ("host.kernel_fault", 0, 1, W, 0), ("host.kernel_log_lost", 0, 900, H, 610),
        ("gpu.driver_message", 0, 1, H, 610), ("gpu.driver_message", 1, 1, S, 610),
        ("gpu.driver_message", 2, 1, S, 610), ("gpu.needs_reset", 0, 1, U, 0),
        ("gpu.needs_reboot", 0, 1, U, 0), ("gpu.hang", 0, 1, W, 0), ("gpu.hang", 2, 1, S, 0),
        ("gpu.driver_event", 16, 1, H, 610),
        ("gpu.dcgm_failure", 3, 1, S, 610), ("gpu.dcgm_warning", 44, 1, W, 610),
        ("gpu.dcgm_policy", 8, 1, W, 610), ("gpu.diagnostic", 0, 1, H, 0),
        ("gpu.diagnostic", 1, 1, W, 0), ("gpu.diagnostic", 2, 1, S, 0),
        ("gpu.lost", 0, 1, U, 0), ("net.link_message", 0, 1, H, 0), ("of.tomorrow", 7, 1, H, 0),
    ],
)  # fmt: skip
def test_what_each_event_costs_its_host(
    name: str, code: int, count: int, state: HealthState, seconds: int
) -> None:
    """Tools drained for a killed program and for one corrected error; lost data went unseen."""
    world, host, gpu = lived()
    world.event(host, code, gpu if name.startswith("gpu.") else "part", name, count=count)
    world.run(2)
    score = world.score(host)
    assert score.state is state, score.reason_message
    assert world.score(world.hosts[1]).state is H
    kept = {key[1] for key in world.fleet.findings}
    assert bool(kept) == (state is not H)
    if seconds:
        world.run(seconds)
        assert all_well(world) and not world.fleet.findings and not world.score(host).evidence


def test_a_failure_of_dcgms_is_about_the_system_that_it_names() -> None:
    world, host, gpu = lived()
    world.event(host, 3, gpu, "gpu.dcgm_failure", attributes={"system": "memory"})
    world.run(2)
    score = world.score(host)
    assert (score.state, score.reason) == (S, Reason.ECC_TREND)
    assert "DCGM's health watch reports a failure" in score.reason_message


@pytest.mark.parametrize(
    ("event", "state", "clears_when", "ended_by"),
    [
        # A repaired GPU stayed out for a day after its diagnostic had passed.
        ((2, "gpu.diagnostic", ""), S, "a diagnostic of the GPU passes", (0, "gpu.diagnostic", "")),
        ((0, "gpu.lost", "lost"), U, "", (0, "gpu.lost", "back")),
        # XID 163 turns power smoothing off; 162, a second later, turns it on again.
        ((163, "gpu.xid", ""), W, "", (162, "gpu.xid", "")),
    ],
    ids=["diagnostic", "re-plugged GPU", "power smoothing"],
)
def test_an_event_that_another_ends(
    event: tuple[int, str, str],
    state: HealthState,
    clears_when: str,
    ended_by: tuple[int, str, str],
) -> None:
    world, host, gpu = lived()
    for (code, name, value), expected in ((event, state), (ended_by, H)):
        world.event(host, code, gpu, name, attributes={"state": value} if value else {})
        world.run(2)
        assert world.score(host).state is expected
        assert len(world.fleet.findings) == (expected is not H)
        if expected is not H:
            assert world.score(host).clears_when.startswith(clears_when)


@pytest.mark.slow
def test_an_adapter_whose_firmware_is_dead_stands_until_its_driver_takes_it_back() -> None:
    """An adapter failed at midnight; at 0:10 its host was HEALTHY again and got the next job."""
    world, host, _ = lived()
    nic = "0000:98:00.0"
    world.event(host, 0, nic, "rdma.adapter_failed", message="device's health compromised")
    world.run(700)
    score = world.score(host)
    assert score.state is S and "does not respond" in score.reason_message
    world.event(host, 0, nic, "rdma.adapter_failed", attributes={"state": "back"})
    world.run(610)
    assert all_well(world) and not world.fleet.findings
    world.event(host, 0, nic, "rdma.adapter_failed")
    world.run(2)
    assert world.score(host).state is S, "it failed anew"
    host.reboot(world.now_ns)
    world.run(610)
    assert all_well(world)


def test_every_event_of_the_catalogue_is_thought_of() -> None:
    """An event that is reported and not judged is only a row in a table at 3 a.m."""
    event_names = {signal.name for signal in SIGNALS if signal.kind is Kind.EVENT}
    elsewhere = {"collector.outcome", "gpu.xid", "nvswitch.sxid"}
    left_to_readings = {"net.link_message", "probe.hung", "probe.answered"}
    left_to_readings |= {"probe.driver_hung", "probe.driver_answered", "gpu.driver_calls_capped"}
    no_trouble = {
        "gpu.process",
        "gpu.full_report",
        "gpu.allocation",
        "gpu.released",
        "gpu.driver_binding",
    }
    assert event_names == EVENT_POLICY.keys() | elsewhere | left_to_readings | no_trouble


@pytest.mark.slow
def test_a_program_that_met_its_own_limit_is_the_workloads_doing() -> None:
    """A container with 4 GB of memory asked for 5: only the host's own shortage counts."""
    world, host, _ = lived()
    world.event(host, 0, "host", "host.out_of_memory")
    world.event(host, 0, "host", "host.out_of_memory",
                attributes={"constraint": "CONSTRAINT_MEMCG"})  # fmt: skip
    world.run(2)
    assert world.score(host).state is W and len(world.score(host).evidence) == 2
    world.run(300)
    world.event(host, 0, "host", "host.out_of_memory", attributes={"x": "CONSTRAINT_MEMCG"})
    world.run(310)
    assert world.score(host).state is H and world.score(host).evidence


def test_a_process_in_the_line_is_named_and_not_blamed() -> None:
    """nvidia-smi hit the hang first; it did not cause it."""
    world, host, gpu = lived()
    world.event(host, 119, gpu, process_name="nvidia-smi", process_id=17)
    world.run(1)
    assert "met by nvidia-smi, which may not be its cause" in world.score(host).reason_message
    world.event(host, 31, gpu, process_name="oob", process_id=9, attributes={"job": "Slurm job 42"})
    world.run(1)
    (evidence,) = [item for item in world.score(host).evidence if item.value == 31]
    assert "(met by oob of Slurm job 42" in evidence.message


def test_a_reboot_ends_all_with_a_record() -> None:
    """After the requested reboot no event of the earlier boot may remain."""
    world, host, gpu = lived()
    for name, code in EVENT_KINDS:
        world.event(host, code, gpu if name.startswith("gpu.") else "part", name, count=50)
    world.event(host, 79, gpu)
    world.run(3)
    assert world.score(host).state is U and world.fleet.findings
    assert all(finding.clears_when for finding in world.fleet.findings.values())
    host.reboot(world.now_ns)
    world.run(15)
    assert all_well(world) and not world.fleet.findings


def test_a_finding_of_a_silent_host_is_not_cleared() -> None:
    """The host was not read again: its silence clears no finding."""
    world, host, gpu = lived()
    world.event(host, 95, gpu)
    host.set("rdma_10s_changes", "mlx5_0/1", buffer_overrun_errors=15)
    world.run(15)
    names = {key[1] for key in world.fleet.findings}
    assert names == {"gpu.xid", "counter.saturated"}
    host.silent = True
    world.run(120)
    assert {key[1] for key in world.fleet.findings} == names


@pytest.mark.parametrize("how", ["driver reload", "energy"])
def test_a_reset_or_a_driver_loaded_again_ends_an_xid_on_record(how: str) -> None:
    """The operator reset the GPU; an hour later the host was still UNHEALTHY."""
    world, host, gpu = lived()
    host.set("gpu_1s", gpu, counter_epoch_count=0)
    world.run(2)
    world.event(host, 95, gpu)
    world.run(2)
    [finding] = world.fleet.findings.values()
    assert (finding.name, finding.subject) == ("gpu.xid", f"{gpu} gpu.xid 95")
    assert finding.clears_when == "the GPU is reset, or the host boots"
    if how == "energy":
        host.set("gpu_1s", gpu, energy_joules=10.0)
    else:
        host.set("gpu_1s", gpu, counter_epoch_count=1)
    world.run(3)
    assert all_well(world) and not world.fleet.findings


def test_an_xid_told_before_the_first_reading_ends_with_a_reset_too() -> None:
    """After a restart a host registers and repeats its XIDs; readings follow later."""
    world = World(hosts=1, gpus=2)
    host, gpu = world.hosts[0], gpu_of(world.hosts[0], 0)
    world.event(host, 95, gpu)
    world.run(10)
    assert world.score(host).state is U
    host.set("gpu_1s", gpu, energy_joules=10.0)
    world.run(3)
    assert all_well(world)


def test_an_agent_that_starts_again_resets_no_gpu() -> None:
    """The agent counts a GPU's epochs from zero at its own start: 3, then 0, is not a reset."""
    world, host, gpu = lived()
    host.set("gpu_1s", gpu, counter_epoch_count=3)
    world.run(2)
    world.event(host, 95, gpu)
    world.run(2)
    host.set("gpu_1s", gpu, counter_epoch_count=0)
    world.run(130)  # each table arrived again
    assert world.score(host).state is U


def test_a_storm_that_grows_is_one_piece_of_evidence_with_its_count() -> None:
    """One incident wrote 800,000 lines: revisions of one event do not add up, other events do."""
    world, host, gpu = lived()
    for revision, count in enumerate((1, 500, 800_000)):
        world.event(host, 95, gpu, event_id="storm", revision=revision, count=count)
    world.run(1)
    score = world.score(host)
    assert len(score.evidence) == 1 and "800,000 times" in score.reason_message
    for _ in range(2_000):
        world.event(host, 95, gpu)
    world.run(1)
    score = world.score(host)
    assert len(score.evidence) == 1 and "802,000 times" in score.reason_message


@pytest.mark.parametrize(
    ("companion", "gpu_of_companion", "state"),
    [(94, 0, W), (95, 0, U), (64, 0, U), (171, 0, U), (None, 0, U), (94, 1, U)],
)
def test_xid_48_by_what_comes_beside_it(
    companion: int | None, gpu_of_companion: int, state: HealthState
) -> None:
    """Contained: one program lost its data. Uncontained, or alone: any program may have."""
    world, host, gpu = lived()
    world.event(host, 48, gpu)
    world.run(2)
    assert world.score(host).state is H, "it waits for what comes within 5 s"
    if companion:
        world.event(host, companion, gpu_of(host, gpu_of_companion))
    world.run(8)
    assert world.score(host).state is state


@pytest.mark.parametrize("codes", [(48, 95), (95, 48), (48, 95, 48), (48, 64)])
def test_the_worst_and_last_code_is_the_headline(codes: tuple[int, ...]) -> None:
    """ "XID 48" headed an uncontained memory error: the runbook of 48 begins with a wait."""
    world, host, gpu = lived()
    for code in codes:
        world.event(host, code, gpu)
        world.run(1)
    world.run(8)
    headline = next(code for code in codes if code != 48)
    score = world.score(host)
    assert score.reason_message.startswith(f"GPU-h0-0… XID {headline}: ")
    first, *later_evidence = score.evidence
    assert first.log_hazard_delta > 0.0
    assert not any(evidence.log_hazard_delta for evidence in later_evidence)


def test_of_fatal_codes_what_touches_more_goes_first_and_then_what_is_new() -> None:
    """140 and 109 need a GPU reset, 79 a reboot of the host; a second 140 changes nothing."""
    world, host, gpu = lived()

    def headline() -> str:
        world.run(2)
        return world.score(host).reason_message.partition("XID ")[2].partition(":")[0]

    world.event(host, 140, gpu)
    assert headline() == "140"
    world.event(host, 109, gpu)
    assert headline() == "109"
    world.event(host, 140, gpu)
    assert headline() == "109"
    world.event(host, 79, gpu)
    assert headline() == "79"
    world.event(host, 95, gpu_of(host, 1))
    assert headline() == "79"


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["", "rising", "down", "unread"])
def test_xid_74_by_whether_its_link_is_well_since(trouble: str) -> None:
    """A recovered error was SUSPECT until a reset, for weeks; a persistent error stays SUSPECT."""
    world, host, gpu = lived()
    link = f"{gpu}/link3"
    if trouble != "unread":
        host.set("nvlink_10s_changes", link, link_state=1, crc_errors=4, recovery_errors=0)
    world.run(70)
    host.readings.get(("nvlink_10s_changes", link), {})["crc_errors"] = 5
    world.event(host, 74, gpu, message=LINK_74)
    world.run(500)
    assert world.score(host).state is S
    if trouble == "rising":
        host.grow("nvlink_10s_changes", link, crc_errors=0.01)
    if trouble == "down":
        host.set("nvlink_10s_changes", link, link_state=0)
    world.run(300)
    assert world.score(host).state is (S if trouble else W)
    if not trouble:
        assert "24 hours" in world.score(host).clears_when
        world.now_ns += round(DAY * 1e9)
        world.run(70)
        assert all_well(world) and not world.fleet.findings
        world.event(host, 74, gpu, message=LINK_74)
        world.run(2)
        assert world.score(host).state is S


def recovery(before: str, after: str) -> str:
    return f"GPU recovery action changed from {before} to {after}"


def test_xid_154_is_what_its_text_asks_for() -> None:
    """XID 154 follows the driver's text: a reset, then a reboot, then none."""
    world, host, gpu = lived()
    reset, reboot = "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"
    for before, after, state, standing in (
        ("0x0 (None)", reset, U, 1),
        (reset, reboot, U, 1),
        (reboot, "0x0 (None)", H, 0),
    ):
        world.event(host, 154, gpu, message=recovery(before, after))
        world.run(2)
        assert world.score(host).state is state, after
        assert sum(o.code == 154 for o in world.fleet.active_events) == standing
    assert not world.fleet.findings


def test_what_the_gpu_says_later_is_of_more_weight_than_xid_154() -> None:
    """The GPU was reset; the line that reports recovery was lost, the reading was not."""
    world, host, gpu = lived()
    world.event(host, 154, gpu, message=recovery("0x0 (None)", "0x1 (GPU Reset Required)"))
    host.set("gpu_1s", gpu, recovery_action_state=1)
    world.run(20)
    assert world.score(host).state is U
    host.set("gpu_1s", gpu, recovery_action_state=0)
    world.run(15)
    assert world.score(host).state is H and not world.fleet.findings


@pytest.mark.parametrize(
    ("driver", "verified"), [("580.65.06", True), ("570.86.15", False), ("", False)]
)
def test_nvlink5_codes_are_read_by_the_drivers_version(driver: str, verified: bool) -> None:
    """The same bits mean another unit since R575: the registered driver version decides."""
    world, host, gpu = lived()
    attributes = world.fleet.attributes[world.fleet.index[host.name]]
    attributes["gpu", gpu] = {**attributes["gpu", gpu], "driver": driver}  # others have the same
    line = "RLW_REMAP Nonfatal XC0 i0 Link 03 (0x00000004 0x00000000)"
    world.event(host, 145, gpu, message=line)
    world.run(1)
    score = world.score(host)
    assert score.state is not U
    assert "RLW_REMAP of link 3" in score.reason_message
    assert ("unverified" not in score.reason_message) == verified


@pytest.mark.parametrize("code", [*sorted(policy()), 9999])
def test_no_xid_by_itself_does_more_than_its_row(code: int) -> None:
    """Application codes change nothing, unknown codes are shown, and only a fatal row is fatal."""
    fleet = Fleet(epoch=1)
    world = World.__new__(World)
    world.fleet, world.events, world.now_ns = fleet, 0, 10**18
    fleet.register("h", simulated=False, boot_id=b"B" * 16, devices=())
    world.event(Host("h"), code, "GPU-1", message="")
    [record] = fleet.active_events
    assert record.policy is not None and record.policy.code == code
    known = policy().get(code)
    if known is None or known.severity.value in ("application", "ignore", "unknown"):
        assert record.policy.severity.value not in ("fatal", "hazard")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.text(max_size=40)), max_size=200))
def test_whatever_a_host_reports_is_bounded_and_judged(events: list[tuple[int, str]]) -> None:
    """A host that reports new codes with any text costs bounded memory and no exception."""
    world = World(hosts=1, gpus=1)
    names = [*EVENT_POLICY, "gpu.xid", "nvswitch.sxid", "net.link"]
    for number, (code, text) in enumerate(events):
        world.event(world.hosts[0], code, text, names[number % len(names)], message=text)
    snapshot = world.run(1)
    assert not snapshot.degraded_reason
    assert len(list(world.fleet.active_events)) <= RECORDS_PER_HOST_MAX


def test_a_removed_interface_counts_if_it_was_in_use_until_it_appears() -> None:
    """A NIC was unplugged; containers remove their own interfaces all day."""
    world, host, _ = lived()
    world.event(host, 2, "veth9", "net.link")
    world.event(host, 2, "eth0", "net.link")
    host.forget("net_1s")
    world.run(3)
    score = world.score(host)
    assert (score.state, score.reason) == (W, Reason.RAIL_DOWN)
    assert [e.device for e in score.evidence] == ["eth0"]
    world.event(host, 3, "eth0", "net.link")
    host.set("net_1s", "eth0", carrier_state=1)
    world.run(3)
    assert all_well(world)


def test_energy_that_is_read_late_after_a_boot_is_no_reset() -> None:
    """The driver reported energy late after a boot, lower than before it, which cleared XID 95."""
    world, host, gpu = lived()
    energy = host.readings["gpu_1s", gpu].pop("energy_joules")
    host.growth.pop(("gpu_1s", gpu, "energy_joules"))
    host.reboot(world.now_ns)
    world.run(10)
    world.event(host, 95, gpu)
    world.run(2)
    host.set("gpu_1s", gpu, energy_joules=energy / 2)
    world.run(3)
    assert world.score(host).state is U
    host.set("gpu_1s", gpu, energy_joules=energy / 4)
    world.run(3)
    assert world.score(host).state is H


def test_a_switch_is_reset_when_all_gpus_are() -> None:
    """A fatal switch error, one GPU reset, then the whole board."""
    world, host, gpu = lived()
    world.event(host, 10004, "0000:c4:00.0", "nvswitch.sxid", message="Non-fatal")
    world.run(2)
    assert world.score(host).state is W and "all GPUs" in world.score(host).clears_when
    host.set("gpu_1s", gpu, energy_joules=10.0)
    world.run(2)
    assert world.score(host).state is W
    host.set("gpu_1s", gpu_of(host, 1), energy_joules=10.0)
    world.run(2)
    assert world.score(host).state is H and not world.fleet.findings


def test_sxids_follow_their_policy_and_their_lines_own_word() -> None:
    """A switch error that its line calls non-fatal excludes no host."""
    world, host, _ = lived()
    world.event(host, 20009, "0000:c4:00.0", "nvswitch.sxid", message="Non-fatal, Link 30 RX")
    world.event(world.hosts[1], 7777777, "0000:c4:00.0", "nvswitch.sxid", message="odd")
    world.run(2)
    assert world.score(host).state is not U
    assert world.score(world.hosts[1]).state is H
    assert "SXID 7777777" in world.score(world.hosts[1]).reason_message
