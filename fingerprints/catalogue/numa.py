"""NUMA nodes. Device: `node0`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(200, "numa.memory_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/meminfo MemTotal", "memory of the node"),
    Signal(201, "numa.memory_free_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/meminfo MemFree", "memory free on the node"),
    Signal(202, "numa.hit_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_hit", "pages got where they were wanted"),
    Signal(203, "numa.miss_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_miss", "pages taken here that were wanted elsewhere"),
    Signal(204, "numa.foreign_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_foreign", "pages wanted here that came from elsewhere"),
    Signal(205, "numa.cores_count", Kind.GAUGE, Pace.MINUTE, "node/nodeN/cpulist", "cores of the node"),
    Signal(1900, "numa.interleave_hit_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat interleave_hit", "pages of interleaved memory got where they were wanted"),
    Signal(1901, "numa.local_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat local_node", "pages taken here by a task that ran here"),
    Signal(1902, "numa.other_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat other_node", "pages taken here by a task that ran on another node: its memory is far from it"),
    Signal(1903, "numa.cpu_busy_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/stat cpuN of the node's cores", "share of the node's cores' time that was not idle, since the last reading"),
    Signal(1904, "numa.cpu_busiest_core_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/stat cpuN of the node's cores", "the busiest single core of the node"),
)
