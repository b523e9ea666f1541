"""Each row of the policy finds its fault but not its look-alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.local.event_findings import RECORDS_MAX
from gangline.agent.local.findings import CLEARED_MAX, EVENTS_WAITING_MAX, FINDINGS_MAX
from gangline.agent.local.findings_state import FindingsState
from gangline.agent.local.policy_rules import UNREAD_SECONDS_MAX
from gangline.agent.sampler.probe_tables import ProbeTables
from gangline.aggregator.model import HealthState
from gangline.aggregator.rule_catalogue.faults import EVENT_KINDS, EVENT_POLICY
from gangline.aggregator.rule_catalogue.gpu import MISSING
from gangline.contract.faults import policy_file as host_policy_file
from gangline.contract.faults.policy import LOCAL_EVENTS, FindingSeverity, Policy
from gangline.contract.faults.table import builtin
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.local_world import ADDRESS, BOOT, GPU, SECOND, START, Host
from tests.agent.sampler.watched import GPUS, Watched

LINK, PORT = f"{GPU}/link3", "mlx5_0/1"
PROBED, HANGS = f"gpu {ADDRESS}", {"probe.hung_seconds": 0.9}
BUSY = {"gpu.performance_state": 0, "gpu.utilization_ratio": 0.9}
NARROW = {"gpu.pcie_width_lanes": 8.0, "gpu.pcie_width_max_lanes": 16.0}
SLOW = {"gpu.pcie_generation_number": 3.0, "gpu.pcie_generation_max_number": 5.0}

#: Row -> (device, faulty readings, readings that only look like it, seconds until the finding).
READINGS: dict[str, tuple[str, dict[str, float], dict[str, float], int]] = {
    "gpu_lost": (GPU, {"gpu.lost_state": 1}, {"gpu.lost_state": 0}, 1),
    "gpu_hung": (PROBED, HANGS | {"probe.state": 3}, HANGS | {"probe.state": 4}, 11),
    "driver_hung": ("gpu", HANGS | {"probe.state": 5}, {"probe.hung_seconds": 0.01, "probe.state": 3}, 11),
    "device_hung": ("host mlx5_0/1", HANGS | {"probe.state": 2}, HANGS | {"probe.state": 0}, 11),
    "gpu_recovery_reset": (GPU, {"gpu.recovery_action_state": 4}, {"gpu.recovery_action_state": 9}, 4),
    "gpu_recovery_reboot": (GPU, {"gpu.recovery_action_state": 2}, {"gpu.recovery_action_state": 0}, 4),
    "gpu_recovery_links": (GPU, {"gpu.recovery_action_state": 3}, {"gpu.recovery_action_state": 8}, 4),
    "gpu_reset_required": (GPU, {"gpu.error_code_state": 16}, {"gpu.error_code_state": 0}, 11),
    "gpu_unusable": (GPU, {"gpu.error_code_state": 999}, {"gpu.error_code_state": 0}, 11),
    "gpu_no_answer": (GPU, {"gpu.error_code_state": 17}, {"gpu.error_code_state": 0}, 11),
    "gpu_remap_failed": (GPU, {"gpu.remap_failed_state": 1}, {"gpu.remapped_uncorrectable_rows": 9}, 10),
    "gpu_remap_pending": (GPU, {"gpu.remap_pending_state": 1}, {"gpu.remap_pending_state": 0}, 10),
    "gpu_retirement_pending": (
        GPU, {"gpu.retirement_pending_state": 1}, {"gpu.retired_corrected_pages": 3}, 10,
    ),
    "gpu_repair_pending": (
        GPU, {"gpu.repair_channel_pending_state": 1}, {"gpu.repair_tpc_pending_state": 1}, 10,
    ),
    "gpu_ecc_uncorrected": (
        GPU, {"gpu.ecc_uncorrected_volatile_errors": 2},
        {"gpu.ecc_uncorrected_volatile_errors": 2**32 - 1, "gpu.ecc_corrected_volatile_errors": 900}, 2,
    ),
    "gpu_memory_unrepairable": (
        GPU, {"gpu.unrepairable_memory_state": 1}, {"gpu.unrepairable_memory_state": 0}, 10,
    ),
    "gpu_sram_threshold": (
        GPU, {"gpu.sram_threshold_exceeded_state": 1}, {"gpu.sram_corrected_volatile_errors": 7}, 10,
    ),
    "gpu_thermal": (
        GPU, {"gpu.clock_event_reasons_flags": 0x41}, {"gpu.clock_event_reasons_flags": 0x24}, 302,
    ),
    "gpu_power_brake": (
        GPU, {"gpu.clock_event_reasons_flags": 0x80}, {"gpu.clock_event_reasons_flags": 0x04}, 302,
    ),
    "gpu_pcie_width": (GPU, NARROW | BUSY, NARROW | {**BUSY, "gpu.performance_state": 8}, 80),
    "gpu_pcie_generation": (GPU, SLOW | BUSY, SLOW | {**BUSY, "gpu.utilization_ratio": 0.1}, 80),
    "fabric_not_joined": (
        GPU, {"gpu_fabric.registration_state": 2}, {"gpu_fabric.registration_state": 3}, 122,
    ),
    "fabric_failed": (
        GPU, {"gpu_fabric.registration_status_code": 999}, {"gpu_fabric.registration_status_code": 0}, 8,
    ),
    "fabric_route": (
        GPU, {"gpu_fabric.route_unhealthy_state": 1}, {"gpu_fabric.route_unhealthy_state": 2}, 8,
    ),
    "nvswitch_reset": (
        "0000:c1:00.0", {"nvswitch.reset_required_state": 1},
        {"nvswitch.reset_required_state": 0, "nvswitch.temperature_celsius": 79.0}, 32,
    ),
    "nvme_dead": ("nvme0", {"nvme.controller_state": 6}, {"nvme.controller_state": 2}, 20),
}  # fmt: skip
#: Rows that require an earlier healthy reading: row -> (device, healthy, wrong, look-alike,
#: seconds).
ONCE: dict[str, tuple[str, dict[str, float], dict[str, float], dict[str, float], int]] = {
    "nvlink_down": (
        LINK, {"nvlink.link_state": 1}, {"nvlink.link_state": 0}, {"nvlink.link_state": 2}, 40,
    ),
    "rdma_port_down": (
        PORT, {"rdma.port_state": 4, "rdma.physical_state": 5},
        {"rdma.port_state": 1, "rdma.physical_state": 2},
        {"rdma.port_state": 1, "rdma.physical_state": 3}, 35,
    ),
    "filesystem_read_only": (
        "/scratch", {"filesystem.read_only_state": 0}, {"filesystem.read_only_state": 1},
        {"filesystem.read_only_state": 0}, 60,
    ),
}  # fmt: skip
#: Rows of events: row -> (event, code, device, a look-alike's code or attributes).
EVENTS: dict[str, tuple[str, int, str, dict[str, object]]] = {
    "gpu_off_bus": ("gpu.lost", 0, ADDRESS, {"code": 1}),
    "gpu_missing": ("gpu.missing", 0, GPU, {"attributes": {"state": "back"}}),
    "gpu_needs_reset": ("gpu.needs_reset", 0, ADDRESS, {"name": "gpu.driver_message"}),
    "gpu_needs_reboot": ("gpu.needs_reboot", 0, "host", {"boot_id": b"a" * 16}),
    "gpu_firmware_silent": ("gpu.driver_message", 1, ADDRESS, {"code": 0}),
    "gpu_not_started": ("gpu.driver_message", 2, ADDRESS, {"code": 0}),
    "gpu_queue_dead": ("gpu.hang", 2, ADDRESS, {"code": 0}),
    "gpu_reset_failed": ("gpu.reset", 1, ADDRESS, {"code": 0}),
    "gpu_ras_uncorrected": ("gpu.ras_error", 1, ADDRESS, {"code": 0}),
    "gpu_bad_pages": ("gpu.ras_error", 3, ADDRESS, {"code": 2}),
    "machine_check": ("host.machine_check", 1, "host", {"code": 0}),
    "memory_error": ("host.memory_error", 1, "mc0/dimm3", {"code": 0}),
    "hardware_error": ("host.hardware_error", 1, "host", {"attributes": {"previous_boot": "yes"}}),
    "pcie_uncorrected": ("pcie.aer", 2, "0000:81:00.0", {"code": 0}),
    "kernel_fault": ("host.kernel_fault", 0, "host", {"boot_id": b"a" * 16}),
    "lockup": ("host.lockup", 0, "host", {"name": "host.hung_task"}),
    "lockup_lasting": ("host.lockup", 3, "host", {"code": 4}),
    "task_hung": ("host.hung_task", 1, "host", {"code": 0}),
    "disk_removed": ("disk.error", 1, "nvme2", {"code": 2}),
    "filesystem_unreachable": ("filesystem.error", 2, "192.0.2.88@o2ib", {"code": 3}),
    "disk_error": ("disk.error", 0, "nvme1n1", {"attributes": {"folded": "more than 256"}}),
    "filesystem_error": ("filesystem.error", 1, "/scratch", {"boot_id": b"a" * 16}),
    "rdma_driver": ("rdma.driver_error", 0, "mlx5_0", {"code": 1}),
    "rdma_adapter": ("rdma.adapter_failed", 0, "0000:98:00.0", {"attributes": {"state": "back"}}),
    "host_out_of_memory": ("host.out_of_memory", 0, "host", {"boot_id": b"a" * 16}),
    "xid": ("gpu.xid", 79, ADDRESS, {"code": 43 + 2}),
    "sxid": ("nvswitch.sxid", 20034, "0000:c1:00.0", {"code": 19999}),
}

#: Incident -> steps: an event's arguments, (device, reading), an unread table, (seconds, findings).
COURSES: dict[str, list[object]] = {
    "94 follows 48: the program ends, and the host is not drained": [
        {"name": "gpu.xid", "code": 48}, (1, []), {"name": "gpu.xid", "code": 94}, (10, ["xid94"]),
    ],
    "48 alone": [{"name": "gpu.xid", "code": 48}, (3, []), (4, ["xid48"])],
    "XID 154 requested a reset, and its reading is 0 since": [
        {"name": "gpu.xid", "code": 154, "message": "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from "
         "0x0 (None) to 0x1 (GPU Reset Required)"},
        (GPU, {"gpu.recovery_action_state": 0, "gpu.counter_epoch_count": 0}), (9, ["xid154"]), (3, []),
    ],
    "a lost GPU is back": [
        {"name": "gpu.lost", "attributes": {"state": "lost"}}, (1, ["gpu_off_bus"]),
        {"name": "gpu.lost", "attributes": {"state": "back"}}, (1, []),
    ],
    "the sampler was replaced, and only the energy shows the reset": [
        {"name": "gpu.xid", "code": 95}, (GPU, {"gpu.energy_joules": 5e6, "gpu.counter_epoch_count": 0}),
        (3, ["xid95"]), (GPU, {"gpu.energy_joules": 12.0}), (1, []),
    ],
    "one of two GPUs was reset: the switch between them was not": [
        (GPU, {"gpu.counter_epoch_count": 0}), ("GPU-2", {"gpu.counter_epoch_count": 0}), (1, []),
        {"name": "nvswitch.sxid", "code": 20034, "device": "0000:c1:00.0"},
        (GPU, {"gpu.counter_epoch_count": 1}), (2, ["sxid20034"]), ("GPU-2", {"gpu.counter_epoch_count": 1}), (1, []),
    ],
    "hot, but never for five continuous minutes": [
        (GPU, {"gpu.clock_event_reasons_flags": 0x40}), (240, []), (GPU, {"gpu.clock_event_reasons_flags": 0}), (1, []),
    ] * 3,
    "a GPU that answers every other second": [
        *[(GPU, {"gpu.lost_state": 1}), (1, ["gpu_lost"]), (GPU, {"gpu.lost_state": 0}), (1, ["gpu_lost"])] * 20,
        (9, ["gpu_lost"]), (1, []),
    ],
    "hot before the agent hung and after it": [
        (GPU, {"gpu.clock_event_reasons_flags": 0x40}), (10, []), "gpu_1s", (120, []),
        (GPU, {"gpu.clock_event_reasons_flags": 0x40}), (250, []),
    ],
    "MIG was turned on, which makes NVLinks inactive": [
        (LINK, {"nvlink.link_state": 1}), (20, []),
        (GPU, {"gpu.mig_mode_state": 1}), (LINK, {"nvlink.link_state": 0}), (120, []),
    ],
    "XID 119: the agent no longer uses the GPU, or crashed": [
        (PROBED, {"probe.state": 3, "probe.hung_seconds": 0.0}), (60, []), (PROBED, {"probe.hung_seconds": 0.004}), (60, []),
    ],
}  # fmt: skip


_OFTEN = {
    "rdma.port_state": (1, 4),
    "rdma.physical_state": (3, 5),
    "gpu.lost_state": (0, 1),
    "gpu.recovery_action_state": (0, 1),
    "gpu.counter_epoch_count": (0, 1, 2),
    "gpu.energy_joules": (5.0, 7.0),
    "gpu.pcie_width_lanes": (8, 16),
    "gpu.pcie_width_max_lanes": (16,),
    "gpu.performance_state": (0, 8),
    "gpu.utilization_ratio": (0.0, 0.9),
    "nvlink.link_state": (0, 1),
    "gpu.mig_mode_state": (0, 1),
}
_OF_A_RESET = {name: _OFTEN[name] for name in ("gpu.counter_epoch_count", "gpu.energy_joules")}


@pytest.fixture
def host() -> Host:
    return Host()


def test_every_row_has_its_case() -> None:
    """A row was added without a test: it fired on every idle host."""
    tried = READINGS.keys() | ONCE.keys() | EVENTS.keys() | {"out_of_memory"}
    assert {row.name for row in builtin().rows if not row.judged} == tried


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_is_found_and_its_look_alike_is_not(host: Host, name: str) -> None:
    """The faulty reading is found, but not too early; the look-alike is not found."""
    device, wrong, alike, seconds = READINGS[name]
    host.read(device, alike)
    assert name not in host.after(seconds + 30)
    host.read(device, wrong)
    assert name in host.after(seconds)
    (finding,) = [finding for finding in host.findings.findings if finding.name == name]
    assert finding.device == device and host.now_ns - finding.confirmed_ns <= 10 * SECOND
    assert "{" not in finding.message


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_that_is_well_again_clears_with_a_record(host: Host, name: str) -> None:
    """A finding once set silently remained: the host stayed drained after its repair."""
    device, wrong, alike, seconds = READINGS[name]
    host.read(device, wrong)
    assert name in host.after(seconds + 10)
    host.read(device, dict.fromkeys(wrong, 0) | alike)
    assert name not in host.after(150)
    assert [
        finding.finding.name for finding in host.findings.cleared if finding.finding.name == name
    ]


@pytest.mark.parametrize("name", ONCE)
def test_only_what_was_well_before_is_found(host: Host, name: str) -> None:
    """A port that was never cabled is healthy; a port that was up before is faulty."""
    device, well, wrong, alike, seconds = ONCE[name]
    never = Host()
    never.read(device, wrong)
    assert name not in never.after(2 * seconds + 60)
    host.read(device, well)
    host.after(60)
    host.read(device, alike)
    assert name not in host.after(seconds + 60)
    host.read(device, wrong)
    assert name in host.after(seconds + 60)


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_found_and_its_look_alike_is_not(host: Host, name: str) -> None:
    """Another code, another boot, or an earlier boot does not count against this host."""
    event, code, device, alike = EVENTS[name]
    other: dict[str, object] = {"name": event, "code": code, "device": device, **alike}
    host.event(**other)  # type: ignore[arg-type]
    assert host.after(8) == []
    host.event(event, code, device)
    (result,) = [finding for finding in host.findings.findings] if host.after(1) else [None]
    assert result is not None and result.name.startswith(name)
    assert result.device == (GPU if device == ADDRESS else device)


def test_the_aggregator_is_not_contradicted() -> None:
    """The host reported as fatal, and drained, a fault that the aggregator only watches."""
    for row in builtin().rows:
        if not row.event or row.policy:
            continue
        if row.event in LOCAL_EVENTS:  # its rule has no event to end
            assert MISSING.state is HealthState.UNHEALTHY and row.severity is FindingSeverity.FATAL
            continue
        ending = EVENT_POLICY[row.event]
        assert row.clears.value == ending.clears.value, row.name
        assert row.clear_seconds == ending.seconds, row.name
        kinds = [
            k
            for (n, c), k in EVENT_KINDS.items()
            if n == row.event and (c in row.codes or not row.codes)
        ]
        fatal = {kind.rule.state is HealthState.UNHEALTHY for kind in kinds}
        assert fatal == {row.severity is FindingSeverity.FATAL}, row.name


def test_xids_follow_their_policy(host: Host) -> None:
    """79 condemns the host until it boots, 31 is the program's own, 63 a sign, 45 nothing."""
    for code in (79, 31, 63, 45):
        host.event("gpu.xid", code)
    assert host.after(1) == ["xid79", "xid63", "xid31"]
    seen = {finding.name: finding for finding in host.findings.findings}
    assert (seen["xid79"].severity, seen["xid31"].severity) == ("fatal", "application")
    assert seen["xid79"].enforceable and not seen["xid63"].enforceable
    assert host.after(601, 60.1) == ["xid79", "xid63"]
    host.read(GPU, {"gpu.counter_epoch_count": 1})
    host.after(1)
    host.read(GPU, {"gpu.counter_epoch_count": 2})
    assert host.after(2) == ["xid79"]  # the reset ended 63, but not 79, which needs a boot
    assert host.findings.cleared[-1].reason == "the GPU was reset"


@pytest.mark.parametrize(
    "said",
    [
        {"attributes": {"constraint": "CONSTRAINT_MEMCG"}},
        {"message": "Memory cgroup out of memory: Killed process 7 (python)"},
    ],
)
def test_a_program_that_met_its_own_limit_of_memory(host: Host, said: dict[str, object]) -> None:
    """The user's problem, unless the host ran out: the node's problem, by a job or a leak."""
    host.event("host.out_of_memory", 0, "host", **said)
    assert host.after(1) == ["out_of_memory"]
    assert host.findings.findings[0].severity == "application"
    host.event("host.out_of_memory", 0, "host", attributes={"constraint": "CONSTRAINT_NONE"})
    assert host.after(1) == ["host_out_of_memory", "out_of_memory"]
    host.findings.set_policy(builtin())
    assert host.after(1) == ["host_out_of_memory", "out_of_memory"]


@pytest.mark.parametrize("incident", COURSES)
def test_a_course(host: Host, incident: str) -> None:
    for step in COURSES[incident]:
        match step:
            case str():
                host.unread(step)
            case dict():
                host.event(**step)
            case (str(device), dict(values)):
                host.read(device, values)
            case (int(seconds), expected):
                assert host.after(seconds) == expected


def test_what_is_not_read_any_more_is_not_confirmed_and_ends(host: Host) -> None:
    """A hung driver froze the last reading: the finding neither stays fresh nor remains forever."""
    host.read(GPU, {"gpu.lost_state": 1})
    host.after(3)
    host.unread("gpu_1s")
    assert host.after(60, 10) == ["gpu_lost"]
    assert host.now_ns - host.findings.findings[0].confirmed_ns == 60 * SECOND
    assert host.after(UNREAD_SECONDS_MAX, 10) == []


def test_a_booting_host_has_time_to_train_its_links() -> None:
    """Links are inactive until the fabric manager has started."""
    host = Host(now_ns=30 * SECOND)
    host.read(LINK, {"nvlink.link_state": 1})
    host.after(20)
    host.read(LINK, {"nvlink.link_state": 0})
    assert host.after(200) == []
    assert host.after(120) == ["nvlink_down"]


def test_a_hung_gpu_is_not_the_hung_driver(host: Host) -> None:
    """One GPU of eight hangs: the rows of the whole driver and of host devices do not fire."""
    host.read(PROBED, HANGS | {"probe.state": 1})
    assert host.after(60) == ["gpu_hung"]
    assert host.findings.address_of(PROBED) == ADDRESS


def hung(host: Watched, seconds: int) -> dict[str, tuple[str, ...]]:
    """Run the samplers; return each finding's devices, from the supervisor's probe rows."""
    local, tables = Host(), ProbeTables()
    for _ in range(seconds):
        host.run(1)
        local.now_ns = host.world.now_ns
        local.latest.update(local.now_ns, tables.blocks(host.samplers.states(), (), str))
        local.findings.evaluate(local.latest.tables, local.now_ns)
    result = local.findings.findings
    return {
        name: tuple(f"{finding.device}" for finding in result if finding.name == name)
        for name in local.names()
    }


@pytest.mark.parametrize("holds", [False, True], ids=["killed", "ignores SIGKILL"])
def test_the_samplers_words_on_a_gpu_that_hangs(holds: bool) -> None:
    """Each call was cancelled after 0.9 s: a GPU dead for a night had no finding."""
    host = Watched()
    host.run(3)
    host.world.devices[GPUS[5]].hangs_until_ns = host.world.now_ns + 40 * SECOND
    host.world.devices[GPUS[5]].holds = holds
    assert hung(host, 9) == {}
    assert hung(host, 20) == {"gpu_hung": (f"gpu {GPUS[5]}",)}
    assert hung(host, 100) == {}


def test_a_driver_that_hangs_is_one_finding() -> None:
    """All eight GPUs stopped answering together: one remedy, not eight."""
    host = Watched()
    host.run(3)
    for gpu in GPUS:
        host.world.devices[gpu].hangs_until_ns = host.world.now_ns + 3600 * SECOND
    assert hung(host, 60) == {"driver_hung": ("gpu",)}


def test_one_bad_gpu_costs_its_neighbours_nothing(host: Host) -> None:
    """Eight GPUs, one lost, one not read: one finding, of the right one."""
    for number in range(8):
        host.read(f"GPU-{number}", {"gpu.lost_state": int(number == 5)} if number != 2 else {})
    assert host.after(3) == ["gpu_lost"]
    assert host.findings.findings[0].device == "GPU-5"


def test_memory_is_bounded_whatever_comes(host: Host) -> None:
    """One incident wrote 800,000 lines; a fleet of faulty links flapped all night."""
    for number in range(3 * EVENTS_WAITING_MAX):
        host.event("disk.error", device=f"sd{number}")
    host.event("gpu.xid", 79)
    names = host.after(1)
    assert names[0] == "xid79" and len(names) <= FINDINGS_MAX
    assert host.findings.dropped_events == 2 * EVENTS_WAITING_MAX + 1
    assert len(host.findings.event_findings.records) <= RECORDS_MAX
    assert len(host.findings.cleared) <= CLEARED_MAX
    for _ in range(100):
        host.event("gpu.xid", 79, event_id="the same", count=800_000)
    host.after(1)
    assert host.findings.findings[0].count == 800_001


def test_a_restart_knows_what_needs_a_boot(host: Host) -> None:
    """The agent was upgraded after XID 79: the new process reported the host as healthy."""
    host.event("gpu.xid", 79)
    host.event("gpu.xid", 95)
    host.read(GPU, {"gpu.energy_joules": 5e6})
    host.read(PORT, ONCE["rdma_port_down"][1])
    host.after(3)
    old = host.findings
    kept = FindingsState(
        BOOT,
        old.event_findings.watched_since_ns,
        host.now_ns,
        tuple(old.event_findings.events()),
        old.reset_detector.last_reset_ns,
        old.reset_detector.energy_joules,
        old.once_well(),
    )
    after = Host(now_ns=host.now_ns + 60 * SECOND)
    after.findings.restore(kept, after.now_ns)
    assert after.after(1) == ["xid79", "xid95"]
    assert all(finding.enforceable for finding in after.findings.findings)
    after.read(GPU, {"gpu.energy_joules": 7.0})  # it was reset while no agent ran
    after.read(PORT, ONCE["rdma_port_down"][2])
    assert after.after(40) == ["rdma_port_down", "xid79"]


def test_what_is_older_than_the_agent_is_not_enforced(host: Host) -> None:
    """At the installation the kernel log had an XID 95 of last week, long since reset."""
    host.event("gpu.xid", 95, boottime_ns=START - 3600 * SECOND)
    host.event("gpu.xid", 79, boottime_ns=START - 3600 * SECOND)
    host.event("gpu.xid", 119, boottime_ns=START - 5 * SECOND)
    host.after(1)
    seen = {finding.name: finding for finding in host.findings.findings}
    assert not seen["xid95"].enforceable and "a reset may have ended it" in seen["xid95"].message
    assert seen["xid79"].enforceable  # only a boot ends it, and this is that boot
    assert seen["xid119"].enforceable


def test_an_event_told_again_does_not_come_back(host: Host) -> None:
    """The kernel log was read again after a crash: an ended finding stays ended."""
    first: HealthEvent = host.event("gpu.lost", event_id="x")
    host.after(1)
    host.event("gpu.lost", attributes={"state": "back"})
    host.after(1)
    host.findings.observe(first)
    assert host.after(1) == []


def test_a_device_is_one_by_address_and_by_uuid(host: Host) -> None:
    """The kernel names a GPU by address, before the inventory has its UUID."""
    host.findings.set_gpu_addresses({})
    host.event("gpu.xid", 79)
    host.after(1)
    assert host.findings.findings[0].device == ADDRESS
    host.findings.set_gpu_addresses({GPU: ADDRESS.upper()})
    host.after(1)
    (result,) = host.findings.findings
    assert result.device == GPU and host.findings.address_of(GPU) == ADDRESS


def test_another_policy_keeps_what_its_same_rows_know(host: Host) -> None:
    """A policy was rolled out: ports that were up before it are still known to have been up."""
    host.read(PORT, ONCE["rdma_port_down"][1])
    host.event("gpu.xid", 79)
    host.after(3)
    without = host_policy_file.overlay(
        host_policy_file.parse('version = "2"\nrollout_share = 1.0\noff = ["xid"]'), builtin()
    )
    host.findings.set_policy(without)
    host.read(PORT, ONCE["rdma_port_down"][2])
    assert host.after(40) == ["rdma_port_down"]


_steps = st.tuples(
    st.integers(0), st.sampled_from("ab"), st.integers(0, 2), st.sampled_from([1, 1, 2, 9, 40])
)


@pytest.mark.parametrize("often", [_OFTEN, _OF_A_RESET])
@given(st.lists(_steps, max_size=25))
def test_what_reads_as_before_is_not_looked_at_again_and_nothing_is_missed_by_it(
    often: dict[str, tuple[float, ...]], steps: list[tuple[int, str, int, int]]
) -> None:
    """Checking every row of every device each second was an eighth of the daemon's work."""
    host, thorough = Host(), Host()
    for number, device, choice, seconds in steps:
        name, values = sorted(often.items())[number % len(often)]
        value = values[choice % len(values)]
        for tested in (host, thorough):
            tested.read(device, {name: value})
            if often is _OF_A_RESET and choice == 2:
                tested.event("gpu.xid", 95, device)
        for _ in range(seconds):
            for table in thorough.findings.table_triggers:
                table.always_due = table.triggers
            host.after(1)
            thorough.after(1)
            assert host.findings.findings == thorough.findings.findings
            assert (
                host.findings.reset_detector.last_reset_ns
                == thorough.findings.reset_detector.last_reset_ns
            )


def test_a_second_that_reads_as_the_one_before_concerns_nobody(host: Host) -> None:
    """Each row was checked each second, on every healthy host of the fleet."""
    for device, _, alike, _ in READINGS.values():
        host.read(device, alike)
    for device, well, *_ in ONCE.values():
        host.read(device, well)
    host.read(GPU, {"gpu.energy_joules": 5e6, "gpu.counter_epoch_count": 0})
    host.after(60)
    host.read(GPU, {"gpu.energy_joules": 6e6})
    tables = {table_trigger.name: table_trigger for table_trigger in host.findings.table_triggers}
    for name in ("gpu_1s", "gpu_1s_changes", "rdma_1s", "nvlink_10s_changes", "filesystem_60s"):
        assert not tables[name].due(host.table(name))
    host.read(GPU, {"gpu.lost_state": 1})
    result = {trigger.row.name for trigger in tables["gpu_1s"].due(host.table("gpu_1s"))}  # type: ignore[attr-defined]
    assert result == {"gpu_lost"}


def test_a_limit_that_is_read_with_another_table_may_change_by_itself() -> None:
    """The limit is a signal of another table: it fell, the reading stayed the same."""
    host = Host(_with_row('when = ["gpu.pcie_width_lanes > gpu.utilization_ratio"]'))
    host.read(GPU, {"gpu.pcie_width_lanes": 0.5, "gpu.utilization_ratio": 0.9})
    assert host.after(60) == []
    host.read(GPU, {"gpu.utilization_ratio": 0.1})
    assert host.after(10) == ["new"]


def test_what_came_late_is_looked_at_again_when_it_comes_in_time(host: Host) -> None:
    """A reading from before a suspension was too old; the same value later must count."""
    host.read(GPU, {"gpu.ecc_uncorrected_volatile_errors": 0})
    assert host.after(5) == []
    host.read(GPU, {"gpu.ecc_uncorrected_volatile_errors": 2})
    host.table("gpu_1s_changes")
    host.now_ns += 3_600 * SECOND
    host.findings.evaluate(host.latest.tables, host.now_ns)
    assert host.after(5) == ["gpu_ecc_uncorrected"]


def test_who_was_well_is_known_also_of_an_idle_host() -> None:
    """The links were wide on the idle host; the first job met a narrow link."""
    wide = 'when = ["gpu.pcie_width_lanes < 16", "gpu.utilization_ratio >= 0.5"]\nonce_otherwise = true'
    host = Host(_with_row(wide))
    host.read(GPU, {"gpu.pcie_width_lanes": 16.0, "gpu.utilization_ratio": 0.0})
    assert host.after(20) == []
    host.read(GPU, {"gpu.pcie_width_lanes": 8.0, "gpu.utilization_ratio": 0.9})
    assert host.after(10) == ["new"]


def _with_row(lines: str) -> Policy:
    text = f"""
        version = "2"
        rollout_share = 1.0
        [[row]]
        name = "new"
        {lines}
        severity = "hazard"
        message = "is so"
        action = "none"
        scope = "gpu"
        clears = "reading"
        source = "assumed"
    """
    return host_policy_file.overlay(host_policy_file.parse(text), builtin())
