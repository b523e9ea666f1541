"""A host as a folder, with as many counter files as a large GPU host, and the list of files that
the agent reads.
"""

from __future__ import annotations

import gc
import os
import shutil
from contextlib import suppress
from pathlib import Path

from gangline.agent.collector import AccessDenied, Collector, NoData
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.counter_files import CounterFileCollector
from gangline.agent.hardware.files import Roots
from tests.hosts import unpack

PORTS = 12
FILES_MIN = 710
#: NVML's collectors, and collectors that wait for kernel messages.
NOT_OF_FILES = (
    "gpu", "nvlink", "nvml", "c2c", "mig", "amdgpu", "xgmi", "ras", "kfd", "kernel_log", "rtnetlink",
    "kubelet",
)  # fmt: skip


def make_host(folder: Path) -> Roots:
    """Create the folder of an H100 host; copy its first RDMA device until there are PORTS."""
    host = unpack("h100-ib", folder / "host")
    devices = host.root / "sys/class/infiniband"
    first = min(devices.iterdir())
    for number in range(len(list(devices.iterdir())), PORTS):
        shutil.copytree(first.resolve(), devices / f"mlx5_{number + 20}", symlinks=True)
    return host.roots


def collectors_of_files(roots: Roots, pace: str) -> list[Collector]:
    """Return the collectors of a pace (`1s`) with readings on this host, after a first turn."""
    result: list[Collector] = []
    for name, make in COLLECTORS.items():
        if not name.startswith(NOT_OF_FILES) and name.endswith(pace):
            collector = make(roots)
            with suppress(NoData, AccessDenied):
                collector.collect()
                result.append(collector)
    return result


def files_of(roots: Roots, pace: str) -> set[str]:
    """Return the files that the collectors of a pace read in each turn through kept descriptors.

    Files that are reopened each time (unit files, processes) are left out: the agent reads more.
    Call this while no other collector has open descriptors, because it lists those of this process.
    """
    gc.collect()  # closes the descriptors of an earlier call
    root = str(roots.sys.parent)
    created = collectors_of_files(roots, pace)
    result = {
        path
        for collector in created
        if isinstance(collector, CounterFileCollector)
        for path in collector.paths
    }
    open_files = {
        os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
    }
    # Real paths, like the links in /proc/self/fd: most devices of /sys/class are links.
    result = {os.path.realpath(path) for path in result} | open_files
    return {path for path in result if path.startswith(root) and os.path.isfile(path)}
