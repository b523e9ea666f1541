"""The signs of each class on its culprit and on the waiting hosts, and the signs of look-alikes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest

from gangline.contract import frame
from gangline.simulator.noise import Noise
from gangline.simulator.world import World
from tests.simulation.readings import Reading

WORLD = World("parade", 1)
NUMBERS = {class_.name: number for number, class_ in enumerate(WORLD.schedule.classes)}


@dataclass
class Seen:
    """Readings of the culprit and of a host of its job, after the onset."""

    before: dict[int, Reading]
    after: dict[int, Reading]
    culprit: int
    part: int
    victim: int
    events: list[int]
    event_ids: list[str]
    cause: int


@lru_cache(maxsize=40)
def seen(name: str, age_seconds: float = 25.0) -> Seen:
    """Return the readings before the onset of a class, and *age_seconds* after the onset."""
    rows = WORLD.schedule.rows[WORLD.schedule.rows["cls"] == NUMBERS[name]]
    row = rows[0]
    begin, culprit = float(row["begin"]), int(row["host"])
    job = WORLD.schedule.job_at(culprit, begin)
    others = [h for h in job.hosts.tolist() if h not in rows["host"]] if job is not None else []
    victim = others[0] if others else culprit
    hosts = sorted({culprit, victim})
    after = min(begin + float(row["onset"]) + age_seconds, float(row["end"]) - 1e-3)
    view = WORLD.open(hosts, max(begin - 30.0, 0.0), after + 1.0)
    taken: list[dict[int, Reading]] = []
    events: list[int] = []
    ids: list[str] = []
    spans = [
        *np.arange(max(begin - 20.0, 0.0), begin, 10.0),
        *np.arange(begin + 1e-3, after, 5.0),
        after,
    ]
    for seconds in spans:
        view.step(float(seconds))
        taken.append(
            {h: Reading(view.readings.blocks(i, -1.0, seconds)) for i, h in enumerate(hosts)}
        )
        reported = [event for i in range(len(hosts)) for event in view.events(i)]
        events += [event.code for event in reported if event.name != "gpu.process"]
        ids += [event.event_id for event in reported if event.name != "gpu.process"]
    part, cause = max(int(row["part"]), 0), int(row["cause"])
    return Seen(taken[0], taken[-1], culprit, part, victim, events, ids, cause)


def gpu(of: Seen, signal: str, when: str = "after") -> float:
    return float(getattr(of, when)[of.culprit].numbers(signal)[of.part])


@pytest.mark.parametrize("name", ["thermal", "power_cap", "power_brake"])
def test_a_braked_gpu_is_slow_and_says_why(name: str) -> None:
    """The clock falls and the reason is set; without a reason an operator cannot act."""
    signs = seen(name, 30.0)
    assert gpu(signs, "gpu.sm_clock_hertz") < 0.93 * gpu(signs, "gpu.sm_clock_hertz", "before")
    counter, flag = {
        "thermal": ("gpu.violation_thermal_nanoseconds", 0x20),
        "power_cap": ("gpu.violation_power_nanoseconds", 0x4),
        "power_brake": ("gpu.violation_hw_power_brake_nanoseconds", 0x80),
    }[name]
    assert gpu(signs, counter) > gpu(signs, counter, "before") + 5e9
    flags = int(gpu(signs, "gpu.clock_event_reasons_flags"))
    assert flags & flag or name != "power_brake", "held for 98 % of the time"
    assert not flags & ~flag & 0xA4, "and for no other reason"
    hot = gpu(signs, "gpu.temperature_celsius") >= 86
    assert hot == (name == "thermal")


def test_heat_leads_the_clock() -> None:
    """Temperature at its limit at full clock is the only warning."""
    rows = WORLD.schedule.rows[WORLD.schedule.rows["cls"] == NUMBERS["thermal"]]
    host, part = int(rows["host"][0]), int(rows["part"][0])
    middle = float(rows["begin"][0] + 0.45 * rows["onset"][0])
    view = WORLD.open([host], middle - 10.0, middle + 1.0)
    moment = view.step(middle)
    assert moment.gauges.effects.speed[0, part] == 1.0
    assert (
        Reading(view.readings.blocks(0, -1.0, middle)).numbers("gpu.temperature_celsius")[part] > 75
    )


def test_who_waits_shows_full_utilisation_at_wait_power() -> None:
    """100 % utilization at 150 W of 550: never score on utilization. The culprit is the host that does not wait."""
    hung = [seen(name) for name in ("gsp_hang", "nic", "hbm", "gpu_lost", "gpu_fault", "leaf_down")]
    gangs = [signs for signs in hung if signs.victim != signs.culprit]
    assert len(gangs) >= 2
    for gang in gangs:
        waits = gang.after[gang.victim]
        assert waits.numbers("gpu.utilization_ratio") == [1.0] * 8
        assert all(120 < watts < 180 for watts in waits.numbers("gpu.power_watts"))
        assert waits.numbers("gpu.recovery_action_state") == [0.0] * 8


def test_a_slow_rank_computes_while_the_others_wait() -> None:
    """By busy shares only the culprit never waits: its mean power is up, the others' is down."""
    rows = WORLD.schedule.rows[WORLD.schedule.rows["cls"] == NUMBERS["thermal"]]
    host, part = int(rows["host"][0]), int(rows["part"][0])
    seconds = float(rows["begin"][0] + rows["onset"][0]) + 15.0
    view = WORLD.open([host], seconds - 10.0, seconds + 1.0)
    shares = view.step(seconds).gauges.shares
    own, others = shares.wait[0, part], np.delete(shares.wait, 0, axis=0)
    assert own < 0.01 and others[shares.at_work[1:]].min() > own
    assert np.allclose((shares.compute + shares.exchange + shares.gap + shares.wait)[0], 1.0)


def test_lost_memory_tells_its_xids_and_asks_for_a_reset() -> None:
    """48, 95 and 63 or 64 at the same time are a single incident of a single GPU."""
    signs = seen("hbm")
    assert signs.events[:2] == [48, 95] and signs.events[2] in (63, 64)
    assert gpu(signs, "gpu.ecc_uncorrected_volatile_errors") == 1
    assert gpu(signs, "gpu.recovery_action_state") == 1


def test_a_gpu_off_the_bus_leaves_only_that() -> None:
    """A lost GPU has no clock: a reading of 0 Hz would be false."""
    signs = seen("gpu_lost")
    assert signs.events == [79]
    assert str(signs.cause) not in " ".join(signs.event_ids), (
        "only the truth log says what is one cause"
    )
    readings = signs.after[signs.culprit]
    assert readings.column("gpu.lost_state")[signs.part] == 1
    assert readings.column("gpu.sm_clock_hertz")[signs.part] is None
    assert len(readings.column("gpu.pcie_width_lanes")) == 7


def test_a_hung_driver_takes_the_readings_away() -> None:
    """Readings disappear before any XID: missing is not zero."""
    signs = seen("gsp_hang")
    assert len(signs.after[signs.culprit].column("gpu.sm_clock_hertz")) == 7
    assert 4 in signs.after[signs.culprit].numbers("collector.outcome_state")
    assert signs.events == [119]
    same = seen("hung_collector", 5.0)
    assert len(same.after[same.culprit].column("gpu.sm_clock_hertz")) == 7 and not same.events


def test_links_and_ports_show_theirs() -> None:
    """A cable fault shows on its port, a NIC disappears, an NVLink replays."""
    port = seen("rdma_link", 60.0)
    culprit = port.after[port.culprit]
    assert culprit.numbers("rdma.packet_sequence_errors")[port.part] > 100
    assert culprit.numbers("rdma.symbol_errors")[port.part] > 10
    gone = seen("nic")
    assert gone.after[gone.culprit].numbers("rdma.port_state")[gone.part] == 1
    # The port polls: a disabled port is down on purpose, and is not reported.
    assert gone.after[gone.culprit].numbers("rdma.physical_state")[gone.part] == 2
    assert gone.after[gone.culprit].numbers("rdma.link_downed_events")[gone.part] == 1
    # While it comes on: its job dies of another host's fault before the onset is over.
    assert gpu(seen("nvlink", -100.0), "gpu.sm_clock_hertz") > 1.5e9
    link = seen("nvlink", 5.0)
    crc = link.after[link.culprit].numbers("nvlink.crc_errors")
    assert sum(c > 0 for c in crc) == 1 and link.events == [74]
    flap = seen("flap", 1.0)
    assert flap.after[flap.culprit].numbers("rdma.link_downed_events")[flap.part] >= 1


def test_contention_and_storage_show_on_the_host() -> None:
    """Clocks are normal in both: the few signs of these hard cases must be present."""
    cpu, disk = seen("cpu_contention"), seen("storage_stall")
    pressure = "host.pressure_cpu_some_ratio"
    assert cpu.after[cpu.culprit].numbers(pressure)[0] > 0.1
    assert cpu.before[cpu.culprit].numbers(pressure)[0] < 0.05
    if cpu.victim != cpu.culprit:
        assert cpu.after[cpu.victim].numbers(pressure)[0] < 0.05
    assert gpu(disk, "gpu.utilization_ratio") < 0.95
    assert disk.after[disk.culprit].numbers("host.pressure_io_some_ratio")[0] > 0.1


def test_pcie_is_narrow_under_load_and_idle_links_shrink_by_themselves() -> None:
    """A width below its maximum under load is a fault; a lower generation on an idle GPU is normal."""
    signs = seen("pcie_width")
    assert gpu(signs, "gpu.pcie_width_lanes") in (4, 8)
    for host in range(64):
        if WORLD.schedule.job_at(host, 30.0) is None and not WORLD.schedule.is_away(host, 30.0):
            view = WORLD.open([host], 20.0, 31.0)
            view.step(30.0)
            readings = Reading(view.readings.blocks(0, -1.0, 30.0))
            assert set(readings.numbers("gpu.pcie_generation_number")) == {1.0}
            assert set(readings.numbers("gpu.pcie_width_lanes")) == {16.0}
            assert max(readings.numbers("gpu.utilization_ratio")) == 0.0
            return
    raise AssertionError("no host is idle: the world lost its idle share")


@pytest.mark.slow
def test_faults_of_the_telling_change_the_telling_alone() -> None:
    """A skewed clock is in the stamp, a gap sends no frame, and after a restart all tables are sent."""
    for name in ("skewed_clock", "gap", "agent_restart"):
        row = WORLD.schedule.rows[WORLD.schedule.rows["cls"] == NUMBERS[name]][0]
        host, begin, end = int(row["host"]), float(row["begin"]), float(row["end"])
        steps = list(WORLD.frames([host], begin - 10.0, max(end, begin) + 21.0, 1.0))
        stamps = {s.seconds: frame.read_stamp(s.deliveries[0].frame) for s in steps if s.deliveries}
        if name == "skewed_clock":
            inside = [s for s in steps if begin + 1 < s.seconds < end]
            off = stamps[inside[0].seconds].wall_ns - inside[0].now_ns
            assert off == pytest.approx(float(row["amount"]) * 1e9, abs=2)
        else:
            quiet = [s.seconds for s in steps if not s.deliveries]
            assert quiet and all(begin <= s < end + 1.0 for s in quiet)
        assert len({(stamp.run_id, stamp.boot_id) for stamp in stamps.values()}) == 1
        sequences = [stamp.sequence for stamp in stamps.values()]
        assert sequences == list(range(1, len(sequences) + 1)), "one spool, and no frame twice"


def test_a_reboot_is_another_boot_and_counters_begin_anew() -> None:
    """Counted across a boot, energy would become negative."""
    row = WORLD.schedule.rows[WORLD.schedule.rows["cls"] == NUMBERS["planned_reboot"]][0]
    host, begin, end = int(row["host"]), float(row["begin"]), float(row["end"])
    steps = list(WORLD.frames([host], begin - 30.0, end + 25.0))
    deliveries = [(s.seconds, s.deliveries[0]) for s in steps if s.deliveries]
    assert not [s for s, _ in deliveries if begin <= s < end]
    assert len({d.boot_id for _, d in deliveries}) == 2
    energy = [
        Reading(frame.decode(d.frame).blocks).numbers("gpu.energy_joules")[0] for _, d in deliveries
    ]
    assert energy[-1] < energy[2]
    last = frame.read_stamp(deliveries[-1][1].frame)
    assert last.boottime_ns < 30e9 and last.sequence == len(deliveries)


def test_imbalance_moves_from_rank_to_rank_or_stays_with_its_stage() -> None:
    """The slowest rank of a sequence imbalance changes with every step; a stage's does not."""
    slowest: dict[str, set[tuple[int, int]]] = {}
    for name in ("sequence_imbalance", "stage_imbalance"):
        rows = WORLD.schedule.rows[WORLD.schedule.rows["cls"] == NUMBERS[name]]
        hosts = rows["host"].astype(int).tolist()
        begin = float(rows["begin"].max())
        view = WORLD.open(hosts, begin, begin + 200.0)
        moments = [view.step(begin + 10.0 * i + 5.0) for i in range(12)]
        runs = [m.gauges.shares.compute for m in moments if m.gauges.shares.compute.any()]
        slowest[name] = {divmod(int(c.argmax()), 8) for c in runs}
        assert runs
    assert len(slowest["sequence_imbalance"]) >= 5
    assert len(slowest["stage_imbalance"]) <= 2


def test_healthy_parts_spread_as_published() -> None:
    """IQR 2-3 %, p95 3 to 6 % above the median, 2-3 % of the parts outliers."""
    clock = World("healthy", 1, hosts=1000).hardware.clock.ravel()
    low, median, high, upper = np.percentile(clock, (25, 50, 75, 95))
    assert 0.02 < (high - low) / median < 0.03
    assert 1.03 < upper / median < 1.06
    assert 0.02 < (np.abs(clock - 1) >= 0.05).mean() < 0.03


def test_noise_is_a_function_of_who_and_when_alone() -> None:
    """Readings requested one by one must equal those requested together."""
    all_of, subset = Noise(7, np.arange(4000)), Noise(7, np.arange(1000, 1010))
    drawn = all_of.normal(3, 1)
    assert (drawn[1000:1010] == subset.normal(3, 1)).all()
    assert abs(drawn.mean()) < 0.05 and abs(drawn.std() - 1) < 0.05
    uniform = all_of.uniform(3, 2)
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.02


def test_the_noise_of_two_seeds_is_not_the_same_in_another_order() -> None:
    """Seed 22's noise was seed 9's with the parts permuted: the published seed was not independent of the tuned seed."""
    parts = np.arange(4096)
    tuned, published = (set(Noise(seed, parts).random_bits(3, 1).tolist()) for seed in (9, 22))
    assert len(tuned) == len(published) == parts.size and not tuned & published


@pytest.mark.parametrize("name", ["gpu_lost", "gpu_fault", "hbm", "nic", "rack_dark"])
def test_a_host_that_returns_shows_nothing_of_what_was_repaired(name: str) -> None:
    """The first frame of the new boot had the fault's gauges still, as if its repair had repaired nothing."""
    row = WORLD.schedule.rows[WORLD.schedule.rows["cls"] == NUMBERS[name]][0]
    host, back = int(row["host"]), float(row["end"])
    assert any(away.end == back for away in WORLD.schedule.downtimes_by_host[host])
    view = WORLD.open([host], back - 60.0, back + 20.0)
    assert view.step(back - 5.0).silent[0]
    moment = view.step(back + 5.0)
    assert moment.booted[0] and not moment.silent[0]
    first = Reading(view.readings.blocks(0, -1.0, back + 5.0))
    assert first.numbers("gpu.lost_state") == [0.0] * 8
    assert first.numbers("gpu.recovery_action_state") == [0.0] * 8
    assert first.numbers("gpu.remap_pending_state") == [0.0] * 8
    assert set(first.numbers("rdma.port_state")) == {4.0}
