"""PCIe functions, their bridges and links (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import FILES, Files, names_in, parse_unsigned, read_text, read_unsigned

DISPLAY = 0x03
ACCELERATOR = 0x12
NETWORK = 0x02
INFINIBAND = 0x0C06  # of old HCAs; new ones are of class NETWORK
NVME = 0x0108
OTHER_BRIDGE = 0x0680  # with NVIDIA as the vendor: an NVSwitch
NVIDIA = 0x10DE
GIGATRANSFERS = "GT/s"
#: Device power states in the order of their depth (drivers/pci/pci.c, pci_power_names).
POWER_STATES = ("D0", "D1", "D2", "D3hot", "D3cold")

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function."""

    address: str  # 0000:17:00.0
    folder: Path
    class_code: int
    parents: tuple[str, ...]  # bridges, the nearest first
    root: str  # pci0000:16, the host bridge's bus; empty when sysfs does not say

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
        """Say whether it is a part that a job stands on, rather than what leads there."""
        return self.is_gpu or self.is_network or self.is_nvme or self.is_nvswitch


def is_address(name: str) -> bool:
    """Say whether *name* is a PCI function's as sysfs writes it."""
    return bool(_ADDRESS.match(name))


def parse_class(text: str | None) -> int | None:
    """Return the class code of `0x030200`; None when it is none of 24 bits."""
    value = parse_unsigned(text, 16)
    return value if value is not None and value < 1 << 24 else None


def parse_link_speed(text: str | None) -> float | None:
    """Return transfers per second of `32.0 GT/s PCIe`; None for `Unknown`, `Unknown speed`, absent."""
    words = (text or "").split()
    if len(words) < 2 or words[1] != GIGATRANSFERS:
        return None
    whole, _, fraction = words[0].partition(".")
    if not words[0].isascii() or not (whole + fraction).isdecimal() or len(words[0]) > 8:
        return None
    return float(words[0]) * 1e9


def numa_node(folder: Path) -> int | None:
    """Return the NUMA node of a device's folder; None where the firmware named none (-1)."""
    return read_unsigned(folder / "numa_node")


def may_sleep(device: Path) -> bool:
    """Say whether the kernel may suspend the device while nobody uses it (`power/control`: auto)."""
    return read_text(device / "power/control") == "auto"


def is_asleep(device: Path, files: Files = FILES) -> bool:
    """Say whether the device whose folder this is is suspended, or is being, or wakes up.

    Asking it anything would wake it, and an agent that asks every ten seconds would keep it awake for ever.
    Neither file touches the device (Documentation/ABI/testing/sysfs-devices-power, sysfs-bus-pci).
    """
    status = files.text(f"{device}/power/runtime_status") or ""
    return status.startswith(("suspend", "resum")) or power_state(device, files) not in (None, "D0")


def power_state(device: Path, files: Files = FILES) -> str | None:
    """Return `D0`, `D3hot` and so on; None where the kernel does not know it, or is older than 5.11."""
    word = files.text(f"{device}/power_state")
    return word if word in POWER_STATES else None


def presence(sys: Path) -> frozenset[tuple[str, int]]:
    """Return what tells one set of PCI functions from another: names and inodes, by one look at a folder.

    A function that was taken out and put back has its old address and a new inode.
    """
    try:
        with os.scandir(sys / "bus/pci/devices") as entries:
            return frozenset((entry.name, entry.inode()) for entry in entries)
    except OSError:
        return frozenset()


def watched_functions(sys: Path) -> dict[str, Function]:
    """Return GPUs, NVSwitches, NICs, NVMe and each bridge above them, by address.

    Virtual functions are left out: their link is that of their physical function.
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


def read_function(folder: Path, address: str) -> Function | None:
    """Return a function of /sys/bus/pci/devices; None when it went, or is virtual."""
    place = folder / address
    code = parse_class(read_text(place / "class"))
    if code is None or not _ADDRESS.match(address) or (place / "physfn").exists():
        return None
    parents, root = chain_to_root(os.path.realpath(place))
    return Function(address, place, code, parents, root)


def chain_to_root(path: str) -> tuple[tuple[str, ...], str]:
    """Return the bridges above a device's real path, the nearest first, and its root (`pci0000:16`)."""
    above = path.split("/")[:-1]
    parents = tuple(name for name in reversed(above) if _ADDRESS.match(name))
    roots = [name for name in above if name.startswith("pci") and ":" in name]
    return parents, roots[0] if roots else ""


#: How near two functions can be, the nearest first.
NEARNESS = ("same switch", "same root complex", "same socket", "far")


def nearest(function: Function, others: Iterable[Function]) -> tuple[str, list[Function]]:
    """Return how near the nearest of *others* are, and which these are; ("", []) when none is known.

    Those on another socket are never the nearest: what is merely least far is not near.
    """
    by_word: dict[str, list[Function]] = {}
    for other in others:
        by_word.setdefault(nearness(function, other), []).append(other)
    for word in NEARNESS[:-1]:
        if word in by_word:
            return word, by_word[word]
    return "", []


def nearness(a: Function, b: Function) -> str:
    """Say how near two functions are: `same switch`, `same root complex`, `same socket`, `far`, `unknown`.

    Two functions that share a bridge meet in a switch below it, or are functions of one slot. Unknown:
    the firmware named no NUMA node.
    """
    if not set(a.parents).isdisjoint(b.parents):
        return "same switch"
    if a.root and a.root == b.root:
        return "same root complex"
    nodes = {numa_node(a.folder), numa_node(b.folder)}
    if None in nodes:
        return "unknown"
    return "same socket" if len(nodes) == 1 else "far"
