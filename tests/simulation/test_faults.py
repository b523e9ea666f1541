"""Each of the three faults follows the truth log in effect, place and time, and nothing else happens."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from gangline.contract.wire import telemetry_pb2
from gangline.simulator import truth
from gangline.simulator.runner import LiveWorld
from gangline.simulator.tables import Floats
from gangline.simulator.world import World
from tests.simulation.readings import Reading, Struck, calm, read, struck, three

SEEDS = [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 10))]
HOSTS = 32
#: No checkpoint comes before.
SECONDS = 59
FAULTS = ("thermal", "rdma_link", "hbm")
CLOCK, POWER, HEAT = "gpu.sm_clock_hertz", "gpu.power_watts", "gpu.temperature_celsius"
HELD, FLAGS = "gpu.violation_thermal_nanoseconds", "gpu.clock_event_reasons_flags"
CORRECTED, LOST = "gpu.ecc_corrected_volatile_errors", "gpu.ecc_uncorrected_volatile_errors"
RESENT = (
    "rdma.ack_timeout_errors",
    "rdma.packet_sequence_errors",
    "rdma.out_of_sequence_packets",
    "rdma.adaptive_retransmissions_packets",
)
SIGNALS = (CLOCK, POWER, HEAT, HELD, FLAGS, CORRECTED, LOST, *RESENT, "gpu.utilization_ratio",
           "gpu.recovery_action_state")  # fmt: skip


@dataclass
class Story:
    """A minute of a world: signal -> (seconds, hosts, devices). Index s is what was read at s + 1."""

    live: LiveWorld
    of: dict[str, Floats]
    events: list[tuple[int, str, telemetry_pb2.HealthEvent]]

    def at(self, fault: Struck, name: str) -> Floats:
        return self.of[name][:, fault.index, fault.part]

    def others(self, fault: Struck, name: str) -> Floats:
        keep = np.ones(self.of[name].shape[1:], bool)
        keep[fault.index, fault.part] = False
        return self.of[name][:, keep]


@pytest.fixture(scope="module", params=SEEDS, name="story")
def _story(request: pytest.FixtureRequest) -> Story:
    live = three(request.param, HOSTS)
    rows: dict[str, list[list[list[float]]]] = {name: [] for name in SIGNALS}
    events = []
    for second in range(1, SECONDS + 1):
        step = live.step(1.0)
        logged = [(host, event) for host, _, of_host in step for event in of_host]
        events += [(second, host, event) for host, event in logged if event.name != "gpu.process"]
        readings = [Reading(blocks) for _, blocks, _ in step]
        for name in SIGNALS:
            rows[name].append([reading.numbers(name) for reading in readings])
    return Story(live, {name: np.array(row) for name, row in rows.items()}, events)


@pytest.mark.slow
def test_three_faults_in_three_jobs_within_ten_seconds(story: Story) -> None:
    """Two faults in a gang would hide each other: a host that waits for the dead host does not look slow."""
    faults = [struck(story.live, name) for name in FAULTS]
    assert all(20 <= fault.begin <= 30 and fault.due <= 45 for fault in faults)
    jobs = [story.live.world.schedule.job_at(fault.index, 0.0) for fault in faults]
    assert len({job.number for job in jobs if job is not None}) == 3
    assert all(job is not None and job.hosts.size >= 4 for job in jobs)


def test_nothing_moves_before_its_time(story: Story) -> None:
    """A fault that shows early would flatter a judge that only guesses."""
    first = int(min(struck(story.live, name).begin for name in FAULTS))
    for name, limit in ((HEAT, 12), (CLOCK, 0.02 * 1.7e9)):
        values = story.of[name][:first]
        assert (values.max(axis=0) - values.min(axis=0)).max() <= limit
    assert not story.of[HELD][:first].any() and not story.of[LOST][:first].any()
    grown = story.of[CORRECTED][first - 1] - story.of[CORRECTED][0]
    assert grown.max() <= 3


def test_a_failed_cooler(story: Story) -> None:
    """Temperature leads, the clock follows: at the limit within 15 s, and slower by the drawn share."""
    fault = struck(story.live, "thermal")
    celsius, clock = story.at(fault, HEAT), story.at(fault, CLOCK)
    normal = np.median(clock[: int(fault.begin)])
    hot, slow = int(np.argmax(celsius >= 85)), int(np.argmax(clock < 0.95 * normal))
    assert fault.begin < hot + 1 <= fault.due and hot <= slow <= fault.due + 1
    after = int(fault.due) + 1
    falls = 1 - clock[after:] / normal
    assert abs(np.median(falls) - fault.amount) < 0.03 and fault.amount >= 0.2
    held = story.at(fault, HELD)
    assert held[-1] - held[after] > 0.8 * (SECONDS - 1 - after) * 1e9
    assert celsius.max() <= 95, "a part that shuts down is another fault"


def test_heat_stays_where_it_is(story: Story) -> None:
    """One hot GPU must not make its neighbours look hot."""
    fault = struck(story.live, "thermal")
    assert story.others(fault, HEAT).max() < 75
    assert not story.others(fault, HELD).any()
    assert not (story.others(fault, FLAGS).astype(int) & 0x60).any()


def test_retransmissions_climb(story: Story) -> None:
    """From zero to hundreds a second on one port, within its onset; other ports stay clean."""
    fault = struck(story.live, "rdma_link")
    first, full = int(fault.begin), int(fault.due) + 1
    for name in RESENT:
        counter = story.at(fault, name)
        assert counter[first - 1] - counter[0] <= 5
        at_first = (counter[first + 3] - counter[first - 1]) / 4
        at_last = (counter[-1] - counter[full]) / (SECONDS - 1 - full)
        assert at_first < 0.6 * at_last and 100 < at_last < 1000
        others = story.others(fault, name)
        assert (others[-1] - others[0]).max() <= 10


def test_a_dead_gpu_ends_its_gangs_work(story: Story) -> None:
    """Data is lost, the driver reports it at once and asks for a reset; its whole gang waits, at 100 % and 150 W."""
    fault = struck(story.live, "hbm")
    after = int(np.ceil(fault.due))
    lost = story.at(fault, LOST)
    assert lost[after - 2] == 0 < lost[after] and not story.others(fault, LOST).any()
    assert story.at(fault, "gpu.recovery_action_state")[-1] == 1
    assert {host for _, host, _ in story.events} == {fault.host}
    assert [event.code for _, _, event in story.events][:2] == [48, 95]
    for second, _, event in story.events:
        assert (event.name, event.device) == (
            "gpu.xid",
            story.live.world.machines[fault.index].gpus[fault.part],
        )
        assert abs(second - fault.due) <= 1
        assert "NVRM: Xid (PCI:0000:" in event.message
    job = story.live.world.schedule.job_at(fault.index, 0.0)
    assert job is not None
    assert (story.of["gpu.utilization_ratio"][after + 1 :, job.hosts] == 1.0).all()
    assert story.of[POWER][after + 1 :, job.hosts].max() < 200


def test_the_other_gangs_go_on(story: Story) -> None:
    """If all gangs stopped, the other two faults could not show."""
    job = story.live.world.schedule.job_at(struck(story.live, "thermal").index, 0.0)
    assert job is not None
    power = story.of[POWER][-15:, job.hosts]
    assert (power > 300).mean() > 0.3


def test_a_bad_cable_slows_its_gang_alone() -> None:
    """All wait at the pace of the slowest port: their steps take longer, and those of other jobs do not."""
    live, before = three(1, HOSTS), calm(1, HOSTS)
    fault = struck(live, "rdma_link")
    job = live.world.schedule.job_at(fault.index, 0.0)
    assert job is not None
    tensor = []
    for live_world in (live, before):
        read(live_world, fault.due)
        readings = [list(read(live_world).values()) for _ in range(10)]
        of_all = [
            [r.numbers("gpu_fast.tensor_active_ratio") for r in reading] for reading in readings
        ]
        tensor.append(np.mean(of_all, axis=0)[job.hosts].mean())
    assert tensor[0] < 0.95 * tensor[1]


@pytest.mark.parametrize(("hosts", "faults"), [(1, 1), (2, 2), (3, 3), (9, 3), (64, 3)])
def test_small_fleets_have_fewer_faults(hosts: int, faults: int) -> None:
    """`gangline simulate --hosts 1` must run, with the one fault there is room for: never two on a host."""
    lines = [json.loads(line) for line in truth.lines(World("three", 1, hosts=hosts))]
    logged = [line for line in lines if line.get("sort") == "faults"]
    assert len(logged) == faults == len({line["struck"][0][0] for line in logged})
