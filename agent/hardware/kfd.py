"""KFD, the compute driver of AMD GPUs: its topology and its processes in sysfs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .files import names_in, parse_unsigned, read_text, read_unsigned

#: Maximum of nodes and banks; more are left out. 8 GPUs in CPX are 64 nodes.
NODES_MAX, BANKS_MAX = 1024, 64
#: Maximum of holders of GPUs, and of queues of each.
PROCESSES_MAX, QUEUES_MAX = 1024, 1024
#: `heap_type` of a bank of the GPU's own memory (HSA_MEM_HEAP_TYPE_FB_PUBLIC, _PRIVATE).
_FRAME_BUFFER = (1, 2)


class KfdNode(NamedTuple):
    """A node of KFD's topology that is a GPU or a partition; other nodes are processors."""

    kfd_id: int  # `gpu_id`, the name in processes' files
    address: str
    compute_units: int
    compute_dies: int
    memory_bytes: int


def kfd_nodes(sys: Path) -> Iterator[KfdNode]:
    """Yield the GPUs' nodes in numerical order, which is the order of a GPU's partitions."""
    folder = sys / "class/kfd/kfd/topology/nodes"
    numbers = sorted((name for name in names_in(folder) if name.isdecimal()), key=int)
    for number in numbers[:NODES_MAX]:
        kfd_id = read_unsigned(folder / number / "gpu_id")
        properties = parse_properties(read_text(folder / number / "properties"))
        if not kfd_id or "location_id" not in properties:
            continue
        simds = properties.get("simd_per_cu", 0)
        yield KfdNode(
            kfd_id,
            pci_address(properties.get("domain", 0), properties["location_id"]),
            properties.get("simd_count", 0) // simds if simds else 0,
            properties.get("num_xcc", 1),
            _memory(folder / number / "mem_banks"),
        )


def pci_address(domain: int, location: int) -> str:
    """Return a node's GPU address. The function's bits, and bits above 16, are the partition."""
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0"


def _memory(folder: Path) -> int:
    banks = [
        parse_properties(read_text(folder / bank / "properties"))
        for bank in names_in(folder)[:BANKS_MAX]
    ]
    return sum(
        bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFER
    )


def parse_properties(text: str | None) -> dict[str, int]:
    """Return the values of lines `name number`; other lines are left out."""
    values: dict[str, int] = {}
    for line in (text or "").splitlines():
        name, _, number = line.partition(" ")
        value = parse_unsigned(number.strip())
        if value is not None:
            values[name] = value
    return values


class KfdHolding(NamedTuple):
    """A process with memory or a queue on a GPU."""

    pid: int
    kfd_id: int
    memory_bytes: int | None


def kfd_processes(sys: Path) -> list[int]:
    """Return the processes that opened KFD, by PID in the host's namespace.

    Each has a file for every GPU, even for a GPU that it does not use.
    """
    names = names_in(sys / "class/kfd/kfd/proc")
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)[
        :PROCESSES_MAX
    ]


def kfd_holdings(sys: Path, pid: int) -> list[KfdHolding]:
    """Return a process's holdings by GPU; empty if it has ended."""
    folder = sys / "class/kfd/kfd/proc" / str(pid)
    memory = {
        int(name.removeprefix("vram_")): read_unsigned(folder / name)
        for name in names_in(folder)
        if name.startswith("vram_") and name.removeprefix("vram_").isdecimal() and len(name) < 16
    }
    queues = folder / "queues"
    on_queues = {
        parse_unsigned(read_text(queues / queue / "gpuid"))
        for queue in names_in(queues)[:QUEUES_MAX]
    }
    return [
        KfdHolding(pid, kfd_id, size)
        for kfd_id, size in sorted(memory.items())
        if size or kfd_id in on_queues
    ]
