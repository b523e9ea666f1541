"""The collectors over complete hosts: hand-recorded folders, and this machine."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.agent.clock import SystemClock
from gangline.agent.collector import Collector, CollectOutcome, NoData, run_collector
from gangline.agent.collectors import (
    COLLECTORS,
    FURTHER_TABLES,
    SAME_TABLES,
    net,
    pcie,
    power,
    rdma,
)
from gangline.agent.collectors.counter_files import (
    U64_MAX,
    CollectorSpec,
    CounterDevice,
    CounterFileCollector,
    FileField,
    PeriodicListing,
)
from gangline.agent.collectors.disk import Filesystems
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.network import rdma_ports
from gangline.agent.hardware.power_sensors import rapl_zones
from gangline.contract.signal import Pace
from gangline.contract.signals import BY_NAME, TABLES
from gangline.ext.counterfiles import WORD
from tests import hosts
from tests.hosts.reading import StoppedClock, as_text, collectors_of, read_host, rows_of

ROOT = Path(__file__).parents[2]
#: Columns of an RDMA collector that need no file.
NO_NUMBER = FileField("", WORD)
DATA = ROOT / "../shared/data/rdma"
WITHOUT_DATA = pytest.mark.skipif(
    not DATA.exists(), reason="the recordings of ../shared/data are not here"
)


@pytest.mark.parametrize("name", hosts.NAMES)
def test_the_whole_reading_of_a_host_is_the_golden_one(name: str, tmp_path: Path) -> None:
    """A unit changed by 1000. After a wanted change: `python -m tests.hosts`, and read the diff."""
    document = read_host(hosts.unpack(name, tmp_path))
    golden = (hosts.HERE / f"{name}.json").read_text()
    assert json.loads(as_text(document)) == json.loads(golden)


def test_the_table_of_collectors_is_whole() -> None:
    """A collector that no table names is never run; one whose name is not its key is never found."""
    roots = Roots(Path("/nowhere"), Path("/nowhere"), "/nowhere/libnvidia-ml.so.1")
    created = {name: make(roots) for name, make in COLLECTORS.items()}
    tables = {name for name in TABLES if not name.startswith(("agent", "collector", "probe"))} - {
        "gpu_1s_probe"
    }
    assert {name: collector.name for name, collector in created.items()} == {n: n for n in created}
    of_a_collector = set(created) - set(SAME_TABLES) | set(FURTHER_TABLES)
    assert {name.removesuffix("_changes") for name in tables} == of_a_collector
    assert set(FURTHER_TABLES.values()) <= set(created)
    assert set(SAME_TABLES.values()) <= set(created) and set(SAME_TABLES) <= set(created)
    assert all(name.endswith(f"_{collector.pace}") for name, collector in created.items())


def test_a_host_with_nothing_has_no_data_and_no_error() -> None:
    """A container without /sys was reported as fifteen broken sensors."""
    nowhere = Path("/nowhere")  # also for /dev: slots of other jobs' steps in /dev/shm were read
    roots = Roots(nowhere, nowhere, "/nowhere/libnvidia-ml.so.1", nowhere, nowhere)
    for name, make in COLLECTORS.items():
        turn = run_collector(make(roots), StoppedClock())
        assert (turn.outcome, turn.blocks) == (CollectOutcome.NO_DATA, ()), (name, turn.message)
        assert len(turn.message) > 10, name


def test_this_machine_is_read_without_error() -> None:
    """On any machine: readings, no data, or blind; the second turn as the first."""
    collectors = [make(Roots()) for make in COLLECTORS.values()]
    for _ in range(2):
        for collector in collectors:
            turn = run_collector(collector, SystemClock())
            assert turn.outcome in (
                CollectOutcome.OK,
                CollectOutcome.NO_DATA,
                CollectOutcome.BLIND,
            ), turn
            assert bool(turn.message) == (turn.outcome is not CollectOutcome.OK)
    assert {c.name for c in collectors} >= {"host_1s", "disk_1s"}


def test_a_turn_gives_the_same_blocks_and_no_more_descriptors(host: hosts.HostFolder) -> None:
    """Blocks are made once; a descriptor a turn would end the agent within the hour."""
    collectors = collectors_of(host.roots)
    first = [run_collector(collector, StoppedClock()).blocks for collector in collectors]
    assert sum(map(len, first)) > 30
    gc.collect()
    open_then = len(os.listdir("/proc/self/fd"))
    for _ in range(15):
        again = [run_collector(collector, StoppedClock()).blocks for collector in collectors]
        assert all(
            a is b for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True)
        )
    assert len(os.listdir("/proc/self/fd")) == open_then
    collectors.clear()
    first.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < open_then


def devices(collector: Collector) -> tuple[str, ...]:
    return collector.collect()[0].devices


def test_ports_that_come_and_go(host: hosts.HostFolder) -> None:
    """An HCA was reset: its port went, and came back. Each time in the next turn, no turn failed."""
    collector = rdma.rdma_1s(host.roots)
    link = host.roots.sys / "class/infiniband/mlx5_1"
    target = os.readlink(link)
    whole = devices(collector)
    assert whole == ("mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_3/1")
    link.unlink()
    assert devices(collector) == ("mlx5_0/1", "mlx5_2/1", "mlx5_3/1")
    link.symlink_to(target)
    assert devices(collector) == whole


def test_a_host_that_loses_its_last_device_says_so(host: hosts.HostFolder) -> None:
    """The module was unloaded: no data, instead of the last readings forever."""
    collector = rdma.rdma_10s(host.roots)
    collector.collect()
    shutil.rmtree(host.roots.sys / "class/infiniband")
    with pytest.raises(NoData, match="no RDMA port"):
        collector.collect()


def test_a_device_gone_between_list_and_read_costs_no_neighbour(host: hosts.HostFolder) -> None:
    """The list named four ports; one went before its files were opened."""

    def list_then_unplug() -> list[CounterDevice]:
        ports = rdma_ports(host.roots.sys)
        (host.roots.sys / "class/infiniband/mlx5_1").unlink()
        return [CounterDevice(name, f"{folder}/", rdma.FIELDS) for name, folder in ports.items()]

    plan = CollectorSpec("rdma_1s", list_then_unplug, "no port")
    rows = dict(rows_of(CounterFileCollector(plan).collect()[0]))
    assert rows["mlx5_1/1"] is None
    assert rows["mlx5_0/1"] is not None and rows["mlx5_0/1"]["port_state"] == 4
    assert rows["mlx5_3/1"] is not None and rows["mlx5_3/1"]["port_state"] == 1


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's privileges to those of an unprivileged user; other users need no change."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_rapl_that_only_root_may_read_is_blind() -> None:
    """energy_uj is 0400 since CVE-2020-8694: name the remedy, not `no power here`."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        host = hosts.unpack("h100-ib", Path(folder))
        zones = sorted((host.roots.sys / "class/powercap").glob("intel-rapl*"))
        for zone in zones:
            (zone / "energy_uj").chmod(0)
        collector = power.rapl_1s(host.roots)
        with as_nobody():
            turn = run_collector(collector, StoppedClock())
        assert turn.outcome is CollectOutcome.BLIND
        assert "CAP_DAC_READ_SEARCH" in turn.message and "chmod" in turn.message
        zones[0].joinpath("energy_uj").chmod(0o444)
        with as_nobody():
            assert [row and row["energy_joules"] for _, row in rows_of(collector.collect()[0])] == [
                0.0,
                None,
                None,
            ]
        assert "CAP_DAC_READ_SEARCH" in collector.access_error  # of the other two


def test_a_package_that_two_rapl_drivers_show_is_counted_once(tmp_path: Path) -> None:
    """intel_rapl_msr and processor_thermal_rapl both loaded: the sum was twice the host's power."""
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "dram",
        "intel-rapl-mmio:0": "package-0",
        "intel-rapl-mmio:0:0": "dram",
        "intel-rapl-mmio:1": "package-1",  # the only zone of this package
        "dtpm:0": "package-0",
    }
    for zone, label in zones.items():
        folder = tmp_path / "class/powercap" / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{label}\n")
        (folder / "energy_uj").write_text("1\n")
    result = rapl_zones(tmp_path)
    assert sorted(result) == ["intel-rapl-mmio:1", "intel-rapl:0", "intel-rapl:0:0"]


def test_kernel_names_with_odd_characters(tmp_path: Path) -> None:
    """An interface named in Latin-1, with a blank: it is read, and its key fits a frame."""
    sys = tmp_path / "sys"
    folder = sys / "class/net" / os.fsdecode(b"b\xe4d if")
    (folder / "device").mkdir(parents=True)
    (folder / "mtu").write_text("1500\n")
    (folder / "speed").write_text("4294967295\n")
    block = net.net_10s(Roots(sys, tmp_path)).collect()[0]
    assert block.devices[0].startswith("b\N{REPLACEMENT CHARACTER}d if~")
    assert list(dict(rows_of(block)).values()) == [
        {"speed_bytes_per_second": None, "mtu_bytes": 1500.0}
    ]


def test_a_pcie_device_that_fell_off_the_bus(host: hosts.HostFolder) -> None:
    """All ones from a dead device: 63 lanes at an unknown speed are not a reading."""
    gpu = host.roots.sys / "bus/pci/devices/0000:18:00.0"
    (gpu / "current_link_speed").write_text("Unknown\n")
    (gpu / "current_link_width").write_text("63\n")
    row = dict(rows_of(pcie.PcieTenSeconds(host.roots).collect()[0]))["0000:18:00.0"]
    assert row is not None
    assert row["link_width_lanes"] is None and row["link_speed_transfers_per_second"] is None
    assert row["link_width_max_lanes"] == 16


def test_a_mount_that_goes_before_it_is_asked(host: hosts.HostFolder) -> None:
    """Only its own size is missing."""

    def statvfs(point: str) -> os.statvfs_result:
        if point != "/":
            raise FileNotFoundError(point)
        return os.statvfs("/")

    block = Filesystems(host.roots, statvfs).collect()[0]
    rows = dict(rows_of(block))
    assert rows["/"] is not None and rows["/"]["size_bytes"]
    assert rows["/scratch disk"] == {
        "size_bytes": None,
        "available_bytes": None,
        "inodes_count": None,
        "inodes_available_count": None,
        "read_only_state": 1,
    }


def test_a_filesystem_below_a_folder_of_somebody_else(host: hosts.HostFolder) -> None:
    """/var/lib/kubelet is root's: the volumes' free space was missing, without a message."""

    def statvfs(point: str) -> os.statvfs_result:
        if point != "/":
            raise PermissionError(13, "Permission denied", point)
        return os.statvfs("/")

    turn = run_collector(Filesystems(host.roots, statvfs), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND
    assert "/scratch disk" in turn.message and "CAP_DAC_READ_SEARCH" in turn.message
    assert dict(rows_of(turn.blocks[0]))["/"]


def test_a_zone_without_a_cap_is_no_missing_zone(tmp_path: Path) -> None:
    """AMD's RAPL measures and cannot be capped: `no RAPL zone` was shown next to its energy."""
    host = hosts.unpack("h200-roce", tmp_path)
    assert run_collector(power.rapl_1s(host.roots), StoppedClock()).outcome is CollectOutcome.OK
    assert (
        "no RAPL zone with a power cap"
        in run_collector(power.rapl_10s(host.roots), StoppedClock()).message
    )


def test_a_sensor_that_another_chip_took_the_number_of(tmp_path: Path) -> None:
    """A NIC was pulled and its hwmon number reused: its temperature lasted another minute."""
    host = hosts.unpack("h200-roce", tmp_path)
    collector = power.hwmon_10s(host.roots)
    assert "mlx5@0000:04:00.0/temp1" in devices(collector)
    folder = host.roots.sys / "class/hwmon"
    (folder / "hwmon4").unlink()
    (folder / "hwmon5").rename(folder / "hwmon4")
    assert [d for d in devices(collector) if "mlx5" in d] == ["mlx5@0000:c4:00.0/temp1"]


def test_what_may_wait_for_a_driver_is_not_in_the_daemons_own_thread() -> None:
    """`carrier` hung with a NIC's firmware and held the agent. A frequency takes 10 ms a core."""
    created = {name: make(Roots()) for name, make in COLLECTORS.items()}
    waiting = ["net_1s", "net_10s", "bond_10s", "nic_10s", "link_10s", "rdma_1s", "rdma_10s"]
    waiting += ["hwmon_1s", "hwmon_10s", "pcie_10s", "pcie_60s", "nvme_60s", "filesystem_60s"]
    waiting += ["host_10s", "cpu_60s", "settings_60s", "tasks_10s", "service_60s"]
    assert [name for name in waiting if not created[name].enters_driver] == []


def test_a_list_is_made_again_after_its_turns() -> None:
    """Time is counted in turns: a collector at 10 s lists each minute, not each turn."""
    values = iter(([1], [1], [2]))
    listing = PeriodicListing(lambda: next(values), Pace.TEN_SECONDS, seconds=60)
    seen = [listing.refresh() for _ in range(13)]
    assert [turn for turn, changed in enumerate(seen) if changed] == [0, 12]
    assert listing.value == [2]


@pytest.mark.parametrize(
    "sources",
    [net.FIELDS, rdma.FIELDS, pcie.LINK_FIELDS, pcie.AER_FIELDS, pcie.AER_ROOT_PORT_FIELDS],
)
def test_sources_name_signals_of_the_catalogue(sources: dict[str, object]) -> None:
    """A misspelt signal would be found by the first host that has the device, far from here."""
    assert set(sources) <= set(BY_NAME)


@WITHOUT_DATA
def test_ports_of_a_real_h100_host_are_read_raw(tmp_path: Path) -> None:
    """Nine ports of a recorded host; stuck counters are reported unchanged, nothing is invented."""
    recorded = DATA / "sys-class-infiniband-h100.0"
    (tmp_path / "class").mkdir()
    (tmp_path / "class/infiniband").symlink_to(recorded.resolve())
    roots = Roots(tmp_path, tmp_path)
    created = (rdma.rdma_1s(roots), rdma.rdma_10s(roots))
    blocks = {block.table: block for collector in created for block in collector.collect()}
    rows = dict(rows_of(blocks["rdma_1s_changes"]))
    assert len(rows) == 9
    assert rows["mlx5_1/1"] is not None and rows["mlx5_1/1"]["link_downed_events"] == 255
    for signal, source in rdma.FIELDS.items():
        if source.shape == WORD:
            continue  # read as the number of a word: tests/ext/test_counterfiles.py
        for device in rows:
            name, port = device.split("/")
            path = recorded / name / "ports" / port / source.file
            text = path.read_text(errors="replace") if path.exists() else "absent"
            table = BY_NAME[signal].table
            row = dict(rows_of(blocks[table]))[device]
            got = row and row[BY_NAME[signal].column]
            number = text.replace(":", " ").split()[0]
            want = float(number) * source.scale if number.replace(".", "").isdigit() else None
            assert got == want, (device, signal, text)


@WITHOUT_DATA
def test_counters_of_recorded_files_are_numbers_or_missing(tmp_path: Path) -> None:
    """mlx4, hfi1 and others, with `N/A (no PMA)` among them: a value is the file's number, times 4."""
    archive = (DATA / "procfs_fixtures.ttar").read_text(errors="surrogateescape")
    unpack_ttar(archive, "fixtures/sys/class/infiniband/", tmp_path / "sys/class/infiniband")
    roots = Roots(tmp_path / "sys", tmp_path / "proc")
    values = 0
    for make in (rdma.rdma_1s, rdma.rdma_10s):
        for block in make(roots).collect():
            for device, row in rows_of(block):
                for column, value in (row or {}).items():
                    if value is None or rdma.FIELDS.get(f"rdma.{column}", NO_NUMBER).shape == WORD:
                        continue
                    values += 1
                    assert_as_written(roots, f"rdma.{column}", device, value)
    assert values > 50


def assert_as_written(roots: Roots, signal: str, device: str, value: float) -> None:
    name, port = device.split("/")
    source = rdma.FIELDS[signal]
    path = roots.sys / "class/infiniband" / name / "ports" / port / source.file
    word = path.read_text().replace(":", " ").split()[0]
    assert value == float(word) * source.scale, (signal, device)
    assert value <= U64_MAX


def unpack_ttar(archive: str, prefix: str, folder: Path) -> None:
    """Unpack the plain files below *prefix* of a `ttar` archive."""
    lines = iter(archive.split("\n"))
    path = ""
    for line in lines:
        if line.startswith("Path: "):
            path = line.removeprefix("Path: ")
        elif line.startswith("Lines: ") and path.startswith(prefix):
            content = "".join(f"{next(lines)}\n" for _ in range(int(line[7:])))
            place = folder / path.removeprefix(prefix)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content.replace("EOF\n", ""))
