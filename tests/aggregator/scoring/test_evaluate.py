"""Judging over time: UNKNOWN, STALE and frozen hosts, late and odd frames, ten thousand hosts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gangline.aggregator.fleet import fleet as fleets
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.fleet.tables import DeviceTable
from gangline.aggregator.hazard.features import SCORE_FEATURE_COLUMN
from gangline.aggregator.ingest.findings import ActiveFindings
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.judge_loop import ClockJumpDetector
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.rule_catalogue import RULES
from gangline.aggregator.scoring import findings as findings_module
from gangline.aggregator.scoring import rules
from gangline.aggregator.scoring.base_hazard import base_hazard_per_hour
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.aggregator.scoring.view import FleetView
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.wire import telemetry_pb2
from tests.worlds import SECOND_NS, START_NS, World, block, gpu_of, throttle


def test_a_host_is_unknown_until_it_was_heard_for_five_seconds() -> None:
    """A host that just registered is UNKNOWN."""
    world = World()
    assert evaluate(world.fleet, START_NS, None).hosts[0].state is HealthState.UNKNOWN
    world.run(3)
    score = world.score(world.hosts[0])
    assert score.state is HealthState.UNKNOWN and 0.0 < score.score < 1.0
    world.run(4)
    assert set(world.states().values()) == {"HEALTHY"}


def test_a_healthy_host_has_the_base_hazard_and_a_measured_speed() -> None:
    """The numbers of a host of which only the size is known."""
    world = World(seconds=20)
    score = world.score(world.hosts[0])
    assert score.hazard_per_hour == pytest.approx(base_hazard_per_hour(8))
    assert score.score == pytest.approx(math.exp(-8 * (8 * 2.2e-5 + 5e-6)))
    assert 0.93 < score.relative_speed <= 1.0
    assert score.evidence == () and score.reason is Reason.NONE


def test_a_silent_host_is_stale_with_wide_bounds_and_comes_back() -> None:
    """The cause may be a dead agent, host or link; the host is not HEALTHY."""
    world = World(seconds=20)
    fresh = world.score(world.hosts[0])
    world.hosts[0].silent = True
    world.run(14)
    assert world.score(world.hosts[0]).state is HealthState.HEALTHY
    world.run(5)
    stale = world.score(world.hosts[0])
    assert (stale.state, stale.reason) == (HealthState.STALE, Reason.STALE_TELEMETRY)
    assert stale.score_lower < fresh.score_lower
    assert list(world.states().values()).count("HEALTHY") == 3
    world.hosts[0].silent = False
    world.run(2)
    assert world.score(world.hosts[0]).state is HealthState.HEALTHY


def test_what_is_measured_of_a_silent_host_is_not_known() -> None:
    """Hosts that had been switched off were recorded each morning as free of errors."""
    world = World(seconds=20)
    world.hosts[0].silent = True
    world.run(30)
    measured = ("corrected_errors", "remaps_waiting", "link_errors", "link_downs", "gpus_unread")
    for host, known in zip(world.hosts, (False, True, True, True), strict=True):
        inputs = world.score(host).inputs
        assert inputs is not None
        is_known = [math.isfinite(inputs.features[SCORE_FEATURE_COLUMN[name]]) for name in measured]
        assert is_known == [known] * len(measured)


def test_a_sick_host_that_falls_silent_is_still_sick() -> None:
    """After XID 95 the host hangs: silence must not clear the fault."""
    world = World(seconds=10)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.hosts[1].grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=300)
    world.run(20)
    world.hosts[0].silent = world.hosts[1].silent = True
    world.run(300)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY
    assert world.score(world.hosts[1]).state is HealthState.SUSPECT


def test_more_findings_than_are_kept_stand_as_they_were_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Counters at their ceiling on every port evicted real faults from the findings.

    Each second the oldest findings were evicted, found again and stored, among them the faults from
    which hazards are computed.
    """
    monkeypatch.setattr(fleets, "FINDINGS_MAX", 6)
    monkeypatch.setattr(findings_module, "NON_FAULT_FINDINGS_MAX", 3)
    world = World()
    findings = ActiveFindings(world.fleet)
    for host in world.hosts:
        for port in ("mlx5_0/1", "mlx5_1/1"):
            host.set("rdma_10s_changes", port, buffer_overrun_errors=15)
    world.run(15)
    world.event(world.hosts[3], 79, gpu_of(world.hosts[3], 0))
    world.run(2)
    assert [name for _, name, _ in world.fleet.findings] == [*["counter.saturated"] * 3, "gpu.xid"]
    assert len(findings.changes(world.now_ns)) == 4
    world.run(5)
    assert findings.changes(world.now_ns) == []
    for number in range(9):
        findings.find(f"h{number}", "clock.offset", "off", world.now_ns, expires=False)
    assert len(findings.changes(world.now_ns)) == 2 and len(world.fleet.findings) == 6
    findings.report_not_storing("full", world.now_ns)
    assert len(findings.changes(world.now_ns)) == 1, "what stands against ourselves always has room"
    assert (
        len([record for record in caplog.records if "counter.saturated of" in record.message]) == 1
    )


@pytest.mark.slow
def test_silence_makes_nothing_younger() -> None:
    """A fault that was nearly over restarted with each silence: a host stayed slow for an hour."""
    world = World(seconds=20)
    device = gpu_of(world.hosts[0], 0)
    world.hosts[0].grow("gpu_1s_changes", device, ecc_corrected_volatile_errors=5)
    world.run(10)
    world.hosts[0].grow("gpu_1s_changes", device, ecc_corrected_volatile_errors=0)
    world.run(280, every_seconds=1)
    assert world.states()["h0"] == "WATCH"
    world.hosts[0].silent = True
    world.run(100)
    world.hosts[0].silent = False
    world.run(10)
    assert world.states()["h0"] == "WATCH"
    world.run(60)
    assert world.states()["h0"] == "HEALTHY"


def test_rates_do_not_decay_while_nobody_reports_them() -> None:
    """Ten seconds without a frame are not ten seconds without errors."""
    world = World(seconds=20)
    world.hosts[0].grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=300)
    world.run(30)
    before = world.score(world.hosts[0]).evidence[0].value
    world.hosts[0].silent = True
    world.run(12)
    assert world.score(world.hosts[0]).evidence[0].value == before


def test_many_hosts_silent_at_once_are_our_fault_and_frozen() -> None:
    """A switch in front of the aggregator died: 20 hosts must not be drained for it."""
    world = World(hosts=8, gpus=1, seconds=20)
    for host in world.hosts[:5]:
        host.silent = True
    snapshot = world.run(60)
    assert set(world.states().values()) == {"HEALTHY"}
    assert "5 of 8 hosts fell silent" in snapshot.degraded_reason
    assert (
        "more likely a fault of the aggregator" in world.score(world.hosts[0]).evidence[0].message
    )
    assert world.score(world.hosts[0]).score_lower < world.score(world.hosts[7]).score_lower
    for host in world.hosts[:5]:
        host.silent = False
    assert world.run(2).degraded_reason == ""


def test_an_outage_is_not_frozen_for_ever() -> None:
    """Five hosts were removed for good."""
    world = World(hosts=8, gpus=1, seconds=20)
    for host in world.hosts[:5]:
        host.silent = True
    world.now_ns += 880 * SECOND_NS
    assert world.run(10).degraded_reason
    snapshot = world.run(30)
    assert not snapshot.degraded_reason
    assert list(world.states().values()).count("STALE") == 5


def set_back(world: World, seconds: int) -> None:
    """Set the aggregator's clock back; the boot time of its hosts stays."""
    world.now_ns -= seconds * SECOND_NS
    for host in world.hosts:
        host.booted_ns -= seconds * SECOND_NS


@pytest.mark.slow
def test_a_clock_of_ours_that_is_set_back_makes_no_host_new_and_none_well() -> None:
    """NTP set the aggregator's clock back by an hour after its start.

    For that hour every host was UNKNOWN, a dead host counted as alive, no fault began, and no fault
    that was over ended.
    """
    world = World()
    throttle(world.hosts[1], 0)
    world.run(20)
    world.hosts[2].silent = True
    world.run(30)
    assert world.states()["h2"] == "STALE"
    world.hosts[2].silent, world.hosts[3].silent = False, True
    world.run(5)
    throttle(world.hosts[1], 0, 1.0 / 0.68)
    world.event(world.hosts[2], 1, "0000:00:01.0", "pcie.aer")
    world.hosts[1].set("gpu_1s", gpu_of(world.hosts[1], 0), temperature_celsius=66)
    world.run(1)
    set_back(world, 3600)
    throttle(world.hosts[0], 0)
    world.run(2)
    assert [world.states()[f"h{number}"] for number in (0, 1, 2)] == [
        "HEALTHY",
        "DEGRADED",
        "SUSPECT",
    ]
    world.run(20)
    assert world.states()["h0"] == "DEGRADED", "what begins now counts"
    assert world.states()["h3"] == "STALE", "who says nothing is not heard for an hour"
    world.run(60)
    assert world.states()["h1"] == "HEALTHY", "what was over has ended"
    world.run(530)
    assert world.states()["h2"] == "HEALTHY", "nor does an event of ten minutes stand for an hour"


def test_a_clock_of_ours_that_is_set_forward_says_nothing_about_hosts() -> None:
    """NTP set the clock forward by an hour.

    Every host was STALE until its next frame, a symptom that had just begun counted at once, and a
    fault that lasts ten minutes was over.
    """
    world = World(hosts=8)
    world.event(world.hosts[2], 1, "0000:00:01.0", "pcie.aer")
    world.run(20)
    throttle(world.hosts[1], 0)
    world.hosts[3].silent = True
    world.run(2)
    leapt_ns = 3600 * SECOND_NS
    set_back(world, -3600)
    world.fleet.observe("h0", world.frame(world.hosts[0]), world.now_ns)  # before the next turn
    world.now_ns += SECOND_NS
    world.fleet.apply_clock_jump(leapt_ns, world.now_ns)
    world.snapshot = evaluate(world.fleet, world.now_ns, world.snapshot, jump_ns=leapt_ns)
    states = world.states()
    assert not world.snapshot.degraded_reason and states.pop("h2") == "SUSPECT"
    assert set(states.values()) == {"HEALTHY"}
    world.run(14)
    assert world.states()["h3"] == "STALE", "who says nothing is silent as soon as ever"
    assert world.states()["h1"] == "DEGRADED"


def test_a_host_heard_by_the_clock_as_it_is_now_did_not_boot_later() -> None:
    """A frame between a clock jump and the turn that detects it moved the boot time by 1 h.

    Until its next frame the host's events were attributed to the boot before.
    """
    world = World(hosts=2, seconds=5)
    set_back(world, -3600)
    world.now_ns += SECOND_NS
    world.fleet.observe("h0", world.frame(world.hosts[0]), world.now_ns)
    world.now_ns += SECOND_NS
    world.fleet.apply_clock_jump(3600 * SECOND_NS, world.now_ns)
    for host in world.hosts:
        world.event(host, 1, "0000:00:01.0", "pcie.aer", ago=60.0)
    assert {event.host for event in world.fleet.active_events} == {0, 1}


def test_a_leap_of_the_clock_is_seen_by_one_that_nobody_sets() -> None:
    """A long turn is not a jump, nor is a clock set back, which is checked elsewhere."""
    steady_ns, wall_ns = 0, START_NS
    detector = ClockJumpDetector(lambda: wall_ns, lambda: steady_ns)
    jumps: list[int] = []
    for passed, leapt in ((0, 0), (1, 0), (40, 0), (1, 3600), (1, -3600), (1, 4), (2, 86_400)):
        steady_ns += passed * SECOND_NS
        wall_ns += (passed + leapt) * SECOND_NS
        jumps.append(detector.check().jump_ns // SECOND_NS)
    assert jumps == [0, 0, 0, 3600, 0, 0, 86_400]


def test_a_machine_that_stood_still_is_no_clock_set_forward() -> None:
    """A virtual machine was suspended for 1 h: all hosts seemed to have booted an hour later."""
    clocks = [START_NS, 0, 0]
    detector = ClockJumpDetector(lambda: clocks[0], lambda: clocks[1], lambda: clocks[2])
    jumps: list[tuple[int, int]] = []
    for steps in (
        (1, 1, 1),
        (3601, 1, 3601),
        (7201, 1, 3601),
        (1, 1, 3601),
        (3601, 1, 1),
        (40, 40, 40),
    ):
        clocks = [now + step * SECOND_NS for now, step in zip(clocks, steps, strict=True)]
        _, leapt_ns, stood_ns = detector.check()
        jumps.append((leapt_ns // SECOND_NS, stood_ns // SECOND_NS))
    assert jumps == [(0, 0), (0, 3600), (3600, 3600), (0, 0), (3600, 0), (0, 0)]


@pytest.mark.parametrize("stood", [False, True])
def test_hosts_booted_when_they_did_though_we_stood_still(stood: bool) -> None:
    """An old event keeps its age; events that a freshly booted host reports belong to this boot."""
    world = World(hosts=2)
    world.hosts[1].booted_ns = START_NS - 100 * SECOND_NS
    world.event(world.hosts[0], 1, "0000:00:01.0", "pcie.aer")
    world.run(5)
    if stood:
        world.now_ns += 3600 * SECOND_NS
    else:
        set_back(world, -3600)
    world.fleet.apply_clock_jump(3600 * SECOND_NS, world.now_ns, suspended=stood)
    heard_ns = int(world.fleet.last_received_ns[0])
    assert world.now_ns - heard_ns < 5 * SECOND_NS
    (record,) = world.fleet.active_events
    assert (world.now_ns - record.last_time_ns > 3600 * SECOND_NS) is stood
    world.event(world.hosts[1], 1, "0000:00:01.0", "pcie.aer", ago=200.0)
    assert {event.host for event in world.fleet.active_events} == ({0, 1} if stood else {0})


@pytest.mark.parametrize("stops", [1, 20])
def test_a_stop_between_two_clocks_is_no_leap(stops: int) -> None:
    """A process stopped for a minute between reading the two clocks: the next turn saw a jump."""
    passed_ns, left = 0, 0

    def wall_ns() -> int:
        nonlocal passed_ns, left
        passed_ns, left = passed_ns + (60 * SECOND_NS if left else 0), max(left - 1, 0)
        return START_NS + passed_ns

    def steady_ns() -> int:
        return passed_ns

    leaps = ClockJumpDetector(wall_ns, steady_ns)
    assert leaps.check() == (START_NS, 0, 0)
    left = stops
    checks = [leaps.check() for _ in range(9)]
    assert [check.jump_ns for check in checks] == [0] * 9
    assert checks[-1].now_ns == START_NS + stops * 60 * SECOND_NS


def test_a_collector_that_is_switched_off_is_told_of_no_more() -> None:
    """The failure of a disabled collector was shown until the aggregator ended.

    After a restart it was shown again, because the event is stored.
    """
    world = World()
    world.hosts[0].set("collector_10s", "rdma_1s", outcome_state=3)
    world.event(world.hosts[0], 3, "rdma_1s", "collector.outcome", message="no such file")
    world.run(40)

    def collector_messages(host: int) -> dict[str, str]:
        return {status.name: status.message for status in world.fleet.collector_statuses.of(host)}

    assert collector_messages(0) == {"gpu_1s": "", "host_1s": "", "rdma_1s": "no such file"}
    del world.hosts[0].readings["collector_10s", "rdma_1s"]
    world.event(world.hosts[1], 3, "nvme_60s", "collector.outcome", message="told again")
    world.run(30)
    assert "rdma_1s" in collector_messages(0) and "nvme_60s" in collector_messages(1), (
        "one that was left out once is not off"
    )
    world.run(60)
    assert collector_messages(0).keys() == {"gpu_1s", "host_1s"}
    assert "rdma_1s" in collector_messages(2)
    assert "nvme_60s" not in collector_messages(1)
    world.hosts[0].set("collector_10s", "rdma_1s", outcome_state=0, turn_seconds=0.001)
    world.hosts[2].reboot(world.now_ns - 30 * SECOND_NS)
    del world.hosts[2].readings["collector_10s", "host_1s"]
    world.register(world.hosts[2])
    world.run(90)
    assert "rdma_1s" in collector_messages(0)
    assert collector_messages(2).keys() == {"gpu_1s", "rdma_1s"}


def test_late_frames_do_not_move_the_present() -> None:
    """A frame that waited on disk reports the past."""
    world = World(seconds=10)
    late = world.frame(world.hosts[0])
    device = gpu_of(world.hosts[0], 0)
    world.hosts[0].set("gpu_1s", device, temperature_celsius=90)
    world.run(5)
    world.fleet.observe("h0", late, world.now_ns)
    table, row = world.fleet.tables["gpu_1s"], world.fleet.devices["gpu"].find(0, device)
    assert table.gauge("temperature_celsius")[row] == 90


def test_backlog_does_not_make_a_silent_host_fresh() -> None:
    """After an outage the agent drains its spool: the host is connected, its readings are old."""
    world = World(seconds=20)
    world.hosts[0].silent = True
    world.run(30)
    world.fleet.note_backlog("h0", world.now_ns)
    world.run(1)
    score = world.score(world.hosts[0])
    assert score.state is HealthState.STALE and "data kept meanwhile" in score.reason_message


def test_a_late_frame_of_the_boot_before_is_late() -> None:
    """Its boottime is larger than the new boot's, and must not make it the newer frame."""
    world = World(seconds=10)
    old = world.frame(world.hosts[0])
    world.hosts[0].reboot(world.now_ns)
    world.run(10)
    before = int(world.fleet.last_received_ns[0])
    world.fleet.observe("h0", old, world.now_ns + 1)
    assert int(world.fleet.last_received_ns[0]) == before
    world.run(2)
    assert world.score(world.hosts[0]).state is HealthState.HEALTHY


def test_unknown_signals_are_left_to_the_store() -> None:
    """A newer agent's signals are never refused, nor do they fill the memory."""
    fleet = Fleet()
    fleet.register("a", simulated=False, boot_id=b"b" * 16, devices=[])
    unknown = Block("gpu_1s", ["G"], [1000, 60_000])
    unknown.put_float(0, 0, 1.5e9)
    unknown.put_int(1, 0, 7)
    flood = Block("shiny_1s", [f"d{i}" for i in range(400)], [60_001])
    for row in range(400):
        flood.put_int(0, row, row)
    stamp = frame.Stamp(b"r" * 16, b"b" * 16, 1, 10, 10)
    fleet.observe("a", read_frame(frame.encode(stamp, (unknown, flood))), 5)
    assert sum(devices.count for devices in fleet.devices.values()) == 1  # the flood makes no rows
    assert fleet.tables["gpu_1s"].gauge("sm_clock_hertz")[0] == 1.5e9
    evaluate(fleet, 10, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -5.0])
def test_odd_numbers_break_nothing(value: float) -> None:
    """A driver that reports NaN, or minus infinity degrees, spoils no other host's score."""
    world = World(seconds=10)
    sick = world.hosts[0]
    for table, device in list(sick.readings):
        if table in ("gpu_1s", "gpu_10s", "host_1s", "filesystem_60s"):
            columns = [
                c for c in sick.readings[table, device] if not c.endswith(("state", "flags"))
            ]
            columns = [c for c in columns if "nanoseconds" not in c]
            sick.set(table, device, **dict.fromkeys(columns, value))
    world.run(30)
    score = world.score(sick)
    assert 0.0 <= score.score <= 1.0 and score.hazard_per_hour > 0
    assert [s for n, s in world.states().items() if n != "h0"] == ["HEALTHY"] * 3


def test_frames_of_strangers_and_of_the_far_future_are_left_alone() -> None:
    """A frame of a host that never registered, and a frame from the year 2500."""
    world = World(seconds=10)
    stamp = frame.Stamp(b"R" * 16, b"B" * 16, 99, 2**64 - 1, 2**64 - 1)
    world.fleet.observe("nobody", read_frame(frame.encode(stamp, ())), world.now_ns)
    world.fleet.observe("h0", read_frame(frame.encode(stamp, ())), world.now_ns)
    world.run(5)
    assert set(world.states().values()) == {"HEALTHY"}


def test_node_indexes_stay_and_names_are_shared() -> None:
    """10,000 re-registrations invalidate no client's dictionary."""
    world = World(hosts=2)
    first = world.run(2)
    world.register(world.hosts[0])
    assert world.run(1).names is first.names
    world.fleet.register("new", simulated=True, boot_id=b"", devices=[])
    assert world.run(1).names == ("h0", "h1", "new")
    assert world.fleet.index["h0"] == 0


def test_a_snapshot_of_another_epoch_is_not_built_upon() -> None:
    """After a restart node 3 may be another host: its symptoms are not carried over."""
    world = World(seconds=10)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    old = world.run(1)
    fresh = Fleet(epoch=8)
    fresh.register("x", simulated=False, boot_id=b"", devices=[])
    after = evaluate(fresh, world.now_ns + SECOND_NS, old)
    assert after.version == old.version + 1
    assert after.hosts[0].host == "x" and after.hosts[0].state is HealthState.UNKNOWN


def test_every_rule_that_is_declared_is_judged_by() -> None:
    """A rule without a detector would never find anything."""
    detected = {name for detector in rules.DETECTORS for name in detector.rules}
    assert RULES.keys() - detected == {"host.silent", "host.returned"}, "these have arguments"


def test_a_rule_that_fails_blinds_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A division by zero in one rule must not hide a fatal XID, nor log a traceback each second."""

    def broken(_: object) -> list[object]:
        raise ZeroDivisionError("by zero")

    world = World(seconds=10)
    monkeypatch.setattr(rules, "DETECTORS", (broken, *rules.DETECTORS))
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    snapshot = world.run(1)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY
    assert snapshot.degraded_reason == "rule broken failed: ZeroDivisionError: by zero"
    world.run(5)
    assert len([record for record in caplog.records if "rule broken failed" in record.message]) == 1


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_sick_one_of_many_hosts(count: int) -> None:
    """Only the sick host of a fleet of the designed size is found."""
    sick = 471 * count // 1000
    fleet = Fleet()
    clock = np.random.default_rng(1).normal(1.755e9, 0.02e9, (count, 8)).clip(1.65e9, 1.85e9)
    clock[sick, 3] = 1.2e9
    devices = [f"GPU-{i}" for i in range(8)]
    inventory = [
        telemetry_pb2.Device(kind="gpu", key=d, attributes={"name": "H100"}) for d in devices
    ]
    for host in range(count):
        fleet.register(f"n{host}", simulated=False, boot_id=b"b" * 16, devices=inventory)
    values = {"power_watts": 550.0, "utilization_ratio": 1.0, "temperature_celsius": 88.0,
              "clock_event_reasons_flags": 0x20}  # fmt: skip
    readings = block("gpu_1s", {d: dict(values) for d in devices})
    snapshot = None
    for second in range(1, 13):
        now_ns = START_NS + second * SECOND_NS
        stamp = frame.Stamp(b"r" * 16, b"b" * 16, second, second * SECOND_NS, now_ns)
        for host in range(count):
            for gpu in range(8):
                readings.put_float(0, gpu, clock[host, gpu])
            fleet.observe(f"n{host}", read_frame(frame.encode(stamp, (readings,))), now_ns)
        snapshot = evaluate(fleet, now_ns, snapshot)
    assert snapshot is not None and len(snapshot.hosts) == count
    blamed = [h.host for h in snapshot.hosts if h.state is not HealthState.HEALTHY]
    assert blamed == [f"n{sick}"]
    assert snapshot.columns.state.shape == (count,)


def test_what_nothing_counts_is_not_asked_when_it_was_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most queries of a turn match no row: looking up their ages took a third of the turn."""
    world = World(hosts=2, gpus=2, seconds=20)
    present = FleetView(world.fleet, world.now_ns)

    def fail(*_: object) -> None:
        raise AssertionError("asked of no row")

    monkeypatch.setattr(DeviceTable, "age_seconds_at", fail)
    for table, column in (
        ("gpu_1s_changes", "ecc_corrected_volatile_errors"),
        ("rdma_1s_changes", "ack_timeout_errors"),
    ):
        rows, events = present.counting(table, column, 1.0)
        assert (rows.size, events.size) == (0, 0)
        assert present.fresh_at(table, rows).dtype == np.bool_
