"""A hung device is named by the call slot, then excluded. A FIFO without writer represents it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline.agent.collector import (
    NAME_BYTES_MAX,
    Collector,
    call_slot_name,
    driver_call,
)
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.disk import Filesystems
from gangline.agent.collectors.net import net_1s
from gangline.agent.collectors.nvme import NvmeSmart
from gangline.agent.collectors.pcie import PcieTenSeconds
from gangline.agent.collectors.pcie_settings import PcieMinute
from gangline.agent.collectors.power import hwmon_10s, rapl_1s
from gangline.agent.collectors.rdma import rdma_1s
from gangline.agent.hardware.files import Roots
from gangline.ext import place
from gangline.ext.counterfiles import CounterFiles
from tests import hosts
from tests.hosts.reading import rows_of
from tests.processes import GUARD_SECONDS

#: Collectors of NVML, which have tests of their own.
OF_NVML = ("gpu", "nvlink", "c2c", "mig", "nvml", "kubelet")

#: A collector, the hanging file, the device and call shown in the slot, and the row.
CASES: dict[str, tuple[Callable[[Roots], Collector], str, str, str, str]] = {
    "rdma": (
        rdma_1s,
        "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data",
        "mlx5_0/1",
        "read counters/port_rcv_data",
        "mlx5_0/1",
    ),
    "pcie": (
        PcieTenSeconds,
        "bus/pci/devices/0000:18:00.0/current_link_speed",
        "0000:18:00.0",
        "read 0000:18:00.0/current_link_speed",
        "0000:18:00.0",
    ),
    "rapl": (
        rapl_1s,
        "class/powercap/intel-rapl:0/energy_uj",
        "intel-rapl:0",
        "read intel-rapl:0/energy_uj",
        "intel-rapl:0",
    ),
}


@pytest.fixture
def host(tmp_path: Path) -> hosts.HostFolder:
    return hosts.unpack("h100-ib", tmp_path)


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    path = path.resolve()
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        yield
    finally:
        path.unlink()
        path.write_bytes(content)


@contextmanager
def held(collector: Collector, path: Path) -> Iterator[place.Seen]:
    """Run a turn into the FIFO; yield the content of the call slot, then release the turn."""
    thread = threading.Thread(target=collector.collect, daemon=True)
    thread.start()
    end = time.monotonic() + GUARD_SECONDS
    while not (seen := place.here()).call or seen.call.split()[-1] not in str(path):
        assert time.monotonic() < end, seen
        time.sleep(0.001)  # gives the other thread time
    try:
        yield seen
    finally:
        # The open returns, even if it begins only now.
        writer = os.open(path.resolve(), os.O_RDWR)
        thread.join(GUARD_SECONDS)
        os.close(writer)
    assert not thread.is_alive()
    assert place.here().entered_ns == 0


def known(collector: Collector) -> dict[str, int]:
    """Return how many cells of each row have a value, over all blocks of a turn."""
    result: dict[str, int] = {}
    for block in collector.collect():
        for device, cells in rows_of(block):
            values = [value for value in (cells or {}).values() if value is not None]
            result[device] = result.get(device, 0) + len(values)
    return result


def spare(collector: Collector, *devices: str) -> None:
    assert collector.can_exclude
    collector.exclude(frozenset(devices))


def test_every_collector_that_enters_a_driver_can_spare_a_device() -> None:
    """Without this a collector was skipped entirely: eight NICs unseen because of one."""
    for name, make in COLLECTORS.items():
        collector = make(Roots(Path("/nowhere"), Path("/nowhere"), hosts.NO_NVML)) if (
            not name.startswith(OF_NVML)
        ) else None  # fmt: skip
        if collector is not None and collector.enters_driver:
            assert collector.can_exclude, name


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_hangs_is_named_and_then_left_alone(case: str, host: hosts.HostFolder) -> None:
    """One port's firmware answered no query. The rows stay, the neighbors' cells are unchanged."""
    make, file, device, call, row = CASES[case]
    path = host.roots.sys / file
    before = known(make(host.roots))
    collector = make(host.roots)
    with hanging(path):
        with held(collector, path) as seen:
            assert (seen.device, seen.call) == (device, call)
        spare(collector, device, "another collector's")
        after = known(collector)  # returns: no file of the device was opened
        assert after.keys() == before.keys()
        assert after[row] < before[row]
        others = {name: count for name, count in before.items() if not name.startswith(row)}
        assert others == {name: after[name] for name in others}
    spare(collector)
    assert known(collector) == before  # the exclusion ended, at once


def test_a_device_that_comes_while_another_is_spared(host: hosts.HostFolder) -> None:
    """A new listing included the files of the hung device: the turn hung again."""
    path = host.roots.sys / "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data"
    collector = rdma_1s(host.roots)
    spare(collector, "mlx5_0/1")
    before = known(collector)
    folder = host.roots.sys / "class/infiniband"
    with hanging(path):
        (folder / "mlx5_new").symlink_to((folder / "mlx5_1").resolve())
        after = known(collector)
    assert after.keys() - before.keys() == {"mlx5_new/1"}


def test_the_chip_of_a_sensor_is_spared_as_a_whole(host: hosts.HostFolder) -> None:
    """A hung BMC had twelve sensors: each of them cost a sampler of its own."""
    collector = hwmon_10s(host.roots)
    chip = next(iter(known(collector))).rpartition("/")[0]
    spare(collector, chip)
    result = known(collector)
    assert all((count == 0) == name.startswith(f"{chip}/") for name, count in result.items())


def test_a_filesystem_a_drive_and_a_function_are_not_asked(host: hosts.HostFolder) -> None:
    """Each by its own kind of call: statvfs, an ioctl, a read of configuration space."""
    seen: list[tuple[str, str]] = []

    def asked(*_: object) -> os.statvfs_result:
        seen.append((place.here().device, place.here().call))
        raise OSError

    disks = Filesystems(host.roots, asked)
    points = list(known(disks))
    assert seen == [(call_slot_name(point), "statvfs") for point in points]
    seen.clear()
    spare(disks, call_slot_name(points[0]))
    assert known(disks)[points[0]] == 0
    assert [device for device, _ in seen] == [call_slot_name(point) for point in points[1:]]

    seen.clear()
    smart = NvmeSmart(host.roots, asked)  # type: ignore[arg-type]
    smart.collect()
    assert seen == [("nvme0", "NVME_IOCTL_ADMIN_CMD, SMART log")]
    spare(smart, "nvme0")
    assert known(smart)["nvme0"] == 0 and len(seen) == 1

    functions = PcieMinute(host.roots)
    address = next(iter(known(functions)))
    spare(functions, address)
    assert known(functions)[address] == 0


def test_an_interface_is_spared_in_each_of_its_tables(host: hosts.HostFolder) -> None:
    """`carrier` waits for the firmware: an excluded interface loses its ifindex, not its row."""
    collector = net_1s(host.roots)
    name = next(iter(known(collector)))
    spare(collector, name)
    result = known(collector)
    assert result[name] == 0 and sum(result.values()) > 0


def test_a_long_name_is_spared_by_what_the_place_shows() -> None:
    """The slot cut the mount point at 63 bytes; this name excluded nothing."""
    point = "/srv/" + "x" * 100
    with driver_call(point, "statvfs"):
        shown = place.here().device
    assert shown == call_slot_name(point) and len(shown.encode()) <= NAME_BYTES_MAX
    assert call_slot_name(shown) == shown


def test_files_of_no_device_are_not_told(tmp_path: Path) -> None:
    """The main process reads files without a driver, unwatched: the slot is not written."""
    (tmp_path / "file").write_text("7\n")
    cells, valid = bytearray(16), bytearray(2)
    files = CounterFiles([(cells, valid)])
    files.add_file(tmp_path / "file")
    files.add_cell(0)
    before = place.here().calls
    assert files.read() == 0 and place.here().calls == before
    files.add_file(tmp_path / "file", device="disk0")
    files.add_cell(1)
    files.spare({"disk0"})
    assert files.read() == 1 and place.here().calls == before
    files.spare(set())
    assert files.read() == 0 and place.here().calls == before + 1
