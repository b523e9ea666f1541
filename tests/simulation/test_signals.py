"""A simulated host reports the signals of an H100 machine: no others, and all signals that judging reads."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt
import pytest

from gangline.agent.kernel_log.rules import classify
from gangline.aggregator.rule_catalogue import SIGNALS_READ
from gangline.contract.block import Block
from gangline.contract.signal import Kind
from gangline.contract.signals import BY_NAME, TABLES
from gangline.simulator.host_tables import BYTES_PER_PORT_BYTE
from gangline.simulator.machine import GPUS, NVLINKS_PER_GPU
from gangline.simulator.physics import SAMPLES_PER_SECOND
from gangline.simulator.tables import Floats
from tests.simulation.readings import Reading, calm, read, struck, three

Words = npt.NDArray[np.uint64]

SEEDS = range(1, 10)
FEW_SEEDS = range(1, 4)

#: Kinds that no simulated host has -> why.
KINDS_ABSENT = {
    "agent": "of the process: SimulatedHost says what there is to say",
    "bond": "one management interface",
    "c2c": "no Grace CPU",
    "cpu": "cores are modelled all together",
    "dcgm": "no host engine",
    "gpu_job": "whose processes they are is told by events",
    "gpu_process": "whose processes they are is told by events",
    "hugepages": "none reserved",
    "kubelet": "no Kubernetes",
    "job_group": "whose processes they are is told by events",
    "l3": "resctrl is not mounted",
    "lustre": "no network file system",
    "lustre_target": "no network file system",
    "mig": "GPUs are whole",
    "nfs": "no network file system",
    "nvswitch": "no host engine",
    "nvswitch_link": "no host engine",
    "probe": "nothing hangs that is not sampled by a process",
    "ras": "of AMD's GPUs",
    "service": "services are not modelled",
    "settings": "settings are not modelled",
    "step": "jobs report nothing by themselves",
    "tasks": "tasks are not modelled",
    "vgpu": "no host engine",
}
#: Counters of trouble that an H100 machine with InfiniBand does not have -> why. Patterns.
COUNTERS_ABSENT = {
    "gpu.ecc_*_l1_errors": "since Hopper the driver tells DRAM and SRAM",
    "gpu.ecc_*_l2_errors": "since Hopper the driver tells DRAM and SRAM",
    "gpu.ecc_*_register_errors": "since Hopper the driver tells DRAM and SRAM",
    "gpu.ecc_*_texture_errors": "since Hopper the driver tells DRAM and SRAM",
    "gpu.ecc_*_cbu_errors": "since Hopper the driver tells DRAM and SRAM",
    "gpu.retired_*_pages": "before Ampere",
    "gpu.violation_socket_thermal_nanoseconds": "of AMD's GPUs",
    "gpu.violation_regulator_thermal_nanoseconds": "of AMD's GPUs",
    "gpu.violation_memory_thermal_nanoseconds": "of AMD's GPUs",
    "pcie.aer_root_port_*": "GPUs and NICs are no root ports",
    "rdma.congestion_*": "of RoCE",
    "rdma.receive_icrc_errors": "of RoCE",
}
#: The catalog marks signals of another vendor's driver or another link generation, and no others.
MARKS_ELSEWHERE = (
    "(bnxt_re)",
    "(bnxt_en)",
    "(efa)",
    "(ena)",
    "(ice)",
    "(irdma)",
    "(NVLink 5)",
    "(links 0-11)",
)
#: Signals that rules read and an H100 machine lacks -> reason. Patterns.
READ_AND_ABSENT = {
    "agent.*": KINDS_ABSENT["agent"],
    "bond.*": KINDS_ABSENT["bond"],
    "c2c.*": KINDS_ABSENT["c2c"],
    "dcgm.*": KINDS_ABSENT["dcgm"],
    "disk.counter_epoch_count": "no drive is replaced",
    "gpu.probe_hung_seconds": KINDS_ABSENT["probe"],
    "gpu.retirement_pending_state": "before Ampere",
    "gpu.sm_application_clock_hertz": "nobody sets one",
    "gpu_job.*": KINDS_ABSENT["gpu_job"],
    "gpu_fabric.*_recovery_state": "Hopper's fabric has no health",
    "gpu_fabric.route_unhealthy_state": "Hopper's fabric has no health",
    "gpu_fabric.degraded_bandwidth_state": "Hopper's fabric has no health",
    "gpu_fabric.incorrect_configuration_code": "Hopper's fabric has no health",
    "nic.fec_uncorrectable_errors": "a Broadcom adapter's; rules read the link's",
    "nvme.counter_epoch_count": "no drive is replaced",
    "rdma.congestion_notifications_handled_packets": "RoCE",
    "nvlink.link_recovery_*": "NVLink 5",
    "nvlink.effective_bit_error_ratio": "NVLink 5",
    "probe.*": KINDS_ABSENT["probe"],
}


def all_said(seed: int = 1) -> dict[str, list[float | int | None]]:
    (reading,) = read(calm(seed, 1)).values()
    return {s.name: reading.column(s.name) for table in reading.blocks for s in TABLES[table]}


def explained(name: str, reasons: dict[str, str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in reasons)


def test_a_simulated_host_says_what_the_rules_read() -> None:
    """A rule whose signal no simulated host has is untested, unnoticed by `make run`."""
    signals = all_said()
    missing = {name for name in SIGNALS_READ if None in signals.get(name, [None])}
    assert not {name for name in missing if not explained(name, READ_AND_ABSENT)}


def test_the_list_of_what_is_not_said_is_true() -> None:
    """A reason that no longer holds would hide the next signal that goes missing."""
    signals = all_said()
    for pattern in READ_AND_ABSENT | COUNTERS_ABSENT:
        names = {name for name in BY_NAME if fnmatchcase(name, pattern)}
        assert names, f"{pattern} is the name of nothing"
        for name in names - {n for n in names if BY_NAME[n].kind is Kind.EVENT}:
            assert set(signals.get(name, [None])) == {None}, name


def test_counters_of_trouble_stand_at_zero_or_are_not_there() -> None:
    """A rule whose counter is missing on every simulated host never ran; a rule on a counter that
    real H100s lack runs only here.
    """
    signals = all_said()
    for name, values in signals.items():
        signal = BY_NAME[name]
        if signal.kind is not Kind.COUNTER or not signal.on_change:
            continue
        first = signal.source.partition(",")[0]
        elsewhere = any(mark in first for mark in MARKS_ELSEWHERE)
        if elsewhere or explained(name, COUNTERS_ABSENT):
            assert set(values) == {None}, name
        else:
            assert None not in values, name


def test_a_simulated_host_fills_what_a_real_one_would() -> None:
    """A judge that needs a column which real hosts lack, or fails on one which they have, would pass all tests."""
    signals = all_said()
    kinds = {BY_NAME[name].device_kind for name in signals}
    every = {rows[0].device_kind for rows in TABLES.values()}
    assert kinds == every - KINDS_ABSENT.keys()
    # A sensor shows either watts or degrees.
    assert [value is None for value in signals["hwmon.power_watts"]] == [True, True, False]
    assert [value is None for value in signals["hwmon.temperature_celsius"]] == [False, False, True]
    for kind in kinds:
        names = [name for name in signals if BY_NAME[name].device_kind == kind]
        assert any(set(signals[name]) != {None} for name in names), f"{kind} says nothing"


def numbers(block: Block) -> tuple[Words, Words]:
    """Return the integers of *block*, (columns, rows), and a mask of the present ones."""
    shape = len(block.signal_ids), block.rows
    cells = np.frombuffer(block.cells, np.uint64).reshape(shape)
    return cells.copy(), np.frombuffer(block.valid, np.uint8).reshape(shape).astype(np.uint64)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_counters_never_fall(seed: int) -> None:
    """A counter that falls reads as a reset, and resets hide faults."""
    live = three(seed, 3)
    before: dict[tuple[str, str], tuple[Words, Words]] = {}
    for _ in range(75):
        for host, blocks, _ in live.step(1.0):
            for block in blocks:
                signals = TABLES[block.table]
                chosen = [i for i, s in enumerate(signals) if s.kind is Kind.COUNTER]
                if not chosen:
                    continue
                widths = np.array([2 ** signals[i].width_bits - 1 for i in chosen], np.uint64)
                now, totals = (number[chosen] for number in numbers(block))
                old, old_there = before.get((host, block.table), (now, totals))
                assert (totals == old_there).all(), block.table
                assert (now >= old).all() and (now <= widths[:, None]).all(), block.table
                before[host, block.table] = now, totals
    assert len(before) > 3 * 15


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_the_fast_lane_agrees_with_the_slow_one(seed: int) -> None:
    """Two paths with different watts or hertz would falsify the fingerprints."""
    live = three(seed, 2)
    for _ in range(75):
        for reading in read(live).values():
            by_column = {s.column: np.array(reading.numbers(s.name)) for s in TABLES["gpu_fast_1s"]}
            assert (by_column["samples_count"] == SAMPLES_PER_SECOND).all()
            for name, unit in (("sm_clock", "hertz"), ("power", "watts")):
                minimum, mean, maximum = (
                    by_column[f"{name}_{w}_{unit}"] for w in ("min", "mean", "max")
                )
                assert (minimum <= mean).all() and (mean <= maximum).all()
            if "gpu_10s" in reading.blocks:
                average = reading.numbers("gpu.power_average_watts")
                assert np.allclose(by_column["power_mean_watts"], average, atol=0.01)
            assert (by_column["sm_active_min_ratio"] <= by_column["sm_active_ratio"]).all()
            assert (by_column["sm_active_ratio"] <= by_column["sm_active_max_ratio"]).all()
            for name, values in by_column.items():
                assert not name.endswith("_ratio") or (values.min() >= 0 and values.max() <= 1)


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_traffic_is_the_same_however_it_is_told(seed: int) -> None:
    """GPM's rates, the links' counters and the ports' are of the same bytes."""
    live = calm(seed, 2)
    links, port, fast = np.zeros((GPUS, 2)), np.zeros((GPUS, 2)), np.zeros((GPUS, 2))
    first = read(live)["sim-001"]
    links[:, 0] = _of_links(first)
    port[:, 0] = first.numbers("rdma.transmitted_bytes")
    # Tables of ten seconds of the second host come at 9, 19, 29 s.
    for _ in range(28):
        reading = read(live)["sim-001"]
        fast[:, 1] += reading.numbers("gpu_fast.nvlink_transmitted_bytes_per_second")
        fast[:, 0] += reading.numbers("gpu_fast.pcie_received_bytes_per_second")
        if "nvlink_10s" in reading.blocks:
            links[:, 1] = _of_links(reading)
            port[:, 1] = reading.numbers("rdma.transmitted_bytes")
            assert np.allclose(np.diff(links)[:, 0], fast[:, 1], rtol=1e-3)
            sent = np.diff(port)[:, 0]
            assert np.allclose(np.diff(links)[:, 0], BYTES_PER_PORT_BYTE * sent, rtol=1e-3)
    assert np.allclose(fast[:, 0], np.diff(port)[:, 0], rtol=1e-3)


def _of_links(reading: Reading) -> Floats:
    values = np.array(reading.numbers("nvlink.transmitted_data_bytes"))
    assert (values % 1024 == 0).all(), "NVML counts in KiB"
    return np.asarray(values.reshape(GPUS, NVLINKS_PER_GPU).sum(axis=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_errors_by_location_add_up(seed: int) -> None:
    reading = read(calm(seed, 4))["sim-002"]
    for kind in ("corrected", "uncorrected"):
        for since in ("volatile", "lifetime"):
            total = reading.numbers(f"gpu.ecc_{kind}_{since}_errors")
            assert reading.numbers(f"gpu.ecc_{kind}_{since}_device_errors") == total
    bins = [f"gpu.remap_banks_{bin_}_count" for bin_ in ("max", "high", "partial", "low", "none")]
    assert {sum(banks) for banks in zip(*map(reading.numbers, bins), strict=True)} == {2560}
    used = np.array(reading.numbers("gpu.memory_used_bytes"))
    free = np.array(reading.numbers("gpu.memory_free_bytes"))
    assert (used + free == reading.numbers("gpu.memory_total_bytes")).all()


def test_the_cores_time_adds_up() -> None:
    """The shares of a core's time must not exceed its time."""
    live = calm(1, 2)
    for _ in range(5):
        for reading in read(live).values():
            names = ("user", "system", "iowait", "steal", "idle")
            shares = [reading.numbers(f"host.cpu_{name}_ratio")[0] for name in names]
            assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0


def test_pressure_totals_are_the_sum_of_their_shares() -> None:
    """The total of PSI must agree with its mean."""
    live = calm(1, 1)
    for name in ("cpu_some", "io_some", "io_full"):
        totals, shares = [], []
        for _ in range(20):
            reading = read(live)["sim-000"]
            totals += reading.numbers(f"host.pressure_{name}_microseconds")
            shares += reading.numbers(f"host.pressure_{name}_ratio")
        assert np.diff(totals) / 1e6 == pytest.approx(shares[1:], abs=1e-5)


def test_a_failed_cooler_shows_in_every_way_the_driver_tells_it() -> None:
    """Share of the fast lane's samples, flags, and the time of each cause: four signals of the same throttling."""
    live = three(4, 3)
    fault = struck(live, "thermal")
    readings = [read(live)[fault.host] for _ in range(60)]
    ratio = np.array([r.numbers("gpu_fast.thermal_ratio") for r in readings])[:, fault.part]
    assert ratio[0] == 0 and (ratio[-10:] > 0.5).all()
    held = "gpu.violation_{}_nanoseconds"
    for name in ("thermal", "sw_thermal", "base_clocks"):
        ns = np.array([r.numbers(held.format(name)) for r in readings])
        grown = (ns[-1] - ns[0]) / 1e9
        assert grown[fault.part] == pytest.approx(ratio[1:].sum(), abs=2.0)
        assert not np.delete(grown, fault.part).any()
    others = np.delete(np.array(readings[-1].numbers("gpu_fast.thermal_ratio")), fault.part)
    assert not others.any()
    mean = np.array([r.numbers("gpu_fast.sm_clock_mean_hertz") for r in readings])
    assert mean[-1, fault.part] < 0.81 * mean[0, fault.part]


def test_retransmissions_have_their_consequences() -> None:
    """Duplicates and timeouts must point to the same port."""
    live = three(4, 32)
    fault = struck(live, "rdma_link")
    of_10s: dict[str, list[list[float]]] = {
        "rdma.duplicate_requests_packets": [],
        "rdma.adaptive_retransmission_timeouts_events": [],
    }
    for _ in range(60):
        reading = read(live)[fault.host]
        if "rdma_10s_changes" in reading.blocks:
            for name, values in of_10s.items():
                values.append(reading.numbers(name))
    for name, values in of_10s.items():
        grown = np.array(values[-1]) - np.array(values[0])
        assert int(grown.argmax()) == fault.part and grown.max() > 100, name
        assert np.delete(grown, fault.part).max() <= 5


def test_an_xid_is_told_as_the_agent_tells_one() -> None:
    """An event with fields that no kernel log line gives would be judged unlike real ones.

    The event counters must include the event.
    """
    live = three(4, 3)
    fault = struck(live, "hbm")
    sent_events, counts, lost = [], [], []
    for _ in range(60):
        for host, blocks, events in live.step(1.0):
            sent_events += [event for event in events if event.name == "gpu.xid"]
            reading = Reading(blocks)
            if host == fault.host and "gpu_10s_changes" in reading.blocks:
                (count,) = reading.numbers("kernel_log.told_events")
                assert reading.numbers("nvml_events.told_by_kernel_log_events") == [count]
                counts.append((count, *reading.numbers("kernel_log.incidents_count")))
                lost.append(reading.numbers("gpu.ecc_uncorrected_volatile_device_errors"))
    assert [event.code for event in sent_events][:2] == [48, 95] and len(sent_events) == 3
    for event in sent_events:
        notice = classify(event.message)
        assert notice is not None and (notice.name, notice.code) == (event.name, event.code)
        assert (event.process_id, event.process_name) == (notice.process_id, notice.process_name)
        assert dict(event.attributes) == dict(notice.attributes) and event.count == 1
    assert counts[0] == (0, 0) and counts[-1] == (3, 1)
    assert np.flatnonzero(lost[-1]).tolist() == [fault.part] and not any(lost[0])
