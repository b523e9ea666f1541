"""Signals that the fleet keeps in memory: only those that rules or runs of jobs read.

All latest values of 80,000 GPUs with their ports and links would take 1.5 GB; these take a sixth. Operators query the store,
whose snapshot file has the latest of everything.
"""

from __future__ import annotations

from ..rule_catalogue import SIGNALS_READ

#: What fingerprints and forecasts of runs are made from beside what rules read (`aggregator/runs/`).
RUN_SIGNALS = frozenset(
    {
        "gpu_fast.checkpoint_interval_seconds",
        "gpu_fast.checkpoint_ratio",
        "gpu_fast.compute_ratio",
        "gpu_fast.compute_watts",
        "gpu_fast.host_stall_ratio",
        "gpu_fast.idle_ratio",
        "gpu_fast.memory_bandwidth_ratio",
        "gpu_fast.nvlink_received_bytes_per_second",
        "gpu_fast.next_checkpoint_seconds",
        "gpu_fast.nvlink_transmitted_bytes_per_second",
        "gpu_fast.phase_confidence_ratio",
        "gpu_fast.power_mean_watts",
        "gpu_fast.step_confidence_ratio",
        "gpu_fast.step_seconds",
        "gpu_fast.wait_ratio",
        "gpu_fast.wait_watts",
        "host.cpu_system_ratio",
        "host.cpu_user_ratio",
        "step.step_seconds",
    }
)

TRACKED_SIGNALS = SIGNALS_READ | RUN_SIGNALS
