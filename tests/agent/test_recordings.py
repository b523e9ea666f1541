"""Public recordings of hosts: no collector fails on them, and each value equals the file's.

The recordings are in `../shared/data` and not part of the project. A few independent lines of
Python read the files a second time.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome
from gangline.agent.hardware import pci
from gangline.agent.hardware.files import Roots
from gangline.contract.counters import CounterSpec, classify
from gangline.contract.counters import StepOutcome as Step
from gangline.contract.signals import BY_NAME
from tests.agent.recorded import (
    DATA,
    RDMA_TABLES,
    assert_functions,
    assert_ports,
    close_to,
    cores_of,
    cores_of_mask,
    lines,
    number,
    read_tree,
    roots_at,
    rows,
    unpack_ttar,
    word,
)
from tests.fuzzing.hosts import Reading, assert_sane

pytestmark = pytest.mark.skipif(
    not DATA.exists(), reason="the recordings of ../shared/data are not here"
)

#: The entries of 11,495 that no collector reads.
_UNREAD = re.compile(
    r"/dev/cpuset/|/cache/|/power/|/cpuidle/|/node/node\d+/(cpu|memory)\d|/msi_irqs/|/usb\d/"
)


@pytest.fixture(scope="module")
def ttar() -> Iterator[tuple[Roots, Reading]]:
    """Yield the /proc and /sys with which prometheus/procfs tests its own readers."""
    with tempfile.TemporaryDirectory() as folder:
        unpack_ttar(DATA / "rdma/procfs_fixtures.ttar", Path(folder))
        roots = roots_at(Path(folder) / "fixtures")
        yield roots, read_tree(roots)


def test_no_collector_fails_on_the_whole_tree(ttar: tuple[Roots, Reading]) -> None:
    """Files of a dozen drivers and fifteen years of kernels, some of them wrong on purpose."""
    _, reading = ttar
    assert_sane(reading)
    assert sum(value is not None for value in reading.cells.values()) > 300
    ended = {collector: outcome for collector, outcome, _ in reading.outcomes}
    assert CollectOutcome.ERROR not in ended.values()
    present = (
        "host_1s",
        "host_10s",
        "cpu_60s",
        "disk_1s",
        "nfs_10s",
        "net_1s",
        "rdma_1s",
        "pcie_10s",
        "rapl_1s",
    )
    assert {ended[name] for name in present} == {CollectOutcome.OK}


def test_rdma_ports_of_three_drivers(ttar: tuple[Roots, Reading]) -> None:
    """mlx4, mlx5 and hfi1; `N/A (no PMA)` among the numbers was once a zero."""
    roots, reading = ttar
    assert_ports(roots.sys / "class/infiniband", rows(reading, *RDMA_TABLES))


def test_disks(ttar: tuple[Roots, Reading]) -> None:
    """diskstats of three generations: 11, 15 and 17 columns."""
    roots, reading = ttar
    told_by_disk = {
        columns[2]: list(map(int, columns[3:]))
        for columns in map(str.split, lines(roots.proc / "diskstats"))
    }
    result = rows(reading, "disk_1s")
    assert {"sdb", "sdc"} <= result.keys()
    for disk, row in result.items():
        recorded = told_by_disk.get(disk)
        if recorded is None:
            assert set(row.values()) == {None}
            continue
        assert (row["reads_operations"], row["writes_operations"]) == (recorded[0], recorded[4])
        assert (row["read_bytes"], row["written_bytes"]) == (recorded[2] * 512, recorded[6] * 512)
        assert (row["busy_milliseconds"], row["queue_milliseconds"]) == (recorded[9], recorded[10])
        assert row["discards_operations"] == (recorded[11] if len(recorded) > 14 else None)
        assert row["flushes_operations"] == (recorded[15] if len(recorded) > 16 else None)


def test_memory_pressure_and_cores(ttar: tuple[Roots, Reading]) -> None:
    """Compare small files of /proc with an independent reading."""
    roots, reading = ttar
    row = rows(reading, "host_1s", "host_10s", "host_10s_changes", "host_60s")["host"]
    memory = {line.split(":")[0]: line.split()[1:] for line in lines(roots.proc / "meminfo")}
    assert row["memory_total_bytes"] == int(memory["MemTotal"][0]) * 1024
    assert row["memory_dirty_bytes"] == int(memory["Dirty"][0]) * 1024
    assert row["hugepages_free_pages"] == int(memory["HugePages_Free"][0])
    assert ("MemAvailable" in memory) == (row["memory_available_bytes"] is not None)
    for kind in ("cpu", "memory", "io"):
        for line in lines(roots.proc / "pressure" / kind):
            recorded = dict(pair.split("=") for pair in line.split()[1:])
            if (kind, line.split()[0]) != ("cpu", "full"):
                name = f"pressure_{kind}_{line.split()[0]}"
                assert row[f"{name}_ratio"] == close_to(float(recorded["avg10"]) / 100)
                assert row[f"{name}_microseconds"] == int(recorded["total"])
    stat = [line.split() for line in lines(roots.proc / "stat")]
    counts = {columns[0]: int(columns[1]) for columns in stat}
    assert row["cores_count"] == sum(bool(re.fullmatch(r"cpu\d+", columns[0])) for columns in stat)
    assert (row["context_switches_count"], row["interrupts_count"]) == (
        counts["ctxt"],
        counts["intr"],
    )
    assert (row["runnable_count"], row["blocked_count"]) == (
        counts["procs_running"],
        counts["procs_blocked"],
    )
    throttles = [
        number(path)
        for path in roots.sys.glob("devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")
    ]
    assert row["cpu_core_throttles_count"] == sum(n for n in throttles if n is not None)


def test_network_interfaces(ttar: tuple[Roots, Reading]) -> None:
    """sysfs of an interface: state, speed, and how often its carrier changed."""
    roots, reading = ttar
    result = rows(reading, "net_1s", "net_1s_changes", "net_10s")
    assert set(result) == {"eth0"}
    folder, row = roots.sys / "class/net/eth0", result["eth0"]
    assert row["speed_bytes_per_second"] == number(folder / "speed", 125_000)
    for column, file in (
        ("mtu_bytes", "mtu"), ("carrier_state", "carrier"), ("carrier_changes_count", "carrier_changes"),
        ("carrier_up_events", "carrier_up_count"), ("carrier_down_events", "carrier_down_count"),
        ("counter_epoch_count", "ifindex"),
    ):  # fmt: skip
        assert row[column] == number(folder / file), column


def test_pcie_functions(ttar: tuple[Roots, Reading]) -> None:
    """Links, NUMA nodes (one is -1, none) and AER counters by their kind."""
    roots, reading = ttar
    result = rows(reading, "pcie_10s", "pcie_10s_changes")
    assert len(result) == 3
    assert_functions(roots.sys, result)
    for address, row in rows(reading, "pcie_60s").items():
        # a link to a group outside this tree is still a group
        has_group = (roots.sys / "bus/pci/devices" / address / "iommu_group").is_symlink()
        assert row["iommu_state"] == (None if has_group else 0), address


def test_power_and_nvme(ttar: tuple[Roots, Reading]) -> None:
    """RAPL limits in watts; energy counts from the agent's own start; a controller is live."""
    roots, reading = ttar
    result = rows(reading, "rapl_1s", "rapl_10s")
    zones = [
        zone for zone in (roots.sys / "class/powercap").iterdir() if (zone / "energy_uj").exists()
    ]
    assert set(result) == {zone.name for zone in zones}
    for zone in zones:
        limit = number(zone / "constraint_0_power_limit_uw", 1e-6)
        assert result[zone.name] == {"energy_joules": 0.0, "power_limit_watts": close_to(limit)}
    assert word(roots.sys / "class/nvme/nvme0/state") == "live"
    assert rows(reading, "nvme_10s")["nvme0"]["controller_state"] == 1


def test_nfs_mounts(ttar: tuple[Roots, Reading]) -> None:
    """A queue time of 2^64 less 154 s is among the sums, and is not added."""
    roots, reading = ttar
    text = (roots.proc / "self/mountstats").read_text()
    part = text[text.index("mounted on /mnt/nfs/test ") :]
    read = list(map(int, re.findall(r"\sREAD: (.*)", part)[0].split()))
    row = rows(reading, "nfs_10s")["/mnt/nfs/test"]
    columns = ("reads_operations", "reads_sent_count", "reads_timed_out_count")
    assert [row[column] for column in columns] == read[:3]
    times = ("read_queue_milliseconds", "read_response_milliseconds", "read_milliseconds")
    assert [row[column] for column in times] == read[5:8]
    assert row["age_seconds"] == int(re.findall(r"age:\s+(\d+)", part)[0])
    assert row["read_bytes"] == int(re.findall(r"bytes:\s+(.*)", part)[0].split()[4])


@pytest.fixture(scope="module")
def h100() -> Iterator[tuple[Path, Reading]]:
    """Yield /sys/class/infiniband of an H100 host, nine devices."""
    recorded = DATA / "rdma/sys-class-infiniband-h100.0"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sys/class").mkdir(parents=True)
        (Path(folder) / "sys/class/infiniband").symlink_to(recorded.resolve())
        yield recorded, read_tree(roots_at(Path(folder)))


def test_ports_of_an_h100_host(h100: tuple[Path, Reading]) -> None:
    """Nine devices, and nothing else that a host could have."""
    recorded, reading = h100
    assert_sane(reading)
    result = rows(reading, *RDMA_TABLES)
    assert len(result) == 9
    assert_ports(recorded, result)
    filled = {table for (table, _, _), value in reading.cells.items() if value is not None}
    assert filled <= {*RDMA_TABLES, "clock_10s"}


def test_counters_at_their_ceiling_are_saturated(h100: tuple[Path, Reading]) -> None:
    """Every port always shows 15 buffer overruns: a full counter of 4 bits has no information."""
    _, reading = h100
    result = rows(reading, *RDMA_TABLES)
    assert {row["buffer_overrun_errors"] for row in result.values()} == {15}
    assert result["mlx5_1/1"]["link_downed_events"] == 255
    for name, value in (("rdma.buffer_overrun_errors", 15), ("rdma.link_downed_events", 255)):
        nature = CounterSpec(BY_NAME[name].width_bits, BY_NAME[name].sticks)
        assert classify(value, nature) is Step.SATURATED
        assert classify(value - 1, nature) is None


@pytest.fixture(scope="module")
def numa_host() -> Iterator[tuple[Path, Reading]]:
    """Yield /sys of a host of four nodes whose PCI buses have a locality."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(DATA / "topology/40intel64-2g2n4c+pcilocality.tar.bz2") as archive:
            members = [member for member in archive if not _UNREAD.search(member.name)]
            archive.extractall(folder, members, filter="tar")
        root = next(Path(folder).iterdir())
        yield root, read_tree(roots_at(root))


@pytest.mark.slow
def test_numa_nodes_of_a_recorded_host(numa_host: tuple[Path, Reading]) -> None:
    """Nodes with memory and cores as in the kernel's masks and files."""
    root, reading = numa_host
    assert_sane(reading)
    folders = {path.name: path for path in root.glob("sys/devices/system/node/node*")}
    result = rows(reading, "numa_10s", "numa_60s")
    assert set(result) == set(folders) and len(folders) > 1
    for name, folder in folders.items():
        total = re.search(r"MemTotal:\s+(\d+) kB", (folder / "meminfo").read_text())
        assert total and result[name]["memory_total_bytes"] == int(total[1]) * 1024
        recorded = dict(map(str.split, lines(folder / "numastat")))
        assert result[name]["hit_pages"] == int(recorded["numa_hit"])
        cores = cores_of_mask((folder / "cpumap").read_text())
        attributes = reading.devices["numa", name]
        if (folder / "cpulist").exists():
            assert result[name]["cores_count"] == len(cores)
            assert cores_of(attributes["cpus"]) == cores
        assert attributes["distances"].split() == (folder / "distance").read_text().split()


def test_pci_locality_of_a_recorded_host(numa_host: tuple[Path, Reading]) -> None:
    """Each function with its bridges, its cores and its root, as in its real path and files."""
    root, reading = numa_host
    functions = {
        key: recorded for (kind, key), recorded in reading.devices.items() if kind == "pcie"
    }
    assert functions
    for address, recorded in functions.items():
        place = (root / "sys/bus/pci/devices" / address).resolve()
        above = [part for part in reversed(place.parts[:-1]) if pci.is_address(part)]
        assert recorded["parents"].split() == above
        assert recorded["root"] in place.parts
        if "cpus" in recorded:
            assert cores_of(recorded["cpus"]) == cores_of_mask((place / "local_cpus").read_text())
    assert_functions(root / "sys", rows(reading, "pcie_10s", "pcie_10s_changes"))


@pytest.mark.parametrize(("log", "events"), [("kmsg.1.log", 0)])
def test_a_recorded_kernel_log_through_its_collector(tmp_path: Path, log: str, events: int) -> None:
    """Every record of an ordinary boot is parsed, no event. (Lines: test_kernel_log_lines.py.)"""
    content = (DATA / "kernel_log" / log).read_bytes()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_bytes(content)
    row = rows(read_tree(roots_at(tmp_path)), "kernel_log_10s")["host"]
    assert (row["told_events"], row["not_understood_count"]) == (events, 0)
    assert row["read_count"] == len(re.findall(rb"^\d+,\d+,\d+,", content, re.MULTILINE))
