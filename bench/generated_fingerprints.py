"""Generated fingerprints for similarity: simulated; every assumption is in this file.

A workload is drawn from its class: its levels and shares. A run is drawn around its workload, so
two runs differ by a few percent; some runs are slow, on other GPUs, or without GPM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gangline.fingerprints.fingerprint import NUMBERS, Floats

CLASSES = ("training", "fine-tuning", "inference", "data preparation", "interactive", "reserved")

#: Number -> range from which each class draws a workload's value; shares are normalized after.
#: These are assumptions from publications about clusters (steady periodic training; bursty
#: inference bound by HBM; data preparation bound by CPU and disk), not measurements. Ranges overlap
#: on purpose.
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "training": {
        "step_seconds": (0.3, 40.0), "compute_ratio": (0.55, 0.95), "wait_ratio": (0.03, 0.35),
        "host_stall_ratio": (0.0, 0.06), "checkpoint_ratio": (0.0, 0.06), "idle_ratio": (0.0, 0.01),
        "compute_power_ratio": (0.65, 1.0), "wait_power_ratio": (0.25, 0.5), "utilization_ratio": (0.9, 1.0),
        "sm_ratio": (0.5, 0.9), "tensor_ratio": (0.2, 0.6), "memory_bandwidth_ratio": (0.2, 0.6),
        "pcie_bytes_per_second": (1e8, 5e9), "nvlink_bytes_per_second": (1e9, 2e11), "nic_bytes_per_second": (5e8, 2e10),
        "host_cpu_ratio": (0.03, 0.25), "disk_pressure_ratio": (0.0, 0.05), "checkpoint_interval_seconds": (300.0, 14400.0),
    },
    "fine-tuning": {
        "step_seconds": (0.2, 8.0), "compute_ratio": (0.45, 0.9), "wait_ratio": (0.0, 0.2),
        "host_stall_ratio": (0.02, 0.2), "checkpoint_ratio": (0.01, 0.15), "idle_ratio": (0.0, 0.05),
        "compute_power_ratio": (0.5, 0.9), "wait_power_ratio": (0.2, 0.45), "utilization_ratio": (0.7, 0.98),
        "sm_ratio": (0.35, 0.75), "tensor_ratio": (0.1, 0.4), "memory_bandwidth_ratio": (0.25, 0.65),
        "pcie_bytes_per_second": (2e8, 8e9), "nvlink_bytes_per_second": (1e7, 3e10), "nic_bytes_per_second": (1e5, 5e8),
        "host_cpu_ratio": (0.05, 0.3), "disk_pressure_ratio": (0.0, 0.1), "checkpoint_interval_seconds": (60.0, 1800.0),
    },
    "inference": {
        "step_seconds": (0.0, 0.0), "compute_ratio": (0.15, 0.8), "wait_ratio": (0.0, 0.1),
        "host_stall_ratio": (0.1, 0.7), "checkpoint_ratio": (0.0, 0.0), "idle_ratio": (0.0, 0.15),
        "compute_power_ratio": (0.35, 0.75), "wait_power_ratio": (0.2, 0.4), "utilization_ratio": (0.3, 0.98),
        "sm_ratio": (0.1, 0.6), "tensor_ratio": (0.02, 0.25), "memory_bandwidth_ratio": (0.3, 0.85),
        "pcie_bytes_per_second": (1e6, 1e9), "nvlink_bytes_per_second": (1e5, 3e10), "nic_bytes_per_second": (1e4, 1e8),
        "host_cpu_ratio": (0.02, 0.2), "disk_pressure_ratio": (0.0, 0.02), "checkpoint_interval_seconds": (0.0, 0.0),
    },
    "data preparation": {
        "step_seconds": (0.0, 0.0), "compute_ratio": (0.02, 0.35), "wait_ratio": (0.0, 0.05),
        "host_stall_ratio": (0.5, 0.95), "checkpoint_ratio": (0.0, 0.05), "idle_ratio": (0.0, 0.3),
        "compute_power_ratio": (0.25, 0.55), "wait_power_ratio": (0.15, 0.35), "utilization_ratio": (0.03, 0.5),
        "sm_ratio": (0.01, 0.3), "tensor_ratio": (0.0, 0.08), "memory_bandwidth_ratio": (0.02, 0.3),
        "pcie_bytes_per_second": (3e8, 2e10), "nvlink_bytes_per_second": (0.0, 1e8), "nic_bytes_per_second": (1e6, 3e9),
        "host_cpu_ratio": (0.4, 0.98), "disk_pressure_ratio": (0.05, 0.6), "checkpoint_interval_seconds": (0.0, 0.0),
    },
    "interactive": {
        "step_seconds": (0.0, 0.0), "compute_ratio": (0.01, 0.25), "wait_ratio": (0.0, 0.03),
        "host_stall_ratio": (0.5, 0.99), "checkpoint_ratio": (0.0, 0.0), "idle_ratio": (0.0, 0.4),
        "compute_power_ratio": (0.2, 0.6), "wait_power_ratio": (0.12, 0.3), "utilization_ratio": (0.01, 0.3),
        "sm_ratio": (0.005, 0.2), "tensor_ratio": (0.0, 0.1), "memory_bandwidth_ratio": (0.0, 0.2),
        "pcie_bytes_per_second": (1e4, 5e8), "nvlink_bytes_per_second": (0.0, 1e8), "nic_bytes_per_second": (0.0, 1e7),
        "host_cpu_ratio": (0.005, 0.15), "disk_pressure_ratio": (0.0, 0.05), "checkpoint_interval_seconds": (0.0, 0.0),
    },
    "reserved": {
        "step_seconds": (0.0, 0.0), "compute_ratio": (0.0, 0.005), "wait_ratio": (0.0, 0.002),
        "host_stall_ratio": (0.0, 1.0), "checkpoint_ratio": (0.0, 0.0), "idle_ratio": (0.2, 1.0),
        "compute_power_ratio": (0.1, 0.25), "wait_power_ratio": (0.08, 0.2), "utilization_ratio": (0.0, 0.01),
        "sm_ratio": (0.0, 0.005), "tensor_ratio": (0.0, 0.001), "memory_bandwidth_ratio": (0.0, 0.005),
        "pcie_bytes_per_second": (0.0, 1e5), "nvlink_bytes_per_second": (0.0, 1e5), "nic_bytes_per_second": (0.0, 1e5),
        "host_cpu_ratio": (0.001, 0.1), "disk_pressure_ratio": (0.0, 0.02), "checkpoint_interval_seconds": (0.0, 0.0),
    },
}  # fmt: skip
#: Shares of runs on GPUs without GPM, by agents without phases, and slowed by one host.
WITHOUT_GPM, WITHOUT_PHASES, SLOW = 0.15, 0.1, 0.15
SLOWDOWNS = (0.05, 0.3)
_GPM = ("sm_ratio", "tensor_ratio", "memory_bandwidth_ratio", "pcie_bytes_per_second", "nvlink_bytes_per_second")  # fmt: skip
_STATES = ("compute_ratio", "wait_ratio", "host_stall_ratio", "checkpoint_ratio", "idle_ratio")
_PHASES = ("step_seconds", *_STATES, "compute_power_ratio", "wait_power_ratio", "checkpoint_interval_seconds")  # fmt: skip
_AT = {name: index for index, name in enumerate(NUMBERS)}
_STATE_AT = [_AT[name] for name in _STATES]


@dataclass(frozen=True, slots=True)
class GeneratedRuns:
    """`values`: (runs, NUMBERS); `workload`, `label`: (runs); `slowdown`: share of pace lost."""

    values: Floats
    workload: np.ndarray[tuple[int], np.dtype[np.intp]]
    label: np.ndarray[tuple[int], np.dtype[np.intp]]
    slowdown: Floats


def generate(seed: int, workloads: int, runs_of_each: int) -> GeneratedRuns:
    """Return runs of *workloads* workloads, in equal parts per class."""
    random = np.random.default_rng(seed)
    result, names, labels, slow = [], [], [], []
    for workload in range(workloads):
        label = workload % len(CLASSES)
        base = _workload(random, CLASSES[label])
        for _ in range(runs_of_each):
            loss = random.uniform(*SLOWDOWNS) if label < 2 and random.random() < SLOW else 0.0
            result.append(_run(random, base, loss))
            names.append(workload)
            labels.append(label)
            slow.append(loss)
    return GeneratedRuns(np.array(result), np.array(names), np.array(labels), np.array(slow))


def _workload(random: np.random.Generator, name: str) -> Floats:
    values = np.full(len(NUMBERS), np.nan)
    for number, (low, high) in _RANGES[name].items():
        is_log = number.endswith(("_seconds", "_per_second"))
        if is_log and high > 0:
            values[_AT[number]] = np.exp(random.uniform(np.log(max(low, 1e3 if "bytes" in number else low)), np.log(high)))  # fmt: skip
        else:
            values[_AT[number]] = random.uniform(low, high)
    for number in ("step_seconds", "checkpoint_interval_seconds"):
        if not values[_AT[number]]:
            values[_AT[number]] = np.nan
    values[_STATE_AT] /= values[_STATE_AT].sum()
    return values


def _run(random: np.random.Generator, base: Floats, loss: float) -> Floats:
    """Return one run: 2 % of jitter in the period, 3 points in shares and levels, 15 % in rates."""
    values = base.copy()
    for index, name in enumerate(NUMBERS):
        if name.endswith("_per_second"):
            values[index] *= np.exp(random.normal(0, 0.15))
        elif name.endswith("_seconds"):
            values[index] *= np.exp(random.normal(0, 0.02))
        else:
            values[index] = max(
                0.0, values[index] + random.normal(0, 0.03) * min(1.0, 5 * values[index])
            )
    if loss:  # all ranks wait for one host
        pace = 1 - loss
        values[_AT["step_seconds"]] /= pace
        states = values[_STATE_AT] * pace
        states[1] += loss
        values[_STATE_AT] = states
        for name in (*_GPM, "nic_bytes_per_second"):
            values[_AT[name]] *= pace
    states = values[_STATE_AT]
    values[_STATE_AT] = states / max(states.sum(), 1e-9)
    compute, wait = values[_AT["compute_power_ratio"]], values[_AT["wait_power_ratio"]]
    share = values[_AT["compute_ratio"]]
    values[_AT["power_ratio"]] = share * compute + (1 - share) * wait + random.normal(0, 0.01)
    if np.isfinite(values[_AT["step_seconds"]]) and random.random() < 0.1:
        values[_AT["step_seconds"]] = np.nan  # unknown
    if random.random() < WITHOUT_GPM:
        values[[_AT[name] for name in _GPM]] = np.nan
    if random.random() < WITHOUT_PHASES:
        values[[_AT[name] for name in _PHASES]] = np.nan
    return values
