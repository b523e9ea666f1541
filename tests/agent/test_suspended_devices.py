"""Devices that the kernel has suspended: any request wakes them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gangline.agent.collector import Collector
from gangline.agent.collectors.link_details import LinkDetails
from gangline.agent.collectors.nic_statistics import NicStatistics
from gangline.agent.collectors.pcie import PcieTenSeconds
from gangline.agent.collectors.pcie_settings import PcieMinute
from gangline.agent.hardware import pci
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.network import interfaces_with_device
from gangline.agent.inventory import host as kernel
from tests import hosts
from tests.hosts.reading import rows_of

GPU = "0000:3a:00.0"
Row = dict[str, float | int | None]


def sleep(device: Path, status: str = "suspended") -> None:
    (device / "power").mkdir(exist_ok=True)
    (device / "power/control").write_text("auto\n")
    (device / "power/runtime_status").write_text(f"{status}\n")


def row(collector: Collector, device: str, table: int = 0) -> Row:
    return dict(rows_of(collector.collect()[table]))[device] or {}


@pytest.mark.parametrize(
    ("files", "asleep"),
    [
        ({}, False),
        ({"power_state": "D0"}, False),
        ({"power_state": "unknown"}, False),
        ({"power_state": "D3cold"}, True),
        ({"power_state": "D3hot", "power/runtime_status": "active"}, True),
        ({"power_state": "D0", "power/runtime_status": "suspending"}, True),
        ({"power/runtime_status": "resuming"}, True),
        ({"power/runtime_status": "unsupported"}, False),
    ],
)
def test_words_of_sleep(files: dict[str, str], asleep: bool, tmp_path: Path) -> None:
    """Kernels before 5.11 have no power_state; either file alone is enough."""
    for name, word in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{word}\n")
    assert pci.is_asleep(tmp_path) is asleep


def test_the_link_of_a_function_that_sleeps_is_not_read(tmp_path: Path) -> None:
    """New kernels wake a device for its link speed: idle devices stayed awake."""
    host = hosts.unpack("h100-ib", tmp_path)
    gpu = host.roots.sys / "bus/pci/devices" / GPU
    sleep(gpu, "active")
    collector = PcieTenSeconds(host.roots)
    assert row(collector, GPU)["link_width_lanes"] == 8
    sleep(gpu)
    result = row(collector, GPU)
    assert result["link_width_lanes"] is None and result["link_width_max_lanes"] is None
    assert result["class_code"] == 0x030200
    assert row(collector, GPU, table=1)["aer_correctable_errors"] == 66  # the kernel keeps it
    sleep(gpu, "active")
    assert row(collector, GPU)["link_width_lanes"] == 8


def test_settings_of_a_function_that_sleeps_are_not_read(tmp_path: Path) -> None:
    """Reading its configuration space wakes it."""
    host = hosts.unpack("h100-ib", tmp_path)
    gpu = host.roots.sys / "bus/pci/devices" / GPU
    space = bytearray(4096)
    space[6], space[0x34] = 0x10, 0x40
    space[0x40:0x52] = struct.pack("<BB7xBHHHH", 0x10, 0, 0, 0, 0, 0, 0)[:0x12].ljust(0x12, b"\0")
    struct.pack_into("<H", space, 0x48, 5 << 12)
    (gpu / "config").write_bytes(space)
    collector = PcieMinute(host.roots)
    assert row(collector, GPU)["max_read_request_bytes"] == 4096
    sleep(gpu)
    assert row(collector, GPU)["max_read_request_bytes"] is None


def test_the_inventory_lets_a_function_sleep(tmp_path: Path) -> None:
    """The link's limits are read from the device itself; its other data remains."""
    host = hosts.unpack("h100-ib", tmp_path)
    sleep(host.roots.sys / "bus/pci/devices" / GPU)
    result = {d.key: d.attributes for d in kernel.pcie_functions(host.roots)}
    assert "link_speed_max" not in result[GPU] and result[GPU]["class"] == "0x030200"
    assert "link_speed_max" in result["0000:15:01.0"]


class Here(Roots):
    """A folder with drivers that the test plays."""

    @property
    def is_this_machine(self) -> bool:
        return True


class Asked:
    """A driver that must not be called."""

    def driver(self, interface: str) -> tuple[bytes, ...]:
        raise AssertionError(f"{interface} was woken")

    def names(self, interface: str) -> list[bytes]:
        raise AssertionError(f"{interface} was woken")

    def request(self, command: int, index: int, *, with_statistics: bool = False) -> bytes:
        raise AssertionError(f"{index} was woken")


def test_a_nic_that_sleeps_is_asked_nothing(tmp_path: Path) -> None:
    """The kernel resumes an interface's device for any request of ethtool, by ioctl or netlink."""
    host = hosts.unpack("h200-roce", tmp_path)
    roots = Here(host.roots.sys, host.roots.proc)
    names = interfaces_with_device(roots.sys)
    for folder in names.values():
        sleep(folder / "device")
    statistics = NicStatistics(roots, open_socket=Asked)  # type: ignore[arg-type]
    details = LinkDetails(roots, open_socket=Asked)  # type: ignore[arg-type]
    for collector in (statistics, details):
        assert all(row(collector, name, table) == {} for table in (0, 1) for name in names)
        assert collector.access_error == ""
    sleep(names["rail0"] / "device", "active")
    for collector in (statistics, details):
        with pytest.raises(AssertionError, match="was woken"):
            collector.collect()
