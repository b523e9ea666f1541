"""PCIe functions, their bridges and links (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, parse_unsigned, read_text, read_unsigned

DISPLAY = 0x03
NETWORK = 0x02
NVME = 0x0108
GIGATRANSFERS = "GT/s"

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
        return self.class_code >> 16 == DISPLAY

    @property
    def is_network(self) -> bool:
        return self.class_code >> 16 == NETWORK

    @property
    def is_nvme(self) -> bool:
        return self.class_code >> 8 == NVME


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
    if not whole.isascii() or not (whole + fraction).isdecimal() or len(words[0]) > 8:
        return None
    return float(words[0]) * 1e9


def numa_node(folder: Path) -> int | None:
    """Return the NUMA node of a device's folder; None where the firmware named none (-1)."""
    return read_unsigned(folder / "numa_node")


def watched_functions(sys: Path) -> dict[str, Function]:
    """Return GPUs, NICs, NVMe and each bridge above them, by address.

    Virtual functions are left out: their link is that of their physical function.
    """
    folder = sys / "bus/pci/devices"
    functions: dict[str, Function] = {}
    for address in names_in(folder):
        function = read_function(folder, address)
        if function and (function.is_gpu or function.is_network or function.is_nvme):
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
