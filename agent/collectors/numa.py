"""NUMA nodes: memory and where pages came from, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ext.counterfiles import KEYED
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.cpu import parse_cpu_list
from ..hardware.files import read_text
from ..hardware.numa import nodes
from ..hardware.roots import Roots
from ..turn import NoData
from .folders import Device, FolderCollector, Plan, Source

SOURCES: Mapping[str, Source] = {
    "numa.memory_total_bytes": Source("meminfo", KEYED, b"MemTotal:", 1024),
    "numa.memory_free_bytes": Source("meminfo", KEYED, b"MemFree:", 1024),
    "numa.hit_pages": Source("numastat", KEYED, b"numa_hit"),
    "numa.miss_pages": Source("numastat", KEYED, b"numa_miss"),
    "numa.foreign_pages": Source("numastat", KEYED, b"numa_foreign"),
}
_ABSENT = "no NUMA node in /sys/devices/system/node"


def numa_10s(roots: Roots) -> FolderCollector:
    """Memory of each node, and pages that were not had where they were wanted."""
    return FolderCollector(
        Plan("numa_10s", Pace.TEN_SECONDS, ("numa_10s",), lambda: _devices(roots), _ABSENT)
    )


def _devices(roots: Roots) -> list[Device]:
    return [Device(name, f"{folder}/", SOURCES) for name, folder in nodes(roots.sys).items()]


class NumaCores:
    """Cores of each node, which change when one is taken offline."""

    name = "numa_60s"
    pace = Pace.MINUTE
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._block = Block("numa_60s", ())

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData on a kernel without NUMA."""
        found = nodes(self._sys)
        if not found:
            raise NoData(_ABSENT)
        if tuple(found) != self._block.devices:
            self._block = Block("numa_60s", list(found))
        for row, folder in enumerate(found.values()):
            cores = _count_cores(read_text(folder / "cpulist"))
            self._block.put_float(0, row, cores)
        return (self._block,)


def _count_cores(text: str | None) -> int | None:
    try:
        return None if text is None else len(parse_cpu_list(text))
    except ValueError:
        return None
