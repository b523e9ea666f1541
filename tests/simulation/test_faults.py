"""Each fault does what the truth log says, where and when it says so, and nothing else happens."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from gangline.agent.simulated import Fault, SimulatedFleet
from gangline.agent.simulated.faults import ECC_XID95, KINDS, RDMA_RETRANSMISSIONS, THERMAL
from gangline.agent.simulated.tables import Floats
from gangline.fingerprints.wire import telemetry_pb2
from tests.simulation.readings import Reading

SEEDS = range(1, 11)
HOSTS = 16
SECONDS = 60
SIGNALS = (
    "gpu.sm_clock_hertz",
    "gpu.power_watts",
    "gpu.temperature_celsius",
    "gpu.utilization_ratio",
    "gpu.clock_event_reasons_flags",
    "gpu.violation_thermal_nanoseconds",
    "gpu.ecc_corrected_volatile_errors",
    "gpu.ecc_uncorrected_volatile_errors",
    "gpu.recovery_action_state",
    "gpu.processes_count",
    "rdma.ack_timeout_errors",
    "rdma.packet_sequence_errors",
    "rdma.out_of_sequence_packets",
    "rdma.adaptive_retransmissions_packets",
    "rdma.transmitted_bytes",
)


@dataclass
class Story:
    """A minute of a fleet: signal -> (seconds, hosts, devices). Index s is what was read at s + 1."""

    fleet: SimulatedFleet
    of: dict[str, Floats]
    events: list[tuple[int, str, telemetry_pb2.HealthEvent]]

    def fault(self, kind: str) -> Fault:
        (fault,) = [fault for fault in self.fleet.truth if fault.kind == kind]
        return fault

    def at(self, fault: Fault, name: str) -> Floats:
        return self.of[name][:, fault.host_index, fault.part_index]

    def others(self, fault: Fault, name: str) -> Floats:
        """Return the same signal of all other devices: (seconds, all but one)."""
        keep = np.ones(self.of[name].shape[1:], bool)
        keep[fault.host_index, fault.part_index] = False
        return self.of[name][:, keep]


@pytest.fixture(scope="module", params=SEEDS, name="story")
def _story(request: pytest.FixtureRequest) -> Story:
    fleet = SimulatedFleet(request.param, HOSTS)
    rows: dict[str, list[list[list[float]]]] = {name: [] for name in SIGNALS}
    events = []
    for second in range(1, SECONDS + 1):
        step = list(fleet.step(1.0))
        events += [(second, host, event) for host, _, of_host in step for event in of_host]
        readings = [Reading(blocks) for _, blocks, _ in step]
        for name in SIGNALS:
            rows[name].append([reading.numbers(name) for reading in readings])
    return Story(fleet, {name: np.array(row) for name, row in rows.items()}, events)


def begin(fault: Fault) -> int:
    """Return the index of the first reading that the fault can show in."""
    return int(np.floor(fault.begins_seconds))


def test_three_faults_on_three_hosts_within_ten_seconds(story: Story) -> None:
    """Two faults on one host would hide each other's reason."""
    truth = story.fleet.truth
    assert [fault.kind for fault in truth] == list(KINDS)
    assert len({fault.host for fault in truth}) == 3
    assert all(20 <= fault.begins_seconds <= 30 for fault in truth)
    for fault in truth:
        _, least, greatest, _ = KINDS[fault.kind]
        assert least <= fault.amount <= greatest
        keys = {d.key for d in story.fleet.devices(fault.host) if d.kind == fault.device_kind}
        assert fault.device in keys


def test_nothing_moves_before_its_time(story: Story) -> None:
    """A fault that shows before its moment would let a judge look good that only guesses."""
    first = min(begin(fault) for fault in story.fleet.truth)
    for name, most in (("gpu.temperature_celsius", 8), ("gpu.sm_clock_hertz", 0.02 * 1.7e9)):
        values = story.of[name][:first]
        assert (values.max(axis=0) - values.min(axis=0)).max() <= most
    ecc, thermal = story.fault(ECC_XID95), story.fault(THERMAL)
    errors = story.at(ecc, "gpu.ecc_corrected_volatile_errors")[: begin(ecc)]
    assert errors.max() - errors.min() <= 3
    held = story.at(thermal, "gpu.violation_thermal_nanoseconds")[: begin(thermal) + 4]
    assert held.min() == held.max()


def test_a_failed_cooler(story: Story) -> None:
    """Temperature leads, the clock follows: within 10 s at the limit, then 25 to 40 % slower."""
    fault = story.fault(THERMAL)
    celsius, clock = story.at(fault, "gpu.temperature_celsius"), story.at(fault, SIGNALS[0])
    held = story.at(fault, "gpu.violation_thermal_nanoseconds")
    normal = np.median(clock[: begin(fault)])
    # Read once a second and cut to whole degrees; the brake pulls it back within a second.
    hot = int(np.argmax(celsius >= 85))
    slow = int(np.argmax(clock < 0.9 * normal))
    assert 4 <= hot + 1 - fault.begins_seconds <= 10.5
    assert hot <= slow, "temperature leads the clock"
    braked = held[-1] - held[hot]
    assert braked > 0.6 * (SECONDS - hot) * 1e9
    # Where it has brooded for a while without a pause of the job, it stands at what was drawn.
    falls = 1 - clock[slow + 2 :] / normal
    working = story.at(fault, "gpu.clock_event_reasons_flags")[slow + 2 :].astype(int) & 0x20 != 0
    assert 0.25 <= np.median(falls[working]) <= 0.40
    assert abs(np.median(falls[working]) - fault.amount) < 0.05
    assert celsius.max() <= 95, "a part that shuts down is another fault"


def test_heat_stays_where_it_is(story: Story) -> None:
    """One hot GPU must not make its neighbours look hot."""
    fault = story.fault(THERMAL)
    assert story.others(fault, "gpu.temperature_celsius").max() < 75
    held = story.others(fault, "gpu.violation_thermal_nanoseconds")
    assert (held[0] == held[-1]).all()
    flags = story.others(fault, "gpu.clock_event_reasons_flags").astype(int)
    assert not (flags & 0x60).any()


def test_the_others_wait_for_the_hot_one(story: Story) -> None:
    """Its victims show 100 % utilisation at waiting power; whoever looks at them finds the wrong host."""
    fault = story.fault(THERMAL)
    victims = np.median(story.others(fault, "gpu.power_watts"), axis=1)
    alone = (victims < 165) & (story.at(fault, "gpu.power_watts") > 210)
    assert not alone[: begin(fault) + 4].any()
    assert alone[begin(fault) + 10 :].sum() >= 2
    assert story.others(fault, "gpu.utilization_ratio")[alone].min(axis=0).max() >= 0.98


def test_retransmissions_climb(story: Story) -> None:
    """From nothing to hundreds a second within 15 s, on one port; its bytes do not fall behind for
    good, since everyone waits for it."""
    fault = story.fault(RDMA_RETRANSMISSIONS)
    first, full = begin(fault), begin(fault) + 15
    for name in SIGNALS[10:14]:
        counter = story.at(fault, name)
        assert counter[first - 1] - counter[0] <= 5
        at_first = (counter[first + 4] - counter[first - 1]) / 5
        at_last = (counter[-1] - counter[full]) / (SECONDS - 1 - full)
        assert at_first < 0.6 * at_last
        assert 0.3 * fault.amount < at_last < 1.5 * fault.amount
        others = story.others(fault, name)
        assert (others[-1] - others[0]).max() <= 10
    moved = story.at(fault, "rdma.transmitted_bytes")[-1] - story.at(fault, SIGNALS[14])[0]
    dead = story.fault(ECC_XID95)
    peers = story.others(fault, SIGNALS[14])[-1] - story.others(fault, SIGNALS[14])[0]
    assert abs(moved / np.median(peers) - 1) < 0.1
    assert dead.host != fault.host


def test_an_ecc_burst_ends_in_xid_95(story: Story) -> None:
    """Corrected errors for ten seconds, then data is lost, the driver says 95 and the job is gone."""
    fault = story.fault(ECC_XID95)
    died = begin(fault) + 10
    corrected = story.at(fault, "gpu.ecc_corrected_volatile_errors")
    assert 3 * fault.amount < corrected[-1] - corrected[begin(fault) - 2] < 25 * fault.amount
    others = story.others(fault, "gpu.ecc_corrected_volatile_errors")
    assert (others[-1] - others[0]).max() <= 5
    lost = story.at(fault, "gpu.ecc_uncorrected_volatile_errors")
    assert lost[begin(fault) + 8] == 0 < lost[-1]
    assert not story.others(fault, "gpu.ecc_uncorrected_volatile_errors").any()
    ((second, host, event),) = story.events
    assert (host, event.name, event.code) == (fault.host, "gpu.xid", 95)
    assert event.device == fault.device
    assert abs(second - fault.begins_seconds - 10) <= 1.1
    assert "NVRM: Xid (PCI:0000:" in event.message and "): 95," in event.message
    assert story.at(fault, "gpu.utilization_ratio")[died + 1 :].max() == 0
    assert story.at(fault, "gpu.power_watts")[died + 1 :].max() < 90
    assert story.at(fault, "gpu.processes_count")[-1] == 0
    assert story.at(fault, "gpu.recovery_action_state")[-1] == 1


def test_the_job_goes_on_without_the_dead_rank(story: Story) -> None:
    """If the whole gang stopped with it, the other two faults would have nothing to show on."""
    fault = story.fault(ECC_XID95)
    power = story.others(fault, "gpu.power_watts")[begin(fault) + 15 :]
    assert (power > 250).mean() > 0.3


def test_a_remap_is_pending_after_the_loss() -> None:
    """The remap's state travels at the slow pace; it must arrive all the same."""
    fleet = SimulatedFleet(3, 4, 0.0)
    (fault,) = [fault for fault in fleet.truth if fault.kind == ECC_XID95]
    pending = []
    for _ in range(40):
        blocks = {host: blocks for host, blocks, _ in fleet.step(1.0)}[fault.host]
        reading = Reading(blocks)
        if "gpu_10s_changes" in reading.blocks:
            pending.append(reading.numbers("gpu.remap_pending_state"))
    assert not any(pending[0])
    assert [i for i, state in enumerate(pending[-1]) if state] == [fault.part_index]


@pytest.mark.parametrize(("hosts", "faults"), [(1, 1), (2, 2), (3, 3), (64, 3)])
def test_small_fleets_have_fewer_faults(hosts: int, faults: int) -> None:
    """`gangline simulate --hosts 1` must run, with the one fault there is room for."""
    assert len(SimulatedFleet(1, hosts).truth) == faults


def test_the_truth_log_is_json() -> None:
    """Tools read it line by line; the wall clock places it beside the store's rows."""
    for fault in SimulatedFleet(1, 8).truth:
        line = fault.to_json(1_000_000_000_000)
        assert "\n" not in line
        told = json.loads(line)
        assert told["host"] == fault.host and told["device"] == fault.device
        assert told["begins_wall_ns"] == pytest.approx(1e12 + fault.begins_seconds * 1e9)
