"""NUMA nodes (Documentation/ABI/stable/sysfs-devices-node)."""

from __future__ import annotations

from pathlib import Path

from .files import names_in, parse_unsigned, read_text


def nodes(sys: Path) -> dict[str, Path]:
    """Return the folder of each NUMA node, by `node0`, in the order of their numbers."""
    folder = sys / "devices/system/node"
    numbers = [int(n[4:]) for n in names_in(folder) if n.startswith("node") and _is_number(n[4:])]
    return {f"node{number}": folder / f"node{number}" for number in sorted(numbers)}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and str(int(text)) == text


def distances(folder: Path) -> list[int]:
    """Return the node's distances to all nodes; empty when it has none."""
    numbers = [parse_unsigned(word) for word in (read_text(folder / "distance") or "").split()]
    return [number for number in numbers if number is not None]
