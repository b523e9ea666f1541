"""NUMA nodes. Device: `node0`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(200, "numa.memory_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/meminfo MemTotal", "memory of the node"),
    Signal(201, "numa.memory_free_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/meminfo MemFree", "memory free on the node"),
    Signal(202, "numa.hit_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_hit", "pages got where they were wanted"),
    Signal(203, "numa.miss_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_miss", "pages taken here that were wanted elsewhere"),
    Signal(204, "numa.foreign_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_foreign", "pages wanted here that came from elsewhere"),
    Signal(205, "numa.cores_count", Kind.GAUGE, Pace.MINUTE, "node/nodeN/cpulist", "cores of the node"),
)
