"""Who has the NVIDIA driver's device nodes open: what defeats a reset, a MIG change, an unload. From /proc only.

`/proc/PID/fd` shows other users' processes to root, and to those with CAP_SYS_PTRACE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .files import read_text
from .nvml import driver_gpus

PROCESSES_MAX = 200_000
NAME_CHARACTERS_MAX = 64
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_NODE = re.compile(r"nvidia(?:\d{1,4}|ctl|-uvm|-uvm-tools|-modeset|-caps/.{1,40})")


class Holder(NamedTuple):
    """A process and a device node that it has open: `nvidia3`, `nvidiactl`."""

    process_id: int
    process_name: str
    node: str


class Holders(NamedTuple):
    """`unseen`: processes whose descriptors we may not see."""

    found: tuple[Holder, ...]
    unseen: int


def parse_minor(information: str) -> int | None:
    """Return N of `Device Minor: N` of a GPU's `information` file: its node is /dev/nvidiaN. None: not told."""
    found = _MINOR.search(information)
    return int(found.group(1)) if found else None


def nodes_of(proc: Path) -> dict[str, str]:
    """Return node -> PCI address: `nvidia3` -> `0000:9b:00.0`, by the driver's own list."""
    nodes = {}
    for address in driver_gpus(proc):
        text = read_text(proc / "driver/nvidia/gpus" / address / "information") or ""
        if (minor := parse_minor(text)) is not None:
            nodes[f"nvidia{minor}"] = address
    return nodes


def node_of(target: str, dev: Path) -> str:
    """Return the driver's node that a descriptor's link shows, such as `nvidia3`; empty for anything else."""
    for root in (f"{dev}/", "/dev/"):
        name = target.removesuffix(" (deleted)").removeprefix(root)
        if name != target and _NODE.fullmatch(name):
            return name
    return ""


def open_nodes(proc: Path, process_id: int, dev: Path) -> set[str] | None:
    """Return the driver's nodes that a process has open; None when we may not see. One that is gone has none."""
    nodes = set()
    folder = proc / str(process_id) / "fd"
    try:
        for name in os.listdir(folder):
            try:
                node = node_of(os.readlink(folder / name), dev)
            except FileNotFoundError:
                continue  # closed just now
            if node:
                nodes.add(node)
    except PermissionError:
        return None
    except OSError:
        return set()
    return nodes


def holders(proc: Path, dev: Path, process_ids: Iterator[int]) -> Holders:
    """Return who of these processes has which of the driver's nodes open."""
    found: list[Holder] = []
    unseen = 0
    for process_id in process_ids:
        nodes = open_nodes(proc, process_id, dev)
        if nodes is None:
            unseen += 1
        elif nodes:
            name = (read_text(proc / str(process_id) / "comm") or "").strip()[:NAME_CHARACTERS_MAX]
            found += [Holder(process_id, name, node) for node in sorted(nodes)]
    return Holders(tuple(found), unseen)


def every_process(proc: Path) -> Iterator[int]:
    """Yield the ids of all processes that this /proc shows."""
    names = (name for name in os.listdir(proc) if name.isdecimal() and name.isascii())
    for _, name in zip(range(PROCESSES_MAX), names, strict=False):
        yield int(name)


def own_processes(proc: Path) -> Iterator[int]:
    """Yield the ids of this process and all that descend from it, as *proc* numbers them: it may be the host's."""
    try:
        pending = [int(os.readlink(proc / "self"))]
    except (OSError, ValueError):
        return
    while pending:
        process_id = pending.pop()
        yield process_id
        pending += children(proc, process_id)


def children(proc: Path, process_id: int) -> list[int]:
    """Return the children of all threads of a process (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    folder = proc / str(process_id) / "task"
    try:
        for task in os.listdir(folder):
            text = read_text(folder / task / "children") or ""
            found += [int(word) for word in text.split() if word.isdecimal()]
    except OSError:
        pass  # it has just ended
    return found


def blocking(
    found: tuple[Holder, ...], nodes: Mapping[str, str], devices: frozenset[str] | None
) -> list[tuple[Holder, str]]:
    """Return who stands in the way of *devices* (None: of the driver as a whole), with the GPU's PCI address.

    A process that has only the driver's common nodes open is in the way of no single GPU.
    """
    return [
        (holder, nodes.get(holder.node, ""))
        for holder in found
        if devices is None or nodes.get(holder.node, "") in devices
    ]
