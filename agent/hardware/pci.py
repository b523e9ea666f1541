"""PCIe functions, their bridges and links (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import FILE_READER, FileReader, names_in, parse_unsigned, read_text, read_unsigned

DISPLAY = 0x03
ACCELERATOR = 0x12
NETWORK = 0x02
INFINIBAND = 0x0C06  # old HCAs; the class of new HCAs is NETWORK
NVME = 0x0108
OTHER_BRIDGE = 0x0680  # with NVIDIA as the vendor: an NVSwitch
NVIDIA = 0x10DE
GPU_CLASSES = (0x0300, 0x0302)  # VGA and 3D controllers
GIGATRANSFERS = "GT/s"
#: Device power states in the order of their depth (drivers/pci/pci.c, pci_power_names).
POWER_STATES = ("D0", "D1", "D2", "D3hot", "D3cold")

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")

#: Distances of two functions, the nearest first.
NEARNESS = ("same switch", "same root complex", "same socket", "far")


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function."""

    address: str  # 0000:17:00.0
    folder: Path
    class_code: int
    parents: tuple[str, ...]  # bridges, the nearest first
    root: str  # bus of the host bridge, as pci0000:16; empty if unknown

    @property
    def is_gpu(self) -> bool:
        return self.class_code >> 16 in (DISPLAY, ACCELERATOR)

    @property
    def is_network(self) -> bool:
        return self.class_code >> 16 == NETWORK or self.class_code >> 8 == INFINIBAND

    @property
    def is_nvme(self) -> bool:
        return self.class_code >> 8 == NVME

    @property
    def is_nvswitch(self) -> bool:
        bridge = self.class_code >> 8 == OTHER_BRIDGE
        return bridge and read_unsigned(self.folder / "vendor", 16) == NVIDIA

    @property
    def is_watched(self) -> bool:
        """Return whether jobs use this function itself, unlike a bridge on the path to it."""
        return self.is_gpu or self.is_network or self.is_nvme or self.is_nvswitch


def is_address(name: str) -> bool:
    """Return whether *name* is a PCI function's address in sysfs form."""
    return bool(_ADDRESS.match(name))


def parse_class(text: str | None) -> int | None:
    """Return the class code of `0x030200`; None unless it has 24 bits."""
    value = parse_unsigned(text, 16)
    return value if value is not None and value < 1 << 24 else None


def parse_link_speed(text: str | None) -> float | None:
    """Return the transfers per second of `32.0 GT/s PCIe`; None for `Unknown` and no text."""
    tokens = (text or "").split()
    if len(tokens) < 2 or tokens[1] != GIGATRANSFERS:
        return None
    whole, _, fraction = tokens[0].partition(".")
    if not tokens[0].isascii() or not (whole + fraction).isdecimal() or len(tokens[0]) > 8:
        return None
    return float(tokens[0]) * 1e9


def numa_node(folder: Path) -> int | None:
    """Return the NUMA node of a device's folder; None if the firmware has none (-1)."""
    return read_unsigned(folder / "numa_node")


def may_sleep(device: Path) -> bool:
    """Return whether the kernel may suspend the unused device (`power/control`: auto)."""
    return read_text(device / "power/control") == "auto"


def is_asleep(device: Path, files: FileReader = FILE_READER) -> bool:
    """Return whether the device is suspended, or is entering or leaving suspension.

    Any query would wake it, and an agent that queries every ten seconds would keep it awake
    forever. Neither file accesses the device (Documentation/ABI/testing/sysfs-devices-power,
    sysfs-bus-pci).
    """
    status = files.text(f"{device}/power/runtime_status") or ""
    return status.startswith(("suspend", "resum")) or power_state(device, files) not in (None, "D0")


def power_state(device: Path, files: FileReader = FILE_READER) -> str | None:
    """Return `D0`, `D3hot` and so on; None if unknown or before Linux 5.11."""
    word = files.text(f"{device}/power_state")
    return word if word in POWER_STATES else None


def presence(sys: Path) -> frozenset[tuple[str, int]]:
    """Return names and inodes of all PCI functions, from one listing, to detect changes.

    A function that was removed and put back has its old address and a new inode.
    """
    try:
        with os.scandir(sys / "bus/pci/devices") as entries:
            return frozenset((entry.name, entry.inode()) for entry in entries)
    except OSError:
        return frozenset()


def watched_functions(sys: Path) -> dict[str, Function]:
    """Return GPUs, NVSwitches, NICs, NVMe and the bridges above them, by address.

    Virtual functions are left out: they share the link of their physical function.
    """
    folder = sys / "bus/pci/devices"
    functions: dict[str, Function] = {}
    for address in names_in(folder):
        function = read_function(folder, address)
        if function and function.is_watched:
            functions[address] = function
    for function in list(functions.values()):
        for parent in function.parents:
            bridge = None if parent in functions else read_function(folder, parent)
            if bridge:
                functions[parent] = bridge
    return dict(sorted(functions.items()))


def nvidia_gpus(sys: Path) -> dict[str, str]:
    """Return the sorted PCI addresses of NVIDIA GPUs with the bound driver ("": none).

    From the kernel's list: no driver is called, no GPU is woken. Virtual functions are left out.
    """
    folder = sys / "bus/pci/devices"
    drivers: dict[str, str] = {}
    for address in sorted(names_in(folder)):
        if read_unsigned(folder / address / "vendor", 16) == NVIDIA:
            function = read_function(folder, address)
            if function is not None and function.class_code >> 8 in GPU_CLASSES:
                try:
                    drivers[address] = os.path.basename(os.readlink(folder / address / "driver"))
                except OSError:
                    drivers[address] = ""
    return drivers


def nvswitches(sys: Path) -> list[str]:
    """Return the sorted PCI addresses of NVSwitches."""
    folder = sys / "bus/pci/devices"
    return [
        address
        for address in sorted(names_in(folder))
        if (function := read_function(folder, address)) is not None and function.is_nvswitch
    ]


def read_function(folder: Path, address: str) -> Function | None:
    """Return a function in /sys/bus/pci/devices; None if it is gone or virtual."""
    device_folder = folder / address
    code = parse_class(read_text(device_folder / "class"))
    if code is None or not _ADDRESS.match(address) or (device_folder / "physfn").exists():
        return None
    parents, root = chain_to_root(os.path.realpath(device_folder))
    return Function(address, device_folder, code, parents, root)


def chain_to_root(path: str) -> tuple[tuple[str, ...], str]:
    """Return the bridges above a device's real path, the nearest first, and its root (`pci0000:16`)."""
    above = path.split("/")[:-1]
    parents = tuple(name for name in reversed(above) if _ADDRESS.match(name))
    roots = [name for name in above if name.startswith("pci") and ":" in name]
    return parents, roots[0] if roots else ""


def nearest(function: Function, others: Iterable[Function]) -> tuple[str, list[Function]]:
    """Return the distance of the nearest of *others*, and which these are; ("", []) without one.

    Functions on another socket do not count as near.
    """
    by_nearness: dict[str, list[Function]] = {}
    for other in others:
        by_nearness.setdefault(nearness(function, other), []).append(other)
    for word in NEARNESS[:-1]:
        if word in by_nearness:
            return word, by_nearness[word]
    return "", []


def nearness(a: Function, b: Function) -> str:
    """Return the distance of two functions: a member of NEARNESS, or `unknown`.

    Functions with a common bridge meet in a switch below it, or are in the same slot. `unknown`:
    the firmware has no NUMA node.
    """
    if not set(a.parents).isdisjoint(b.parents):
        return "same switch"
    if a.root and a.root == b.root:
        return "same root complex"
    nodes = {numa_node(a.folder), numa_node(b.folder)}
    if None in nodes:
        return "unknown"
    return "same socket" if len(nodes) == 1 else "far"
