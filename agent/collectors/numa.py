"""NUMA nodes from sysfs and /proc/stat: memory, cores, allocation hits and misses, huge pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext.counterfiles import KEYED
from ...ext.hostfiles import CoreTimes, Glance
from ..collector import Collector, NoData
from ..hardware.cpu_cores import cores_in
from ..hardware.files import FileReader, OpenFile, Roots, read_text
from ..hardware.numa_nodes import hugepage_pools, nodes
from .block_writer import block_of, put
from .counter_files import CollectorSpec, CounterDevice, CounterFileCollector, FileField
from .file_cache import FileCache

NUMA_FIELDS: Mapping[str, FileField] = {
    "numa.memory_total_bytes": FileField("meminfo", KEYED, b"MemTotal:", 1024),
    "numa.memory_free_bytes": FileField("meminfo", KEYED, b"MemFree:", 1024),
    "numa.hit_pages": FileField("numastat", KEYED, b"numa_hit"),
    "numa.miss_pages": FileField("numastat", KEYED, b"numa_miss"),
    "numa.foreign_pages": FileField("numastat", KEYED, b"numa_foreign"),
    "numa.interleave_hit_pages": FileField("numastat", KEYED, b"interleave_hit"),
    "numa.local_pages": FileField("numastat", KEYED, b"local_node"),
    "numa.other_pages": FileField("numastat", KEYED, b"other_node"),
}
HUGEPAGE_FIELDS: Mapping[str, FileField] = {
    "hugepages.total_pages": FileField("nr_hugepages"),
    "hugepages.free_pages": FileField("free_hugepages"),
    "hugepages.surplus_pages": FileField("surplus_hugepages"),
}
_NO_NODE = "no NUMA node in /sys/devices/system/node"


class NumaTenSeconds(CounterFileCollector):
    """Memory and cores of each node, and pages allocated on another node than requested."""

    def __init__(self, roots: Roots) -> None:
        folder = roots.sys / "devices/system/node"
        super().__init__(
            CollectorSpec(
                "numa_10s",
                Pace.TEN_SECONDS,
                ("numa_10s",),
                lambda: _devices(roots),
                _NO_NODE,
                list_seconds=300,
                change_key=Glance(folder).look,
            )
        )
        self._sys = roots.sys
        self._cores = FileCache(self._compute)
        self._stat = OpenFile(roots.proc / "stat", whole=True)
        self._times = CoreTimes()

    def collect(self) -> Sequence[Block]:
        """Return the block; no shares in the first turn. Raises NoData without NUMA."""
        (block,) = super().collect()
        self._times.take(self._stat.read())
        shares = self._times.shares()
        self._cores.refresh()
        for row, name in enumerate(block.devices):
            cores = self._cores.value.get(name, ())
            self._put_shares(block, row, [shares[core].busy for core in cores if core in shares])
        return (block,)

    def _compute(self, files: FileReader) -> dict[str, Sequence[int]]:
        """Return the cores of each node, which change when a core goes offline."""
        return {
            name: cores_in(files.text(folder / "cpulist")) or ()
            for name, folder in nodes(self._sys, files).items()
        }

    def _put_shares(self, block: Block, row: int, busy: Sequence[float]) -> None:
        mean = sum(busy) / len(busy) if busy else None
        put(block, "numa.cpu_busy_ratio", row, mean)
        put(block, "numa.cpu_busiest_core_ratio", row, max(busy, default=None))


def _devices(roots: Roots) -> list[CounterDevice]:
    return [
        CounterDevice(name, f"{folder}/", NUMA_FIELDS) for name, folder in nodes(roots.sys).items()
    ]


def hugepages_10s(roots: Roots) -> CounterFileCollector:
    """Return the collector of huge pages per node and size."""

    def devices() -> list[CounterDevice]:
        return [
            CounterDevice(
                name, f"{pool.folder}/", HUGEPAGE_FIELDS, {"hugepages.page_bytes": pool.page_bytes}
            )
            for name, pool in hugepage_pools(roots.sys).items()
        ]

    no_data_reason = "no huge pages in /sys/devices/system/node/node*/hugepages"
    return CounterFileCollector(
        CollectorSpec(
            "hugepages_10s",
            Pace.TEN_SECONDS,
            ("hugepages_10s",),
            devices,
            no_data_reason,
            list_seconds=60,
        )
    )


class NumaCores(Collector):
    """Number of cores of each node, which changes when a core goes offline."""

    name = "numa_60s"
    pace = Pace.MINUTE
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._block = Block("numa_60s", ())

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData on a kernel without NUMA."""
        folders = nodes(self._sys)
        if not folders:
            raise NoData(_NO_NODE)
        self._block = block_of(self._block, folders)
        for row, folder in enumerate(folders.values()):
            cores = cores_in(read_text(folder / "cpulist"))
            put(self._block, "numa.cores_count", row, None if cores is None else len(cores))
        return (self._block,)
