"""Plays the recorded costs of an H200 to the agent's collectors of GPUs: NVML's time per second."""

from __future__ import annotations

import ctypes

from gangline.agent.collectors.gpu_fast import GpuFast
from gangline.agent.collectors.gpu_processes import GpuProcesses
from gangline.agent.collectors.mig import MigDevices
from tests.agent.gpu_host import SECOND, GpuHost
from tests.fake_nvml.h200 import DRIVER, h200
from tests.fake_nvml.parts_scenario import with_gpm

#: Seconds until every reading is measured, including the slowest lane's.
STARTING_SECONDS = 130


def milliseconds_per_second(host: GpuHost, library: str, seconds: int) -> tuple[float, int]:
    """Return NVML's time per second once costs are known, and the samples between GPM calls."""
    gpu = with_gpm(h200())
    host.play([gpu], host=f"driver {DRIVER}\n")
    host.list_in_proc([gpu], DRIVER)
    spent = ctypes.CDLL(library).fake_nvml_spent
    spent.restype = ctypes.c_ulong
    fast = GpuFast(host.roots)
    lanes = [(1, host.second()), (10, host.ten_seconds()), (60, host.minute())]
    lanes += [(10, MigDevices(host.roots)), (1, GpuProcesses(host.roots))]  # type: ignore[list-item]
    host.turn(fast)
    assert fast.samples
    began = 0
    for second in range(STARTING_SECONDS + seconds):
        if second == STARTING_SECONDS:
            began = spent()
        for period, lane in lanes:
            if second % period == 0:
                host.turn(lane)
        for tenth in range(10):
            fast.samples.ring.sample((1000 + second) * SECOND + tenth * SECOND // 10)
    return (spent() - began) / 1000 / seconds, fast.samples.ring.gpm_spacing
