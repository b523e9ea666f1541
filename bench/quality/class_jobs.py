"""Generated jobs for judging classes (*simulated*): fingerprints that follow from activities.

They share nothing with `bench/workload_kinds.py`, and nothing is fitted to these jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gangline.fingerprints.fingerprint import NUMBERS, Floats

Random = np.random.Generator

_GPM = ("sm_ratio", "tensor_ratio", "memory_bandwidth_ratio", "pcie_bytes_per_second", "nvlink_bytes_per_second")  # fmt: skip
WITHOUT_GPM = 0.2


class Activity(NamedTuple):
    """A part of a job. Rates of GPU resources are ratios of the peak; traffic is in bytes a second."""

    time: float
    state: str = "host_stall"
    sm: float = 0.0
    tensor: float = 0.0
    memory: float = 0.0
    pcie: float = 0.0
    nvlink: float = 0.0
    nic: float = 0.0
    cpu: float = 0.02
    disk: float = 0.0


class ActivityJob(NamedTuple):
    """Activities of a job.

    `step`, `interval`: seconds of its step and between checkpoints; NaN for none.
    """

    activities: list[Activity]
    step: float = float("nan")
    interval: float = float("nan")


def _logarithmic(random: Random, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def _training(random: Random, *, hosts: bool, gpus: bool, tuning: bool = False) -> ActivityJob:
    step = _logarithmic(random, 0.3, 8.0 if tuning or not hosts else 30.0)
    efficiency = random.uniform(
        0.2, 0.55
    )  # model FLOPS utilization of the forward and backward passes
    gradients = _logarithmic(random, 1e9, 5e10)
    network = gradients / 4e10 * random.uniform(0.1, 1.0) if hosts else 0.0
    exposed = min(network / step, 0.5) + (random.uniform(0.0, 0.1) if gpus else 0.0)
    loading = random.choice([0.0, random.uniform(0.0, 0.3)], p=[0.6, 0.4])
    optimizer = random.uniform(0.02, 0.1)
    interval = _logarithmic(random, 15.0, 1800.0 if tuning else 5000.0)
    saving = min(_logarithmic(random, 1.0, 60.0) / interval, 0.25)
    work = max(1.0 - exposed - loading - optimizer, 0.2)
    cpu = random.uniform(0.02, 0.3)
    link = gradients / step if gpus else 0.0
    return ActivityJob(
        [
            Activity(work, "compute", random.uniform(0.7, 0.97), efficiency, random.uniform(0.25, 0.6), 3e7, link, 0.0, cpu),
            Activity(optimizer, "compute", 0.9, 0.0, 0.85, 1e7, 0.0, 0.0, cpu),
            Activity(exposed, "wait", 0.15, 0.0, 0.05, 1e8, link, gradients / 8 / step if hosts else 0.0, cpu),
            Activity(loading, "host_stall", pcie=_logarithmic(random, 1e8, 8e9), cpu=cpu + 0.3, disk=random.uniform(0, 0.3)),
            Activity(saving / (1 - saving), "checkpoint", pcie=2e9, cpu=cpu, disk=random.uniform(0.1, 0.6)),
        ],
        step, interval,
    )  # fmt: skip


def _serving(random: Random, load: float) -> ActivityJob:
    prefill = load * random.uniform(0.05, 0.4)
    link = _logarithmic(random, 1e8, 2e10) if random.random() < 0.5 else 0.0
    cpu = random.uniform(0.01, 0.1)
    return ActivityJob([
        Activity(load - prefill, "compute", random.uniform(0.25, 0.85), random.uniform(0.01, 0.1), random.uniform(0.45, 0.9), 1e7, link, 1e5, cpu),
        Activity(prefill, "compute", random.uniform(0.7, 0.95), random.uniform(0.2, 0.55), random.uniform(0.2, 0.5), 1e7, link, 1e6, cpu),
        Activity(1.0 - load, "host_stall", cpu=cpu),
    ])  # fmt: skip


def _image_serving(random: Random) -> ActivityJob:
    load = random.uniform(0.05, 0.8)
    return ActivityJob([
        Activity(load, "compute", random.uniform(0.2, 0.7), random.uniform(0.02, 0.3), random.uniform(0.1, 0.5), _logarithmic(random, 1e7, 2e9), 0.0, 1e7, 0.2),
        Activity(1.0 - load, "host_stall", cpu=random.uniform(0.05, 0.4), nic=1e6),
    ])  # fmt: skip


def _preparation(random: Random, *, on_gpu: bool) -> ActivityJob:
    busy = random.uniform(0.2, 0.7) if on_gpu else _logarithmic(random, 0.01, 0.25)
    cpu = random.uniform(0.2, 0.7) if on_gpu else random.uniform(0.5, 0.95)
    reading = random.uniform(0.05, 0.5)
    return ActivityJob([
        Activity(busy, "compute", random.uniform(0.3, 0.8), 0.0, random.uniform(0.3, 0.8) if on_gpu else 0.2, _logarithmic(random, 1e9, 1e10), 0.0, 1e8, cpu),
        Activity(1.0 - busy, "host_stall", pcie=_logarithmic(random, 1e8, 5e9), nic=_logarithmic(random, 1e7, 2e9), cpu=cpu, disk=reading),
    ])  # fmt: skip


def _notebook(random: Random) -> ActivityJob:
    busy = _logarithmic(random, 0.003, 0.15)
    free = random.uniform(0.0, 0.7)
    return ActivityJob([
        Activity(busy, "compute", random.uniform(0.2, 0.9), random.choice([0.0, random.uniform(0.05, 0.4)]), random.uniform(0.1, 0.6), 1e8, 0.0, 1e5, 0.05),
        Activity((1.0 - busy) * (1.0 - free), "host_stall", cpu=random.uniform(0.005, 0.08)),
        Activity((1.0 - busy) * free, "idle", cpu=0.005),
    ])  # fmt: skip


def _reserved(random: Random) -> ActivityJob:
    cpu = random.choice([0.005, random.uniform(0.0, 0.8)], p=[0.6, 0.4])  # other jobs on the host
    nic = random.choice([1e3, _logarithmic(random, 1e5, 5e9)], p=[0.6, 0.4])
    return ActivityJob([Activity(1.0, random.choice(["idle", "host_stall"]), cpu=cpu, nic=nic)])


def _solver(random: Random, *, products: bool) -> ActivityJob:
    step = _logarithmic(random, 0.05, 10.0)
    exchange = random.choice([0.0, random.uniform(0.02, 0.3)])
    return ActivityJob(
        [
            Activity(1.0 - exchange, "compute", random.uniform(0.5, 0.98), random.uniform(0.1, 0.8) if products else 0.0, random.uniform(0.4, 0.92), 1e7, 0.0, 0.0, 0.05),
            Activity(exchange, "wait", 0.1, 0.0, 0.1, 5e8, random.choice([0.0, 2e10]), random.choice([0.0, 5e9]), 0.05),
        ],
        step if step > 0.3 else float("nan"),
        _logarithmic(random, 60.0, 3600.0) if random.random() < 0.4 else float("nan"),
    )  # fmt: skip


def _rendering(random: Random) -> ActivityJob:
    frame, loading = _logarithmic(random, 1.0, 60.0), random.uniform(0.02, 0.4)
    return ActivityJob(
        [
            Activity(1.0 - loading, "compute", random.uniform(0.6, 0.99), random.choice([0.0, 0.03]), random.uniform(0.1, 0.5), 2e7, 0.0, 1e5, 0.05),
            Activity(loading, "host_stall", pcie=1e9, cpu=random.uniform(0.1, 0.5), disk=0.05),
        ],
        frame if random.random() < 0.5 else float("nan"),
    )  # fmt: skip


def _fine_tuning(random: Random) -> ActivityJob:
    return _training(random, hosts=False, gpus=random.random() < 0.5, tuning=True)


#: Kind of job -> class (None: without a class), and the function that draws such a job.
JOBS: dict[str, tuple[str | None, Callable[[Random], ActivityJob]]] = {
    "training on many hosts": ("training", lambda r: _training(r, hosts=True, gpus=True)),
    "training on a host": ("training", lambda r: _training(r, hosts=False, gpus=True)),
    "training on a GPU": ("training", lambda r: _training(r, hosts=False, gpus=False)),
    "fine-tuning": ("fine-tuning", _fine_tuning),
    "serving, busy": ("inference", lambda r: _serving(r, r.uniform(0.5, 1.0))),
    "serving, few requests": ("inference", lambda r: _serving(r, _logarithmic(r, 0.01, 0.4))),
    "serving, images": ("inference", _image_serving),
    "preparation on CPUs": ("data preparation", lambda r: _preparation(r, on_gpu=False)),
    "preparation on GPUs": ("data preparation", lambda r: _preparation(r, on_gpu=True)),
    "notebook": ("interactive", _notebook),
    "reserved, idle": ("reserved", _reserved),
    "solver": (None, lambda r: _solver(r, products=False)),
    "solver, dense": (None, lambda r: _solver(r, products=True)),
    "rendering": (None, _rendering),
}


def fingerprint_values(random: Random, job: ActivityJob) -> Floats:
    """Return the numbers of a job's fingerprint, as agents would report them."""
    time = np.array([activity.time for activity in job.activities])
    time = time / time.sum()

    def mean(name: str) -> float:
        return float(time @ [getattr(activity, name) for activity in job.activities])

    def share(state: str) -> float:
        return float(time @ [activity.state == state for activity in job.activities])

    floor, full = random.uniform(0.09, 0.2), random.uniform(0.85, 1.0)
    loads = [min(1.0, 0.5 * a.sm + 0.6 * a.tensor + 0.35 * a.memory) for a in job.activities]
    powers = [
        floor + 0.06 * (activity.state != "idle") + (full - floor) * load
        for activity, load in zip(job.activities, loads, strict=True)
    ]
    confused = random.beta(1, 12)  # short stalls count as waiting, short waits as computing
    compute, wait, stall = share("compute"), share("wait"), share("host_stall")
    wait, stall, compute = (
        wait * (1 - confused) + stall * confused,
        stall * (1 - confused),
        compute + wait * confused,
    )
    computing = [
        index for index, activity in enumerate(job.activities) if activity.state == "compute"
    ]
    result = {
        "step_seconds": job.step if random.random() < 0.8 else np.nan,
        "compute_ratio": compute, "wait_ratio": wait, "host_stall_ratio": stall,
        "checkpoint_ratio": share("checkpoint"), "idle_ratio": share("idle"),
        "compute_power_ratio": max((powers[at] for at in computing), default=np.nan),
        "wait_power_ratio": min(powers), "power_ratio": float(time @ powers),
        "utilization_ratio": min(1.0, compute ** random.uniform(0.75, 1.0) + share("wait") + share("checkpoint") * random.random()),
        "sm_ratio": mean("sm"), "tensor_ratio": mean("tensor"), "memory_bandwidth_ratio": mean("memory"),
        "pcie_bytes_per_second": mean("pcie"), "nvlink_bytes_per_second": mean("nvlink"), "nic_bytes_per_second": mean("nic"),
        "host_cpu_ratio": mean("cpu"), "disk_pressure_ratio": mean("disk"),
        "checkpoint_interval_seconds": job.interval if random.random() < 0.7 else np.nan,
    }  # fmt: skip
    if random.random() < WITHOUT_GPM:
        result.update(dict.fromkeys(_GPM, np.nan))
    return np.array([result[name] for name in NUMBERS])
