"""Who samples what: the lane of the GPUs' driver, and that of everything else which enters one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...fingerprints.catalogue import Pace
from ..turn import Collector

GPU, HOST = "gpu", "host"
#: Samplers of all kinds at once: two lanes, a standby, those that look at one device, those that were left behind.
#: With the daemon, the nursery and the inventory's short-lived child, this is all that the agent ever is.
PROCESSES_MAX = 16
#: Kinds of collectors that call NVML, or stand on what those of the same process have found.
GPU_KINDS = frozenset(
    {
        "gpu",
        "gpu_process",
        "gpu_job",
        "gpu_fabric",
        "gpu_fast",
        "nvlink",
        "c2c",
        "mig",
        "nvml_events",
    }
)

Lanes = Mapping[str, Sequence[Collector]]


def lane_of(collector: Collector) -> str:
    """Return `gpu`, `host`, or nothing for one that stays in the daemon (as the inventory, every ten minutes)."""
    if collector.pace is Pace.BOOT:
        return ""
    if collector.name.rpartition("_")[0] in GPU_KINDS:
        return GPU
    return HOST if collector.enters_driver else ""


def lanes_of(collectors: Sequence[Collector]) -> dict[str, list[Collector]]:
    """Return the lanes that have a collector, in the order in which they are started."""
    lanes: dict[str, list[Collector]] = {GPU: [], HOST: []}
    for collector in collectors:
        if lane := lane_of(collector):
            lanes[lane].append(collector)
    return {name: those for name, those in lanes.items() if those}
