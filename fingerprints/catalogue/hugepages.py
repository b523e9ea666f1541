"""Huge pages of each NUMA node. Device: `node0/2048kB`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1910, "hugepages.page_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/hugepages/hugepages-SIZE", "size of one page"),
    Signal(1911, "hugepages.total_pages", Kind.GAUGE, Pace.TEN_SECONDS, "nr_hugepages", "pages reserved on the node"),
    Signal(1912, "hugepages.free_pages", Kind.GAUGE, Pace.TEN_SECONDS, "free_hugepages", "reserved pages not in use"),
    Signal(1913, "hugepages.surplus_pages", Kind.GAUGE, Pace.TEN_SECONDS, "surplus_hugepages", "pages above the reserve, taken from common memory"),
)
