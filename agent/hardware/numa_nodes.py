"""NUMA nodes and their huge pages (Documentation/ABI/stable/sysfs-devices-node)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .files import FILE_READER, FileReader, names_in, parse_unsigned, read_text

_POOL = re.compile(r"hugepages-(\d{1,12})kB$", re.ASCII)


@dataclass(frozen=True, slots=True)
class HugepagePool:
    """Huge pages of one size on one node."""

    folder: Path
    page_bytes: int


def nodes(sys: Path, files: FileReader = FILE_READER) -> dict[str, Path]:
    """Return the folder of each NUMA node, by `node0`, in the order of their numbers."""
    folder = sys / "devices/system/node"
    numbers = [
        int(n[4:]) for n in files.names(folder) if n.startswith("node") and _is_number(n[4:])
    ]
    return {f"node{number}": folder / f"node{number}" for number in sorted(numbers)}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and str(int(text)) == text


def distances(folder: Path) -> list[int]:
    """Return the node's distances to all nodes; empty if unknown."""
    numbers = [parse_unsigned(word) for word in (read_text(folder / "distance") or "").split()]
    return [number for number in numbers if number is not None]


def hugepage_pools(sys: Path) -> dict[str, HugepagePool]:
    """Return the pools of huge pages, by `node0/2048kB`."""
    pools: dict[str, HugepagePool] = {}
    for node, folder in nodes(sys).items():
        for name in names_in(folder / "hugepages"):
            match = _POOL.match(name)
            if match:
                pool = HugepagePool(folder / "hugepages" / name, int(match[1]) * 1024)
                pools[f"{node}/{match[1]}kB"] = pool
    return pools
