"""Processes that have device nodes of the NVIDIA driver open: they prevent a reset, a MIG change or an unload."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .files import read_text
from .nvidia import driver_gpus

PROCESSES_MAX = 200_000
NAME_CHARACTERS_MAX = 64
_GPU_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_NODE = re.compile(r"nvidia(?:\d{1,4}|ctl|-uvm|-uvm-tools|-modeset|-caps/.{1,40})")


class OpenHandle(NamedTuple):
    """A process, and the device node that it has open: `nvidia3`, `nvidiactl`."""

    process_id: int
    process_name: str
    node: str


class OpenHandles(NamedTuple):
    """Open handles. `hidden_count`: processes whose descriptors are hidden from this process."""

    found: tuple[OpenHandle, ...]
    hidden_count: int


def parse_gpu_minor(information: str) -> int | None:
    """Return N of `Device Minor: N` in a GPU's `information`, for /dev/nvidiaN; None if unknown."""
    match = _GPU_MINOR.search(information)
    return int(match.group(1)) if match else None


def nodes_of(proc: Path) -> dict[str, str]:
    """Return node -> PCI address (`nvidia3` -> `0000:9b:00.0`) from the driver's list."""
    nodes = {}
    for address in driver_gpus(proc):
        text = read_text(proc / "driver/nvidia/gpus" / address / "information") or ""
        if (minor := parse_gpu_minor(text)) is not None:
            nodes[f"nvidia{minor}"] = address
    return nodes


def node_of(target: str, dev: Path) -> str:
    """Return the driver's node in a descriptor's link, such as `nvidia3`; "" for any other."""
    for root in (f"{dev}/", "/dev/"):
        name = target.removesuffix(" (deleted)").removeprefix(root)
        if name != target and _NODE.fullmatch(name):
            return name
    return ""


def open_nodes(proc: Path, process_id: int, dev: Path) -> set[str] | None:
    """Return the driver's nodes that a process has open; None if hidden, empty if it has ended."""
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


def open_handles(proc: Path, dev: Path, process_ids: Iterator[int]) -> OpenHandles:
    """Return which of these processes have which of the driver's nodes open.

    An open node prevents a GPU's reset, a change of MIG, and unloading the driver. `/proc/PID/fd`
    shows other users' processes only to root and with CAP_SYS_PTRACE.
    """
    handles: list[OpenHandle] = []
    hidden_count = 0
    for process_id in process_ids:
        nodes = open_nodes(proc, process_id, dev)
        if nodes is None:
            hidden_count += 1
        elif nodes:
            name = (read_text(proc / str(process_id) / "comm") or "").strip()[:NAME_CHARACTERS_MAX]
            handles += [OpenHandle(process_id, name, node) for node in sorted(nodes)]
    return OpenHandles(tuple(handles), hidden_count)


def every_process(proc: Path) -> Iterator[int]:
    """Yield the ids of all processes that this /proc shows."""
    names = (name for name in os.listdir(proc) if name.isdecimal() and name.isascii())
    for _, name in zip(range(PROCESSES_MAX), names, strict=False):
        yield int(name)


def agent_processes(proc: Path) -> Iterator[int]:
    """Yield the PIDs of this process and its descendants in *proc*'s numbering."""
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
    child_ids: list[int] = []
    folder = proc / str(process_id) / "task"
    try:
        for task in os.listdir(folder):
            text = read_text(folder / task / "children") or ""
            child_ids += [int(word) for word in text.split() if word.isdecimal()]
    except OSError:
        pass  # it has ended
    return child_ids


def blocking(
    found: tuple[OpenHandle, ...], nodes: Mapping[str, str], devices: frozenset[str] | None
) -> list[tuple[OpenHandle, str]]:
    """Return the handles that block *devices* (None: the whole driver), with PCI addresses.

    A process that has only the driver's common nodes open blocks no single GPU.
    """
    return [
        (handle, nodes.get(handle.node, ""))
        for handle in found
        if devices is None or nodes.get(handle.node, "") in devices
    ]
