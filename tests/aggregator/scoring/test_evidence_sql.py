"""Each piece of evidence has a query that shows its value in the operators' file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.model import Finding
from gangline.aggregator.query import sandbox
from gangline.aggregator.rule_catalogue import RULES, faults
from gangline.aggregator.scoring.symptom import Symptom
from tests.aggregator.query.asking import rows_of
from tests.worlds import CLOCK_HERTZ, FAULTS, GPUS, Host, StoredWorld, gpu_of, throttle

pytestmark = pytest.mark.usefixtures("operators_files")

#: Rules with tests of their own.
ELSEWHERE = (
    "gang.", "alone.", "runs.", "network.", "hardware.", "host.returned", "gpu.missing", "gpu.none_read", "folded",
)  # fmt: skip
NAMES = {name for name in RULES if not name.startswith(ELSEWHERE)}
#: Evidence is a leaky sum or mean; its query computes a plain one.
TOLERANCE = 0.15

#: Tripped on hosts that come last: one heard for a moment, one that never spoke.
NEW = "host.new"
#: Tripped together, on one host each: all that are rows of a table, and all events of the kernel.
TOGETHER = [
    *((fault.rule, "readings") for fault in FAULTS),
    *((kind.rule.name, "events") for kind in faults.EVENT_KINDS.values()),
    *((kind.rule.name, "events") for kind in faults.ANY_CODE.values()),
]


def _thermal(world: StoredWorld, host: Host) -> None:
    throttle(host, 0)


def _power(world: StoredWorld, host: Host) -> None:
    host.set("gpu_1s", gpu_of(host, 0), sm_clock_hertz=1.35e9, power_watts=400.0,
             clock_event_reasons_flags=0x4)  # fmt: skip
    host.set("gpu_10s", gpu_of(host, 0), power_limit_watts=400.0)


def _setting(world: StoredWorld, host: Host) -> None:
    host.set("gpu_1s", gpu_of(host, 0), sm_clock_hertz=1.2e9, clock_event_reasons_flags=0x2)


def _straggler(world: StoredWorld, host: Host) -> None:
    host.set("gpu_1s", gpu_of(host, 0), sm_clock_hertz=CLOCK_HERTZ * 0.75)


def _width(world: StoredWorld, host: Host) -> None:
    host.set("gpu_10s", gpu_of(host, 0), pcie_width_lanes=8)


def _vanished(world: StoredWorld, host: Host) -> None:
    host.forget("gpu_1s")


def _never_seen(world: StoredWorld, host: Host) -> None:
    world.register(host, gpus=GPUS + 1)
    world.keep_host(host, world.hosts.index(host), GPUS + 1)


def _silent(world: StoredWorld, host: Host) -> None:
    host.silent = True


def _finding(world: StoredWorld, host: Host) -> None:
    world.find(Finding(host.name, "clock.offset", "", "its clock is an hour off", world.now_ns))


def _xid(world: StoredWorld, host: Host) -> None:
    world.event(host, 95, gpu_of(host, 0))


def _sxid(world: StoredWorld, host: Host) -> None:
    world.event(host, 20009, "0000:c4:00.0", "nvswitch.sxid", message="Fatal, Link 30")


def _pcie_link(world: StoredWorld, host: Host) -> None:
    host.set("pcie_10s", "0000:01:00.0", link_width_lanes=8)


def _reported(world: StoredWorld, host: Host) -> None:
    for name, code in [*faults.EVENT_KINDS, *((any_code, 16) for any_code in faults.ANY_CODE)]:
        device = "eth0" if name == "net.link" else "part"
        if name == "gpu.diagnostic":
            device += str(code)  # only the latest result of a GPU counts
        world.event(host, code, device, name, message=f"{name} happened", count=12)


def _set(table: str, device: str, **values: float) -> Callable[[StoredWorld, Host], None]:
    return lambda _, host: host.set(table, device or gpu_of(host, 0), **values)


def _grow(table: str, device: str, **values: float) -> Callable[[StoredWorld, Host], None]:
    return lambda _, host: host.grow(table, device or gpu_of(host, 0), **values)


def _many_mounts(world: StoredWorld, host: Host) -> None:
    for number in range(1100):
        host.set(
            "filesystem_60s",
            f"/pods/{number}",
            size_bytes=5e11,
            available_bytes=2e11,
            read_only_state=0,
        )


def _links_never_up(world: StoredWorld, host: Host) -> None:
    for gpu in range(4):
        for link in range(4):
            host.set("nvlink_10s_changes", f"{gpu_of(host, gpu)}/link{link}", link_state=gpu > 0)


#: Rule -> the function that trips it, one host each.
TRIPS: list[tuple[str, Callable[[StoredWorld, Host], None]]] = [
    ("gpu.thermal", _thermal),
    ("gpu.power", _power),
    ("gpu.clock_setting", _setting),
    ("gpu.straggler", _straggler),
    ("gpu.pcie_width", _width),
    ("gpu.unseen", _vanished),
    ("gpu.unseen", _never_seen),
    ("gpu.lost", _set("gpu_1s", "", lost_state=1)),
    ("nvlink.never_up", _links_never_up),
    ("gpu.no_answer", _set("gpu_1s_changes", "", error_code_state=16)),
    ("gpu.recovery_action", _set("gpu_1s", "", recovery_action_state=1)),
    ("gpu.held_by_the_dead", _set("gpu_job_1s_changes", "", dead_count=2, dead_memory_bytes=6e10)),
    ("gpu.ecc_burst", _grow("gpu_1s_changes", "", ecc_corrected_volatile_errors=40)),
    ("gpu.ecc_uncorrected", _set("gpu_1s_changes", "", ecc_uncorrected_volatile_errors=2)),
    ("gpu.remap_pending", _set("gpu_10s_changes", "", remap_pending_state=1)),
    ("gpu.remap_failed", _set("gpu_10s_changes", "", remap_failed_state=1)),
    ("gpu.xid", _xid),
    ("nvswitch.sxid", _sxid),
    ("gpu.pcie_generation", _set("gpu_10s", "", pcie_generation_number=3)),
    ("pcie.link", _pcie_link),
    ("rdma.retransmits", _grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=300)),
    ("rdma.down", _set("rdma_1s", "mlx5_0/1", port_state=1, physical_state=2)),
    ("rdma.flaps", _set("rdma_1s_changes", "mlx5_0/1", link_downed_events=5)),
    ("net.down", _set("net_1s", "eth0", carrier_state=0)),
    ("pcie.aer_uncorrectable", _set("pcie_10s_changes", "0000:01:00.0", aer_fatal_errors=3)),
    ("pcie.aer_correctable",
     _grow("pcie_10s_changes", "0000:01:00.0", aer_correctable_errors=20)),
    ("host.cpu_pressure", _set("host_1s", "host", pressure_cpu_some_ratio=0.9)),
    ("host.cpu_steal", _set("host_1s", "host", cpu_steal_ratio=0.3)),
    ("host.memory_pressure", _set("host_1s", "host", pressure_memory_full_ratio=0.5)),
    ("filesystem.read_only", _set("filesystem_60s", "/", read_only_state=1)),
    ("filesystem.full", _set("filesystem_60s", "/", available_bytes=1e8)),
    ("device.hung", _set("probe_1s", "gpu 0000:00:00.0", state=2, hung_seconds=9.5)),
    ("driver.hung", _set("probe_1s", "gpu", state=3, hung_seconds=9.5)),
    ("collector.hung", _set("collector_10s", "gpu_1s", outcome_state=4)),
    ("collector.failed", _set("collector_10s", "host_1s", outcome_state=3)),
    ("counter.saturated", _set("rdma_10s_changes", "mlx5_0/1", buffer_overrun_errors=15)),
    ("devices.left_out", _many_mounts),
    ("data.lost", _set("agent_10s", "agent", spool_dropped_frames=120)),
    ("host.barred", _set("agent_10s", "agent", barring_findings_count=1)),
    ("finding", _finding),
    ("host.silent", _silent),
]  # fmt: skip


@contextmanager
def troubled(folder: Path) -> Iterator[StoredWorld]:
    """A fleet in which every rule has its host, and the operators' file over it."""
    world = StoredWorld(len(TRIPS) + 6, folder)
    assert world.store
    try:
        for host in world.hosts:
            host.set("pcie_10s_changes", "0000:01:00.0", aer_fatal_errors=0, aer_nonfatal_errors=0,
                    aer_correctable_errors=0)  # fmt: skip
            for gpu_number in range(GPUS):
                host.set("gpu_10s", gpu_of(host, gpu_number), pcie_generation_number=5,
                        pcie_generation_max_number=5)  # fmt: skip
            for address in ("0000:01:00.0", "0000:00:01.0"):
                host.set("pcie_10s", address, link_width_lanes=16, link_width_max_lanes=16)
            attributes = world.fleet.attributes[world.fleet.index[host.name]]
            attributes["rdma", "mlx5_0/1"] = {"pci_address": "0000:01:00.0"}
            attributes["pcie", "0000:01:00.0"] = {"parents": "0000:00:01.0"}
            host.set("rdma_1s", "mlx5_0/1", received_bytes=1e12, transmitted_bytes=1e12)
            host.grow("rdma_1s", "mlx5_0/1", received_bytes=1e10, transmitted_bytes=1e10)
        for fault in FAULTS:
            fault.furnish(world.hosts[-4])
        late, never = world.hosts[-2:]
        late.silent = never.silent = True
        world.run(60)
        for (_, trip), host in zip(TRIPS, world.hosts, strict=False):
            trip(world, host)
        for fault in FAULTS:
            fault.befall(world.hosts[-4])
        _reported(world, world.hosts[-3])
        world.run(62)
        late.silent = False
        world.run(3)
        yield world
    finally:
        world.store.close(
            60.0
        )  # commits all rows and writes the operators' file, on a busy machine too


def found(world: StoredWorld, name: str, one: Host) -> Symptom:
    """Return the active symptom of rule *name* on *one*."""
    assert world.snapshot
    index = world.fleet.index[one.name]
    slow = any(fault.rule == name and fault.enter_seconds >= 60 for fault in FAULTS)
    for (rule, _), hold in world.snapshot.tracked_symptoms.get(index, {}).items():
        if (hold.active or slow) and (rule == name or rule.startswith(f"{name}.")):
            return hold.worst
    raise AssertionError(f"{name} was not tripped on {one.name}: {world.score(one).evidence}")


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[Any]]]:
    """A connection to the operators' file, and (rule, value, unit, words, SQL) of all evidence."""
    folder = tmp_path_factory.mktemp("data")
    rows: list[Any] = []
    with troubled(folder) as world:
        for (name, _), host in zip(TRIPS, world.hosts, strict=False):
            if name == "host.silent":
                evidence = world.score(host).evidence[0]
                rows.append((name, evidence.value, evidence.unit, evidence.message, evidence.sql))
                continue
            symptom = found(world, name, host)
            rows.append((name, symptom.value, symptom.unit, symptom.message, symptom.sql))
        for name, kind in TOGETHER:
            host = world.hosts[-4 if kind == "readings" else -3]
            symptom = found(world, name, host)
            rows.append((name, symptom.value, symptom.unit, symptom.message, symptom.sql))
        for host in world.hosts[-2:]:
            symptom = found(world, NEW, host)
            rows.append((NEW, symptom.value, symptom.unit, symptom.message, symptom.sql))
    with sandbox.open_snapshot(folder / "operators.duckdb") as connection:
        yield connection, rows


def test_every_rule_is_tripped() -> None:
    """A rule whose query was never run would fail at 3 a.m."""
    assert {name for name, _ in [*TRIPS, *TOGETHER]} | {NEW} == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(TRIPS) + len(TOGETHER) + 2))
def test_the_query_shows_the_value(claims: tuple[Any, list[Any]], at: int) -> None:
    """An operator who copies the query must see the value of the evidence."""
    connection, rows = claims
    name, value, unit, message, query = rows[at]
    shown = rows_of(connection, query)[1]
    assert shown, f"{name}: no rows: {query}"
    cells = [cell for row in shown for cell in row]
    if unit == "finding":
        assert message in cells
        return
    numbers = [float(cell) for cell in cells if isinstance(cell, int | float)]
    near = min(numbers, key=lambda number: abs(number - value))
    assert near == pytest.approx(value, rel=TOLERANCE, abs=1.0 if unit == "seconds" else 1e-6), (
        f"{name}: {value} {unit} is not in {query}: nearest {near}"
    )
